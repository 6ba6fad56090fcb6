//! Generates the conformance service, and the README's.

use std::{env, path::PathBuf};

fn main() -> Result<(), ttrpc_codegen::Error> {
    // Their servers answer reflection from the descriptor sets.
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["greeter", "conformance"] {
        ttrpc_codegen::configure()
            .file_descriptor_set_path(out_dir.join(format!("{name}.bin")))
            .compile_protos(&[format!("proto/{name}.proto")], &["proto"])?;
    }
    Ok(())
}
