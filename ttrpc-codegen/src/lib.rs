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
//! It is formatted by rustfmt, with the options in the nearest `rustfmt.toml`, where there is one.
//!
//! # Packages
//!
//! Code names the types of another package by a relative path, such as `super::types::v1::Mount`. So
//! modules of packages that import each other have to lie as the packages do. [`Builder::include_file`]
//! writes a file in which they do:
//!
//! ```no_run
//! # fn main() -> Result<(), ttrpc_codegen::Error> {
//! ttrpc_codegen::configure()
//!     .include_file("protos.rs")
//!     .compile_protos(&["proto/greeter.proto", "proto/types.proto"], &["proto"])
//! # }
//! ```
//!
//! With `mod protos { ttrpc::include_proto!("protos"); }` in the program, `GreeterClient` is
//! `protos::greeter::v1::GreeterClient`.
//!
//! All files of a package belong in one call. A second call in the same build script that would overwrite
//! what the first has generated is an error.
//!
//! # Traits
//!
//! The trait is an object, and its implementations have the attribute `#[ttrpc::async_trait]`, which boxes each
//! handler's future. With [`Builder::async_fn_in_trait`] they are plain `async fn`s, without it:
//!
//! ```ignore
//! impl Greeter for MyGreeter {
//!     async fn say_hello(
//!         &self,
//!         _ctx: &Context,
//!         request: HelloRequest,
//!     ) -> Result<HelloReply, Status> {
//!         Ok(HelloReply { message: format!("Hello, {}!", request.name) })
//!     }
//! }
//! ```
//!
//! # Names
//!
//! Names become what is usual in Rust: `GetURL` becomes the method `get_url`, `http_request` the type
//! `HttpRequest`. Keywords become raw (`r#type`). Those that cannot (`self`, `Self`, `super`, `crate`) get an
//! underscore: `self_`. So do methods of a client that has a function of that name already (`new`, `client`, `clone`,
//! `from`, `into`, `try_into`). Two names that become the same in Rust are an error, and a
//! name of underscores alone is. So is a type of one's own in the package `google.protobuf`, of which prost generates none.
//!
//! # Language
//!
//! Files are of proto2 or proto3, and parsed without protoc. Where protoc takes a file that the built-in parser does
//! not, protoc can parse instead: name it in the environment variable `PROTOC` or by [`Builder::protoc`]. Or
//! make a descriptor set elsewhere, and generate from it with [`Builder::compile_fds`].
//!
//! Files of the editions 2023 and 2024 need one of these ways. What their features say about presence, packing and
//! the encoding of messages counts. Enums are open and strings are checked, as prost does it in proto2.
//!
//! # More
//!
//! [`configure`] is for those who want more: only one side, other traits, a file descriptor set, prost's options.
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
mod defaults;
mod descriptors;
mod dialect;
mod editions;
mod error;
mod flavor;
mod format;
mod generator;
mod names;
mod output;
mod parse;
pub mod plugin;
mod protoc;
mod service;

use std::path::Path;

pub use builder::{Builder, configure};
pub use descriptors::DescriptorSet;
pub use error::Error;
pub use generator::ServiceGenerator;
pub use prost_build::Config;

/// Generates clients and servers for these .proto files, and messages for them and all that they
/// import, into `OUT_DIR`. Services of imported files are generated if the file is listed here, too.
/// `includes` are the folders in which imports are looked up.
///
/// For `build.rs`: tells cargo to run it again when one of the files changes.
///
/// # Errors
/// If a file is missing or not valid, if two names become the same in Rust, or if an earlier call of the
/// same build script would be overwritten. The error names the file, and the line where there is one.
pub fn compile_protos(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<(), Error> {
    configure().compile_protos(protos, includes)
}
