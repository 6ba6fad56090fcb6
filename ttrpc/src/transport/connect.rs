//! Connecting to an address.

use std::{io, path::Path, time::Duration};

use tokio::{
    net::{TcpStream, UnixStream},
    time::Instant,
};

use super::{
    address::{ANY_CID, Address},
    hvsock,
    io::Connection,
};
use crate::Error;

/// Connects once. A handshake ends at `end` at the latest, with the error of a handshake.
///
/// # Errors
/// [`Error::Address`] for an address that only a server can have, [`Error::Connect`] and those of the
/// handshake, which may take `handshake_limit`.
pub(crate) async fn connect(
    text: &str,
    address: &Address,
    handshake_limit: Duration,
    end: Option<Instant>,
) -> Result<Connection, Error> {
    let connected = match address {
        Address::Path(path) => UnixStream::connect(path).await.map(Connection::from),
        // A leading zero byte is how tokio spells an abstract name.
        Address::Abstract(name) => {
            UnixStream::connect(Path::new(&format!("\0{name}"))).await.map(Connection::from)
        }
        Address::Hybrid { path, port } => {
            let stream = hvsock::connect(text, path, *port, handshake_limit, end).await?;
            return Ok(Connection::from(stream));
        }
        Address::Vsock { cid: ANY_CID, .. } => {
            let reason = "`any` is for servers: a client names the machine";
            return Err(Error::Address { address: text.to_owned(), reason });
        }
        Address::Vsock { cid, port } => connect_vsock(*cid, *port).await,
        Address::Tcp(name) => connect_tcp(name).await,
    };
    connected.map_err(|source| Error::Connect { address: text.to_owned(), source })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
use super::vsock::connect as connect_vsock;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
async fn connect_vsock(_cid: u32, _port: u32) -> io::Result<Connection> {
    Err(io::ErrorKind::Unsupported.into())
}

async fn connect_tcp(name: &str) -> io::Result<Connection> {
    Ok(Connection::from(TcpStream::connect(name).await?))
}
