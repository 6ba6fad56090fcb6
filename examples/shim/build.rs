//! Generates runc's options. Needs no protoc.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::compile_protos(&["proto/runc.proto", "proto/legacy.proto"], &["proto"])
}
