//! Tests without a socket: a client that is joined to a service over memory.
//!
//! A handler is tested by calling it. What it gets is what it gets from a client elsewhere: a real
//! [`Context`](crate::Context), real streams, deadlines, limits.
//!
//! ```
//! use std::sync::Arc;
//! use ttrpc::{Status, server::{Routes, Service}, testing};
//!
//! struct Greeter;
//! # impl Service for Greeter {
//! #     fn into_routes(self) -> Routes {
//! #         Routes::new("greeter.v1.Greeter").unary("SayHello", &Arc::new(self), |_, _, name: String| {
//! #             Box::pin(async move { Ok(format!("Hello, {name}!")) })
//! #         })
//! #     }
//! # }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Status> {
//! let client = testing::connect(Greeter);
//! let greeting: String = client.unary("greeter.v1.Greeter", "SayHello", "Ann".to_owned()).await?;
//! assert_eq!(greeting, "Hello, Ann!");
//! # Ok(()) }
//! ```
//!
//! Code that uses a client is tested with a client of a service that the test has written: a mock is an
//! implementation of the server's trait.
//!
//! With tokio's paused clock, `#[tokio::test(start_paused = true)]`, deadlines and pauses take no time and are
//! exact.

use crate::{
    Client, Connection, Server, blocking,
    client::ConnectOptions,
    server::{Peer, ServerBuilder, Service},
};

/// Bytes that the pipe carries each way before its writer waits.
const PIPE_LEN: usize = 64 << 10;

/// Returns a client of this service, with default limits and a peer of which nothing is known. Server and
/// connection live until the client and its calls are gone.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect(service: impl Service) -> Client {
    Setup::new(Server::builder().add_service(service)).connect()
}

/// Connects a client without `async` to a service over memory. The service runs while a thread waits for one of its calls, see
/// [`blocking`].
///
/// # Panics
/// If the system has no descriptors left.
pub fn connect_blocking(service: impl Service) -> blocking::Client {
    Setup::new(Server::builder().add_service(service)).connect_blocking()
}

/// A client and a server with more than a service: limits, observers, a peer.
///
/// ```no_run
/// # fn example(service: impl ttrpc::server::Service) {
/// use ttrpc::{Server, ServerConfig, server::{Credentials, Peer}, testing};
///
/// let config = ServerConfig::default().max_calls(1);
/// let root = Peer::unix(Credentials { uid: 0, gid: 0, pid: None });
/// let client = testing::Setup::new(Server::builder().add_service(service).config(config))
///     .peer(root)
///     .connect();
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is connected before `connect`"]
pub struct Setup {
    server: ServerBuilder,
    peer: Peer,
    client: ConnectOptions,
}

impl Setup {
    /// Returns a client of this server, which needs no address.
    pub fn new(server: ServerBuilder) -> Self {
        Setup { server, peer: Peer::unknown(), client: ConnectOptions::new() }
    }

    /// Sets the peer that handlers see with [`Context::peer`](crate::Context::peer).
    pub fn peer(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    /// Sets the client's limits and observers.
    pub fn client(mut self, options: ConnectOptions) -> Self {
        self.client = options;
        self
    }

    /// Connects them.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and if the builder has two services of one name.
    pub fn connect(self) -> Client {
        let Setup { server, peer, client } = self;
        let (here, there) = tokio::io::duplex(PIPE_LEN);
        let server = server.connection(Connection::new(there).with_peer(peer)).build();
        tokio::spawn(server.expect("the services have different names").serve());
        client.from_connection(Connection::new(here))
    }

    /// Connects them for code without `async`.
    ///
    /// # Panics
    /// If the builder has two services of one name, or the system has no descriptors left.
    pub fn connect_blocking(self) -> blocking::Client {
        let client = blocking::Client::make(|| Ok(self.connect()));
        client.expect("the system has descriptors left")
    }
}
