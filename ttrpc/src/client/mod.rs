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
//! With its reply, with the server's status, or with one that the client makes:
//!
//! | code | when |
//! |---|---|
//! | DEADLINE_EXCEEDED | the deadline passed, in whatever phase the call was |
//! | UNAVAILABLE | the connection is gone; the source is a [`ConnectionError`] |
//! | RESOURCE_EXHAUSTED | the request (nothing was sent) or the reply is longer than a frame; the stream's consumer stalled; or too many calls are in flight and none ends |
//! | CANCELLED | [`StreamSender::give_up`] ended the call; or, from [`StreamSender::send`], the server has ended it |
//! | INTERNAL | the server's answer breaks the protocol or the method's types; an interceptor or a message's type panicked |
//! | FAILED_PRECONDITION | the process was forked after the client had connected, see [Fork](#fork) |
//!
//! # Order
//!
//! Messages of one stream arrive in the order in which they were sent. A call whose reply was awaited before another
//! call was made reaches the server before it. There is no order beyond that: calls in flight at the same time may be
//! written in any order, whichever was awaited first. They wait for a permit ([`ClientConfig::max_calls`]), for
//! capacity in the queue, and for their tasks to run. Each limit is first come, first served, but a later call may come
//! to the next one first. So a call that must arrive after another one is made when the other has been answered, or has
//! had an effect that can be seen.
//!
//! # Runtime
//!
//! A client's connection has two tasks, on the tokio runtime in which the client was made; I/O and time have to be
//! enabled there. [`keepalive`](ConnectOptions::keepalive), [`cancel_at_server`](ConnectOptions::cancel_at_server)
//! and [`reconnect`](ConnectOptions::reconnect) add a task each. When this runtime ends, so does the connection.
//! Calls may be awaited anywhere, and those with a timeout in any tokio runtime with time: elsewhere these panic.
//!
//! # Fork
//!
//! A child process that was forked after a client had connected has a copy of the client, over the same socket: connect
//! after the fork. What the child drops or closes leaves the parent's connection alone, and nothing is written
//! to its socket from the child. The child must not use the parent's tokio runtime, whose threads it does not have
//! and whose poller it shares. A call with a copy of the client fails there with FAILED_PRECONDITION, whose source is
//! [`ConnectionError::Forked`]. If other calls were in flight at the fork, it may wait for its deadline in place of that, and so do
//! streams that were open. [`blocking::Client`](crate::blocking::Client) refuses all of them.
//!
//! # Cancel safety
//!
//! Dropping a call cancels it. If its Request has not begun to be written it never is. ttrpc has no frame that cancels.
//! So the server finishes what it has begun, and its answer is dropped here, unless the client
//! [tells it](ConnectOptions::cancel_at_server).

/// Declares the methods of a client that make calls of a known kind, by its method `call`.
macro_rules! call_methods {
    () => {
        /// Calls a unary method. Generated clients call this.
        pub fn unary<Req, Resp>(
            &self,
            service: impl Into<Name>,
            method: impl Into<Name>,
            request: Req,
        ) -> UnaryCall<Req, Resp> {
            self.call(Kind::Unary, service.into(), method.into(), Some(request))
        }

        /// Calls a method that returns a stream. Generated clients call this.
        pub fn server_streaming<Req, Resp>(
            &self,
            service: impl Into<Name>,
            method: impl Into<Name>,
            request: Req,
        ) -> ServerStreamingCall<Req, Resp> {
            self.call(Kind::ServerStreaming, service.into(), method.into(), Some(request))
        }

        /// Calls a method that takes a stream. Generated clients call this.
        pub fn client_streaming<Req, Resp>(
            &self,
            service: impl Into<Name>,
            method: impl Into<Name>,
        ) -> ClientStreamingCall<Req, Resp> {
            self.call(Kind::ClientStreaming, service.into(), method.into(), None)
        }

        /// Calls a method that takes and returns a stream. Generated clients call this.
        pub fn bidi_streaming<Req, Resp>(
            &self,
            service: impl Into<Name>,
            method: impl Into<Name>,
        ) -> BidiStreamingCall<Req, Resp> {
            self.call(Kind::Bidirectional, service.into(), method.into(), None)
        }
    };
}
pub(crate) use call_methods;

mod call;
mod connect;
mod connection;
mod future;
mod intercept;
mod meta;
mod policy;
mod reconnect;

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
};

