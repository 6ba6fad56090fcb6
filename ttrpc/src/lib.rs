//! ttrpc clients and servers that cannot deadlock.
//!
//! [ttrpc](https://github.com/containerd/ttrpc/blob/main/PROTOCOL.md) is containerd's RPC protocol: protobuf messages
//! in frames with a header of ten bytes, over a Unix socket, vsock or TCP. It is used where gRPC is too heavy: between
//! containerd and its shims, in sandboxes, in NRI plugins. This crate has all four kinds of calls on both sides,
//! metadata, deadlines, cancellation, and a limit on every buffer.
//!
//! # Serve and call
//!
//! `build.rs` generates clients and servers from .proto files, without protoc:
//! `ttrpc_codegen::compile_protos(&["proto/greeter.proto"], &["proto"])`. The package is `ttrpc-tokio-codegen`.
//! Include the code, implement the trait, and serve it:
//!
//! ```ignore
//! mod greeter {
//!     ttrpc::include_proto!("greeter.v1");
//! }
//! use greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
//! use ttrpc::{Client, Context, Server, Status, async_trait};
//!
//! struct MyGreeter;
//!
//! #[async_trait]
//! impl Greeter for MyGreeter {
//!     async fn say_hello(
//!         &self,
//!         _ctx: &Context,
//!         request: HelloRequest,
//!     ) -> Result<HelloReply, Status> {
//!         Ok(HelloReply { message: format!("Hello, {}!", request.name) })
//!     }
//! }
//!
//! // In the server:
//! let server = Server::builder().add_service(GreeterServer::new(MyGreeter));
//! server.bind("unix:///run/greeter.sock")?.serve().await?;
//! // In the client:
//! let greeter = GreeterClient::new(Client::connect("unix:///run/greeter.sock").await?);
//! let request = HelloRequest { name: "Ann".into() };
//! let reply = greeter.say_hello(request).timeout(Duration::from_secs(1)).await?;
//! ```
//!
//! Generated code is one line per method on top of [`Client`] and [`server::Routes`], which work without a generator
//! too:
//!
//! ```
//! use std::sync::Arc;
//! use ttrpc::{Client, ClientConfig, Server, server::{Routes, Service}};
//!
//! struct Greeter;
//!
//! impl Service for Greeter {
//!     fn into_routes(self) -> Routes {
//!         let service = Arc::new(self);
//!         Routes::new("greeter.v1.Greeter").unary("SayHello", &service, |_, _ctx, name: String| {
//!             Box::pin(async move { Ok(format!("Hello, {name}!")) })
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (here, there) = tokio::net::UnixStream::pair()?;
//! let server = Server::builder().add_service(Greeter).unix_stream(there);
//! tokio::spawn(server.serve());
//!
//! let client = Client::from_unix_stream(here, ClientConfig::default());
//! let greeting: String = client.unary("greeter.v1.Greeter", "SayHello", "Ann".to_owned()).await?;
//! assert_eq!(greeting, "Hello, Ann!");
//! # Ok(()) }
//! ```
//!
//! # Modules
//!
//! | module | for |
//! |---|---|
//! | [`client`] | making calls: how they end, what dropping one does, [options of a connection](client::ConnectOptions), interceptors |
//! | [`server`] | serving: [listeners](server::Listener), handlers, [who may connect](server::PeerPolicy), interceptors, [shutdown](server::ServerHandle) |
//! | [`blocking`], [`server::blocking`] | clients and handlers without `async` |
//! | [`interceptors`] | authorization, default deadlines, a concurrency limit, an access log |
//! | [`observer`] | metrics: each call and connection, reported exactly once |
//! | [`snapshot`] | the present state of a client or server that seems to hang |
//! | [`testing`] | tests without a socket |
//! | [`proto`] | the protocol itself, for tools that speak frames |
//!
//! [`ClientConfig`] and [`ServerConfig`] have every limit. A call fails with a [`Status`], connecting and serving with
//! an [`Error`]. [`Connection`] is a connection that the program has made itself, [`Raw`] a message that stays encoded.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `tracing` | yes | connections and calls as spans and events of the crate `tracing`, at level DEBUG; what an operator should look at, at WARN |
//!
//! # Guides
//!
//! The repository has a page for each task, and `docs/README.md` lists them:
//!
//! - `docs/guide/`: start, serving, calling, blocking code, generating code, interceptors, testing,
//!   shims, NRI plugins, and the migration from the registry's crate `ttrpc`.
//! - `docs/operate/`: systemd, security, limits, monitoring, the command line.
//! - `docs/internals/`: for maintainers.
//!
//! # Addresses
//!
//! [`Client::connect`], [`server::Listener::bind`] and all other functions with an address understand:
//!
//! | text | what it names |
//! |---|---|
//! | `unix:///run/a.sock`, `/run/a.sock`, `a.sock` | a Unix socket's file |
//! | `unix://@name`, `@name` | an abstract Unix socket; Linux alone |
//! | `vsock://CID:PORT` | a port of a virtual machine or of its host; Linux alone |
//! | `hvsock:///run/vm.sock:PORT` | a port behind the Unix socket of a hypervisor (Firecracker, Cloud Hypervisor, Dragonball). For a client, the guest's port. For a server, the host's port, to which the guest connects: the Unix socket `/run/vm.sock_PORT` |
//! | `tcp://HOST:PORT` | a TCP socket; HOST is a name, an IPv4 address, or an IPv6 address in brackets |
//!
//! - A CID, the number of a machine, is a decimal number or a name: `hypervisor` is 0, `local` (this machine)
//!   1 and `host` (from inside of a machine) 2. `any`, also `-1`, is every CID that a machine has: for servers alone.
//! - A port is a decimal number: of 32 bits for vsock and hybrid vsock, of 16 bits for TCP.
//! - The two slashes may be left out: `unix:a.sock`, `vsock:3:1024`, `tcp:localhost:80`.
//! - With them or without, what follows `unix:` is the path as it is. There is no host, so `unix://run/a.sock` is the
//!   relative path `run/a.sock`. Percent signs are part of a name and not decoded.
//! - A scheme is in lower case. Any other text with a colon before its first slash is refused with [`Error::Address`],
//!   such as `localhost:1234`, `Unix:///a.sock` or `http://host`. As a path, a mistyped scheme would become a file. A
//!   file whose name has a colon is written `./a:1.sock` or `unix:a:1.sock`, and one whose name begins with `@` is
//!   `./@name`.
//! - The name of a Unix socket has at most 107 bytes on Linux and 103 elsewhere, the `_PORT` of a server's
//!   included, and no zero byte.

