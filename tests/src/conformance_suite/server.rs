//! Connections without this library, and what a server lacks.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use ttrpc_conformance::{Options, Outcome, SERVICE, Trial, Verdict, codes, fail};

/// A connection without this library.
pub(super) async fn socket(trial: &Trial) -> Outcome<UnixStream> {
    let connected = trial.within("connecting", connect(trial.address())).await?;
    connected.or_else(|error| fail(format!("connecting: {error}")))
}

/// Connects to a Unix socket, to a port of a virtual machine behind its hypervisor's, or over vsock.
async fn connect(address: &str) -> io::Result<UnixStream> {
    if let Some(name) = address.strip_prefix("vsock://") {
        return connect_vsock(name);
    }
    let hybrid = address.strip_prefix("hvsock://").and_then(|name| name.rsplit_once(':'));
    let Some((path, port)) = hybrid else {
        return UnixStream::connect(socket_name(address)).await;
    };
    let mut socket = UnixStream::connect(path).await?;
    socket.write_all(format!("CONNECT {port}\n").as_bytes()).await?;
    while socket.read_u8().await? != b'\n' {}
    Ok(socket)
}

/// Connects to `CID:PORT`, while others wait. The socket is used as if it were a Unix one: what is done to both
/// is the same.
#[cfg(target_os = "linux")]
fn connect_vsock(name: &str) -> io::Result<UnixStream> {
    use std::os::{fd::OwnedFd, unix::net};

    use socket2::{Domain, SockAddr, Socket, Type};

    /// The machine itself (vsock(7)).
    const VMADDR_CID_LOCAL: u32 = 1;

    let port = name.split_once(':').and_then(|(cid, port)| {
        let cid = if cid == "local" { VMADDR_CID_LOCAL } else { cid.parse().ok()? };
        Some((cid, port.parse().ok()?))
    });
    let (cid, port) = port.ok_or(io::ErrorKind::InvalidInput)?;
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    socket.connect(&SockAddr::vsock(cid, port))?;
    socket.set_nonblocking(true)?;
    UnixStream::from_std(net::UnixStream::from(OwnedFd::from(socket)))
}

#[cfg(not(target_os = "linux"))]
fn connect_vsock(_name: &str) -> io::Result<UnixStream> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The address as the operating system names it: an abstract one begins with a zero byte there.
pub(super) fn socket_name(address: &str) -> String {
    let name = address.strip_prefix("unix://").unwrap_or(address);
    match name.strip_prefix('@') {
        Some(name) => format!("\0{name}"),
        None => name.to_owned(),
    }
}

/// Whether the peer knows streams: the reason if it does not. A server that knows only unary calls
/// takes the opening of a stream for a call of a method that it does not have, or for one that it can't
/// make sense of; so it answers a working streaming method as it answers a method that nobody has.
pub(super) async fn lacks_streams(trial: &Trial) -> Outcome<Option<String>> {
    let probe = async {
        let connection = trial.connect().await?;
        let stream = connection.collect(&Options::default()).await?;
        let Err(failure) = trial.within("Collect", stream.finish()).await? else { return Ok(None) };
        let unknown = connection.call_unknown(SERVICE, "NoSuchMethod");
        let unknown = trial.within("NoSuchMethod", unknown).await?;
        Ok(match unknown {
            // A server that is gone answers both calls alike, too.
            Err(_) if failure.code() == Some(codes::UNAVAILABLE) => None,
            Err(other) if other.code() == failure.code() => {
                Some(format!("a stream gets what an unknown method gets: {failure}"))
            }
            _ => None,
        })
    };
    match probe.await {
        // A peer that fails at the probe shall fail at the case, which says more.
        Err(Verdict::Fail(_)) => Ok(None),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use crate::conformance_suite::trial;

    #[tokio::test]
    async fn a_server_that_ends_connections_is_not_one_without_streams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("closing.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let closing = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let trial = trial(path.to_str().unwrap(), false);
        assert_eq!(lacks_streams(&trial).await, Ok(None));
        closing.abort();
    }
}
