//! Standing before a server that runs: its socket moves aside, and comes back.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{MetadataExt, chown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags};
use ttrpc::Connection;

use crate::{failure::Failure, output, session::unix_path};

/// A socket file that is moved aside, and the one that stands in its place. Dropped, it is put back.
#[derive(Debug)]
pub struct Wrapped {
    path: PathBuf,
    aside: PathBuf,
    listener: UnixListener,
    /// The server's socket, whatever its name is at the moment.
    server: OwnedFd,
    is_put_back: bool,
}

impl Wrapped {
    /// Stands before the server of an address.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what has no file and for what is wrapped already, [`Failure::Connect`] if
    /// the files cannot be moved.
    pub fn wrap(address: &str) -> Result<Self, Failure> {
        let has_file = |path: &PathBuf| !path.as_os_str().as_encoded_bytes().starts_with(b"\0");
        let Some(path) = unix_path(address).filter(has_file) else {
            return Err(Failure::Usage(format!(
                "`{address}` has no file that could be moved aside; --listen and --upstream go with \
                 any address"
            )));
        };
        let aside = with_suffix(&path, ".traced");
        if aside.symlink_metadata().is_ok() {
            return Err(Failure::Usage(format!(
                "`{0}` is there: another trace runs, or one was killed and `mv {0} {1}` puts the \
                 socket back",
                aside.display(),
                path.display()
            )));
        }
        let cannot = |error: io::Error| {
            Failure::Connect(format!("cannot listen on `{}`: {error}", path.display()))
        };
        let server = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let server = server.map_err(|error| cannot(error.into()))?;
        let kind = rustix::fs::fstat(&server).map_err(|error| cannot(error.into()))?.st_mode;
        if FileType::from_raw_mode(kind) != FileType::Socket {
            return Err(Failure::Usage(format!("`{}` is no socket", path.display())));
        }
        let listener = replace(&path, &aside).map_err(cannot)?;
        Ok(Wrapped { path, aside, listener, server, is_put_back: false })
    }

    /// Where the server is reached, also when its socket has been put back.
    pub fn upstream(&self) -> String {
        format!("/proc/self/fd/{}", self.server.as_raw_fd())
    }

    /// What clients connect to.
    ///
    /// # Errors
    /// If there are too few descriptors.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Puts the socket back, and returns the clients that had come before and were not accepted. The
    /// server is reached for them as before, for as long as this lives.
    pub fn put_back(&mut self) -> Vec<Connection> {
        self.is_put_back = true;
        if let Err(error) = fs::rename(&self.aside, &self.path) {
            output::note(format_args!(
                "the socket could not be put back ({error}): mv {} {}",
                self.aside.display(),
                self.path.display()
            ));
        }
        // Nobody else comes: the listener has no name any more, and does not wait.
        let waiting = std::iter::from_fn(|| self.listener.accept().ok());
        // One that cannot be used has gone already.
        waiting.filter_map(|(client, _)| Connection::from_fd(client.into()).ok()).collect()
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        if !self.is_put_back {
            self.put_back();
        }
    }
}

/// Moves a socket aside and listens in its place, for those who may connect to it and nobody else.
fn replace(path: &Path, aside: &Path) -> io::Result<UnixListener> {
    let metadata = fs::metadata(path)?;
    let new = with_suffix(path, ".tracing");
    // Left by a trace that was killed while it began.
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    listener.set_nonblocking(true)?;
    let moved = || {
        fs::set_permissions(&new, metadata.permissions())?;
        chown(&new, Some(metadata.uid()), Some(metadata.gid()))?;
        fs::rename(path, aside)?;
        fs::rename(&new, path).inspect_err(|_| {
            // Nothing else can be done if this fails as well.
            let _ = fs::rename(aside, path);
        })
    };
    match moved() {
        Ok(()) => Ok(listener),
        Err(error) => {
            // It is of no use to anybody.
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
