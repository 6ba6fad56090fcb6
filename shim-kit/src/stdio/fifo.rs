//! One end of a FIFO or pipe.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags},
};
use tokio::io::Interest;

use super::{Watched, is_fifo, open};
use crate::{descriptors, log};

/// Which end of a FIFO is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Read,
    Write,
}

impl End {
    fn interest(self) -> Interest {
        match self {
            End::Read => Interest::READABLE,
            End::Write => Interest::WRITABLE,
        }
    }
}

/// A path, with the FIFO that is there if it was found without waiting for a file system.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    fifo: Option<OwnedFd>,
}

impl Place {
    /// Finds a FIFO whose path the kernel has in its cache, on the file system of `/run`. Linux before 5.12 finds none.
    pub fn find(path: PathBuf) -> Place {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = rustix::fs::openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::CACHED);
        Place { path, fifo: found.ok().filter(is_cached_fifo) }
    }

    /// A path that is not looked for.
    pub fn unknown(path: PathBuf) -> Place {
        Place { path, fifo: None }
    }

    /// Returns whether it is a FIFO that is opened without blocking the thread.
    pub fn is_at_hand(&self) -> bool {
        self.fifo.is_some()
    }

    /// The path to open it by.
    pub fn path(&self) -> PathBuf {
        self.fifo.as_ref().map_or_else(|| self.path.clone(), |fifo| path_of(fifo).into())
    }
}

/// Whether this is a FIFO, as far as the kernel knows without asking a server, and is opened without asking one.
fn is_cached_fifo(file: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, c"", flags, StatxFlags::TYPE).is_ok_and(|found| {
        FileType::from_raw_mode(found.stx_mode.into()) == FileType::Fifo
            && local_device() == Some(device(&found))
    })
}

/// That of `/run`, where containerd's clients have their FIFOs. Who opens a file of another file system may have to ask a
/// server whether it may, though the path is in the cache.
fn local_device() -> Option<(u32, u32)> {
    static DEVICE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let found = rustix::fs::statx(CWD, "/run", AtFlags::empty(), StatxFlags::TYPE);
        found.ok().as_ref().map(device)
    })
}

fn device(found: &Statx) -> (u32, u32) {
    (found.stx_dev_major, found.stx_dev_minor)
}

/// A path of an open file that works also when its own is removed.
fn path_of(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// What a path for output turned out to be.
#[derive(Debug)]
pub enum Opened {
    Fifo(Held),
    File(File),
    Device(File),
}

/// A FIFO that is open for reading and writing.
#[derive(Debug)]
pub struct Held {
    file: File,
    was_met: bool,
    /// Stays open until the FIFO is held: a reader who was met and left alone again would take that for the end.
    _writer: Option<File>,
}

impl Opened {
    /// Opens a place for writing to its end. To find it may block the thread, unless it is at hand; to open it,
    /// whatever it is, does not.
    ///
    /// # Errors
    /// Those of opening; also if it is a socket.
    pub fn output(place: &Place, is_made: bool) -> io::Result<Opened> {
        let path = &place.path();
        let is_fifo = |file: &File| if place.is_at_hand() { Ok(true) } else { is_fifo(file) };
        if let Some(folder) = path.parent().filter(|_| is_made) {
            fs::create_dir_all(folder)?;
        }
        let made = if is_made { OFlags::CREATE } else { OFlags::empty() };
        let writer = match open(path, OFlags::WRONLY | OFlags::APPEND | made) {
            // A FIFO that nobody reads.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => None,
            opened => Some(opened?),
        };
        match writer {
            Some(file) if !is_fifo(&file)? => Ok(match file.metadata()?.is_file() {
                true => Opened::File(file),
                false => Opened::Device(file),
            }),
            writer => {
                let file = open(path, OFlags::RDWR)?;
                if !is_fifo(&file)? {
                    return Err(io::Error::from_raw_os_error(libc::ENXIO));
                }
                Ok(Opened::Fifo(Held { file, was_met: writer.is_some(), _writer: writer }))
            }
        }
    }
}

impl Held {
    /// Opens a FIFO for reading. May block the thread unless it is at hand.
    ///
    /// # Errors
    /// Those of opening; INVALID_INPUT if the path is something else.
    pub fn input(place: &Place) -> io::Result<Held> {
        let file = open(place.path(), OFlags::RDWR)?;
        match place.is_at_hand() || is_fifo(&file)? {
            true => Ok(Held { file, was_met: false, _writer: None }),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a FIFO")),
        }
    }

    /// Has the runtime tell when something can be read or written.
    pub fn watch(self, end: End) -> io::Result<Fifo> {
        let file = Arc::new(descriptors::watch(self.file, end.interest())?);
        Ok(Fifo { file, end, is_held: true, was_met: self.was_met })
    }
}

/// A FIFO, or one end of a pipe.
///
/// A FIFO is first held: open for reading and writing, so that it neither ends nor fails while
/// containerd's side is not there. Let go, it tells whether the other side is there.
#[derive(Debug)]
pub struct Fifo {
    pub file: Watched,
    end: End,
    is_held: bool,
    /// Whether the other side has been seen.
    was_met: bool,
}

impl Fifo {
    /// The read end of a pipe, or a terminal's master.
    pub fn pipe(file: Watched) -> Fifo {
        Fifo { file, end: End::Read, is_held: false, was_met: true }
    }

    /// Lets the other side decide from now on when the FIFO ends.
    pub fn let_go(&mut self) {
        if self.is_held {
            self.reopen(false);
        }
    }

    /// Keeps the FIFO from ending without the other side.
    pub fn hold(&mut self) {
        if !self.is_held {
            self.reopen(true);
        }
    }

    /// A path that works also when the client has removed the FIFO's own.
    pub fn path(&self) -> String {
        path_of(&*self.file)
    }

    /// What is in the FIFO stays, since it is open all the time.
    fn reopen(&mut self, is_held: bool) {
        let access = match self.end {
            _ if is_held => OFlags::RDWR,
            End::Read => OFlags::RDONLY,
            End::Write => OFlags::WRONLY,
        };
        let reopened = open(self.path(), access)
            .and_then(|file| descriptors::watch(file, self.end.interest()));
        match reopened {
            Ok(file) => {
                self.file = Arc::new(file);
                self.is_held = is_held;
            }
            Err(error) => log::warn(format_args!("cannot reopen a FIFO: {error}")),
        }
    }

    /// Whether somebody has the other end open for reading. The FIFO is let go for it, so that a
    /// reader who leaves is noticed by a failing write.
    pub fn has_reader(&mut self) -> bool {
        self.let_go();
        let is_there = self.is_read();
        self.was_met |= is_there;
        is_there
    }

    fn is_read(&self) -> bool {
        let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&at_once)).is_ok()
            && !fds[0].revents().contains(PollFlags::ERR)
    }

    /// Whether the other side has ever been there.
    pub fn was_met(&self) -> bool {
        self.was_met
    }

    /// Whether nobody can open the FIFO any more, since its path is gone.
    pub fn is_removed(&self) -> bool {
        self.file.get_ref().metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    /// Waits until the last reader has left a FIFO that was let go. Cancel safe.
    pub async fn reader_leaves(&self) {
        while let Ok(mut guard) = self.file.ready(Interest::ERROR).await {
            if !self.is_read() {
                return;
            }
            guard.clear_ready();
        }
    }

    /// Bytes that were written and not yet taken.
    pub fn left(&self) -> u64 {
        rustix::io::ioctl_fionread(self.file.get_ref()).unwrap_or(0)
    }
}
