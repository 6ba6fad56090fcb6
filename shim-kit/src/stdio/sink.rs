//! Where copied bytes go.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::fs::inotify::WatchFlags;
use tokio::io::{Interest, unix::AsyncFd};
use ttrpc::Status;

use super::{
    Watched, failed_to_open,
    fifo::{End, Fifo},
    watched,
};
use crate::{inotify::Inotify, log};

/// Where bytes go.
#[derive(Debug)]
pub enum Sink {
    /// containerd's.
    Fifo(Fifo),
    /// The process's stdin, or a logger's.
    Pipe(Watched),
    /// A file, and whether bytes were lost that did not fit.
    File(File, bool),
}

impl Sink {
    /// Opens a FIFO, a file, or the file that a `file://` URI names.
    pub fn open(path: &str) -> Result<Sink, Status> {
        let failed = |error| failed_to_open(path, error);
        if let Some(file) = path.strip_prefix("file://") {
            if let Some(folder) = Path::new(file).parent() {
                std::fs::create_dir_all(folder).map_err(failed)?;
            }
            let file = OpenOptions::new().append(true).create(true).open(file).map_err(failed)?;
            return Ok(Sink::File(file, false));
        }
        if let Some((scheme, _)) = path.split_once("://") {
            let message = format!("output cannot go to {scheme}://");
            return Err(Status::unimplemented(message));
        }
        Ok(match Fifo::open(path, End::Write).map_err(failed)? {
            Some(fifo) => Sink::Fifo(fifo),
            None => Sink::File(OpenOptions::new().append(true).open(path).map_err(failed)?, false),
        })
    }

    /// The write end of a pipe, which must not block.
    pub fn pipe(pipe: OwnedFd) -> Result<Sink, Status> {
        watched(pipe, Interest::WRITABLE).map(Sink::Pipe)
    }

    /// Takes everything and keeps nothing.
    pub fn null() -> io::Result<Sink> {
        Ok(Sink::File(OpenOptions::new().write(true).open("/dev/null")?, false))
    }

    /// The descriptor that may have to be waited for. A file never has to be.
    pub fn waits_for(&self) -> Option<&AsyncFd<File>> {
        match self {
            Sink::Fifo(fifo) => Some(&fifo.file),
            Sink::Pipe(pipe) => Some(pipe),
            Sink::File(..) => None,
        }
    }

    /// Writes what can be written now.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Fifo(fifo) => fifo.file.get_ref().write(bytes),
            Sink::Pipe(pipe) => pipe.get_ref().write(bytes),
            Sink::File(file, has_lost) => {
                if let Err(error) = file.write_all(bytes)
                    && !std::mem::replace(has_lost, true)
                {
                    log::warn(format_args!("output is lost from here on: {error}"));
                }
                Ok(bytes.len())
            }
        }
    }

    /// Whether there is somebody to take what is written.
    pub fn has_reader(&mut self) -> bool {
        match self {
            Sink::Fifo(fifo) => fifo.has_reader(),
            Sink::Pipe(_) | Sink::File(..) => true,
        }
    }

    /// Keeps a FIFO from failing without a reader.
    pub fn hold(&mut self) {
        if let Sink::Fifo(fifo) = self {
            fifo.hold();
        }
    }

    /// Whether somebody has read it, now or before.
    pub fn was_met(&self) -> bool {
        !matches!(self, Sink::Fifo(fifo) if !fifo.was_met())
    }

    /// Waits until there is a reader, or none can come. Cancel safe.
    pub async fn reader_comes(&mut self, readers: &Inotify) {
        let Sink::Fifo(fifo) = self else { return };
        let path = fifo.path();
        // A reader opens the FIFO; whoever removes its path changes the number of its links.
        let signs = WatchFlags::OPEN | WatchFlags::ATTRIB;
        readers.until(&path, signs, || fifo.has_reader() || fifo.is_removed()).await;
    }

    /// Waits until there is no reader any more. Cancel safe.
    pub async fn reader_leaves(&self) {
        match self {
            Sink::Fifo(fifo) => fifo.reader_leaves().await,
            Sink::Pipe(_) | Sink::File(..) => std::future::pending().await,
        }
    }

    /// Bytes that were written and not yet taken.
    pub fn left(&self) -> u64 {
        match self {
            Sink::Fifo(fifo) => fifo.left(),
            Sink::Pipe(_) | Sink::File(..) => 0,
        }
    }
}
