//! Notes when bytes arrive on a connection, for a client's keepalive and a server's `max_idle`.
//!
//! A connection with neither does not wrap its reader, and pays nothing.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::Notify,
    time::Instant,
};

use super::{io::ReadHalf, lock};
use crate::sync::Mutex;

/// What has arrived so far.
#[derive(Debug)]
pub(crate) struct Heard {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Clone, Copy, Debug)]
struct State {
    reads: u64,
    last: Instant,
}

impl Heard {
    /// Nothing has arrived, as from now.
    pub(crate) fn new() -> Arc<Self> {
        let state = State { reads: 0, last: Instant::now() };
        Arc::new(Heard { state: Mutex::new(state), arrived: Notify::new() })
    }

    /// When something arrived last.
    pub(crate) fn last(&self) -> Instant {
        lock(&self.state).last
    }

    /// How often something has arrived.
    pub(crate) fn reads(&self) -> u64 {
        lock(&self.state).reads
    }

    /// Waits until something has arrived since this completed last. One task may wait.
    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }

    fn note(&self) {
        let mut state = lock(&self.state);
        *state = State { reads: state.reads + 1, last: Instant::now() };
        drop(state);
        self.arrived.notify_one();
    }
}

/// The half of a connection from which frames are read, which notes what arrives.
pub(crate) struct Listening<R> {
    io: R,
    heard: Arc<Heard>,
}

impl<R> Listening<R> {
    pub(crate) fn new(io: R, heard: Arc<Heard>) -> Self {
        Listening { io, heard }
    }
}

impl<R: ReadHalf> AsyncRead for Listening<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.heard.note();
        }
        Poll::Ready(Ok(()))
    }
}

impl<R: ReadHalf> ReadHalf for Listening<R> {
    fn is_hung_up(&mut self) -> bool {
        self.io.is_hung_up()
    }
}
