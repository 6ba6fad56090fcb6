//! One run of one case.

use std::{
    future::{Future, IntoFuture},
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::{Instant, timeout},
};
use ttrpc::{Client, Code, Status, client::ConnectOptions};

use super::{
    Outcome, fail,
    verdict::{Verdict, describe_status},
};
use crate::conformance::*;

/// How long one step of a case may take with a server that may hang. It takes milliseconds where all is
/// well.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same with this library's own server. Reached only by a failing test, on whatever machine.
const STRICT_PATIENCE: Duration = Duration::from_secs(600);

/// What a case is run with: where the server is, and where the case says how far it has come.
#[derive(Clone, Debug)]
pub struct Trial {
    address: String,
    /// Only what this library does will pass, not what the specification allows besides.
    pub(super) is_strict: bool,
    /// How long one step may take.
    pub(super) patience: Duration,
    last_step: Arc<Mutex<String>>,
}

impl Trial {
    /// A trial of the server at this address. A strict one is for this library's own server: where
    /// the specification leaves freedom, only what this library does passes. It has all the time that a
    /// busy machine may take: how long calls take is not its matter.
    pub fn new(address: &str, is_strict: bool) -> Self {
        let patience = if is_strict { STRICT_PATIENCE } else { PATIENCE };
        Trial { address: address.to_owned(), is_strict, patience, last_step: Arc::default() }
    }

    /// Where the case is, for the report in case that it hangs.
    pub fn last_step(&self) -> String {
        self.last_step.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn step(&self, step: impl Into<String>) {
        *self.last_step.lock().unwrap_or_else(PoisonError::into_inner) = step.into();
    }

    /// A connection of this library.
    pub(super) async fn client(&self) -> Outcome<Client> {
        // A step's time is that of a hypervisor's handshake, too.
        let options = ConnectOptions::new().handshake_timeout(self.patience);
        Ok(self.within("connecting", options.connect(&self.address)).await??)
    }

    /// A connection of this library with the service on it.
    pub(super) async fn connect(&self) -> Outcome<ConformanceClient> {
        Ok(ConformanceClient::new(self.client().await?))
    }

    /// A connection without this library.
    pub(super) async fn socket(&self) -> Outcome<UnixStream> {
        let connecting = connect(&self.address);
        let connected = self.within("connecting", connecting).await?;
        connected.or_else(|error| fail(format!("connecting: {error}")))
    }

    /// Bounds a step, so that a report names it and not just the case.
    pub(super) async fn within<T>(
        &self,
        what: &str,
        step: impl IntoFuture<Output = T>,
    ) -> Outcome<T> {
        within(self.patience, what, step).await
    }

    /// Asks again and again until it holds.
    pub(super) async fn until<F: Future<Output = Outcome<bool>>>(
        &self,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) -> Outcome<()> {
        let end = Instant::now() + self.patience;
        while !holds().await? {
            if Instant::now() > end {
                return fail(format!("never within {:?}: {what}", self.patience));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Checks that a connection still works.
    pub(super) async fn alive(&self, conformance: &ConformanceClient, when: &str) -> Outcome<()> {
        let payload = format!("still here {when}").into_bytes();
        let request = EchoRequest { payload: payload.clone(), response_size: 0 };
        let part = format!("Echo {when}");
        match self.within(&part, conformance.echo(request)).await? {
            Ok(reply) if reply.payload == payload => Ok(()),
            Ok(_) => fail(format!("{part} brought another payload")),
            Err(status) => fail(format!("{part}: {}", describe_status(&status))),
        }
    }
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

/// Bounds a step, so that a report names it and not just the case.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    step: impl IntoFuture<Output = T>,
) -> Outcome<T> {
    match timeout(limit, step).await {
        Ok(result) => Ok(result),
        Err(_) => fail(format!("{what}: no end within {limit:?}")),
    }
}

/// Whether the peer knows streams: the reason if it does not. A server that knows only unary calls
/// takes the opening of a stream for a call of a method that it does not have, or for one that it can't
/// make sense of; so it answers a working streaming method as it answers a method that nobody has.
pub(super) async fn lacks_streams(trial: &Trial) -> Outcome<Option<String>> {
    let probe = async {
        let (client, conformance) = (trial.client().await?, trial.connect().await?);
        let (requests, reply) = match conformance.collect().await {
            Ok(call) => call,
            Err(status) => return fail(describe_status(&status)),
        };
        requests.finish();
        let Err(status) = trial.within("Collect", reply).await? else { return Ok(None) };
        let unknown =
            client.unary::<Empty, Empty>(ConformanceClient::NAME, "NoSuchMethod", Empty {});
        let unknown: Result<Empty, Status> = trial.within("NoSuchMethod", unknown).await?;
        Ok(match unknown {
            // A server that is gone answers both calls alike, too.
            Err(_) if status.code() == Code::Unavailable => None,
            Err(other) if other.raw_code() == status.raw_code() => Some(format!(
                "a stream gets what an unknown method gets: {}",
                describe_status(&status)
            )),
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

    #[tokio::test]
    async fn a_server_that_ends_connections_is_not_one_without_streams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("closing.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let closing = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let trial = Trial::new(path.to_str().unwrap(), false);
        assert_eq!(lacks_streams(&trial).await, Ok(None));
        closing.abort();
    }
}
