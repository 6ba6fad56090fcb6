//! Generates the bindings of the crate `ttrpc` with its own code generator, which needs no protoc: the asynchronous ones
//! for the whole service, and the blocking ones for its unary methods.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use ttrpc_codegen::{Codegen, Customize, ProtobufCustomize};

const PROTOS: &str = "../../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTOS}/conformance.proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    generate(Path::new(PROTOS), &out.join("asynchronous"), true)?;
    let unary = out.join("unary");
    fs::create_dir_all(&unary)?;
    let text = fs::read_to_string(Path::new(PROTOS).join("conformance.proto"))?;
    fs::write(unary.join("conformance.proto"), unary_view(&text))?;
    generate(&unary, &out.join("blocking"), false)
}

/// Leaves out the streaming methods, for which the blocking side has no bindings.
fn unary_view(proto: &str) -> String {
    let streaming =
        |line: &&str| line.trim_start().starts_with("rpc ") && line.contains("(stream ");
    proto.lines().filter(|line| !streaming(line)).collect::<Vec<_>>().join("\n")
}

fn generate(protos: &Path, out: &Path, async_all: bool) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(out)?;
    Codegen::new()
        .out_dir(out)
        .input(protos.join("conformance.proto"))
        .include(protos)
        .rust_protobuf()
        .customize(Customize { async_all, ..Default::default() })
        .rust_protobuf_customize(ProtobufCustomize::default().gen_mod_rs(false))
        .run()?;
    for name in ["conformance.rs", "conformance_ttrpc.rs"] {
        // The generated files start with inner attributes and documentation, which `include!` does not take.
        let text = fs::read_to_string(out.join(name))?;
        let outer = |line: &&str| !line.starts_with("#![") && !line.starts_with("//!");
        fs::write(out.join(name), text.lines().filter(outer).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}
