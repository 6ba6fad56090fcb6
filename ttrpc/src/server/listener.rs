//! What a server listens on.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use socket2::{Domain, Socket};

#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::transport::vsock::{self, VsockListener};
use crate::{
    Connection, Error,
    transport::{
        address::{Address, check_path},
        hvsock,
        io::check_stream,
        unix::{self, SocketFile},
    },
};

type Incoming = Pin<Box<dyn Stream<Item = io::Result<Connection>> + Send>>;

/// Where a server gets connections from: an address that is bound, a socket that the program has, or
/// connections that the program accepts itself.
///
/// Made from an address ([`Listener::bind`]), from listeners of the standard library and of tokio, from
/// the descriptor of a listening socket (Unix, TCP or vsock), and from a stream of connections
/// ([`Listener::incoming`]).
pub struct Listener {
    /// Dropped before the socket: while that listens, no other server takes the file for stale and puts
    /// its own in its place.
    file: Option<SocketFile>,
    source: Source,
}

enum Source {
    /// Listens, and is not registered with a runtime.
    Socket(Socket),
    Unix(tokio::net::UnixListener),
    Tcp(tokio::net::TcpListener),
    Incoming(Incoming),
}

impl Listener {
    /// Binds an address and listens.
    ///
    /// - `unix:///path`, or a path: the socket file of a dead server is replaced, that of a living one
    ///   is not. The file is removed when the listener is dropped.
    /// - `unix://@name`: an abstract name. Linux alone.
    /// - `vsock://CID:PORT`, where the CID is usually `any`. Linux alone.
    /// - `hvsock:///path:PORT`: what a guest of Firecracker, Cloud Hypervisor or Dragonball sends to
    ///   this port of the host (CID 2). This is the Unix socket `/path_PORT`.
    /// - `tcp://HOST:PORT`. A name is resolved, which blocks. With port 0 the system chooses one, which
    ///   [`Listener::socket_addr`] tells.
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

    /// Takes connections from a stream of them: for programs that accept by themselves, look at what
    /// has connected, or wrap it (TLS).
    ///
    /// An error in the stream is traced as a failed `accept`, and the stream is polled again 50 ms
    /// later. The listener is done when the stream ends.
    pub fn incoming<C: Into<Connection>>(
        connections: impl Stream<Item = io::Result<C>> + Send + 'static,
    ) -> Self {
        Source::Incoming(Box::pin(IntoConnections { connections })).into()
    }

    /// The address of a TCP listener, with the port that the system chose if it was bound with port 0. `None`
    /// for other kinds.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match &self.source {
            Source::Socket(socket) => socket.local_addr().ok()?.as_socket(),
            Source::Tcp(listener) => listener.local_addr().ok(),
            Source::Unix(_) | Source::Incoming(_) => None,
        }
    }

    /// Registers the listener with the runtime, for programs that accept connections by themselves: those
    /// that give each one to a server of its own, for example.
    ///
    /// # Errors
    /// If the listener cannot be used with this runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(self) -> io::Result<Acceptor> {
        let kind = match self.source {
            Source::Socket(socket) => start_socket(socket)?,
            Source::Unix(listener) => Kind::Unix(listener),
            Source::Tcp(listener) => Kind::Tcp(listener),
            Source::Incoming(incoming) => Kind::Incoming(incoming),
        };
        Ok(Acceptor { _file: self.file, kind })
    }
}

fn bind(text: &str, mode: Option<u32>) -> Result<Listener, Error> {
    let address = Address::parse(text)?;
    let refused = |reason| Error::Address { address: text.to_owned(), reason };
    let bind_error = |source| unix::bind_error(text, source);
    let (socket, file) = match address {
        Address::Path(path) => {
            let (socket, file) = unix::bind_path(text, &path, mode)?;
            (socket, Some(file))
        }
        Address::Hybrid { path, port } => {
            let path = hvsock::listening_path(&path, port);
            check_path(&path).map_err(refused)?;
            let (socket, file) = unix::bind_path(text, &path, mode)?;
            (socket, Some(file))
        }
        _ if mode.is_some() => return Err(refused("it has no file that could have a mode")),
        Address::Abstract(name) => (unix::bind_abstract(text, &name)?, None),
        Address::Vsock { cid, port } => (bind_vsock(cid, port).map_err(bind_error)?, None),
        Address::Tcp(name) => {
            let listener = std::net::TcpListener::bind(name).map_err(bind_error)?;
            (listener.into(), None)
        }
    };
    Ok(Listener { file, source: Source::Socket(socket) })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
use vsock::bind as bind_vsock;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn bind_vsock(_cid: u32, _port: u32) -> io::Result<Socket> {
    Err(io::ErrorKind::Unsupported.into())
}

fn start_socket(socket: Socket) -> io::Result<Kind> {
    check_stream(&socket)?;
    // Accepting would fail again and again. Other systems than these do not say it.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    if !socket.is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket does not listen"));
    }
    socket.set_nonblocking(true)?;
    match socket.local_addr()?.domain() {
        Domain::UNIX => {
            let listener = std::os::unix::net::UnixListener::from(OwnedFd::from(socket));
            Ok(Kind::Unix(tokio::net::UnixListener::from_std(listener)?))
        }
        Domain::IPV4 | Domain::IPV6 => {
            Ok(Kind::Tcp(tokio::net::TcpListener::from_std(socket.into())?))
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Domain::VSOCK => Ok(Kind::Vsock(VsockListener::from_socket(socket)?)),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the socket's family is unknown")),
    }
}

impl From<Source> for Listener {
    fn from(source: Source) -> Self {
        Listener { file: None, source }
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
        Source::Unix(listener).into()
    }
}

impl From<tokio::net::TcpListener> for Listener {
    fn from(listener: tokio::net::TcpListener) -> Self {
        Source::Tcp(listener).into()
    }
}

/// The descriptor of a socket that listens, such as one that the parent process or systemd handed over.
/// What it is shows when it is served.
impl From<OwnedFd> for Listener {
    fn from(descriptor: OwnedFd) -> Self {
        Source::Socket(descriptor.into()).into()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Socket(socket) => socket.fmt(f),
            Source::Unix(listener) => listener.fmt(f),
            Source::Tcp(listener) => listener.fmt(f),
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

enum Kind {
    Unix(tokio::net::UnixListener),
    Tcp(tokio::net::TcpListener),
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Vsock(VsockListener),
    Incoming(Incoming),
}

impl Acceptor {
    /// Accepts the next connection; `None` when there will be no more.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// What the operating system says: usually the lack of descriptors, which passes.
    pub async fn accept(&mut self) -> Option<io::Result<Connection>> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The next connection, `None` when there will be no more.
    pub(super) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Connection>>> {
        let accepted = match &mut self.kind {
            Kind::Unix(listener) => {
                ready!(listener.poll_accept(cx)).map(|(stream, _)| stream.into())
            }
            Kind::Tcp(listener) => {
                ready!(listener.poll_accept(cx)).map(|(stream, _)| stream.into())
            }
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Kind::Vsock(listener) => ready!(listener.poll_accept(cx)),
            Kind::Incoming(connections) => return connections.as_mut().poll_next(cx),
        };
        Poll::Ready(Some(accepted))
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

pin_project_lite::pin_project! {
    /// A stream whose items are made into connections.
    struct IntoConnections<S> {
        #[pin]
        connections: S,
    }
}

impl<S, C> Stream for IntoConnections<S>
where
    S: Stream<Item = io::Result<C>>,
    C: Into<Connection>,
{
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.project().connections.poll_next(cx));
        Poll::Ready(next.map(|connection| connection.map(Into::into)))
    }
}
