//! Sockets between virtual machines and their host (vsock(7)).
//!
//! Only making and accepting a connection is particular to vsock. A connected socket is a stream socket
//! like any other, and is driven as tokio's Unix stream, which reads, writes and shuts down any stream
//! socket. So vsock needs no crate that a program for Unix sockets does not have.

use std::{
    io,
    os::{fd::OwnedFd, unix},
    task::{Context, Poll, ready},
};

use rustix::io::Errno;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::{io::Interest, net::UnixStream};

use super::{io::Connection, peer::Peer, unix::BACKLOG};

/// Connects to a port of a virtual machine or of the host.
///
/// Cancel safe.
pub(crate) async fn connect(cid: u32, port: u32) -> io::Result<Connection> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::vsock(cid, port)) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
            return Err(error);
        }
        _ => {}
    }
    let stream = as_stream(socket)?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(Connection::with_halves(stream.into_split(), Peer::vsock(cid, port))),
    }
}

/// Binds a port and listens.
pub(crate) fn bind(cid: u32, port: u32) -> io::Result<Socket> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    socket.bind(&SockAddr::vsock(cid, port))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// A connected socket as a connection.
pub(crate) fn connection(socket: Socket, peer: &SockAddr) -> io::Result<Connection> {
    let address = peer.as_vsock_address();
    let peer = address.map_or_else(Peer::unknown, |(cid, port)| Peer::vsock(cid, port));
    socket.set_nonblocking(true)?;
    Ok(Connection::with_halves(as_stream(socket)?.into_split(), peer))
}

fn as_stream(socket: Socket) -> io::Result<UnixStream> {
    UnixStream::from_std(unix::net::UnixStream::from(OwnedFd::from(socket)))
}

/// A listening socket that is registered with a runtime.
#[derive(Debug)]
pub(crate) struct VsockListener {
    /// For its registration alone: it knows when the socket is ready.
    ready: UnixStream,
}

impl VsockListener {
    /// Registers a listening socket that does not block.
    pub(crate) fn from_socket(socket: Socket) -> io::Result<Self> {
        Ok(VsockListener { ready: as_stream(socket)? })
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        let accept = || SockRef::from(&self.ready).accept();
        loop {
            ready!(self.ready.poll_read_ready(cx))?;
            match self.ready.try_io(Interest::READABLE, accept) {
                // Nobody has connected, which `try_io` has noted.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok((socket, peer)) => return Poll::Ready(connection(socket, &peer)),
            }
        }
    }
}
