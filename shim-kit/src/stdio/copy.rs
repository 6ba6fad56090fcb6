//! One direction of a process's stdio: bytes from a source to a sink, a step at a time.

use std::{
    fs::File,
    io::{self, ErrorKind, Read, Write},
};

use tokio::{io::unix::AsyncFd, time::Instant};

use super::{fifo::Fifo, sink::Sink};

/// Bytes that are copied at a time; a quarter of what a pipe holds. On the stack, so that a process
/// that says nothing costs no buffer.
const CHUNK: usize = 16 << 10;

/// As much as the largest pipe holds that the kernel makes without being asked, sixteen times.
const MAX_READS: usize = 64;

/// What a copy may run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Copied,
    /// The source has ended and everything is written.
    End,
    /// Nobody reads the sink.
    NoReader,
}

/// One direction.
#[derive(Debug)]
pub struct Copy {
    pub source: Fifo,
    pub sink: Sink,
    /// Read and not yet written; empty unless the sink is full.
    pending: Vec<u8>,
    /// Bytes that were written.
    pub copied: u64,
    /// Since when the sink has taken nothing, if it is full.
    pub full_since: Option<Instant>,
}

impl Copy {
    /// Nothing is copied yet.
    pub fn new(source: Fifo, sink: Sink) -> Copy {
        Copy { source, sink, pending: Vec::new(), copied: 0, full_since: None }
    }

    /// Bytes that were read and not yet written.
    pub fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Waits until something can be done, and does it.
    ///
    /// Cancel safe: nothing is read before there is something to read, and what is read is kept.
    pub async fn step(&mut self) -> Step {
        if self.pending.is_empty() { self.read().await } else { self.write().await }
    }

    /// The same, but ends also when the sink's last reader has left. Cancel safe.
    pub async fn step_while_read(&mut self) -> Step {
        if self.pending.is_empty() {
            tokio::select! {
                biased;
                readable = self.source.file.readable() => drop(readable),
                () = self.sink.reader_leaves() => return Step::NoReader,
            }
        }
        self.step().await
    }

    /// From now on nothing is kept of what the source says.
    pub fn discard(&mut self) {
        self.sink = Sink::Null;
        self.pending = Vec::new();
        self.full_since = None;
    }

    /// Reads and keeps what is there, for later; no more than this many bytes, of which the last ones stay. Says
    /// whether the source goes on. Cancel safe.
    pub async fn keep(&mut self, most: usize) -> bool {
        loop {
            let Ok(mut guard) = self.source.file.readable().await else { return false };
            let mut buffer = [0; CHUNK];
            match guard.try_io(|source: &AsyncFd<File>| source.get_ref().read(&mut buffer)) {
                Ok(Ok(0)) => return false,
                Ok(Ok(read)) => {
                    self.pending.extend_from_slice(&buffer[..read]);
                    self.shorten(most);
                    return true;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(_)) => return false,
                Err(_would_block) => {}
            }
        }
    }

    /// Takes what was read and not yet written with what can be read now: the last bytes of it.
    pub fn last_words(&mut self, most: usize) -> Vec<u8> {
        let mut buffer = [0; CHUNK];
        // The source may never end.
        for _ in 0..MAX_READS {
            match self.source.file.get_ref().read(&mut buffer) {
                Ok(read) if read > 0 => self.pending.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        self.shorten(most);
        std::mem::take(&mut self.pending)
    }

    /// Lets the oldest bytes go that were read and not yet written.
    pub fn shorten(&mut self, most: usize) {
        let surplus = self.pending.len().saturating_sub(most);
        self.pending.drain(..surplus);
    }

    /// Reads and writes what is there, without waiting; nothing if the source has nothing. To be
    /// called when nothing is pending.
    pub fn step_now(&mut self) -> Option<Step> {
        match transfer(
            self.source.file.get_ref(),
            &mut self.sink,
            &mut self.pending,
            &mut self.copied,
        ) {
            Ok(step) => {
                self.note_fullness();
                Some(step)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // A terminal whose other side is closed reports EIO.
            Err(_) => Some(Step::End),
        }
    }

    async fn read(&mut self) -> Step {
        loop {
            let Ok(mut guard) = self.source.file.readable().await else { return Step::End };
            let step = guard.try_io(|source: &AsyncFd<File>| {
                transfer(source.get_ref(), &mut self.sink, &mut self.pending, &mut self.copied)
            });
            if let Ok(step) = step {
                self.note_fullness();
                return step.unwrap_or(Step::End);
            }
        }
    }

    /// Says that what is pending waits from now on.
    pub fn note_fullness(&mut self) {
        self.full_since = (!self.pending.is_empty()).then(Instant::now);
    }

    fn wrote(&mut self, count: usize) -> Step {
        self.copied += count as u64;
        self.pending.drain(..count);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        self.note_fullness();
        Step::Copied
    }

    async fn write(&mut self) -> Step {
        loop {
            let Some(sink) = self.sink.waits_for() else {
                self.sink.idle().await;
                match self.sink.write(&self.pending) {
                    Ok(written) => return self.wrote(written),
                    Err(_still_writing) => continue,
                }
            };
            let Ok(mut guard) = sink.writable().await else { return Step::NoReader };
            match guard.try_io(|sink| sink.get_ref().write(&self.pending)) {
                Ok(Ok(written)) => return self.wrote(written),
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(_)) => return Step::NoReader,
                Err(_would_block) => {}
            }
        }
    }
}

/// Copies what can be read and written now. What cannot be written is left in `pending`.
fn transfer(
    mut source: &File,
    sink: &mut Sink,
    pending: &mut Vec<u8>,
    copied: &mut u64,
) -> io::Result<Step> {
    let mut buffer = [0; CHUNK];
    let read = match source.read(&mut buffer) {
        Ok(0) => return Ok(Step::End),
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Step::Copied),
        Err(error) => return Err(error),
    };
    let (written, step) = match sink.write(&buffer[..read]) {
        Ok(written) => (written, Step::Copied),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => (0, Step::NoReader),
        // The sink is full; whatever else is wrong with it, the next attempt meets again.
        Err(_) => (0, Step::Copied),
    };
    *copied += written as u64;
    pending.extend_from_slice(&buffer[written..read]);
    Ok(step)
}
