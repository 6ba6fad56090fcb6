//! Generates messages and service.

fn main() -> Result<(), ttrpc_codegen::Error> {
    ttrpc_codegen::compile_protos(&["../../proto/echo.proto"], &["../../proto"])
}
