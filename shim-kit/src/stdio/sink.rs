//! Where copied bytes go.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::fs::inotify::WatchFlags;
use tokio::io::{Interest, unix::AsyncFd};
use ttrpc::Status;

use super::{
    Watched, failed_to_open,
    fifo::{End, Fifo, Opened, Place},
    file::FileSink,
    uri::Uri,
    watched,
};
use crate::{descriptors, inotify::Inotify, tasks::blocking_unless};

/// A path for output.
#[derive(Debug)]
pub struct Target {
    place: Place,
    /// Whether it is made if it is missing.
    is_made: bool,
}

impl Target {
    /// Understands a path or a `file://` URI.
    ///
    /// # Errors
    /// If the URI means something else.
    pub fn parse(text: &str) -> Result<Target, Status> {
        match Uri::parse(text)? {
            Some(Uri::File(path)) => Ok(Target { place: Place::unknown(path), is_made: true }),
            Some(Uri::Program(_)) => {
                Err(Status::unimplemented(format!("stderr alone cannot go to {text}")))
            }
            None => Ok(Target { place: Place::find(text.into()), is_made: false }),
        }
    }

    /// Returns whether it is opened without blocking the thread.
    pub fn is_at_hand(&self) -> bool {
        self.place.is_at_hand()
    }

    /// Opens it. May block the thread unless it is at hand.
    ///
    /// # Errors
    /// Those of [`Opened::output`].
    pub fn open(&self) -> io::Result<Opened> {
        Opened::output(&self.place, self.is_made)
    }
}

/// Where bytes go.
#[derive(Debug)]
pub enum Sink {
    /// containerd's.
    Fifo(Fifo),
    /// The process's stdin, a logger's, or a device that says when it can be written to.
    Pipe(Watched),
    File(FileSink),
    /// Takes everything and keeps nothing.
    Null,
}

impl Sink {
    /// Opens a FIFO, a file, or the file that a `file://` URI names, whatever it is. Does not block the thread.
    ///
    /// # Errors
    /// If it cannot be opened, or the URI means something else.
    pub async fn open(text: &str) -> Result<Sink, Status> {
        let target = Target::parse(text)?;
        let opened = blocking_unless(target.is_at_hand(), move || target.open()).await;
        opened.and_then(Sink::of).map_err(|error| failed_to_open(text, error))
    }

    /// Makes a sink of what was opened.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn of(opened: Opened) -> io::Result<Sink> {
        match opened {
            Opened::Fifo(held) => held.watch(End::Write).map(Sink::Fifo),
            Opened::File(file) => Ok(Sink::File(FileSink::new(file))),
            // One that is always ready, as /dev/null, cannot be watched.
            Opened::Device(file) => {
                Ok(match descriptors::watch(file.try_clone()?, Interest::WRITABLE) {
                    Ok(device) => Sink::Pipe(Arc::new(device)),
                    Err(_) => Sink::File(FileSink::new(file)),
                })
            }
        }
    }

    /// The write end of a pipe, which must not block.
    pub fn pipe(pipe: OwnedFd) -> Result<Sink, Status> {
        watched(pipe, Interest::WRITABLE).map(Sink::Pipe)
    }

    /// The descriptor that may have to be waited for.
    pub fn waits_for(&self) -> Option<&AsyncFd<File>> {
        match self {
            Sink::Fifo(fifo) => Some(&fifo.file),
            Sink::Pipe(pipe) => Some(pipe),
            Sink::File(_) | Sink::Null => None,
        }
    }

    /// Writes what can be written now.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Fifo(fifo) => fifo.file.get_ref().write(bytes),
            Sink::Pipe(pipe) => pipe.get_ref().write(bytes),
            Sink::File(file) => file.write(bytes),
            Sink::Null => Ok(bytes.len()),
        }
    }

    /// Waits until what it has taken is where it belongs, as far as that is not the reader's affair. Cancel safe.
    pub async fn idle(&mut self) {
        if let Sink::File(file) = self {
            file.idle().await;
        }
    }

    /// Whether there is somebody to take what is written.
    pub fn has_reader(&mut self) -> bool {
        match self {
            Sink::Fifo(fifo) => fifo.has_reader(),
            Sink::Pipe(_) | Sink::File(_) | Sink::Null => true,
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
            Sink::Pipe(_) | Sink::File(_) | Sink::Null => std::future::pending().await,
        }
    }

    /// Bytes that were written and not yet taken.
    pub fn left(&mut self) -> u64 {
        match self {
            Sink::Fifo(fifo) => fifo.left(),
            Sink::File(file) => file.left() as u64,
            Sink::Pipe(_) | Sink::Null => 0,
        }
    }
}
