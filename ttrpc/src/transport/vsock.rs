//! Connecting to virtual machines and their host (vsock(7)). It needs no crate that a program for Unix
//! sockets does not have.

use std::io;

use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{io::Connection, peer::Peer, socket::register};

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
    let stream = register(socket)?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(Connection::with_halves(stream.into_split(), Peer::vsock(cid, port))),
    }
}
