//! Generates the greeter.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::configure()
        .default_bodies(true)
        .compile_protos(&["../proto/greeter.proto"], &["../proto"])
}
