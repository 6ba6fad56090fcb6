//! The two halves of a connection, whatever it is made of.

use std::{
    io, mem,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready, empty},
    net::{
        TcpStream, UnixStream, tcp,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::peer::Peer;
use crate::Extensions;

/// The half of a connection from which frames are read.
pub(crate) trait ReadHalf: AsyncRead + Send + Unpin {
    /// Returns whether the peer has closed its side, though there may be something left to read. `false`
    /// where that cannot be known.
    fn is_hung_up(&mut self) -> bool {
        false
    }
}

/// Returns whether a socket's readiness says that the peer has closed its side.
fn is_read_closed(ready: impl Future<Output = io::Result<Ready>>) -> bool {
    match pin!(ready).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => ready.is_ok_and(|ready| ready.is_read_closed()),
        Poll::Pending => false,
    }
}

impl ReadHalf for OwnedReadHalf {
    fn is_hung_up(&mut self) -> bool {
        is_read_closed(self.ready(Interest::READABLE))
    }
}

impl ReadHalf for tcp::OwnedReadHalf {
    fn is_hung_up(&mut self) -> bool {
        is_read_closed(self.ready(Interest::READABLE))
    }
}

impl<T: AsyncRead + AsyncWrite + Send> ReadHalf for tokio::io::ReadHalf<T> {}

/// The half of a connection to which frames are written.
pub(crate) trait WriteHalf: AsyncWrite + Send + Unpin {
    /// Returns whether it is a socket, which any task may write to: it neither waits nor runs the program's code.
    fn is_socket(&self) -> bool {
        false
    }

