//! Generates the conformance service, the README's, and those with odd names.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::compile_protos(&["proto/conformance.proto", "proto/greeter.proto"], &["proto"])?;
    ttrpc_codegen::configure()
        .default_bodies(true)
        .runtime_path("crate::runtime")
        .include_file("names.rs")
        .compile_protos(&["names/odd.proto", "names/odd2.proto", "names/none.proto"], &["proto"])
}
