//! One side's reading and writing, in one task.

use std::{
    future::poll_fn,
    io,
    mem::take,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    net::{UnixStream, unix::OwnedReadHalf},
};

use crate::wire::ReadBuffer;

/// What waits to be written, and who waits for that.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) pump: Option<Waker>,
    /// The pump holds bytes that it has taken and not written yet.
    pub(super) is_writing: bool,
    /// Streams that wait until `bytes` is taken.
    pub(super) parked: Vec<Waker>,
}

impl Outgoing {
    /// Says that there are bytes.
    pub(super) fn wake_pump(&mut self) {
        if let Some(pump) = self.pump.take() {
            pump.wake();
        }
    }
}

/// Counts tasks that were woken or spawned and are about to send. Without a counter nobody waits
/// for them.
#[derive(Clone)]
pub(super) struct AboutToSend(Option<Arc<AtomicUsize>>);

impl AboutToSend {
    pub(super) fn new(is_counted: bool) -> Self {
        AboutToSend(is_counted.then(Arc::default))
    }

    pub(super) fn add(&self, tasks: usize) {
        if let Some(count) = &self.0 {
            count.fetch_add(tasks, Relaxed);
        }
    }

    pub(super) fn subtract_one(&self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Relaxed);
        }
    }

    fn is_any(&self) -> bool {
        self.0.as_ref().is_some_and(|count| count.load(Relaxed) > 0)
    }
}

/// The state of the task.
pub(super) struct Pump {
    reader: OwnedReadHalf,
    outgoing: Arc<Mutex<Outgoing>>,
    about_to_send: AboutToSend,
    buffer: ReadBuffer,
    /// Bytes being written, from `written` on.
    batch: Vec<u8>,
    written: usize,
    has_stepped_back: bool,
}

impl Pump {
    pub(super) fn new(
        reader: OwnedReadHalf,
        outgoing: Arc<Mutex<Outgoing>>,
        about_to_send: AboutToSend,
    ) -> Self {
        Pump {
            reader,
            outgoing,
            about_to_send,
            buffer: ReadBuffer::default(),
            batch: Vec::new(),
            written: 0,
            has_stepped_back: false,
        }
    }

    /// Runs until the peer is gone. `act` gets what has arrived and gives back how many bytes at
    /// its end are no whole frame.
    pub(super) async fn run(mut self, mut act: impl FnMut(&[u8]) -> usize) -> io::Result<()> {
        poll_fn(|cx| self.poll_run(cx, &mut act)).await
    }

    fn poll_run(
        &mut self,
        cx: &mut Context<'_>,
        act: &mut impl FnMut(&[u8]) -> usize,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.should_step_back() {
                self.has_stepped_back = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.has_stepped_back = false;
            self.write(cx)?;
            let mut room = ReadBuf::new(self.buffer.room());
            match Pin::new(&mut self.reader).poll_read(cx, &mut room) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(read) => read?,
            }
            let len = room.filled().len();
            if len == 0 {
                return Poll::Ready(Ok(()));
            }
            self.buffer.add(len);
            let rest = act(self.buffer.arrived());
            self.buffer.keep_last(rest);
        }
    }

    /// Whether there is something to write that others are about to add to.
    fn should_step_back(&self) -> bool {
        !self.has_stepped_back
            && self.about_to_send.is_any()
            && self.written == self.batch.len()
            && !self.outgoing.lock().expect("nobody panics").bytes.is_empty()
    }

    /// Writes until nothing is left or the socket is full.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            if self.written == self.batch.len() && !self.take_batch(cx) {
                return Ok(());
            }
            let stream: &UnixStream = self.reader.as_ref();
            match stream.try_write(&self.batch[self.written..]) {
                Ok(len) => self.written += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if stream.poll_write_ready(cx).is_pending() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// `false` if there is nothing to write.
    fn take_batch(&mut self, cx: &mut Context<'_>) -> bool {
        self.batch.clear();
        self.written = 0;
        let mut outgoing = self.outgoing.lock().expect("nobody panics");
        outgoing.is_writing = !outgoing.bytes.is_empty();
        if !outgoing.is_writing {
            outgoing.pump = Some(cx.waker().clone());
            return false;
        }
        std::mem::swap(&mut outgoing.bytes, &mut self.batch);
        let parked = take(&mut outgoing.parked);
        drop(outgoing);
        parked.into_iter().for_each(Waker::wake);
        true
    }
}
