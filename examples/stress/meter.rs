//! What the sockets of one process do: bytes, refused writes, and how long the senders were blocked.

use std::{
    io::{self, IoSlice},
    os::fd::AsFd,
    pin::Pin,
    str::FromStr,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use ttrpc::snapshot::QueueSnapshot;

use crate::socket;

/// What the sockets of one process have done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Bytes that the kernel took.
    pub written_bytes: u64,
    /// Bytes that the kernel gave.
    pub read_bytes: u64,
    /// Writes that the kernel refused because the socket was full.
    pub refused_writes: u64,
    /// How long senders were blocked, in sum.
    pub blocked: Duration,
    /// Senders that are blocked now.
    pub blocked_now: u64,
    /// Unsent bytes in the socket (SIOCOUTQ) when the kernel last refused a write.
    pub unsent_bytes: u64,
    /// The most of them.
    pub most_unsent_bytes: u64,
    /// The most frames that were seen in an outgoing queue, those that are being written included.
    pub most_queued_frames: u64,
    /// The most bytes of them.
    pub most_queued_bytes: u64,
}

impl Figures {
    /// One line, for another process.
    pub fn to_line(self) -> String {
        let Figures { blocked, .. } = self;
        let numbers = [
            self.written_bytes,
            self.read_bytes,
            self.refused_writes,
            blocked.as_micros() as u64,
            self.blocked_now,
            self.unsent_bytes,
            self.most_unsent_bytes,
            self.most_queued_frames,
            self.most_queued_bytes,
        ];
        numbers.map(|number| number.to_string()).join(" ")
    }

    /// What [`Figures::to_line`] wrote.
    pub fn from_line(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(|number| u64::from_str(number).ok());
        let mut next = || numbers.next().flatten();
        Some(Figures {
            written_bytes: next()?,
            read_bytes: next()?,
            refused_writes: next()?,
            blocked: Duration::from_micros(next()?),
            blocked_now: next()?,
            unsent_bytes: next()?,
            most_unsent_bytes: next()?,
            most_queued_frames: next()?,
            most_queued_bytes: next()?,
        })
    }

    /// Whether the kernel has refused a write and said that the socket was full.
    pub fn was_full(&self) -> bool {
        self.refused_writes > 0 && self.most_unsent_bytes > 0 && !self.blocked.is_zero()
    }
}

/// Counts what the sockets of this process do.
#[derive(Debug)]
pub struct Meter {
    begin: Instant,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    figures: Figures,
    /// When the senders that are blocked now came to be, after `begin`, in sum.
    blocked_since: Duration,
}

impl Default for Meter {
    fn default() -> Self {
        Meter { begin: Instant::now(), counted: Mutex::default() }
    }
}

impl Meter {
    /// The figures so far; a sender that is blocked counts until now.
    pub fn figures(&self) -> Figures {
        let now = self.begin.elapsed();
        self.count(|counted| {
            let mut figures = counted.figures;
            let since_begin = now * figures.blocked_now as u32;
            figures.blocked += since_begin.saturating_sub(counted.blocked_since);
            figures
        })
    }

    fn count<T>(&self, change: impl FnOnce(&mut Counted) -> T) -> T {
        change(&mut self.counted.lock().expect("no holder panics"))
    }

    /// An outgoing queue was seen like this.
    pub fn note_queue(&self, queue: &QueueSnapshot) {
        self.count(|counted| {
            let figures = &mut counted.figures;
            let frames = queue.frames.used + queue.long_frames.used;
            let bytes = queue.bytes.used + queue.long_bytes.used;
            figures.most_queued_frames = figures.most_queued_frames.max(frames as u64);
            figures.most_queued_bytes = figures.most_queued_bytes.max(bytes as u64);
        });
    }

    fn refused(&self, unsent_bytes: u64, is_first: bool) {
        let now = self.begin.elapsed();
        self.count(|counted| {
            let figures = &mut counted.figures;
            figures.refused_writes += 1;
            figures.unsent_bytes = unsent_bytes;
            figures.most_unsent_bytes = figures.most_unsent_bytes.max(unsent_bytes);
            if is_first {
                figures.blocked_now += 1;
                counted.blocked_since += now;
            }
        });
    }

    fn unblocked(&self, blocked: Duration) {
        let since = self.begin.elapsed() - blocked;
        self.count(|counted| {
            counted.figures.blocked += blocked;
            counted.figures.blocked_now -= 1;
            counted.blocked_since = counted.blocked_since.saturating_sub(since);
        });
    }
}

/// A socket that is counted.
#[derive(Debug)]
pub struct Metered {
    stream: UnixStream,
    meter: Arc<Meter>,
    blocked_since: Option<Instant>,
}

impl Metered {
    /// Counts what this socket does.
    pub fn new(stream: UnixStream, meter: Arc<Meter>) -> Self {
        Metered { stream, meter, blocked_since: None }
    }

    fn note_write(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = polled {
            self.meter.count(|counted| counted.figures.written_bytes += written as u64);
        }
        if polled.is_pending() {
            let unsent_bytes = socket::unsent_bytes(self.stream.as_fd()).unwrap_or(0);
            self.meter.refused(unsent_bytes, self.blocked_since.is_none());
            self.blocked_since.get_or_insert_with(Instant::now);
        } else {
            self.note_unblocked();
        }
        polled
    }

    fn note_unblocked(&mut self) {
        if let Some(since) = self.blocked_since.take() {
            self.meter.unblocked(since.elapsed());
        }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.note_unblocked();
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        let read_bytes = (buffer.filled().len() - before) as u64;
        this.meter.count(|counted| counted.figures.read_bytes += read_bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.note_write(polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.note_write(polled)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
