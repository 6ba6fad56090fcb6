//! Generates the conformance service, and the README's.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::compile_protos(&["proto/conformance.proto", "proto/greeter.proto"], &["proto"])
}
