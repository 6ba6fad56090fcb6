//! What a server listens on.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::{SocketAddr, ToSocketAddrs},
    os::fd::OwnedFd,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use socket2::{SockAddr, Socket};

use crate::server::accept::unserved::Unserved;
use crate::{
    Connection, Error,
    contain::{Contained, Panicked, contain},
    trace,
    transport::{
        address::{Address, check_path},
        hvsock,
        socket::{ListeningSocket, listen},
        unix::{self, SocketFile},
    },
};

/// Polls a stream of connections.
type Incoming =
    Contained<Box<dyn FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Unserved>>> + Send>>;

/// A source of a server's connections.
///
/// ```no_run
/// # use ttrpc::{Error, Server, server::Listener};
/// # fn example(server: ttrpc::server::ServerBuilder) -> Result<(), Error> {
/// // Before anybody can connect, the socket's file has this mode.
/// let listener = Listener::bind_with_mode("unix:///run/greeter.sock", 0o660)?;
/// let server = server.listener(listener);
/// # Ok(()) }
/// ```
///
/// It is made from
///
/// - an address: [`Listener::bind`];
/// - a listener of the standard library or of tokio;
/// - the descriptor of a listening socket (Unix, TCP or vsock);
/// - a stream of connections that the program accepts itself: [`Listener::incoming`].
pub struct Listener {
    /// Dropped before the socket: while that listens, no other server takes the file for stale and puts
    /// its own in its place.
    file: Option<SocketFile>,
    source: Source,
}

enum Source {
    /// Listens, and is not registered with a runtime. An error is reported when it is to be served.
    Socket(io::Result<Socket>),
    Incoming(Incoming),
}

impl Listener {
    /// Binds an [address](crate#addresses) and listens.
    ///
    /// - `unix:///path`, or a path: the socket file of a dead server is replaced, that of a living one
    ///   is not. On macOS and FreeBSD a server whose backlog is full counts as dead. The file
    ///   is removed when the listener is dropped. While another process keeps the file's directory locked
    ///   (flock(2)), as a server does while it binds, this blocks for up to a second.
    /// - `unix://@name`: an abstract name. Linux alone.
    /// - `vsock://CID:PORT`, where the CID is usually `any`. Linux alone.
    /// - `hvsock:///path:PORT`: what a guest of Firecracker, Cloud Hypervisor or Dragonball sends to
    ///   this port of the host (CID 2). This is the Unix socket `/path_PORT`.
    /// - `tcp://HOST:PORT`. A name is resolved, which blocks. With port 0 the system chooses one, which
    ///   [`Listener::socket_addr`] returns.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::AddressInUse`], [`Error::NotASocket`], [`Error::Bind`].
    pub fn bind(address: &str) -> Result<Self, Error> {
        bind(address, None)
    }

    /// Binds the address of a Unix socket, and sets its file's mode, such as `0o600`, before anybody can
    /// connect. Without it the umask decides.
    ///
    /// # Errors
    /// Those of [`Listener::bind`]; [`Error::Address`] also for what has no file.
    pub fn bind_with_mode(address: &str, mode: u32) -> Result<Self, Error> {
        bind(address, Some(mode))
    }

    /// Takes connections from a stream of them.
    ///
    /// This is for programs that accept by themselves, check what has connected, or wrap it (TLS).
    ///
    /// An error in the stream is traced as a failed `accept`, and the stream goes on. It is polled again at
    /// once. After a lack of descriptors or memory (EMFILE, ENFILE, ENOBUFS, ENOMEM), or the 16th error in a
    /// row, it is polled 50 ms later. The listener is done when the stream ends, or panics.
    pub fn incoming<C: Into<Connection>>(
        connections: impl Stream<Item = io::Result<C>> + Send + 'static,
    ) -> Self {
        let mut connections = Box::pin(connections);
        let incoming = move |cx: &mut Context<'_>| {
            let next = connections.as_mut().poll_next(cx);
            next.map_ok(|connection| Unserved::new(connection.into()))
        };
        Listener { file: None, source: Source::Incoming(Contained::new(Box::new(incoming))) }
    }

    fn of_socket(socket: io::Result<Socket>) -> Self {
        Listener { file: None, source: Source::Socket(socket) }
    }

    /// Returns the address of a TCP listener, with the port that the system chose if it was bound with port 0.
    /// `None` for other kinds.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match &self.source {
            Source::Socket(socket) => socket.as_ref().ok()?.local_addr().ok()?.as_socket(),
            Source::Incoming(_) => None,
        }
    }

    /// Returns the descriptor of the listening socket, for programs that hand the socket on to another process.
    /// They serve a clone of it, which goes into
    /// [`ServerBuilder::listener`](crate::server::ServerBuilder::listener). A socket's file is the program's
    /// from now on, and nobody removes it.
    ///
    /// ```no_run
    /// # use ttrpc::server::{Listener, ServerBuilder};
    /// # fn example(builder: ServerBuilder) -> Result<(), Box<dyn std::error::Error>> {
    /// let socket = Listener::bind_with_mode("unix:///run/a.sock", 0o600)?.into_fd()?;
    /// let builder = builder.listener(socket.try_clone()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unsupported` for [`Listener::incoming`], which has no socket; what tokio said if it did not give up a listener
    /// of its own.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        let Source::Socket(socket) = self.source else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a stream has no socket"));
        };
        let socket = socket?;
        if let Some(file) = self.file {
            file.keep();
        }
        Ok(socket.into())
    }

    /// Registers the listener with the runtime.
    ///
    /// This is for programs that accept connections by themselves, such as those with a server for each
    /// connection.
    ///
    /// # Errors
    /// If the listener cannot be used with this runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> io::Result<Acceptor> {
        let kind = match self.source {
            Source::Socket(socket) => Kind::Socket(ListeningSocket::new(socket?)?),
            Source::Incoming(connections) => Kind::Incoming { connections, next: None },
        };
        Ok(Acceptor { _file: self.file, kind })
    }
}

