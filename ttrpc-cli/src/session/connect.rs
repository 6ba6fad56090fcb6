//! Connecting, and what can be done where that fails.

use std::{
    ffi::OsString,
    io,
    os::unix::{ffi::OsStringExt, fs::FileTypeExt},
    path::PathBuf,
    time::Duration,
};

use rustix::io::Errno;
use ttrpc::{Client, ClientConfig, Connection, Error, client::ConnectOptions};

use crate::{
    failure::Failure,
    tap::{Switch, Tap},
};

/// The pause behind an attempt for which a socket's backlog had no room.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Connects to a server. `timeout` is for connecting alone; without one it may take for ever.
///
/// # Errors
/// [`Failure::Usage`] for what is no address, [`Failure::Connect`] otherwise.
pub async fn connect(address: &str, timeout: Option<Duration>) -> Result<Client, Failure> {
    Ok(Client::from_connection(open_within(address, timeout).await?, ClientConfig::default()))
}

/// Connects so that each frame is shown on the standard error, as soon as the switch is turned on.
///
/// # Errors
/// Those of [`connect`].
pub async fn connect_verbose(
    address: &str,
    timeout: Option<Duration>,
    switch: Switch,
) -> Result<Client, Failure> {
    let tap = Tap::new(open_within(address, timeout).await?, switch);
    Ok(Client::from_io(tap, ClientConfig::default()))
}

/// Connects, however long it takes: for callers that have a limit of their own. A Unix socket with a full backlog,
/// which refuses an attempt that does not block (connect(2), EAGAIN), is waited for as others are.
///
/// # Errors
/// Those of [`ConnectOptions::open`].
pub async fn open(address: &str) -> Result<Connection, Error> {
    loop {
        match ConnectOptions::new().open(address).await {
            Err(Error::Connect { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(FULL_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

async fn open_within(address: &str, timeout: Option<Duration>) -> Result<Connection, Failure> {
    if address == "-" {
        return Err(Failure::usage(
            "`-` is no server: name the ADDRESS of the one that shall answer",
        ));
    }
    let opening = open(address);
    let Some(limit) = timeout else { return opening.await.map_err(explain) };
    match tokio::time::timeout(limit, opening).await {
        Ok(opened) => opened.map_err(explain),
        Err(_) => Err(Failure::Connect(format!(
            "cannot connect to `{address}`: not accepted within {limit:?}; the server's backlog is \
             full, or its machine does not answer"
        ))),
    }
}

/// The path of a Unix socket's address, an abstract name with a leading zero byte. `None` for other
/// kinds of addresses. A scheme is told from a path as the library does it.
pub fn unix_path(address: &str) -> Option<PathBuf> {
    let name = match address.split_once(':') {
        Some(("unix", name)) => name.strip_prefix("//").unwrap_or(name),
        Some((scheme, _)) if !scheme.starts_with('@') && !scheme.contains('/') => return None,
        _ => address,
    };
    Some(match name.strip_prefix('@') {
        Some(name) => OsString::from_vec([b"\0", name.as_bytes()].concat()).into(),
        None => name.into(),
    })
}

/// A client whose calls carry this metadata, and may take this time.
pub fn with_defaults(
    client: Client,
    metadata: impl IntoIterator<Item = (String, String)>,
    timeout: Option<Duration>,
) -> Client {
    let client =
        metadata.into_iter().fold(client, |client, (key, value)| client.with_metadata(key, value));
    match timeout {
        Some(timeout) => client.with_timeout(timeout),
        None => client,
    }
}

/// Whether an address names a file that is something else than a socket.
fn is_no_socket(address: &str) -> bool {
    let metadata = unix_path(address).and_then(|path| path.metadata().ok());
    metadata.is_some_and(|metadata| !metadata.file_type().is_socket())
}

/// What can be done about an error of connecting or of listening.
pub fn explain(error: Error) -> Failure {
    let hint = match &error {
        Error::Address { .. } => return Failure::Usage(error.to_string()),
        Error::Connect { source, address, .. } => match source.kind() {
            io::ErrorKind::NotFound => "; there is no such socket: is the server running?",
            io::ErrorKind::ConnectionRefused if is_no_socket(address) => "; it is no socket",
            io::ErrorKind::ConnectionRefused => {
                "; no process listens on that socket: start the server, or remove the file"
            }
            io::ErrorKind::PermissionDenied => "; only its owner may, perhaps root",
            _ if source.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                "; this system has no vsock to that machine"
            }
            _ => "",
        },
        _ => "",
    };
    Failure::Connect(format!("{error}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_have_a_path_however_they_are_written() {
        for (address, path) in [
            ("unix:///run/a.sock", Some("/run/a.sock")),
            ("unix:/run/a.sock", Some("/run/a.sock")),
            ("/run/a:1.sock", Some("/run/a:1.sock")),
            ("a.sock", Some("a.sock")),
            ("unix://@name", Some("\0name")),
            ("unix:@name", Some("\0name")),
            ("@a:b", Some("\0a:b")),
            ("tcp://127.0.0.1:80", None),
            ("tcp:127.0.0.1:80", None),
            ("vsock:3:1024", None),
            ("hvsock:/run/vm.sock:1024", None),
        ] {
            assert_eq!(unix_path(address), path.map(PathBuf::from), "{address}");
        }
    }
}