    /// Writes to a socket what it takes at once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full, or if this is none.
    fn try_write(&self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns whether a socket's peer has closed its side, though the runtime may not have seen it. Asks the kernel.
    fn has_lost_peer(&self) -> bool {
        false
    }
}

/// The event that a socket's peer has closed its side.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const PEER_CLOSED: PollFlags = PollFlags::RDHUP;
/// The event of a hang-up: systems that have no event for it report it with that.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const PEER_CLOSED: PollFlags = PollFlags::HUP;

fn has_lost_peer(socket: impl AsFd) -> bool {
    let mut sockets = [PollFd::new(&socket, PEER_CLOSED)];
    poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The half as connections own it.
pub(crate) type Writer = Box<dyn WriteHalf>;

impl WriteHalf for OwnedWriteHalf {
    fn is_socket(&self) -> bool {
        true
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        OwnedWriteHalf::try_write(self, bytes)
    }

    fn has_lost_peer(&self) -> bool {
        has_lost_peer(self.as_ref())
    }
}

impl WriteHalf for tcp::OwnedWriteHalf {
    fn is_socket(&self) -> bool {
        true
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        tcp::OwnedWriteHalf::try_write(self, bytes)
    }

    fn has_lost_peer(&self) -> bool {
        has_lost_peer(self.as_ref())
    }
}

impl<T: AsyncRead + AsyncWrite + Send> WriteHalf for tokio::io::WriteHalf<T> {}

/// A connection that a program has made or accepted by itself, and what is known of its other side.
///
/// A server serves it ([`ServerBuilder::connection`](crate::server::ServerBuilder::connection),
/// [`ServerHandle::serve_connection`](crate::server::ServerHandle::serve_connection)), a client calls
/// over it ([`Client::from_connection`](crate::Client::from_connection)). It carries bytes too, for
/// programs that wrap it or only pass them on.
///
/// ```
/// use ttrpc::{Connection, server::Peer};
///
/// let (here, _there) = tokio::io::duplex(1024);
/// let peer = Peer::unknown().with_name("plugin 7").with(7u64);
/// let connection = Connection::new(here).with_peer(peer);
/// assert_eq!(connection.peer().get::<u64>(), Some(&7));
/// ```
pub struct Connection {
    // The halves are boxed, so that the drivers are compiled once; an indirect call is nothing next to a
    // system call.
    pub(crate) reader: Box<dyn ReadHalf + Send>,
    pub(crate) writer: Writer,
    pub(crate) peer: Peer,
    pub(crate) extensions: Extensions,
}

impl Connection {
    /// Makes a connection of anything that carries bytes both ways. Nothing is known of its peer.
    ///
    /// The writer is flushed after each batch of frames and shut down at the connection's end, as
    /// streams that wrap others (TLS) need it.
    pub fn new(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        Connection::with_halves(tokio::io::split(io), Peer::unknown())
    }

    /// Sets what is known of the other side, in place of what was found.
    pub fn with_peer(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    /// Sets the peer of a connection that is held by reference, as by a
    /// [`ConnectionHook`](crate::server::ConnectionHook) has.
    pub fn set_peer(&mut self, peer: Peer) {
        self.peer = peer;
    }

    /// Replaces the stream by another one that is made of it, such as TLS. The peer and the extensions stay.
    /// For a [`ConnectionHook`](crate::server::ConnectionHook), which has the connection by reference.
    ///
    /// ```
    /// # use std::io;
    /// # use tokio::io::{AsyncRead, AsyncWrite};
    /// # use ttrpc::Connection;
    /// # struct Tls;
    /// # impl Tls {
    /// #     async fn accept<T>(&self, stream: T) -> io::Result<T> {
    /// #         Ok(stream)
    /// #     }
    /// # }
    /// # async fn example(tls: &Tls, connection: &mut Connection) -> io::Result<()> {
    /// connection.wrap(|stream| tls.accept(stream)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Not cancel safe: the stream goes with `wrap`. From then on, and after an error, there is nothing to be read
    /// here, and what is written is dropped.
    ///
    /// # Errors
    /// Those of `wrap`.
    pub async fn wrap<T, E, F>(&mut self, wrap: impl FnOnce(Connection) -> F) -> Result<(), E>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
        F: Future<Output = Result<T, E>>,
    {
        let nothing = Connection::new(empty());
        let stream = Connection {
            reader: mem::replace(&mut self.reader, nothing.reader),
            writer: mem::replace(&mut self.writer, nothing.writer),
            peer: self.peer.clone(),
            extensions: Extensions::default(),
        };
        let wrapped = Connection::new(wrap(stream).await?);
        (self.reader, self.writer) = (wrapped.reader, wrapped.writer);
        Ok(())
    }

    /// Returns what is known of the other side.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns what was added to the connection. It stays with it when it is served.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    pub(crate) fn with_halves<R, W>((reader, writer): (R, W), peer: Peer) -> Self
    where
        R: ReadHalf + Send + 'static,
        W: WriteHalf + 'static,
    {
        let (reader, writer) = (Box::new(reader), Box::new(writer));
        Connection { reader, writer, peer, extensions: Extensions::default() }
    }
}

/// For a handshake before the first frame, and for what wraps it.
impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

/// For a handshake before the first frame, and for what wraps it.
impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

impl From<UnixStream> for Connection {
    fn from(stream: UnixStream) -> Self {
        let peer = Peer::of_unix(&stream);
        Connection::with_halves(stream.into_split(), peer)
    }
}

impl From<TcpStream> for Connection {
    /// Sends what is written at once (TCP_NODELAY): frames are batched already.
    fn from(stream: TcpStream) -> Self {
        // A socket that cannot be told so is as good as lost, which reading finds out.
        let _ = stream.set_nodelay(true);
        let peer = stream.peer_addr().map_or_else(|_| Peer::unknown(), Peer::tcp);
        Connection::with_halves(stream.into_split(), peer)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl<R: ReadHalf + ?Sized> ReadHalf for &mut R {
    fn is_hung_up(&mut self) -> bool {
        (**self).is_hung_up()
    }
}

impl<R: ReadHalf + ?Sized> ReadHalf for Box<R> {
    fn is_hung_up(&mut self) -> bool {
        (**self).is_hung_up()
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, BufWriter, duplex},
        net::TcpListener,
        time::{Duration, timeout},
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A TCP connection, and a descriptor of its socket to look at.
    async fn tcp(listener: &TcpListener) -> (std::net::TcpStream, std::net::TcpStream) {
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).await.expect("it listens");
        let stream = stream.into_std().expect("it is registered");
        let same = stream.try_clone().expect("descriptors are left");
        assert!(!sends_at_once(&same));
        (stream, same)
    }

    fn sends_at_once(stream: &std::net::TcpStream) -> bool {
        SockRef::from(stream).tcp_nodelay().expect("it is TCP")
    }

    #[tokio::test]
    async fn tcp_sends_at_once() {
        // It would reset connections that it has not accepted when it is dropped.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let (stream, same) = tcp(&listener).await;
        let _connection = Connection::from_fd(stream.into()).expect("it is connected");
        assert!(sends_at_once(&same));
        let (stream, same) = tcp(&listener).await;
        let stream = TcpStream::from_std(stream).expect("it does not block");
        let _connection = Connection::from(stream);
        assert!(sends_at_once(&same));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_flushes_and_shuts_down_what_it_is_made_of() {
        let (here, mut there) = duplex(100);
        let mut connection = Connection::new(BufWriter::new(here));
        connection.write_all(b"a").await.expect("there is room");
        connection.flush().await.expect("there is room");
        let mut byte = [0];
        // The clock stands, so that this is over when nothing moves.
        let read = timeout(SECOND, there.read(&mut byte)).await.expect("it was flushed");
        assert_eq!((read.expect("it is open"), byte), (1, *b"a"));
        connection.shutdown().await.expect("it is open");
        let read = timeout(SECOND, there.read(&mut byte)).await.expect("it was shut down");
        assert_eq!(read.expect("it has ended well"), 0);
    }

    #[tokio::test]
    async fn sockets_are_written_to_by_any_task_and_streams_of_the_program_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).await.expect("it listens");
        let tcp = Connection::from(stream).writer;
        let unix = Connection::from(UnixStream::pair().expect("descriptors are left").0).writer;
        for writer in [tcp, unix] {
            assert!(writer.is_socket());
        }
        let other = Connection::new(duplex(100).0).writer;
        assert!(!other.is_socket());
        assert_eq!(other.try_write(b"a").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn tcp_knows_that_its_peer_has_hung_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).await.expect("it listens");
        let mut connection = Connection::from(stream);
        let (peer, _) = listener.accept().await.expect("it has come");
        assert!(!connection.reader.is_hung_up());
        drop(peer);
        assert_eq!(connection.read(&mut [0]).await.expect("it has ended well"), 0);
        assert!(connection.reader.is_hung_up());
    }

    #[test]
    fn a_peer_may_be_set_and_is_printed() {
        let mut connection = Connection::new(empty());
        connection.set_peer(Peer::vsock(3, 4));
        assert_eq!(connection.peer().vsock_addr().map(|address| address.port), Some(4));
        assert!(format!("{connection:?}").contains("port: 4"));
    }
}
