//! Where a shim listens: a socket whose path follows from what it serves, so that a second `start`
//! for the same group finds the shim that is there.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Where sockets are unless containerd says otherwise.
pub const DEFAULT_FOLDER: &str = "/run/containerd/s";
/// The longest path that fits into a socket's address, with the zero byte behind it.
const MAX_PATH_LEN: usize = 107;
/// Digits of the hash below which two groups might share a name by accident.
const MIN_DIGITS: usize = 32;

/// The socket of the shim that serves a group of containers.
///
/// `containerd` is containerd's own address: two of them may use the same namespace and ids.
///
/// # Errors
/// If the folder's path is so long that no name fits behind it.
pub fn socket_path(
    folder: &Path,
    containerd: &str,
    namespace: &str,
    group: &str,
) -> io::Result<PathBuf> {
    let key = format!("{containerd}/{namespace}/{group}");
    let hash = Sha256::digest(key.as_bytes());
    let mut name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let room = MAX_PATH_LEN.saturating_sub(folder.as_os_str().len() + 1);
    if room < MIN_DIGITS {
        let reason =
            format!("the path of the folder for sockets is too long: {}", folder.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    name.truncate(room);
    Ok(folder.join(name))
}

/// The address as containerd wants it.
pub fn to_uri(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// What became of the wish to listen.
#[derive(Debug)]
pub enum Bound {
    /// The socket is ours.
    New(UnixListener),
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
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if is_alive(path) {
                return Ok(Bound::Taken);
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(Bound::New(listener))
}

/// Whether somebody listens on a socket.
pub fn is_alive(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// The socket that an `address` file names.
pub fn from_uri(uri: &str) -> Option<&Path> {
    uri.trim().strip_prefix("unix://").map(Path::new)
}

/// The socket of a daemon, which takes it away when it ends.
#[derive(Debug)]
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

    /// Takes it away. To be called while its listener is open: then nobody else takes it for that of
    /// a dead daemon and puts another there in between.
    pub fn remove(&self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Removes a socket, unless somebody listens there.
pub fn remove_if_dead(path: &Path) {
    if !is_alive(path) {
        // It may be gone already.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKET: &str = "/run/containerd/containerd.sock";

    #[test]
    fn a_group_has_one_address_and_no_two_groups_share_one() {
        let path = |containerd: &str, namespace: &str, group: &str| {
            socket_path(Path::new(DEFAULT_FOLDER), containerd, namespace, group).unwrap()
        };
        let one = path(SOCKET, "default", "c1");
        assert_eq!(one, path(SOCKET, "default", "c1"));
        assert_ne!(one, path(SOCKET, "default", "c2"));
        assert_ne!(one, path(SOCKET, "k8s.io", "c1"));
        assert_ne!(one, path("/run/other.sock", "default", "c1"));
        assert_eq!(to_uri(&one), format!("unix://{}", one.display()));
    }

    #[test]
    fn a_path_fits_into_a_socket_address_however_long_the_id_is() {
        for length in [1, 41, 74] {
            let folder = PathBuf::from(format!("/{}", "f".repeat(length - 1)));
            let path = socket_path(&folder, SOCKET, "default", &"c".repeat(500)).unwrap();
            assert!(path.as_os_str().len() <= MAX_PATH_LEN, "{}", path.display());
            assert!(path.starts_with(&folder));
        }
        let folder = PathBuf::from(format!("/{}", "f".repeat(80)));
        let error = socket_path(&folder, SOCKET, "default", "c1").unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn a_dead_shim_is_replaced_and_a_living_one_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s/socket");
        let Bound::New(first) = bind(&path).unwrap() else { panic!("nobody was there") };
        assert!(matches!(bind(&path).unwrap(), Bound::Taken));
        remove_if_dead(from_uri(&to_uri(&path)).unwrap());
        assert!(path.exists(), "a living shim keeps its socket");

        drop(first);
        let Bound::New(second) = bind(&path).unwrap() else { panic!("the first is dead") };
        drop(second);
        remove_if_dead(from_uri(&to_uri(&path)).unwrap());
        assert!(!path.exists());
    }

    /// A daemon that ended while the next was started for the same id looked whether somebody
    /// listened, and removed the other's socket, or neither removed any.
    #[test]
    fn a_daemon_removes_its_own_socket_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let Bound::New(first) = bind(&path).unwrap() else { panic!("nobody was there") };
        let socket = Socket::at(&path).unwrap();
        socket.remove();
        assert!(!path.exists());

        // The next came before the first had ended.
        let Bound::New(_second) = bind(&path).unwrap() else { panic!("the first has let it go") };
        drop(first);
        socket.remove();
        assert!(path.exists());
    }
}
