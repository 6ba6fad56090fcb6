//! Calling methods: [`Client`] and the calls that it makes.
//!
//! Generated clients wrap a [`Client`]. A call does nothing until it is awaited:
//!
//! ```no_run
//! # use ttrpc::{Client, Status}; use std::time::Duration;
//! # async fn example(client: Client) -> Result<(), Status> {
//! let call = client.unary::<(), ()>("greeter.v1.Greeter", "Ping", ());
//! call.timeout(Duration::from_secs(1)).metadata("user", "ann").await?;
//! # Ok(()) }
//! ```
//!
//! # How a call ends
//!
//! With its reply, with the status that the server gave, or with one made here:
//!
//! | code | when |
//! |---|---|
//! | DEADLINE_EXCEEDED | the deadline passed, in whatever phase the call was |
//! | UNAVAILABLE | the connection is gone; the source is a [`ConnectionError`] |
//! | RESOURCE_EXHAUSTED | the request is longer than a frame can be (nothing was sent), the reply was, the stream's consumer stood still, or too many calls are in flight and none ends |
//! | INTERNAL | the server's answer is not what the protocol or the method's types allow |
//!
//! # Order
//!
//! Messages of one stream arrive in the order in which they were sent. A call whose reply was awaited
//! before another call was made reaches the server before it. There is no order beyond that: calls that
//! are under way at the same time may be written in any order, whichever was awaited first. Their
//! requests wait for room in the queue and for their tasks to run. So a call that must arrive behind
//! another one is made when the other has been answered, or has had an effect that can be seen.
//!
//! # Runtime
//!
//! A client's connection has two tasks, on the tokio runtime in which the client was made; I/O and time
//! have to be enabled there. When this runtime ends, so does the connection. Calls may be awaited
//! anywhere, and those with a timeout in any tokio runtime with time: elsewhere these panic.
//!
//! # Cancel safety
//!
//! A call that is dropped is given up. If its Request has not begun to be written it never is.
//! ttrpc has no frame that cancels: the server finishes what it has begun, and what it answers is
//! dropped here.

mod call;
mod connect;
mod connection;
mod options;
mod receiver;
mod request;
mod state;
mod stream;
mod unary;

use std::{fmt, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use crate::{ClientConfig, Connection, ConnectionError, Error, snapshot::ClientSnapshot};
pub use connect::ConnectOptions;
use connection::ConnectionOwner;
pub use stream::{
    BidiStreamingCall, ClientStreamingCall, Reply, ServerStreamingCall, StreamReceiver,
    StreamSender,
};
pub use unary::{UnaryCall, UnaryFuture};

/// One connection to a server, shared by all clones and all calls.
///
/// Clones are cheap. The connection lives as long as a clone or a call does; it has two tasks,
/// which end with it. It does not reconnect: when it is lost, [`Client::closed`] says why.
#[derive(Clone)]
pub struct Client {
    connection: Arc<ConnectionOwner>,
}

impl Client {
    /// Connects to a server, once. [`ConnectOptions`] waits for one that is not there yet.
    ///
    /// - `unix:///path`, or a path; `unix://@name`, an abstract name, on Linux.
    /// - `vsock://CID:PORT`: a virtual machine by its context id, `host` (from inside of one) or
    ///   `local` (this machine). Linux alone.
    /// - `hvsock:///path:PORT`: a port of a virtual machine behind the Unix socket of its hypervisor
    ///   (Firecracker, Cloud Hypervisor, Dragonball).
    /// - `tcp://HOST:PORT`, with TCP_NODELAY.
    ///
    /// # Errors
    /// [`Error::Address`] and [`Error::Connect`]; for `hvsock://` also [`Error::HandshakeRefused`],
    /// [`Error::HandshakeAnswer`] and, after 10 s, [`Error::HandshakeTimeout`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(address: &str) -> Result<Self, Error> {
        ConnectOptions::new().connect(address).await
    }

    /// Connects with limits of your own.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect_with(address: &str, config: ClientConfig) -> Result<Self, Error> {
        ConnectOptions::new().config(config).connect(address).await
    }

    /// Uses a connection that the program already has.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_connection(connection: impl Into<Connection>, config: ClientConfig) -> Self {
        Client { connection: ConnectionOwner::spawn(connection.into(), config) }
    }

    /// Uses a stream that the program already has.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_unix_stream(stream: UnixStream, config: ClientConfig) -> Self {
        Client::from_connection(stream, config)
    }

    /// Speaks ttrpc over anything that carries bytes both ways.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_io(io: impl AsyncRead + AsyncWrite + Send + 'static, config: ClientConfig) -> Self {
        Client::from_connection(Connection::new(io), config)
    }

    /// Calls a unary method. Generated clients call this.
    pub fn unary<Req, Resp>(
        &self,
        service: &'static str,
        method: &'static str,
        request: Req,
    ) -> UnaryCall<Req, Resp> {
        UnaryCall::new(self.connection.clone(), service, method, request)
    }

    /// Calls a method that answers with a stream. Generated clients call this.
    pub fn server_streaming<Req, Resp>(
        &self,
        service: &'static str,
        method: &'static str,
        request: Req,
    ) -> ServerStreamingCall<Req, Resp> {
        ServerStreamingCall::new(self.connection.clone(), service, method, request)
    }

    /// Calls a method that takes a stream. Generated clients call this.
    pub fn client_streaming<Req, Resp>(
        &self,
        service: &'static str,
        method: &'static str,
    ) -> ClientStreamingCall<Req, Resp> {
        ClientStreamingCall::new(self.connection.clone(), service, method)
    }

    /// Calls a method that takes and gives a stream. Generated clients call this.
    pub fn bidi_streaming<Req, Resp>(
        &self,
        service: &'static str,
        method: &'static str,
    ) -> BidiStreamingCall<Req, Resp> {
        BidiStreamingCall::new(self.connection.clone(), service, method)
    }

    /// Waits for the connection's end and says why it ended.
    ///
    /// Cancel safe.
    pub async fn closed(&self) -> ConnectionError {
        self.connection.connection().closed().await
    }

    /// Why the connection ended, if it has.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.connection.connection().close_reason()
    }

    /// Ends the connection now: pending calls fail with UNAVAILABLE, later ones too.
    pub fn close(&self) {
        self.connection.close(ConnectionError::ClosedLocally);
    }

    /// What the connection and its calls are waiting for at this moment. It takes a few locks one after
    /// another and may be made under load.
    pub fn snapshot(&self) -> ClientSnapshot {
        self.connection.connection().snapshot()
    }

    /// Calls whose Request is on its way to the server or was sent, and that have not ended.
    pub fn calls_in_flight(&self) -> usize {
        self.connection.connection().streams_open()
    }
}

/// Without what calls say, which may be long and secret; [`Client::snapshot`] tells more.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("calls_in_flight", &self.calls_in_flight())
            .field("close_reason", &self.close_reason())
            .finish_non_exhaustive()
    }
}
