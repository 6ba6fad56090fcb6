//! What a program sees of the two logical connections between a runtime and a plugin: observers, interceptors, snapshots.

use std::{fmt, sync::Arc};

use ttrpc::{
    Client, ClientConfig, Connection,
    client::{self, ConnectOptions},
    observer::Observer,
    server::{self, ServerBuilder, ServerHandle},
    snapshot::{ClientSnapshot, ServerSnapshot},
};

use crate::mux::{LogicalSnapshot, MuxMonitor};

/// Observers and interceptors for the connections between a runtime and its plugins.
///
/// A plugin has them by [`Stub::instruments`](crate::Stub::instruments), a runtime by
/// [`UpdateContainers::instruments`](crate::runtime::UpdateContainers::instruments).
///
/// ```
/// # use ttrpc::interceptors::AccessLog;
/// # use ttrpc_nri::{Instruments, Plugin, Stub};
/// # fn example<P: Plugin>(plugin: P) -> Stub<P> {
/// Stub::new(plugin).instruments(Instruments::new().observe(AccessLog::default()))
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Instruments {
    observers: Vec<Arc<dyn Observer>>,
    served: Vec<Arc<dyn server::Interceptor>>,
    called: Vec<Arc<dyn client::Interceptor>>,
}

impl Instruments {
    /// Returns instruments without observers and interceptors.
    pub fn new() -> Self {
        Instruments::default()
    }

    /// Adds an observer, which is notified of both logical connections and of the calls on them. May be called several
    /// times.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Runs this around each call of the peer's. The first one that is added is the outermost. Its time is the
    /// handler's.
    pub fn intercept(mut self, interceptor: impl server::Interceptor) -> Self {
        self.served.push(Arc::new(interceptor));
        self
    }

    /// Runs this around each call to the peer. The first one that is added is the outermost.
    pub fn intercept_calls(mut self, interceptor: impl client::Interceptor) -> Self {
        self.called.push(Arc::new(interceptor));
        self
    }

    pub(crate) fn server(&self, server: ServerBuilder) -> ServerBuilder {
        let server = self.observers.iter().cloned().fold(server, ServerBuilder::observe);
        self.served.iter().cloned().fold(server, ServerBuilder::intercept)
    }

    pub(crate) fn client(&self, connection: Connection, config: ClientConfig) -> Client {
        let options = ConnectOptions::new().config(config);
        let options = self.observers.iter().cloned().fold(options, ConnectOptions::observe);
        let client = options.from_connection(connection);
        self.called.iter().cloned().fold(client, Client::with_interceptor)
    }
}

impl fmt::Debug for Instruments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instruments")
            .field("observers", &self.observers.len())
            .field("served", &self.served.len())
            .field("called", &self.called.len())
            .finish()
    }
}

/// The state of the connection between a runtime and a plugin at one moment, as one of them sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// The two logical connections.
    pub logical: Vec<LogicalSnapshot>,
    /// The server that the peer calls.
    pub server: ServerSnapshot,
    /// The client that calls the peer.
    pub client: ClientSnapshot,
}

/// Takes snapshots of a connection. Keeps neither the server nor the multiplexer alive.
#[derive(Clone)]
pub(crate) struct Monitor {
    pub(crate) mux: MuxMonitor,
    pub(crate) server: ServerHandle,
}

impl Monitor {
    pub(crate) fn snapshot(&self, client: &Client) -> ConnectionSnapshot {
        ConnectionSnapshot {
            logical: self.mux.snapshot(),
            server: self.server.snapshot(),
            client: client.snapshot(),
        }
    }

    /// Monitors a connection of which there is a client alone.
    #[cfg(test)]
    pub(crate) fn of_no_mux() -> Self {
        Monitor { mux: MuxMonitor::of_no_mux(), server: ttrpc::Server::builder().handle() }
    }
}
