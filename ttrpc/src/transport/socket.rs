//! Sockets, whatever their family: connected ones as connections, and listening ones.
//!
//! A stream socket is read, written and shut down in the same way whatever its family. So all are driven
//! as tokio's Unix stream, and a program for one kind of address links no code for the others. Families
//! differ in how a socket is made and in what is known of its peer.

use std::{
    io,
    net::TcpStream,
    os::{fd::OwnedFd, unix},
    task::{Context, Poll, ready},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::{io::Interest, net::UnixStream};

use super::{io::Connection, peer::Peer};

/// Connections that may wait to be accepted. The system lowers it to its own limit
/// (`net.core.somaxconn`, 4,096 by default).
pub(super) const BACKLOG: i32 = 4096;

/// Binds an address of any family and listens.
pub(crate) fn listen(address: &SockAddr) -> io::Result<Socket> {
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    if matches!(address.domain(), Domain::IPV4 | Domain::IPV6) {
        // A server that starts again need not wait for the last connections of the one before it.
        socket.set_reuse_address(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Registers a socket with the runtime.
pub(crate) fn register(socket: Socket) -> io::Result<UnixStream> {
    let stream = unix::net::UnixStream::from(OwnedFd::from(socket));
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Checks that a descriptor is a socket, and one of a stream of bytes: messages would be cut.
fn check_stream(socket: &Socket) -> io::Result<()> {
    match socket.r#type()? {
        Type::STREAM => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket is no stream socket")),
    }
}

impl Connection {
    /// Uses the descriptor of a connected Unix, TCP or vsock socket, such as one that the program's parent has
    /// accepted. The peer is asked of the system.
    ///
    /// # Errors
    /// If the descriptor is no such socket, or is not connected.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn from_fd(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(descriptor);
        check_stream(&socket)?;
        let (family, peer) = (socket.local_addr()?.domain(), socket.peer_addr()?);
        connection(socket, family, &peer)
    }
}

impl TryFrom<unix::net::UnixStream> for Connection {
    type Error = io::Error;

    /// A socket of the standard library's, which is made non-blocking; see [`Connection::from_fd`].
    ///
    /// # Errors
    /// If the socket is not connected.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    fn try_from(stream: unix::net::UnixStream) -> io::Result<Self> {
        Connection::from_fd(stream.into())
    }
}

impl TryFrom<TcpStream> for Connection {
    type Error = io::Error;

    /// A socket of the standard library's, which is made non-blocking and sends at once (TCP_NODELAY); see
    /// [`Connection::from_fd`].
    ///
    /// # Errors
    /// If the socket is not connected.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    fn try_from(stream: TcpStream) -> io::Result<Self> {
        Connection::from_fd(stream.into())
    }
}

/// A connected socket of this family as a connection.
///
/// # Errors
/// `Unsupported` for an unknown family, and what registering it meets.
fn connection(socket: Socket, family: Domain, address: &SockAddr) -> io::Result<Connection> {
    let stream = register(socket)?;
    let peer = match family {
        Domain::UNIX => Peer::of_unix(&stream),
        Domain::IPV4 | Domain::IPV6 => {
            // Frames are batched already. A socket that cannot be told so is as good as lost, which
            // reading finds out.
            let _ = SockRef::from(&stream).set_tcp_nodelay(true);
            address.as_socket().map_or_else(Peer::unknown, Peer::tcp)
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Domain::VSOCK => {
            let address = address.as_vsock_address();
            address.map_or_else(Peer::unknown, |(cid, port)| Peer::vsock(cid, port))
        }
        _ => return Err(unknown_family()),
    };
    Ok(Connection::with_halves(stream.into_split(), peer))
}

/// A listening socket that is registered with a runtime.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    /// For its registration alone: it knows when the socket is ready.
    ready: UnixStream,
    family: Domain,
}

impl ListeningSocket {
    /// # Errors
    /// `InvalidInput` for what is no stream socket or does not listen, `Unsupported` for an unknown family, and
    /// what registering it meets.
    pub(crate) fn new(socket: Socket) -> io::Result<Self> {
        check_stream(&socket)?;
        // Accepting would fail again and again. Other systems than these do not say it.
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
        if !socket.is_listener()? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket does not listen"));
        }
        let family = socket.local_addr()?.domain();
        match family {
            Domain::UNIX | Domain::IPV4 | Domain::IPV6 => {}
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Domain::VSOCK => {}
            _ => return Err(unknown_family()),
        }
        Ok(ListeningSocket { ready: register(socket)?, family })
    }

    /// Completes when somebody has connected, or accepting may fail. Accepts nobody.
    pub(crate) fn poll_waiting(&self, cx: &mut Context<'_>) -> Poll<()> {
        // The runtime takes the socket for ready until it is told otherwise, as accepting does.
        let look = || match has_connections(&self.ready)? {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        };
        loop {
            if ready!(self.ready.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            match self.ready.try_io(Interest::READABLE, look) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return Poll::Ready(()),
            }
        }
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        let accept = || SockRef::from(&self.ready).accept();
        loop {
            ready!(self.ready.poll_read_ready(cx))?;
            match self.ready.try_io(Interest::READABLE, accept) {
                // Nobody has connected, which `try_io` has noted.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok((socket, peer)) => return Poll::Ready(connection(socket, self.family, &peer)),
            }
        }
    }
}

/// Returns whether somebody has connected to a listening socket and can be accepted now.
fn has_connections(socket: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
}

fn unknown_family() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the socket's family is unknown")
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        net::{TcpListener, TcpStream},
        task::Waker,
    };

    use tokio::{join, task::yield_now};

    use super::*;

    fn is_pending<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> bool {
        poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_listening_socket_says_who_waits_and_accepts_nobody_meanwhile() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let socket = ListeningSocket::new(listener.into()).expect("it listens");
        assert!(is_pending(|cx| socket.poll_waiting(cx)));
        for is_asked_to_accept in [true, false] {
            let waiting = async {
                poll_fn(|cx| socket.poll_waiting(cx)).await;
                poll_fn(|cx| socket.poll_waiting(cx)).await;
            };
            // It waits before anybody comes.
            let connecting = async {
                yield_now().await;
                TcpStream::connect(address).expect("it listens")
            };
            let ((), _client) = join!(waiting, connecting);
            poll_fn(|cx| socket.poll_accept(cx)).await.expect("somebody waits");
            // The runtime takes it for ready still, though nobody is there any more.
            if is_asked_to_accept {
                assert!(is_pending(|cx| socket.poll_accept(cx)));
            } else {
                assert!(is_pending(|cx| socket.poll_waiting(cx)));
            }
        }
    }
}
