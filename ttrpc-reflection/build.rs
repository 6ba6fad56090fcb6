//! Generates the services that the features ask for, and the descriptor set of each.

use std::{env, path::PathBuf};

fn main() -> Result<(), ttrpc_codegen::Error> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Cargo tells a build script of a feature by a variable.
    let is_on = |feature: &str| {
        let variable = format!("CARGO_FEATURE_{}", feature.to_uppercase());
        println!("cargo:rerun-if-env-changed={variable}");
        env::var_os(variable).is_some()
    };
    let has_comments = is_on("comments");
    for feature in ["reflection", "health", "debug"] {
        if is_on(feature) {
            ttrpc_codegen::configure()
                .file_descriptor_set_path(out_dir.join(format!("{feature}.bin")))
                .file_descriptor_set_source_info(has_comments)
                .compile_protos(&[format!("proto/{feature}.proto")], &["proto"])?;
        }
    }
    Ok(())
}
