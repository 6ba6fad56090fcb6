//! The two names of a wrapped socket, and who has which.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, fstat, open, renameat_with, statat,
    },
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

/// The name that clients know and the one beside it. Both sockets stay open here, so that neither of their inodes
/// becomes another file's.
#[derive(Debug)]
pub struct Names {
    pub path: PathBuf,
    pub aside: PathBuf,
    server: OwnedFd,
    own: OwnedFd,
}

impl Names {
    /// Of a server's socket at the first name, and of the trace's at the second.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(path: PathBuf, aside: PathBuf) -> io::Result<Self> {
        let open = |path: &Path| {
            open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        };
        let (server, own) = (open(&path)?, open(&aside)?);
        Ok(Names { path, aside, server, own })
    }

    /// The server's socket, whatever its name is at the moment.
    pub fn server(&self) -> &OwnedFd {
        &self.server
    }

    /// Gives each socket the other's name, so that there is one under both at any time.
    ///
    /// # Errors
    /// If a name has gone, or the file system does not do that.
    pub fn exchange(&self) -> io::Result<()> {
        Ok(renameat_with(CWD, &self.path, CWD, &self.aside, RenameFlags::EXCHANGE)?)
    }

    /// Gives the server its name again, unless that is another's by now, and leaves nothing beside it. May be done
    /// again.
    ///
    /// # Errors
    /// If the files cannot be moved.
    pub fn restore(&self) -> io::Result<()> {
        let is = |path: &Path, socket: &OwnedFd| is_at(path, socket);
        if is(&self.aside, &self.server)? {
            if is(&self.path, &self.own)? {
                self.exchange()?;
                if !is(&self.aside, &self.own)? {
                    // A server has started between the two, and its socket was moved.
                    self.exchange()?;
                }
            } else if is_listening(&self.aside) {
                // It was removed, and its server lives. Of one that has started anew the name is taken.
                let restored =
                    renameat_with(CWD, &self.aside, CWD, &self.path, RenameFlags::NOREPLACE);
                restored
                    .or_else(|error| if error == Errno::EXIST { Ok(()) } else { Err(error) })?;
            }
        }
        if is(&self.aside, &self.own)? || is(&self.aside, &self.server)? {
            fs::remove_file(&self.aside)?;
        }
        Ok(())
    }
}

/// Whether a name is that of this socket.
fn is_at(path: &Path, socket: &OwnedFd) -> io::Result<bool> {
    let inode = |stat: Stat| (stat.st_dev, stat.st_ino);
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(inode(found) == inode(fstat(socket)?)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a name is that of a socket.
///
/// # Errors
/// If there is no such file.
pub fn is_socket(path: &Path) -> io::Result<bool> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Socket)
}

/// Whether somebody listens on a socket, also if it has no room for one more.
pub fn is_listening(path: &Path) -> bool {
    let connected = SocketAddrUnix::new(path.as_os_str().as_bytes()).and_then(|address| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}
