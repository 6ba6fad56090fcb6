//! Generates the conformance service, the README's, and those with odd names.

use std::{env, path::PathBuf};

fn main() -> Result<(), ttrpc_codegen::Error> {
    // The servers of these answer reflection from the descriptor sets.
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["greeter", "conformance", "store"] {
        ttrpc_codegen::configure()
            .blocking_client(true)
            .blocking_server(true)
            .file_descriptor_set_path(out_dir.join(format!("{name}.bin")))
            .compile_protos(&[format!("proto/{name}.proto")], &["proto"])?;
    }
    // Tests that are about one method write one.
    let default_bodies = out_dir.join("default_bodies");
    std::fs::create_dir_all(&default_bodies).expect("OUT_DIR can be written to");
    ttrpc_codegen::configure()
        .default_bodies(true)
        .blocking_client(true)
        .blocking_server(true)
        .out_dir(default_bodies)
        .compile_protos(&["proto/greeter.proto", "proto/keyprovider.proto"], &["proto"])?;
    // The service of the README's programs has one method.
    let readme = out_dir.join("readme");
    std::fs::create_dir_all(&readme).expect("OUT_DIR can be written to");
    ttrpc_codegen::configure()
        .out_dir(readme)
        .compile_protos(&["proto/readme/greeter.proto"], &["proto/readme"])?;
    let in_trait = out_dir.join("async_fn_in_trait");
    std::fs::create_dir_all(&in_trait).expect("OUT_DIR can be written to");
    ttrpc_codegen::configure()
        .async_fn_in_trait(true)
        .out_dir(&in_trait)
        .compile_protos(&["proto/greeter.proto"], &["proto"])?;
    ttrpc_codegen::configure()
        .async_fn_in_trait(true)
        .default_bodies(true)
        .runtime_path("crate::runtime")
        .out_dir(in_trait)
        .compile_protos(&["proto/names/odd.proto", "proto/names/none.proto"], &["proto"])?;
    ttrpc_codegen::configure()
        .default_bodies(true)
        .blocking_client(true)
        .blocking_server(true)
        .runtime_path("crate::runtime")
        .include_file("names.rs")
        .compile_protos(
            &["odd", "odd2", "none", "std", "prost", "bead"]
                .map(|name| format!("names/{name}.proto")),
            &["proto"],
        )
}
