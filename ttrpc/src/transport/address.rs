//! Addresses of Unix sockets, and binding them.
//!
//! `unix:///path`, `unix://@abstract`, and without a scheme a path.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
        net::{SocketAddr, UnixListener},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::Error;

/// Bytes of a path that fit into `sockaddr_un` beside its terminating zero (unix(7)).
const MAX_PATH_LEN: usize = 107;

/// A parsed address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Address {
    Path(PathBuf),
    Abstract(String),
}

impl Address {
    /// # Errors
    /// [`Error::Address`] for another scheme, an empty or too long name.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let fail = |reason| Error::Address { address: text.to_owned(), reason };
        // What has a colon elsewhere is a path.
        let scheme = text.split_once(':').filter(|(_, rest)| rest.starts_with("//"));
        let name = match scheme {
            Some(("unix", rest)) => &rest["//".len()..],
            Some(_) => return Err(fail("only `unix://` addresses and paths are supported")),
            None => text,
        };
        let (address, len) = match name.strip_prefix('@') {
            Some(name) => (Address::Abstract(name.to_owned()), name.len()),
            None => (Address::Path(name.into()), name.len()),
        };
        if len == 0 {
            return Err(fail("the name is empty"));
        }
        if len > MAX_PATH_LEN {
            return Err(fail("a Unix socket's name holds at most 107 bytes"));
        }
        if name.as_bytes().contains(&0) {
            return Err(fail("the name contains a zero byte"));
        }
        Ok(address)
    }

    fn to_socket_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Address::Path(path) => SocketAddr::from_pathname(path),
            #[cfg(target_os = "linux")]
            Address::Abstract(name) => SocketAddr::from_abstract_name(name),
            #[cfg(not(target_os = "linux"))]
            Address::Abstract(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Connects to a server.
///
/// # Errors
/// [`Error::Address`] and [`Error::Connect`].
pub(crate) async fn connect(text: &str) -> Result<tokio::net::UnixStream, Error> {
    let connected = match Address::parse(text)? {
        Address::Path(path) => tokio::net::UnixStream::connect(path).await,
        // A leading zero byte is how tokio spells an abstract name.
        Address::Abstract(name) => {
            let name = [b"\0", name.as_bytes()].concat();
            tokio::net::UnixStream::connect(Path::new(std::ffi::OsStr::from_bytes(&name))).await
        }
    };
    connected.map_err(|source| Error::Connect { address: text.to_owned(), source })
}

/// A listening socket whose file, if it has one and is still the one that was bound, is removed
/// when this is dropped.
#[derive(Debug)]
pub(crate) struct BoundListener {
    /// Dropped before the listener: while that listens, no other server takes the file for stale and
    /// puts its own in its place.
    file: Option<SocketFile>,
    pub(crate) listener: UnixListener,
}

/// Removes the socket file when it is dropped, if it is still the one that was bound.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced the file; its socket is not ours to remove.
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Nobody is left to be told if this fails; the next server replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl BoundListener {
    /// A listener that the program had already. Its file, if any, is left alone.
    pub(crate) fn from_listener(listener: UnixListener) -> Self {
        BoundListener { listener, file: None }
    }

    /// Binds an address. The socket file of a server that is dead is replaced.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::AddressInUse`] if a server is alive there,
    /// [`Error::NotASocket`] if something else is, and [`Error::Bind`] otherwise.
    pub(crate) fn bind(text: &str) -> Result<Self, Error> {
        let failed = |source| Error::Bind { address: text.to_owned(), source };
        let address = Address::parse(text)?;
        let _lock = match &address {
            Address::Path(path) => lock_folder(path),
            Address::Abstract(_) => None,
        };
        let socket_addr = address.to_socket_addr().map_err(failed)?;
        let bound = UnixListener::bind_addr(&socket_addr);
        let listener = match (bound, &address) {
            (Ok(listener), _) => listener,
            (Err(error), Address::Path(path)) if error.kind() == io::ErrorKind::AddrInUse => {
                replace_stale(text, path)?
            }
            (Err(error), Address::Abstract(_)) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(Error::AddressInUse { address: text.to_owned() });
            }
            (Err(error), _) => return Err(failed(error)),
        };
        let file = match address {
            Address::Path(path) => {
                let identity = identity(&path).map_err(failed)?;
                Some(SocketFile { path, identity })
            }
            Address::Abstract(_) => None,
        };
        Ok(BoundListener { listener, file })
    }

    /// Splits into the socket and the guard that removes its file.
    pub(crate) fn into_parts(self) -> (UnixListener, Option<SocketFile>) {
        (self.listener, self.file)
    }
}

/// Which file this is, whatever its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// How long binding waits for another server that binds in the same folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Locks the folder of a socket while it is bound. Two servers that start at once would else take
/// each other's socket, bound and not listening yet, for a stale one and remove it. A folder that
/// cannot be locked, or that somebody else keeps locked, is no reason not to start.
fn lock_folder(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    let start = Instant::now();
    while let Err(TryLockError::WouldBlock) = folder.try_lock() {
        if start.elapsed() > LOCK_PATIENCE {
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Some(folder)
}

/// Binds a path that is taken, if it is taken by the socket of a server that is dead.
fn replace_stale(text: &str, path: &Path) -> Result<UnixListener, Error> {
    let failed = |source| Error::Bind { address: text.to_owned(), source };
    let in_use = || Error::AddressInUse { address: text.to_owned() };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.file_type().is_socket() {
        return Err(Error::NotASocket { address: text.to_owned() });
    }
    if is_alive(path).map_err(failed)? {
        return Err(in_use());
    }
    fs::remove_file(path).map_err(failed)?;
    UnixListener::bind(path).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => in_use(),
        _ => failed(error),
    })
}

/// Whether somebody listens on a socket file. Does not block: a server whose backlog is full would
/// let a blocking connect wait for as long as it pleases.
fn is_alive(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(true),
            io::ErrorKind::ConnectionRefused => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let path = |text: &str| Address::Path(text.into());
        assert_eq!(Address::parse("unix:///run/a.sock").unwrap(), path("/run/a.sock"));
        assert_eq!(Address::parse("/run/a.sock").unwrap(), path("/run/a.sock"));
        assert_eq!(Address::parse("a.sock").unwrap(), path("a.sock"));
        assert_eq!(Address::parse("/run/a:1.sock").unwrap(), path("/run/a:1.sock"));
        assert_eq!(Address::parse("unix://@name").unwrap(), Address::Abstract("name".into()));
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        let long = format!("/{}", "x".repeat(MAX_PATH_LEN));
        for (text, reason) in [
            ("", "empty"),
            ("unix://", "empty"),
            ("unix://@", "empty"),
            ("tcp://127.0.0.1:1", "only `unix://`"),
            ("vsock://2:1", "only `unix://`"),
            (long.as_str(), "107 bytes"),
            ("/a\0b", "zero byte"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
            assert!(error.contains(text), "{error} names the address");
        }
        assert!(Address::parse(&long[..MAX_PATH_LEN]).is_ok());
    }
}
