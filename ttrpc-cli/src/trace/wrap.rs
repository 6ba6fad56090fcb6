//! Standing before a server that runs: its socket gets another name, and comes back.

use std::{
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{MetadataExt, chown},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use ttrpc::Connection;

use super::{
    guard::Guard,
    names::{Names, is_listening, is_socket},
};
use crate::{failure::Failure, output, session::unix_path};

/// A socket that stands in the place of a server's. Dropped, the server's is put back; the guard does that if there is
/// no time to drop it.
#[derive(Debug)]
pub struct Wrapped {
    names: Names,
    listener: UnixListener,
    is_put_back: bool,
    _guard: Guard,
}

impl Wrapped {
    /// Stands before the server of an address.
    ///
    /// # Errors
    /// [`Failure::Usage`] for what has no file and for what is wrapped already, [`Failure::Connect`] if
    /// the files cannot be moved.
    pub fn wrap(address: &str) -> Result<Self, Failure> {
        let has_file = |path: &PathBuf| !path.as_os_str().as_encoded_bytes().starts_with(b"\0");
        let Some(mut path) = unix_path(address).filter(has_file) else {
            return Err(Failure::Usage(format!(
                "`{address}` has no file that could be moved aside; --listen and --upstream go with \
                 any address"
            )));
        };
        let cannot = |error: io::Error| {
            let hint = match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INVAL | Errno::NOSYS) => {
                    ": the file system does not exchange names; --listen and --upstream go with any"
                }
                _ => "",
            };
            Failure::Connect(format!("cannot stand before `{address}`: {error}{hint}"))
        };
        // A link stays as it is.
        if path.is_symlink() {
            path = path.canonicalize().map_err(cannot)?;
        }
        if !is_socket(&path).map_err(cannot)? {
            return Err(Failure::Usage(format!("`{}` is no socket", path.display())));
        }
        let aside = with_suffix(&path, ".traced");
        if aside.symlink_metadata().is_ok() {
            if is_listening(&aside) || !is_listening(&path) {
                return Err(Failure::Usage(format!(
                    "`{0}` is there: another trace runs, or one was killed with the process that \
                     guards it, and `mv {0} {1}` puts the socket back",
                    aside.display(),
                    path.display()
                )));
            }
            // Left by a trace that was killed before it stood there.
            fs::remove_file(&aside).map_err(cannot)?;
        }
        let listener = listen_like(&path, &aside).map_err(cannot)?;
        let wrapped = Names::open(path, aside.clone()).and_then(|names| {
            let guard = Guard::start(&names)?;
            names.exchange()?;
            Ok((names, guard))
        });
        match wrapped {
            Ok((names, guard)) => {
                Ok(Wrapped { names, listener, is_put_back: false, _guard: guard })
            }
            Err(error) => {
                // A guard may have done it.
                let _ = fs::remove_file(&aside);
                Err(cannot(error))
            }
        }
    }

    /// Where the server is reached, also when its socket has been put back.
    pub fn upstream(&self) -> String {
        format!("/proc/self/fd/{}", self.names.server().as_raw_fd())
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
        if let Err(error) = self.names.restore() {
            output::note(format_args!(
                "the socket could not be put back ({error}): mv {} {}",
                self.names.aside.display(),
                self.names.path.display()
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

/// Listens under another name, for those who may connect to a socket and nobody else.
fn listen_like(path: &Path, aside: &Path) -> io::Result<UnixListener> {
    let metadata = fs::metadata(path)?;
    let listener = UnixListener::bind(aside)?;
    let prepared = || {
        listener.set_nonblocking(true)?;
        fs::set_permissions(aside, metadata.permissions())?;
        chown(aside, Some(metadata.uid()), Some(metadata.gid()))
    };
    match prepared() {
        Ok(()) => Ok(listener),
        Err(error) => {
            // It is of no use to anybody.
            let _ = fs::remove_file(aside);
            Err(error)
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
