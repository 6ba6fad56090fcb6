//! Generates the examples' services. Needs no protoc.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::compile_protos(
        &["proto/greeter.proto", "proto/events.proto", "proto/tasks.proto"],
        &["proto"],
    )
}
