//! Generates the examples' services. Needs no protoc.

use std::{env, path::PathBuf};

fn main() -> Result<(), ttrpc_codegen::Error> {
    // The greeter's server answers reflection from this.
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    ttrpc_codegen::configure()
        .file_descriptor_set_path(out_dir.join("greeter.bin"))
        .compile_protos(&["proto/greeter.proto"], &["proto"])
}