use self::{
    call::PendingCall,
    meta::{CallHead, CallOptions, MethodKind},
    reconnect::Link,
};
pub use self::{
    call::stream::{RawReceiver, RawReply, Reply, StreamReceiver, StreamSender},
    connect::ConnectOptions,
    connection::upkeep::Keepalive,
    future::{
        AnyKind, BidiStreaming, BidiStreamingCall, Call, CallKind, ClientStreaming,
        ClientStreamingCall, RawCall, ServerStreaming, ServerStreamingCall, Unary, UnaryCall,
    },
    intercept::{Answer, Interceptor, Next, OutgoingCall},
    policy::{CallDefaults, DefaultsError, MethodDefaults, Retry, RetryBudget},
    reconnect::{
        Backoff,
        state::{ClientState, StateWatch},
    },
};
use crate::{
    ClientConfig, Connection, ConnectionError, Error, Name, Raw,
    proto::{frame::Flags, stream::Kind},
    snapshot::ClientSnapshot,
};

/// One connection to a server, shared by all clones and all calls.
///
/// ```no_run
/// # use std::time::Duration; use ttrpc::Client;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("unix:///run/greeter.sock").await?;
/// // A generated client wraps it, `GreeterClient::new(client)`. Without one:
/// let call = client.unary("greeter.v1.Greeter", "SayHello", "Ann".to_owned());
/// let greeting: String = call.timeout(Duration::from_secs(1)).await?;
/// # Ok(()) }
/// ```
///
/// Clones are cheap. The connection lives until the last clone and the last call are gone; its tasks
/// end with it. When it is lost, [`Client::closed`] says why; a client made with
/// [`ConnectOptions::reconnect`] has one connection after another.
#[derive(Clone)]
pub struct Client {
    link: Link,
    /// The options of each call that this clone makes.
    options: CallOptions,
}

impl Client {
    /// Connects to a server, once. [`ConnectOptions`] waits for one that is not there yet.
    ///
    /// An address, in short ([in full](crate#addresses)):
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
    /// A Unix socket whose backlog is full refuses at once, with EAGAIN ([`io::ErrorKind::WouldBlock`](std::io::ErrorKind);
    /// connect(2)): its server is alive, and too busy or stuck. [`ConnectOptions::retry_for`] waits until it has capacity.
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

