//! ttrpc clients and servers that cannot deadlock.
//!
//! ttrpc is containerd's RPC protocol: frames of ten bytes and protobuf messages over a Unix socket or
//! vsock, used where gRPC is too heavy: between containerd and its shims, in sandboxes, in NRI plugins. This
//! crate speaks it from both sides, with all four kinds of calls, metadata, deadlines, cancellation,
//! and a limit on every buffer.
//!
//! Clients and servers are generated from .proto files by the crate `ttrpc-codegen`, in `build.rs`
//! and without protoc, and included with [`include_proto!`]. What is generated is one line per
//! method on top of [`Client`] and [`server::Routes`], which can be used by hand too:
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
//! # Where to read on
//!
//! - [`client`]: making calls, how they end, what happens when one is dropped.
//! - [`server`]: serving, handlers, shutdown, what a peer can cost.
//! - [`blocking`]: clients and handlers without `async`.
//! - [Addresses](#addresses), for [`Client::connect`] and [`server::Listener::bind`];
//!   [`client::ConnectOptions`] waits for a server; [`Connection`] is one that the program has already.
//! - [`testing`]: tests of handlers, and of code that uses a client, without a socket.
//! - [`ClientConfig`] and [`ServerConfig`]: every limit.
//! - [`snapshot`]: what a running client or server is waiting for; and `tracing` tells what happens:
//!   connections and calls at level DEBUG, what an operator should look at WARN.
//! - [`proto`]: the protocol itself, for tools that speak frames.
//!
//! # Addresses
//!
//! [`Client::connect`], [`server::Listener::bind`], and what else connects to or binds a text understand:
//!
//! | text | what it names |
//! |---|---|
//! | `unix:///run/a.sock`, `/run/a.sock`, `a.sock` | a Unix socket's file |
//! | `unix://@name`, `@name` | an abstract Unix socket; Linux alone |
//! | `vsock://CID:PORT` | a port of a virtual machine or of its host; Linux alone |
//! | `hvsock:///run/vm.sock:PORT` | a port behind the Unix socket of a hypervisor (Firecracker, Cloud Hypervisor, Dragonball): for a client, one of the guest; for a server, one of the host, which the guest connects to and which is the Unix socket `/run/vm.sock_PORT` |
//! | `tcp://HOST:PORT` | a TCP socket; HOST is a name, an IPv4 address, or an IPv6 address in brackets |
//!
//! - A CID, the number of a machine, is a decimal number or a name: `hypervisor` is 0, `local` (this machine)
//!   1 and `host` (from inside of a machine) 2. `any`, also `-1`, is every CID that a machine has: for servers alone.
//! - A port is a decimal number: of 32 bits for vsock and hybrid vsock, of 16 bits for TCP.
//! - The two slashes may be left out: `unix:a.sock`, `vsock:3:1024`, `tcp:localhost:80`.
//! - With them or without, what follows `unix:` is the path as it is. There is no host, so `unix://run/a.sock` is the
//!   relative path `run/a.sock`. Percent signs are part of a name and not decoded.
//! - A scheme is in lower case. What else has a colon in front of its first slash, such as `localhost:1234`,
//!   `Unix:///a.sock` or `http://host`, is refused with [`Error::Address`]: taken for a path, a mistyped scheme
//!   would become a file. A file whose name has a colon is written `./a:1.sock` or `unix:a:1.sock`, and one whose
//!   name begins with `@` is `./@name`.
//! - The name of a Unix socket has at most 107 bytes on Linux and 103 elsewhere, the `_PORT` of a server's
//!   included, and no zero byte.

// What is only traced is not used then.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, unused_imports))]

#[cfg(not(unix))]
compile_error!(
    "the crate ttrpc needs Unix sockets: it is for Linux, macOS, FreeBSD and their like"
);

// Elsewhere there is nothing, so that this error is the only one.
#[cfg(unix)]
pub mod blocking;
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
