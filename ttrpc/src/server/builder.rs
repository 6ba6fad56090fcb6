//! Putting a server together.

use std::{
    fmt,
    os::unix::net::UnixListener,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    sync::Notify,
};

use super::{
    EndsWithThis, Lifecycle, Limiter, Listeners, Load, Overshoot, PeerPolicy, Server, Service,
    Services, Shared,
};
use crate::{
    Error, ServerConfig,
    transport::{address::BoundListener, io},
};

/// Puts a server together: services, where to listen, who may connect, limits.
///
/// Made by [`Server::builder`].
#[derive(Default)]
#[must_use = "a server serves when `serve` is awaited"]
pub struct ServerBuilder {
    services: Services,
    listeners: Vec<BoundListener>,
    connections: Vec<io::Connection>,
    policy: Option<PeerPolicy>,
    config: ServerConfig,
}

impl ServerBuilder {
    /// Serves this service too.
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.add(service.into_routes());
        self
    }

    /// Listens on `unix:///path`, `unix://@abstract`, or a path. May be called several times.
    ///
    /// The socket file of a dead server is replaced, that of a living one is not. The file is
    /// removed when the server stops to listen, or the builder is dropped.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::AddressInUse`], [`Error::NotASocket`], [`Error::Bind`].
    pub fn bind(mut self, address: &str) -> Result<Self, Error> {
        self.listeners.push(BoundListener::bind(address)?);
        Ok(self)
    }

    /// Listens on a listener that the program already has, such as one that its parent handed over
    /// as a file descriptor (`UnixListener::from(owned_fd)`). Its socket file is left alone.
    pub fn listener(mut self, listener: UnixListener) -> Self {
        self.listeners.push(BoundListener::from_listener(listener));
        self
    }

    /// Serves a stream that the program already has.
    pub fn unix_stream(mut self, stream: UnixStream) -> Self {
        self.connections.push(io::Connection::from_unix(stream));
        self
    }

    /// Serves anything that carries bytes both ways.
    pub fn io(mut self, io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        self.connections.push(io::Connection::from_io(io));
        self
    }

    /// Lets only these peers connect. Everybody may where this is not said.
    pub fn allow_peers(mut self, policy: PeerPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the limits.
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = config;
        self
    }

    /// The server, ready to serve.
    ///
    /// # Errors
    /// [`Error::DuplicateService`], and [`Error::NothingToServe`] without listener and connection.
    pub fn build(self) -> Result<Server, Error> {
        self.services.check()?;
        if self.listeners.is_empty() && self.connections.is_empty() {
            return Err(Error::NothingToServe);
        }
        let config = self.config;
        let shared = Shared {
            calls: Limiter::new(
                Load { count: config.max_calls, cost: config.request_bytes },
                Overshoot::Last,
            ),
            inboxes: Limiter::new(Load { count: 1, cost: config.inbox_bytes }, Overshoot::Last),
            services: self.services,
            connections: Mutex::default(),
            connection_ended: Notify::new(),
            connections_so_far: AtomicU64::new(0),
            lifecycle: Lifecycle::default(),
            config,
        };
        Ok(Server {
            shared: EndsWithThis(Arc::new(shared)),
            listeners: Listeners(self.listeners),
            connections: self.connections,
            policy: self.policy,
        })
    }

    /// Builds the server and serves until the future is dropped: the short way where nothing else
    /// is to be done with it.
    ///
    /// # Errors
    /// Those of [`ServerBuilder::build`] and [`Server::serve`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn serve(self) -> Result<(), Error> {
        self.build()?.serve().await
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("services", &self.services)
            .field("listeners", &self.listeners)
            .field("connections", &self.connections.len())
            .field("config", &self.config)
            .finish()
    }
}
