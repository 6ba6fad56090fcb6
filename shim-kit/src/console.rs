//! Terminals. runc makes one inside the container and sends its master over a Unix socket; for other
//! runtimes the shim makes it.

use std::{
    fs::{self, File},
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
    pty::OpenptFlags,
    termios::Winsize,
};

/// The socket on which runc is to deliver a terminal's master.
#[derive(Debug)]
pub struct ConsoleSocket {
    listener: UnixListener,
    file: PathBuf,
    short: PathBuf,
    /// Keeps `short` valid.
    _bundle: File,
}

impl ConsoleSocket {
    /// Listens in the bundle. Its path may be longer than a socket's address can be, so it is
    /// reached over a descriptor of the bundle.
    ///
    /// # Errors
    /// Those of opening the folder and binding.
    pub fn bind(bundle: &Path, name: &str) -> io::Result<ConsoleSocket> {
        let folder = File::open(bundle)?;
        let short =
            PathBuf::from(format!("/proc/{}/fd/{}/{name}", std::process::id(), folder.as_raw_fd()));
        let listener = UnixListener::bind(&short)?;
        listener.set_nonblocking(true)?;
        Ok(ConsoleSocket { listener, file: bundle.join(name), short, _bundle: folder })
    }

    /// Returns the path for runc's `--console-socket`.
    pub fn path(&self) -> &Path {
        &self.short
    }

    /// Takes the master. To be called when runc has succeeded: it is there then.
    ///
    /// # Errors
    /// If nothing was sent, or no descriptor.
    pub fn receive(self) -> io::Result<OwnedFd> {
        let (stream, _) = self.listener.accept()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut name = [0; 4096];
        let mut data = [IoSliceMut::new(&mut name)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        rustix::net::recvmsg(&stream, &mut data, &mut control, flags)?;
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        descriptors.next().ok_or_else(|| io::Error::other("runc sent no terminal"))
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        // The bundle goes with the container anyway.
        let _ = fs::remove_file(&self.file);
    }
}

/// Makes a terminal: its master, and the side of the process.
///
/// # Errors
/// If the kernel has none to give.
pub fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok((master, rustix::fs::open(name, flags, Mode::empty())?))
}

/// Makes the terminal on stdin the controlling one of a new session, so that its user's Ctrl-C
/// arrives.
///
/// The process that has a terminal from [`crate::Launch::stdio`] calls it, before it becomes the
/// container's program.
///
/// # Errors
/// If stdin is no terminal, or the process leads a group of others.
pub fn take_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(rustix::process::ioctl_tiocsctty(io::stdin())?)
}

/// Sets a terminal's size, in characters.
///
/// # Errors
/// Those of the ioctl.
pub fn resize(master: impl AsFd, width: u32, height: u32) -> io::Result<()> {
    let clamp = |size: u32| u16::try_from(size).unwrap_or(u16::MAX);
    let size = Winsize { ws_row: clamp(height), ws_col: clamp(width), ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}
