//! Unix sockets: binding them, and what becomes of their files.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use socket2::{Domain, SockAddr, Socket, Type};

use super::socket::BACKLOG;
use crate::{Error, trace};

/// Removes the socket file when it is dropped, if it is still the one that was bound.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Leaves the file alone from now on.
    pub(crate) fn keep(mut self) {
        self.path.clear();
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced the file; its socket is not ours to remove.
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // A failure could be reported to no caller; the next server replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a path and listens. The socket file of a server that is dead is replaced. The file's mode, if
/// one is given, is set before anybody can connect.
///
/// # Errors
/// [`Error::AddressInUse`] if a server is alive there, [`Error::NotASocket`] if something else is, and
/// [`Error::Bind`] otherwise.
pub(crate) fn bind_path(
    text: &str,
    path: &Path,
    mode: Option<u32>,
) -> Result<(Socket, SocketFile), Error> {
    let _lock = lock_directory(path);
    let (socket, file) = bind_file(text, path, mode)?;
    let listening = socket.listen(BACKLOG);
    listening.map_err(|source| Error::Bind { address: text.to_owned(), source })?;
    Ok((socket, file))
}

/// Binds a path and sets its file's mode. The socket does not listen yet, so it refuses connections.
fn bind_file(text: &str, path: &Path, mode: Option<u32>) -> Result<(Socket, SocketFile), Error> {
    let failed = |source| Error::Bind { address: text.to_owned(), source };
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    let address = SockAddr::unix(path).map_err(failed)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(text, path)?;
            socket.bind(&address).map_err(|error| bind_error(text, error))?;
        }
        bound => bound.map_err(failed)?,
    }
    // From here on the file is removed if anything fails.
    let identity = identity(path).map_err(failed)?;
    let file = SocketFile { path: path.to_owned(), identity };
    if let Some(mode) = mode {
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok((socket, file))
}

/// Why an address could not be bound.
pub(crate) fn bind_error(text: &str, source: io::Error) -> Error {
    let address = text.to_owned();
    match source.kind() {
        io::ErrorKind::AddrInUse => Error::AddressInUse { address },
        _ => Error::Bind { address, source },
    }
}

/// Which file this is, whatever its name.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// How long binding waits, and blocks its thread, for another server that binds in the same directory. That
/// takes less than a millisecond.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Locks the directory of a socket while it is bound. Two servers that start at once would else take
/// each other's socket, bound and not listening yet, for a stale one and remove it. A directory that
/// cannot be locked, or that another process keeps locked, is no reason not to start.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    let start = Instant::now();
    while flock(&directory, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        if start.elapsed() > LOCK_TIMEOUT {
            trace::warn!(path = %path.display(), "binding without the directory's lock, which another process keeps");
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Some(directory)
}

/// Removes what is in a socket's place, if it is the socket of a server that is dead.
fn remove_stale(text: &str, path: &Path) -> Result<(), Error> {
    let failed = |source| Error::Bind { address: text.to_owned(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.file_type().is_socket() {
        return Err(Error::NotASocket { address: text.to_owned() });
    }
    if is_alive(path).map_err(failed)? {
        return Err(Error::AddressInUse { address: text.to_owned() });
    }
    fs::remove_file(path).map_err(failed)
}

/// Returns whether a process listens on a socket file. Does not block: a server whose backlog is full would
/// let a blocking connect wait for as long as it pleases. Linux tells such a server from a dead one; the
/// BSDs and macOS refuse both alike, so there a server with a full backlog is taken for dead.
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
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_file_has_its_mode_while_nobody_can_connect() {
        let path = folder("mode").join("a.sock");
        let (_socket, file) = bind_file("", &path, Some(0o620)).expect("the path is free");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o620);
        let error = UnixStream::connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        drop(file);
        assert!(!path.exists());
        fs::remove_dir(path.parent().expect("it is in a folder")).expect("it is empty");
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ttrpc-{name}-{}", std::process::id()));
        // A process with the same number may have been killed in this test.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("the path is free");
        folder
    }

    #[test]
    fn the_directory_is_locked_while_a_socket_is_bound_there_and_waited_for_but_not_for_ever() {
        let folder = folder("lock");
        let path = folder.join("a.sock");
        let lock = lock_directory(&path);
        assert!(lock.is_some());
        let same = File::open(&folder).expect("it is there");
        let locked = flock(&same, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked, Err(Errno::WOULDBLOCK));
        let start = Instant::now();
        assert!(lock_directory(&path).is_none());
        assert!(start.elapsed() >= LOCK_TIMEOUT);
        drop(lock);
        assert!(lock_directory(&path).is_some());
        assert!(lock_directory(Path::new("a.sock")).is_some(), "in the present directory");
        fs::remove_dir(&folder).expect("it is empty");
    }

    #[test]
    fn a_server_with_a_full_backlog_is_alive_and_one_that_does_not_listen_is_not() {
        let folder = folder("backlog");
        let path = folder.join("a.sock");
        let (socket, file) = bind_file("", &path, None).expect("the path is free");
        assert!(!is_alive(&path).expect("it can be told"));
        socket.listen(0).expect("it is bound");
        let address = SockAddr::unix(&path).expect("it is short");
        let mut clients = Vec::new();
        loop {
            let client =
                Socket::new(Domain::UNIX, Type::STREAM, None).expect("descriptors are left");
            client.set_nonblocking(true).expect("it is a socket");
            match client.connect(&address) {
                Ok(()) => clients.push(client),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        assert!(is_alive(&path).expect("it can be told"));
        drop(file);
        fs::remove_dir(&folder).expect("it is empty");
    }
}
