//! Serving methods: [`Server`], and what handlers receive and return.
//!
//! ```no_run
//! # use std::{sync::Arc, time::Duration};
//! # use ttrpc::{Error, Server, server::Routes};
//! # struct Pinger;
//! # impl ttrpc::server::Service for Pinger { fn into_routes(self) -> Routes { Routes::new("p") } }
//! # async fn example() -> Result<(), Error> {
//! let server = Server::builder()
//!     .add_service(Pinger)
//!     .bind("unix:///run/pinger.sock")?
//!     .build()?;
//! let handle = server.handle();
//! tokio::spawn(async move {
//!     // … wait for a signal, then let calls finish for up to five seconds:
//!     handle.shutdown(Duration::from_secs(5)).await;
//! });
//! server.serve().await
//! # }
//! ```
//!
//! # Handlers
//!
//! Each call runs on a task of its own, so handlers may wait for each other. On a runtime of one thread, a handler is
//! first polled by its connection's task, and gets its own when it waits. A handler should not block its thread: it
//! blocks a worker of the runtime, as in every tokio program. The other calls of its connection continue on the other
//! workers. A handler that panics answers INTERNAL and harms no other call. When its call is cancelled a handler is
//! dropped, see [`Context::cancellation_token`](crate::Context::cancellation_token). Handlers without `async` are in
//! [`blocking`].
//!
//! # What a peer can cost
//!
//! Every buffer has a limit in [`ServerConfig`], which says what happens when it is reached. A server holds at most
//!
//! - [`request_bytes`](ServerConfig::request_bytes) of requests, [`inbox_bytes`](ServerConfig::inbox_bytes) of stream
//!   messages and [`reply_bytes`](ServerConfig::reply_bytes) of replies that wait;
//! - for each connection, a frame that is arriving (4 MiB) and its send queue (twice
//!   [`send_queue_bytes`](ServerConfig::send_queue_bytes));
//! - what its handlers hold.
//!
//! [`ServerConfig::memory_bound`] returns the sum.

mod accept;
pub mod blocking;
mod blocking_places;
mod builder;
mod call;
mod connection;
mod control;
mod idle;
#[cfg(all(test, shuttle))]
mod interleavings;
mod service;
mod shutdown;

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use slab::Slab;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};

pub use crate::transport::peer::{Credentials, Peer, PeerPolicy, VsockAddr};
use crate::{
    Error, ServerConfig,
    observer::Observers,
    snapshot::{Fill, ServerSnapshot},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    transport::{
        limiter::{Limiter, Load, Oversubscribe},
        lock,
    },
};
use accept::{
    accepting::{AcceptControl, Accepting},
    hook::Hook,
};
pub use accept::{
    hook::ConnectionHook,
    listener::{Acceptor, Listener},
};
pub use builder::ServerBuilder;
pub use call::{
    handler::Context,
    interceptor::{Interceptor, Next},
    stream::{StreamReceiver, StreamSender},
};
use service::services::Services;
pub use service::{
    fallback::{Fallback, FallbackCall},
    routes::{
        BidiStreamingHandler, ClientStreamingHandler, Routes, ServerStreamingHandler, Service,
        UnaryHandler,
    },
};
use shutdown::Lifecycle;
pub use shutdown::ServerHandle;

/// How long a server that ends waits for its handlers' tasks to be dropped.
const HANDLER_DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// The state that all connections of a server share.
#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    services: Services,
    policy: Option<PeerPolicy>,
    observers: Observers,
    hook: Option<Hook>,
    /// Counts the calls of all connections, with the bytes of their Requests.
    calls: Limiter,
    /// Counts the calls that were admitted over that limit, each the only one of its connection.
    reserved_calls: Limiter,
    /// Counts bytes in the inboxes of all streams.
    inboxes: Limiter,
    /// Counts bytes of replies that wait for capacity.
    replies: Limiter,
    blocking_calls: blocking_places::BlockingPermits,
    /// A permit for each connection that may be open, or at the hook. They are taken in the order in which they were
    /// asked for.
    connection_permits: Semaphore,
    /// Connections that are open or at the hook. The semaphore's own number leaves out what it has assigned to one that
    /// still waits.
    admitted_connections: AtomicUsize,
    /// Those that are open.
    connections: Mutex<Slab<Weak<call::shared::Connection>>>,
    /// Notified whenever a connection has returned its permit.
    connection_ended: Notify,
    connections_so_far: AtomicU64,
    /// The error of the first connection that has not ended well.
    failed: Mutex<Option<Error>>,
    accept_control: Arc<AcceptControl>,
    lifecycle: Arc<Lifecycle>,
}

impl Shared {
    /// Returns the load of all calls.
    fn call_load(&self) -> Load {
        let (limited, reserved) = (self.calls.load(), self.reserved_calls.load());
        Load { count: limited.count + reserved.count, cost: limited.cost + reserved.cost }
    }

    async fn no_calls(&self) {
        let none = Load::cost(usize::MAX);
        let (calls, reserved) = (self.calls.at_most(none), self.reserved_calls.at_most(none));
        tokio::join!(calls, reserved, self.blocking_calls.emptied());
    }

    /// Returns what the server is doing at this moment.
    fn snapshot(&self) -> ServerSnapshot {
        let admitted = self.admitted_connections.load(SeqCst);
        let connections: Vec<_> = lock(&self.connections)
            .iter()
            .filter_map(|(_, connection)| connection.upgrade())
            .collect();
        let mut connections: Vec<_> =
            connections.iter().map(|connection| connection.snapshot()).collect();
        connections.sort_unstable_by_key(|connection| connection.id);
        let (calls, inboxes) = (self.call_load(), self.inboxes.load());
        ServerSnapshot {
            state: self.lifecycle.snapshot(),
            calls: Fill { used: calls.count, limit: self.config.max_calls },
            request_bytes: Fill { used: calls.cost, limit: self.config.request_bytes },
            inbox_bytes: Fill { used: inboxes.cost, limit: self.config.inbox_bytes },
            max_connections: self.config.max_connections,
            hooked_connections: admitted.saturating_sub(connections.len()),
            connections,
        }
    }