fn bind(text: &str, mode: Option<u32>) -> Result<Listener, Error> {
    let address = Address::parse(text)?;
    let refused = |reason| Error::Address { address: text.to_owned(), reason };
    let path = match address {
        Address::Path(path) => path,
        Address::Hybrid { path, port } => hvsock::listening_path(&path, port),
        _ if mode.is_some() => return Err(refused("it has no file that could have a mode")),
        address => {
            let socket = listen_at(address).map_err(|error| unix::bind_error(text, error))?;
            return Ok(Listener::of_socket(Ok(socket)));
        }
    };
    check_path(&path).map_err(refused)?;
    let (socket, file) = unix::bind_path(text, &path, mode)?;
    Ok(Listener { file: Some(file), source: Source::Socket(Ok(socket)) })
}

/// Binds an address that has no file.
fn listen_at(address: Address) -> io::Result<Socket> {
    match address {
        // A leading zero byte is how the system tells an abstract name.
        Address::Abstract(name) => listen(&SockAddr::unix(format!("\0{name}"))?),
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Address::Vsock { cid, port } => listen(&SockAddr::vsock(cid, port)),
        Address::Tcp(name) => {
            let mut result = Err(io::ErrorKind::InvalidInput.into());
            // A name may stand for several addresses; the first one that can be bound is.
            for address in name.to_socket_addrs()? {
                result = listen(&address.into());
                if result.is_ok() {
                    break;
                }
            }
            result
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// The listener's socket file, if any, is left alone.
impl From<std::os::unix::net::UnixListener> for Listener {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        OwnedFd::from(listener).into()
    }
}

impl From<std::net::TcpListener> for Listener {
    fn from(listener: std::net::TcpListener) -> Self {
        OwnedFd::from(listener).into()
    }
}

/// The listener's socket file, if any, is left alone.
impl From<tokio::net::UnixListener> for Listener {
    fn from(listener: tokio::net::UnixListener) -> Self {
        Listener::of_socket(listener.into_std().map(|listener| OwnedFd::from(listener).into()))
    }
}

impl From<tokio::net::TcpListener> for Listener {
    fn from(listener: tokio::net::TcpListener) -> Self {
        Listener::of_socket(listener.into_std().map(|listener| OwnedFd::from(listener).into()))
    }
}

/// The descriptor of a socket that listens, such as one that the parent process or systemd handed over.
/// What it is shows when it is served.
impl From<OwnedFd> for Listener {
    fn from(descriptor: OwnedFd) -> Self {
        Listener::of_socket(Ok(descriptor.into()))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Socket(socket) => socket.fmt(f),
            Source::Incoming(_) => f.write_str("incoming connections"),
        }
    }
}

/// A listener that is registered with a runtime.
pub struct Acceptor {
    /// Dropped before the socket, as in [`Listener`].
    _file: Option<SocketFile>,
    kind: Kind,
}

/// What a stream of connections has returned, and waits to be accepted.
type Next = Option<Option<io::Result<Unserved>>>;

enum Kind {
    Socket(ListeningSocket),
    Incoming { connections: Incoming, next: Next },
}

impl Acceptor {
    /// Accepts the next connection; `None` when there will be no more.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// What the operating system says: usually the lack of descriptors, which passes.
    pub async fn accept(&mut self) -> Option<io::Result<Connection>> {
        let accepted = poll_fn(|cx| self.poll_accept(cx)).await;
        accepted.map(|accepted| accepted.map(Unserved::into_served))
    }

    /// The next connection, `None` when there will be no more.
    pub(in crate::server) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Unserved>>> {
        match &mut self.kind {
            Kind::Socket(socket) => socket.poll_accept(cx).map_ok(Unserved::new).map(Some),
            Kind::Incoming { connections, next } => {
                ready!(poll_incoming(connections, next, cx));
                Poll::Ready(next.take().flatten())
            }
        }
    }

    /// Completes when a connection, or the end, waits to be accepted. It accepts nobody from a socket, and takes one
    /// connection from a stream.
    pub(in crate::server) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.kind {
            Kind::Socket(socket) => socket.poll_waiting(cx),
            Kind::Incoming { connections, next } => poll_incoming(connections, next, cx),
        }
    }

    /// The connection that was taken from a stream and waits to be accepted, if there is one.
    pub(in crate::server) fn taken(&mut self) -> Option<Unserved> {
        let Kind::Incoming { next, .. } = &mut self.kind else { return None };
        next.take_if(|next| matches!(next, Some(Ok(_))))??.ok()
    }
}

fn poll_incoming(connections: &mut Incoming, next: &mut Next, cx: &mut Context<'_>) -> Poll<()> {
    if next.is_none() {
        let polled = contain(|| connections(cx));
        *next = Some(ready!(polled.unwrap_or_else(|Panicked| {
            trace::warn!("a listener's stream of connections panicked");
            Poll::Ready(None)
        })));
    }
    Poll::Ready(())
}

debug_in_short!(Acceptor);