    /// Makes a client of a connection that the program already has.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_connection(connection: impl Into<Connection>, config: ClientConfig) -> Self {
        ConnectOptions::new().config(config).from_connection(connection)
    }

    /// Makes a client of a Unix stream that the program already has.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_unix_stream(stream: UnixStream, config: ClientConfig) -> Self {
        Client::from_connection(stream, config)
    }

    /// Makes a client over anything that carries bytes both ways.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_io(io: impl AsyncRead + AsyncWrite + Send + 'static, config: ClientConfig) -> Self {
        Client::from_connection(Connection::new(io), config)
    }

    fn over(link: Link) -> Self {
        Client { link, options: CallOptions::default() }
    }

    /// Sets the timeout of each call that this client makes from now on, unless the call sets its own.
    ///
    /// It is the same as [`Call::timeout`]: for calls with streams, the time of the whole stream.
    ///
    /// Other clones of the client are as they were; all share the connection.
    ///
    /// ```
    /// # use ttrpc::Client; use std::time::Duration;
    /// # fn example(client: Client) {
    /// let second = Duration::from_secs(1);
    /// let impatient = client.clone().with_timeout(second).with_metadata("user", "ann");
    /// # }
    /// ```
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        self.with_options(|options| options.timeout = Some(timeout))
    }

    /// Adds a pair of metadata to each call that this client makes from now on, before the call's own.
    ///
    /// Other clones of the client are as they were; all share the connection.
    #[must_use]
    pub fn with_metadata(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with_options(|options| options.metadata_mut().append(key, value))
    }

    /// Sets whether calls that this client makes from now on wait for a connection, as [`Call::wait_for_ready`] does. A
    /// call's own setting comes first.
    ///
    /// Other clones of the client are as they were.
    #[must_use]
    pub fn with_wait_for_ready(self, waits: bool) -> Self {
        self.with_options(|options| options.waits_for_ready = waits)
    }

    /// Runs this around each call that this client makes from now on, inside of those that were added before.
    ///
    /// Other clones of the client are as they were; all share the connection.
    #[must_use]
    pub fn with_interceptor(self, interceptor: impl Interceptor) -> Self {
        self.with_options(|options| options.policies_mut().interceptors.push(Arc::new(interceptor)))
    }

    fn with_options(mut self, set: impl FnOnce(&mut CallOptions)) -> Self {
        set(&mut self.options);
        self
    }

    call_methods!();

    /// Makes a call of any kind from a Request, for programs such as proxies that do not know the kind.
    ///
    /// The flags of a Request say what the caller is about to send:
    ///
    /// - [`Flags::NONE`]: a unary call.
    /// - [`Flags::REMOTE_CLOSED`]: one request, which asks for a stream of replies.
    /// - [`Flags::REMOTE_OPEN`]: a stream of requests, whose first message is the payload if that is not empty.
    ///
    /// The server decides whether the last two get one reply or a stream of them. A [`RawReceiver`] tells which.
    pub fn raw(
        &self,
        service: impl Into<Name>,
        method: impl Into<Name>,
        flags: Flags,
        payload: Raw,
    ) -> RawCall {
        self.call(MethodKind::raw(flags), service.into(), method.into(), Some(payload))
    }

    pub(crate) fn call<K, Req, Resp>(
        &self,
        kind: impl Into<MethodKind>,
        service: Name,
        method: Name,
        request: Option<Req>,
    ) -> Call<K, Req, Resp> {
        let (kind, options) = (kind.into(), self.options.clone());
        let head = CallHead { kind, service, method, options };
        Call::new(self.link.clone(), PendingCall { head, request })
    }

    /// Returns the state of the connection.
    pub fn state(&self) -> ClientState {
        self.link.state()
    }

    /// Follows the state of the connection.
    ///
    /// ```
    /// # use ttrpc::Client;
    /// async fn log_states(client: &Client) {
    ///     let mut states = client.watch_state();
    ///     while let Some(state) = states.changed().await {
    ///         println!("the agent's connection: {state}");
    ///     }
    /// }
    /// ```
    pub fn watch_state(&self) -> StateWatch {
        StateWatch(self.link.watch())
    }

    /// Waits for the connection's end and says why it ended. A client that reconnects has ended when it was closed or has
    /// given up.
    ///
    /// Cancel safe.
    pub async fn closed(&self) -> ConnectionError {
        self.link.closed().await
    }

    /// Returns why the connection ended, if it has, as [`Client::closed`] does.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.link.close_reason()
    }

    /// Writes everything that is queued, and ends the connection.
    ///
    /// Queued are messages whose `send` has returned, requests of calls that have been made, and the ends of streams
    /// whose senders were dropped. Without this, what is queued when the last client and the last call are dropped is
    /// lost.
    ///
    /// Later calls fail with UNAVAILABLE at once, pending ones when the connection ends. So first await the calls whose
    /// answers you need. A server that does not read blocks this for ever: give it a timeout where that can happen.
    ///
    /// When it returns, the writer is shut down, too: a program may end its runtime. A stream that wraps another
    /// one (TLS) has up to 100 ms for what it says at its end.
    ///
    /// Cancel safe: dropped before all is written, it leaves the connection open, for what is pending.
    pub async fn shutdown(&self) {
        let Some(tasks) = self.link.connection(true) else { return };
        let connection = &tasks.connection;
        if !connection.origin.is_here() {
            return;
        }
        // Later calls are refused, and those that wait for a permit.
        connection.calls.close();
        connection.queue.flushed().await;
        tasks.close(ConnectionError::ClosedLocally);
        connection.sender_ended.wait().await;
    }

    /// Ends the connection now: pending calls fail with UNAVAILABLE, later ones too. What is queued and
    /// not written is lost; [`Client::shutdown`] lets it leave.
    pub fn close(&self) {
        if let Some(tasks) = self.link.connection(true) {
            tasks.close(ConnectionError::ClosedLocally);
        }
    }

    /// Returns what the connection and its calls are waiting for at this moment. It takes a few locks one after
    /// another and may be made under load.
    pub fn snapshot(&self) -> ClientSnapshot {
        self.link.snapshot()
    }

    /// Returns the number of calls that have not ended, from the moment when their Request is queued.
    pub fn calls_in_flight(&self) -> usize {
        self.link.connection(false).map_or(0, |tasks| tasks.connection.streams_open())
    }
}

/// Prints no payloads and no metadata, which may be long and secret; [`Client::snapshot`] has more.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("calls_in_flight", &self.calls_in_flight())
            .field("close_reason", &self.close_reason())
            .finish_non_exhaustive()
    }
}