    /// Lets connections answer what they have accepted until the limit, then has the rest end.
    async fn drain(&self) {
        tokio::select! {
            biased;
            () = self.no_connections() => {}
            () = self.lifecycle.limit_passed() => self.lifecycle.close(),
        }
        self.no_connections().await;
        // Every handler has been cancelled. One that blocks its thread cannot be dropped, and is
        // not waited for.
        let _ = timeout(HANDLER_DROP_TIMEOUT, self.no_calls()).await;
    }
}

/// A server that is ready to serve. Nothing runs until [`Server::serve`] is awaited, and everything
/// ends when that future is dropped.
///
/// ```no_run
/// # use std::time::Duration; use ttrpc::{Error, Server, server::Service};
/// # async fn example(greeter: impl Service, stopped: impl Future<Output = ()>) -> Result<(), Error> {
/// let server = Server::builder().add_service(greeter).bind("unix:///run/greeter.sock")?.build()?;
/// server.serve_until(stopped, Duration::from_secs(5)).await
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    owner: ServerOwner,
    listeners: Vec<Listener>,
    handed_over: Vec<accept::unserved::Unserved>,
    keep_open: bool,
}

impl Server {
    /// Returns a builder of a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns a handle by which other tasks control the server. Any number may exist.
    pub fn handle(&self) -> ServerHandle {
        self.owner.0.clone()
    }

    /// Serves until a [`ServerHandle`] shuts the server down. Without a listener, it also ends with its last
    /// connection.
    ///
    /// Dropping the future closes the server at once: listeners, connections, handlers.
    ///
    /// # Errors
    /// [`Error::Listener`] if a listener cannot be used with this runtime. [`Error::ConnectionFailed`] if the server
    /// has served one connection, without a listener and without [`keep_open`](ServerBuilder::keep_open), and that did
    /// not end between two frames. [Observers](crate::observer::Observer::connection_closed) learn how the connections
    /// of other servers end.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn serve(self) -> Result<(), Error> {
        let Server { shared: server, owner: _owner, listeners, handed_over, keep_open } = self;
        if !server.lifecycle.start() {
            return Ok(());
        }
        let serves_one = listeners.is_empty() && handed_over.len() == 1 && !keep_open;
        let mut accepting = Accepting::start(listeners, handed_over)?;
        tokio::select! {
            biased;
            () = server.lifecycle.draining() => {}
            () = server.accept(&mut accepting, keep_open) => {}
        }
        // New clients are turned away, and socket files removed, before the old ones are done.
        server.accept_control.close();
        drop(accepting);
        server.drain().await;
        let served_one = serves_one && server.connections_so_far.load(SeqCst) == 1;
        let failed = lock(&server.failed).take();
        failed.filter(|_| served_one).map_or(Ok(()), Err)
    }

    /// Serves until `signal` completes, then lets calls finish for up to `limit`.
    ///
    /// # Errors
    /// Those of [`Server::serve`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn serve_until(
        self,
        signal: impl Future<Output = ()>,
        limit: Duration,
    ) -> Result<(), Error> {
        let handle = self.handle();
        let mut serve = std::pin::pin!(self.serve());
        tokio::select! {
            result = &mut serve => return result,
            () = signal => handle.begin_shutdown(limit),
        }
        serve.await
    }
}

/// Owns a server, built or not: when it is dropped the server has ended for the holders of its handles.
#[derive(Debug, Default)]
struct ServerOwner(ServerHandle);

impl Drop for ServerOwner {
    fn drop(&mut self) {
        self.0.accept_control.close();
        self.0.lifecycle.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::{call::shared::Connection, *};
    use crate::{Extensions, proto::stream::Kind};

    /// A unary call that was read just now.
    pub(super) fn unary_call(
        connection: Arc<Connection>,
        stream_id: u32,
    ) -> Arc<call::state::Call> {
        let started = tokio::time::Instant::now();
        let head = call::state::CallHead {
            stream_id,
            service: "a.B".into(),
            method: "C".into(),
            flags: crate::proto::frame::Flags::NONE,
            data_len: 0,
            more_to_come: false,
            has_message: true,
            method_id: Some(0),
            metadata: crate::Metadata::new(),
            started,
            deadline: None,
        };
        let load =
            connection.call_limits().try_acquire(Load::one(0)).expect("few calls are in flight");
        call::state::Call::new(connection, head, load, false)
    }

    /// Starts the handler of a unary call as the receiver does.
    pub(super) fn start(call: Arc<call::state::Call>, handler: call::handler::BoxHandler) {
        let payload = crate::proto::payload::Payload::borrowed(&[]);
        let owner = call::task::CallOwner::new(call);
        owner.start(handler, Kind::Unary, None, payload).expect("it decodes");
    }

    /// A connection of a server that does not run: nothing is read or written.
    pub(super) fn idle_connection(config: ServerConfig) -> (Server, Arc<Connection>) {
        idle_connection_of(Server::builder().config(config))
    }

    /// A connection of this server, which does not run.
    pub(super) fn idle_connection_of(server: ServerBuilder) -> (Server, Arc<Connection>) {
        let server = server.keep_open().build().expect("it is kept open");
        let connection =
            Connection::new(server.shared.clone(), Peer::unknown(), Extensions::default(), 1);
        (server, Arc::new(connection))
    }
}
