//! Where a shim listens: a socket whose path follows from what it serves, so that a second `start`
//! for the same group finds the shim that is there.

use std::{
    fs::{self, File},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::FlockOperation,
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

/// The address as containerd wants it.
pub fn to_uri(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// What became of the wish to listen.
#[derive(Debug)]
pub enum Bound {
    /// The socket is ours.
    New(UnixListener, Socket),
    /// A shim of the same group listens there already.
    Taken,
}

/// Listens on a path, or finds the shim that does. The socket of a shim that died is replaced.
///
/// # Errors
/// Those of creating the folder and binding.
pub fn bind(path: &Path) -> io::Result<Bound> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let _lock = lock(path)?;
    if is_alive(path)? {
        return Ok(Bound::Taken);
    }
    remove(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(Bound::New(listener, Socket::at(path)?))
}

/// Keeps all others from making and removing sockets in this folder, until it is dropped. Nobody waits for another
/// process meanwhile, so that all groups can have one lock, which leaves no file.
fn lock(path: &Path) -> io::Result<File> {
    let folder = File::open(path.parent().unwrap_or(Path::new("/")))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&folder, FlockOperation::LockExclusive))?;
    Ok(folder)
}

/// Whether somebody listens on a socket. Does not wait for a shim that is slow to take connections.
fn is_alive(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        // Its queue of connections is full.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a socket that may be gone already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The socket that an `address` file names.
pub fn from_uri(uri: &str) -> Option<&Path> {
    uri.trim().strip_prefix("unix://").map(Path::new)
}

/// The socket of a daemon, which takes it away when it ends.
#[derive(Clone, Debug)]
pub struct Socket {
    path: PathBuf,
    /// Device and inode: another daemon may have put its own there.
    identity: (u64, u64),
}

impl Socket {
    /// The socket that is on this path now.
    ///
    /// # Errors
    /// If nothing is there.
    pub fn at(path: &Path) -> io::Result<Socket> {
        Ok(Socket { path: path.to_owned(), identity: identity(path)? })
    }

    /// Takes it away, unless another daemon has put its own there. May block the thread.
    ///
    /// # Errors
    /// Those of locking the folder and removing.
    pub fn remove(&self) -> io::Result<()> {
        let _lock = lock(&self.path)?;
        match identity(&self.path) {
            Ok(found) if found == self.identity => remove(&self.path),
            _ => Ok(()),
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes a socket, unless somebody listens there.
///
/// # Errors
/// Those of locking the folder and removing.
pub fn remove_if_dead(path: &Path) -> io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let _lock = lock(path)?;
    if is_alive(path)? { Ok(()) } else { remove(path) }
}

#[cfg(test)]
mod tests {
    use rustix::net::Shutdown;

    use super::*;

    /// Has a listener end, also if a process that another test starts has inherited it and not called `exec` yet.
    fn end(listener: UnixListener) {
        rustix::net::shutdown(&listener, Shutdown::Both).unwrap();
    }

    fn new(path: &Path) -> (UnixListener, Socket) {
        match bind(path).unwrap() {
            Bound::New(listener, socket) => (listener, socket),
            Bound::Taken => panic!("somebody listens there"),
        }
    }

    #[test]
    fn a_dead_shim_is_replaced_and_a_living_one_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s/socket");
        let first = new(&path);
        assert!(matches!(bind(&path).unwrap(), Bound::Taken));
        remove_if_dead(from_uri(&to_uri(&path)).unwrap()).unwrap();
        assert!(path.exists(), "a living shim keeps its socket");

        end(first.0);
        end(new(&path).0);
        remove_if_dead(from_uri(&to_uri(&path)).unwrap()).unwrap();
        assert!(!path.exists());
        remove_if_dead(&path).unwrap();
    }

    /// Two that found a dead socket both removed it, one of them the other's.
    #[test]
    fn of_many_that_listen_at_once_one_succeeds_and_the_others_find_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for round in 0..200 {
            if round % 2 == 0 {
                end(UnixListener::bind(&path).unwrap());
            }
            let bound: Vec<Bound> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| bind(&path).unwrap())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let new = bound.iter().filter(|bound| matches!(bound, Bound::New(..))).count();
            assert_eq!(new, 1, "round {round}");
            assert!(is_alive(&path).unwrap());
            remove(&path).unwrap();
        }
    }

    /// A daemon that takes no connections kept whoever asked for it waiting.
    #[test]
    fn a_shim_whose_queue_is_full_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let flags = SocketFlags::CLOEXEC;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert!(is_alive(&path).unwrap());
    }

    /// A daemon that ended while the next was started for the same id looked whether somebody
    /// listened, and removed the other's socket, or neither removed any.
    #[test]
    fn a_daemon_removes_its_own_socket_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (first, socket) = new(&path);
        socket.remove().unwrap();
        assert!(!path.exists());

        // The next came before the first had ended.
        let _second = new(&path);
        end(first);
        socket.remove().unwrap();
        assert!(path.exists());
    }
}
