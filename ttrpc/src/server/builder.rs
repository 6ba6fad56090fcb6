//! Putting a server together.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    sync::{Notify, Semaphore},
};

use crate::server::{
    ConnectionHook, Fallback, Hook, Interceptor, Limiter, Listener, Load, Oversubscribe,
    PeerPolicy, Server, ServerHandle, ServerOwner, Service, Services, Shared,
    accept::unserved::Unserved, blocking_places::BlockingPermits,
};
use crate::{
    Connection, Error, ServerConfig,
    contain::Contained,
    observer::{Observer, Observers},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize},
    },
};

/// Builds a server: services, where to listen, who may connect, limits.
///
/// [`Server::builder`] returns one.
///
/// ```no_run
/// # use ttrpc::{Error, Server, ServerConfig, server::{PeerPolicy, Service}};
/// # async fn example(greeter: impl Service) -> Result<(), Error> {
/// Server::builder()
///     .add_service(greeter)
///     .allow_peers(PeerPolicy::same_user())
///     .config(ServerConfig::default().max_connections(100))
///     .bind("unix:///run/greeter.sock")?
///     .serve()
///     .await
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a server serves when `serve` is awaited"]
pub struct ServerBuilder {
    services: Services,
    listeners: Vec<Listener>,
    handed_over: Vec<Unserved>,
    keep_open: bool,
    policy: Option<PeerPolicy>,
    observers: Observers,
    hook: Option<Hook>,
    config: ServerConfig,
    owner: ServerOwner,
}

impl ServerBuilder {
    /// Returns a handle of the server that will be built.
    ///
    /// It is for a service that shuts its server down, adds connections to it or shows its snapshot. What is
    /// asked of it before the server is built takes effect when the server starts. If the server is never built,
    /// the handle's server has ended.
    ///
    /// ```
    /// # use ttrpc::{Server, server::ServerHandle};
    /// # struct Admin { server: ServerHandle }
    /// # impl ttrpc::server::Service for Admin {
    /// #     fn into_routes(self) -> ttrpc::server::Routes { ttrpc::server::Routes::new("admin") }
    /// # }
    /// let builder = Server::builder();
    /// let admin = Admin { server: builder.handle() };
    /// let builder = builder.add_service(admin);
    /// ```
    pub fn handle(&self) -> ServerHandle {
        self.owner.0.clone()
    }

    /// Adds a service. May be called several times; [`build`](ServerBuilder::build) refuses two of one name.
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.add(service.into_routes());
        self
    }

    /// Handles every call that no service takes, instead of answering UNIMPLEMENTED.
    ///
    /// These are the methods of an unknown service, and an unknown method of a known one. The last fallback that
    /// is set counts.
    pub fn fallback(mut self, fallback: impl Fallback) -> Self {
        self.services.set_fallback(fallback);
        self
    }

    /// Binds an [address](crate#addresses) and listens on it. May be called several times.
    ///
    /// An address is `unix:///path`, `unix://@abstract`, a path, `vsock://CID:PORT`, `hvsock:///path:PORT` or
    /// `tcp://HOST:PORT`, as [`Listener::bind`] describes them.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::AddressInUse`], [`Error::NotASocket`], [`Error::Bind`].
    pub fn bind(self, address: &str) -> Result<Self, Error> {
        Ok(self.listener(Listener::bind(address)?))
    }

    /// Accepts connections from a listener that the program already has. May be called several times.
    ///
    /// It is a [`Listener`], one of the standard library or of tokio, or a descriptor, such as the program's
    /// parent passed on. A socket file that was not bound by [`Listener::bind`] is left alone.
    pub fn listener(mut self, listener: impl Into<Listener>) -> Self {
        self.listeners.push(listener.into());
        self
    }

    /// Serves a connection that the program already has, with what it knows of the peer. May be called
    /// several times.
    pub fn connection(mut self, connection: impl Into<Connection>) -> Self {
        self.handed_over.push(Unserved::new(connection.into()));
        self
    }

    /// Serves a Unix stream that the program already has.
    pub fn unix_stream(self, stream: UnixStream) -> Self {
        self.connection(stream)
    }

    /// Serves anything that carries bytes both ways.
    pub fn io(self, io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        self.connection(Connection::new(io))
    }

    /// Keeps serving while there is neither a listener nor a connection, until the server is shut down.
    ///
    /// It is for a server that gets them from its [`ServerHandle`](super::ServerHandle).
    pub fn keep_open(mut self) -> Self {
        self.keep_open = true;
        self
    }

    /// Admits only these peers. Without this, every peer may connect.
    pub fn allow_peers(mut self, policy: PeerPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Runs this around each call, of all services and of the fallback. The first one that is added is the
    /// outermost. May be called several times.
    pub fn intercept(mut self, interceptor: impl Interceptor) -> Self {
        self.services.intercept(interceptor);
        self
    }

    /// Runs a hook on each connection before its first frame, after [`allow_peers`](ServerBuilder::allow_peers).
    ///
    /// A connection with which it is not done after `limit` is refused. Of several hooks, the last one counts.
    pub fn on_connection(mut self, hook: impl ConnectionHook, limit: Duration) -> Self {
        self.hook = Some(Hook { hook: Contained::new(Box::new(hook)), limit });
        self
    }

    /// Adds an observer, which is notified of each connection and each call. May be called several times.
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.add(observer);
        self
    }

    /// Sets the limits.
    pub fn config(mut self, config: ServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Builds the server.
    ///
    /// # Errors
    /// [`Error::DuplicateService`]; [`Error::NothingToServe`] without listener and connection, unless
    /// the server is [kept open](ServerBuilder::keep_open).
    pub fn build(self) -> Result<Server, Error> {
        let services = self.services.finish()?;
        if self.listeners.is_empty() && self.handed_over.is_empty() && !self.keep_open {
            return Err(Error::NothingToServe);
        }
        let mut config = self.config;
        config.max_connections = config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let limiter = |limit| Limiter::new(limit, Oversubscribe::AnyLast);
        let shared = Shared {
            calls: limiter(Load { count: config.max_calls, cost: config.request_bytes }),
            reserved_calls: limiter(Load { count: usize::MAX, cost: usize::MAX }),
            inboxes: limiter(Load::one(config.inbox_bytes)),
            replies: limiter(Load::one(config.reply_bytes)),
            blocking_calls: BlockingPermits::new(config.max_blocking_calls),
            services,
            policy: self.policy,
            observers: self.observers,
            hook: self.hook,
            connection_permits: Semaphore::new(config.max_connections),
            admitted_connections: AtomicUsize::new(0),
            connections: Mutex::default(),
            connection_ended: Notify::new(),
            connections_so_far: AtomicU64::new(0),
            failed: Mutex::default(),
            accept_control: self.owner.0.accept_control.clone(),
            lifecycle: self.owner.0.lifecycle.clone(),
            config,
        };
        let shared = Arc::new(shared);
        self.owner.0.server.set(Arc::downgrade(&shared)).expect("a server is built once");
        Ok(Server {
            shared,
            owner: self.owner,
            listeners: self.listeners,
            handed_over: self.handed_over,
            keep_open: self.keep_open,
        })
    }

    /// Builds the server and serves until the future is dropped.
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
