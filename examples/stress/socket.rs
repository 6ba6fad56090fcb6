//! Unix sockets as the harness wants them: with the smallest send buffer, and asked for what they
//! hold.

use std::{
    io,
    os::{
        fd::BorrowedFd,
        linux::net::SocketAddrExt,
        unix::net::{self, SocketAddr},
    },
};

use rustix::{
    ioctl::{Getter, ioctl},
    net::sockopt::set_socket_send_buffer_size,
};
use tokio::net::{UnixListener, UnixStream};

/// `SIOCOUTQ` (linux/sockios.h), whose number is that of `TIOCOUTQ`.
const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// Reads an address as the library does: `unix:///path`, `unix://@abstract`, or a path.
fn parse(address: &str) -> io::Result<SocketAddr> {
    let name = address.strip_prefix("unix://").unwrap_or(address);
    if name.contains("://") {
        return Err(io::Error::other("only `unix://` addresses and paths are supported"));
    }
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

/// Connects, and makes the send buffer as large as asked.
pub fn connect(address: &str, send_buffer_bytes: usize) -> io::Result<UnixStream> {
    let stream = net::UnixStream::connect_addr(&parse(address)?)?;
    stream.set_nonblocking(true)?;
    set_socket_send_buffer_size(&stream, send_buffer_bytes)?;
    UnixStream::from_std(stream)
}

/// Listens.
pub fn listen(address: &str) -> io::Result<UnixListener> {
    let listener = net::UnixListener::bind_addr(&parse(address)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Accepts a connection, and makes its send buffer as large as asked.
pub async fn accept(listener: &UnixListener, send_buffer_bytes: usize) -> io::Result<UnixStream> {
    let (stream, _) = listener.accept().await?;
    set_socket_send_buffer_size(&stream, send_buffer_bytes)?;
    Ok(stream)
}

/// Bytes that were written to a socket and that its peer has not read, as the kernel counts them:
/// with what it needs to keep them.
#[expect(unsafe_code, reason = "SIOCOUTQ is the evidence, and no crate wraps it for Unix sockets")]
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: SIOCOUTQ writes one C int to where its argument points, which is what `Getter` with
    // this opcode and type passes, and has no other effect.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, i32>::new()) }?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}