// What is only traced is not used then.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, unused_imports))]

#[cfg(not(unix))]
compile_error!(
    "the crate ttrpc needs Unix sockets: it is for Linux, macOS, FreeBSD and their like"
);

/// Implements `Debug` for a type of which its name and these fields are shown: others are long, secret or the program's.
macro_rules! debug_in_short {
    ($name:ident $(<$generic:ident>)? $(, $field:ident)*) => {
        impl $(<$generic>)? std::fmt::Debug for $name $(<$generic>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct(stringify!($name));
                $(shown.field(stringify!($field), &self.$field);)*
                shown.finish_non_exhaustive()
            }
        }
    };
}

// Elsewhere there is nothing, so that this error is the only one.
#[cfg(unix)]
pub mod client;
#[cfg(unix)]
mod config;
#[cfg(unix)]
mod contain;
#[cfg(unix)]
mod error;
#[cfg(unix)]
mod extensions;
#[cfg(unix)]
pub mod interceptors;
#[cfg(unix)]
mod metadata;
#[cfg(unix)]
mod name;
#[cfg(unix)]
pub mod observer;
#[cfg(unix)]
pub mod proto;
#[cfg(unix)]
mod proxy;
#[cfg(unix)]
mod raw;
#[cfg(unix)]
pub mod server;
#[cfg(unix)]
pub mod snapshot;
#[cfg(unix)]
mod status;
#[cfg(unix)]
mod sync;
#[cfg(unix)]
pub mod testing;
#[cfg(unix)]
mod trace;
#[cfg(unix)]
mod transport;

// Last, since the documentation has implementations in this order: those for programs without async come after the others.
#[cfg(unix)]
pub mod blocking;

pub use async_trait::async_trait;
pub use prost;
pub use prost_types::{self, Any};
/// The type of [`Context::cancellation_token`].
pub use tokio_util::sync::CancellationToken;

#[cfg(unix)]
pub use crate::{
    client::Client,
    config::{ClientConfig, ServerConfig},
    error::{ConnectionError, Error},
    extensions::Extensions,
    metadata::Metadata,
    name::Name,
    raw::{Raw, RawEnd},
    server::{Context, Server},
    status::{Code, Status},
    transport::io::Connection,
};

/// Includes what `ttrpc-codegen` generated in `build.rs` for a protobuf package:
/// `mod greeter { ttrpc::include_proto!("greeter.v1"); }`.
///
/// A file without a package is included by `include_proto!("")`, an include file by its name without `.rs`.
#[macro_export]
macro_rules! include_proto {
    ("") => {
        $crate::include_proto!("_");
    };
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
