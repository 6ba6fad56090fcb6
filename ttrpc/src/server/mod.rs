//! Serving methods: [`Server`], and what handlers get and give.
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
//! Each call runs on a task of its own, so handlers may wait for each other. A handler that panics
//! answers INTERNAL and harms nobody else. When its call is cancelled a handler is dropped, see
//! [`Context::cancellation_token`](crate::Context::cancellation_token).
//!
//! # What a peer can cost
//!
//! Every buffer has a limit in [`ServerConfig`], which says what happens when it is reached.
//! At most, a server holds [`request_bytes`](ServerConfig::request_bytes) of requests and
//! [`inbox_bytes`](ServerConfig::inbox_bytes) of stream messages in all, and per connection a frame
//! that is arriving (4 MiB), its send queue, and for each call in flight what its handler holds, its
//! reply above all.

mod accept;
mod backlog;
mod builder;
mod call;
mod connection;
mod context;
mod gate;
mod peer;
mod receiver;
mod routes;
mod shutdown;
mod stream;

use std::{
    future::Future,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use crate::{
    Error, ServerConfig,
    snapshot::{Fill, ServerSnapshot},
    transport::{io, lock, slab::Slab, wait_until},
};
use accept::{Accepting, Listeners};
pub use builder::ServerBuilder;
use connection::Connection;
pub use context::Context;
use gate::{Gate, Load};
pub use peer::{Peer, PeerPolicy};
use routes::Services;
pub use routes::{
    BidiStreamingHandler, ClientStreamingHandler, Routes, ServerStreamingHandler, Service,
    UnaryHandler,
};
use shutdown::Lifecycle;
pub use shutdown::ServerHandle;
pub use stream::{StreamReceiver, StreamSender};

/// How long a server that ends waits for its handlers' tasks to be dropped.
const LAST_POLL: Duration = Duration::from_secs(1);

/// What all connections of a server share.
#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    services: Services,
    /// Counts the calls of all connections, with the bytes of their Requests.
    calls: Gate,
    /// Counts bytes in the inboxes of all streams.
    inboxes: Gate,
    /// Those that are open.
    connections: Mutex<Slab<Weak<Connection>>>,
    /// Notified whenever one has ended.
    connection_ended: Notify,
    connections_so_far: AtomicU64,
    lifecycle: Lifecycle,
}

impl Shared {
    /// Starts to serve a connection, if its peer may connect.
    fn admit(self: &Arc<Self>, connection: io::Connection, policy: Option<&PeerPolicy>) {
        let peer = connection.peer;
        if !policy.is_none_or(|policy| policy.allows(peer)) {
            tracing::warn!(?peer, "the policy refuses a connection");
            return;
        }
        let id = self.connections_so_far.fetch_add(1, Relaxed) + 1;
        connection::serve(self.clone(), connection, id);
    }

    /// Waits until fewer connections than this are open.
    async fn fewer_connections(&self, than: usize) {
        wait_until(&self.connection_ended, &|| lock(&self.connections).len() < than).await;
    }

    /// Accepts connections for as long as there is a listener, or, without one, waits for the end of
    /// those that were handed over.
    async fn accept(self: &Arc<Self>, accepting: &mut Accepting, policy: Option<&PeerPolicy>) {
        if accepting.is_empty() {
            return self.fewer_connections(1).await;
        }
        let most = self.config.max_connections.max(1);
        loop {
            if lock(&self.connections).len() >= most {
                // Clients that are held up look as if the server had died, so that it is said.
                tracing::warn!(max_connections = most, "new connections wait until others end");
                self.fewer_connections(most).await;
            }
            let stream = accepting.next().await;
            self.admit(io::Connection::from_unix(stream), policy);
        }
    }

    /// What the server is doing at this moment.
    fn snapshot(&self) -> ServerSnapshot {
        let connections: Vec<_> =
            lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
        let mut connections: Vec<_> =
            connections.iter().map(|connection| connection.snapshot()).collect();
        connections.sort_by_key(|connection| connection.id);
        let (calls, inboxes) = (self.calls.load(), self.inboxes.load());
        ServerSnapshot {
            state: self.lifecycle.snapshot(),
            calls: Fill { used: calls.calls, limit: self.config.max_calls },
            request_bytes: Fill { used: calls.bytes, limit: self.config.request_bytes },
            inbox_bytes: Fill { used: inboxes.bytes, limit: self.config.inbox_bytes },
            max_connections: self.config.max_connections,
            connections,
        }
    }

    /// Lets connections answer what they have accepted until the limit, then has the rest end.
    async fn drain(&self) {
        tokio::select! {
            biased;
            () = self.fewer_connections(1) => {}
            () = self.lifecycle.limit_passed() => self.lifecycle.close(),
        }
        self.fewer_connections(1).await;
        // Every handler has been cancelled. One that blocks its thread cannot be dropped, and is
        // not waited for.
        let _ = timeout(LAST_POLL, self.calls.no_calls()).await;
    }
}

/// A server that is ready to serve. Nothing runs until [`Server::serve`] is awaited, and everything
/// ends when that future is dropped.
#[derive(Debug)]
pub struct Server {
    shared: EndsWithThis,
    listeners: Listeners,
    connections: Vec<io::Connection>,
    policy: Option<PeerPolicy>,
}

impl Server {
    /// Starts to put a server together.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// A handle by which other tasks shut the server down. Any number may exist.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle::new(self.shared.0.clone())
    }

    /// Serves until the server is shut down by a [`ServerHandle`], or, without a listener, until
    /// all connections that were handed over have ended.
    ///
    /// Dropping the future closes the server at once: listeners, connections, handlers.
    ///
    /// # Errors
    /// [`Error::Listener`] if a listener cannot be used with this runtime.
    pub async fn serve(self) -> Result<(), Error> {
        let Server { shared, listeners, connections: handed_over, policy } = self;
        let EndsWithThis(server) = &shared;
        if !server.lifecycle.start() {
            return Ok(());
        }
        let mut accepting = listeners.start()?;
        for connection in handed_over {
            server.admit(connection, policy.as_ref());
        }
        tokio::select! {
            biased;
            () = server.lifecycle.draining() => {}
            () = server.accept(&mut accepting, policy.as_ref()) => {}
        }
        // New clients are turned away, and socket files removed, before the old ones are done.
        drop(accepting);
        server.drain().await;
        Ok(())
    }

    /// Serves until `signal` completes, then lets calls finish for up to `limit`.
    ///
    /// # Errors
    /// Those of [`Server::serve`].
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

/// Marks the server as ended when it is dropped.
#[derive(Debug)]
struct EndsWithThis(Arc<Shared>);

impl Drop for EndsWithThis {
    fn drop(&mut self) {
        self.0.lifecycle.finish();
    }
}
