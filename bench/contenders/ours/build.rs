//! Generates messages and service.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::configure()
        .blocking_client(true)
        .compile_protos(&["../../proto/echo.proto"], &["../../proto"])
}
