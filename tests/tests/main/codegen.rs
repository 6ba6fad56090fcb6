//! The snippets of docs/guide/codegen.md, compiled. Cargo would run them as a build script.
#![allow(dead_code, reason = "a build script is run by cargo")]

use super::guide::{blocks, words};

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::compile_protos(&["proto/greeter.proto"], &["proto"])
}

fn several_packages() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::configure()
        .include_file("protos.rs")
        .compile_protos(&["proto/greeter.proto", "proto/types.proto"], &["proto"])
}

fn options() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::configure()
        .server(false) // Clients only.
        .blocking_client(true) // Clients without async, too.
        .prost(|config| {
            config.bytes(["."]); // Long fields of bytes are not copied.
        })
        .file_descriptor_set_path("greeter.bin") // For reflection.
        .compile_protos(&["proto/greeter.proto"], &["proto"])
}

fn with_protoc() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::configure()
        .protoc("/usr/bin/protoc")
        .compile_protos(&["proto/greeter.proto"], &["proto"])
}

fn from_a_set() -> Result<(), Box<dyn std::error::Error>> {
    ttrpc_codegen::configure().compile_fds(std::fs::read("greeter.bin")?)?;
    Ok(())
}

fn with_prost_build() -> std::io::Result<()> {
    ttrpc_codegen::Config::new()
        .service_generator(Box::new(ttrpc_codegen::ServiceGenerator::new()))
        .compile_protos(&["proto/greeter.proto"], &["proto"])
}

#[test]
fn every_snippet_of_the_page_is_compiled() {
    let compiled = words(include_str!("codegen.rs"));
    let snippets = blocks(&[include_str!("../../../docs/guide/codegen.md")], "rust");
    assert!(snippets.len() > 5);
    for snippet in snippets {
        assert!(compiled.contains(&words(snippet)), "not compiled by this test:\n{snippet}");
    }
}
