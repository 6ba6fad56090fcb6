//! Generates messages and service.

use std::{env, fs, path::Path};

use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

fn main() {
    println!("cargo:rerun-if-changed=../../proto/echo.proto");
    let out_dir = env::var("OUT_DIR").expect("cargo sets it");
    Codegen::new()
        .out_dir(&out_dir)
        .input("../../proto/echo.proto")
        .include("../../proto")
        .rust_protobuf()
        .customize(Customize { async_all: true, gen_mod: true, ..Default::default() })
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(true))
        .run()
        .expect("the file compiles");
    strip_inner_attributes(&Path::new(&out_dir).join("mod.rs"));
}

/// What is generated starts with an inner attribute, and a file that has one cannot be included.
fn strip_inner_attributes(path: &Path) {
    let text = fs::read_to_string(path).expect("it was generated");
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("#!")).collect();
    fs::write(path, lines.join("\n")).expect("it was generated");
}
