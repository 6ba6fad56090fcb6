//! Generates NRI's protocol. Needs no protoc.

use std::{env, path::PathBuf};

fn main() -> Result<(), ttrpc_codegen::Error> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    ttrpc_codegen::configure()
        .async_fn_in_trait(true)
        .file_descriptor_set_path(out_dir.join("nri.bin"))
        .compile_protos(&["proto/nri.proto"], &["proto"])
}
