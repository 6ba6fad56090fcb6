//! Generates ttrpc clients and servers from .proto files, in `build.rs` and without protoc.
//!
//! ```no_run
//! fn main() -> Result<(), ttrpc_codegen::Error> {
//!     ttrpc_codegen::compile_protos(&["proto/greeter.proto"], &["proto"])
//! }
//! ```
//!
//! Each protobuf package becomes a file in `OUT_DIR`, to be included where the program wants it with
//! `ttrpc::include_proto!("greeter.v1")`. It holds the package's messages, as prost makes them, and for
//! each service a trait to implement (`Greeter`), a server (`GreeterServer`) and a client
//! (`GreeterClient`). The generated code names `ttrpc` alone: a program needs no dependency on prost.
//!
//! [`configure`] is for those who want more: only one side, a file descriptor set, prost's options.
//! [`ServiceGenerator`] is for those with a prost-build set-up of their own:
//!
//! ```no_run
//! # fn example() -> std::io::Result<()> {
//! prost_build::Config::new()
//!     .service_generator(Box::new(ttrpc_codegen::ServiceGenerator::new()))
//!     .compile_protos(&["proto/greeter.proto"], &["proto"])
//! # }
//! ```
//!
//! The program `protoc-gen-ttrpc-rust` is the same generator for those who use protoc:
//! `protoc --ttrpc-rust_out=src/generated -I proto proto/greeter.proto`.

mod builder;
mod check;
mod comments;
mod error;
mod generator;
pub mod plugin;

use std::path::Path;

pub use builder::{Builder, configure};
pub use error::Error;
pub use generator::ServiceGenerator;

/// Generates clients and servers for these .proto files, and messages for them and all that they
/// import, into `OUT_DIR`. `includes` are the folders in which imports are looked up.
///
/// For `build.rs`: tells cargo to run it again when one of the files changes.
///
/// # Errors
/// With a sentence that names the file, and the line where there is one, if a file is missing or
/// not valid, or if two names become the same in Rust.
pub fn compile_protos(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<(), Error> {
    configure().compile_protos(protos, includes)
}
