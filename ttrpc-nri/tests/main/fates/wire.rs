//! What befalls a plugin, and its end of the connection, where it does.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use ttrpc::Connection;
use ttrpc_nri::Event;

/// Bytes of a container that exists: three fit into one message.
pub const LARGE: usize = 1_300_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// The connection ends.
    Kill,
    /// The connection stays, and nothing is read or written any more.
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Before it says anything.
    Launch,
    /// It has written its RegisterPlugin.
    Register,
    Configure,
    /// In the middle of this message of Synchronize.
    Part(usize),
    Synchronize,
    Handle(Event),
    /// The runtime works at its UpdateContainers, which it has called while it handles an event.
    Update,
    Shutdown,
}

/// A plugin's end of its connection, and what befalls the plugin.
pub struct Wire {
    fate: Fate,
    pub step: Step,
    state: Mutex<State>,
}

struct State {
    stream: Option<DuplexStream>,
    is_stopped: bool,
    read: usize,
}

impl Wire {
    pub fn new(fate: Fate, step: Step) -> (Arc<Wire>, Connection) {
        let (here, there) = duplex(1 << 16);
        let state = State { stream: Some(there), is_stopped: false, read: 0 };
        (Arc::new(Wire { fate, step, state: Mutex::new(state) }), Connection::new(here))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics here")
    }

    /// What is to befall the plugin befalls it, if this is the step.
    pub fn reach(&self, step: Step) {
        if step == self.step {
            self.befall(&mut self.lock());
        }
    }

    fn befall(&self, state: &mut State) {
        match self.fate {
            Fate::Kill => state.stream = None,
            Fate::Stop => state.is_stopped = true,
        }
    }

    /// Polls the stream while the plugin lives.
    fn poll<T>(&self, poll: impl FnOnce(Pin<&mut DuplexStream>) -> Poll<T>) -> Poll<T> {
        let mut state = self.lock();
        let is_stopped = state.is_stopped;
        match &mut state.stream {
            Some(stream) if !is_stopped => poll(Pin::new(stream)),
            _ => Poll::Pending,
        }
    }
}

/// The stream of that end.
pub struct End(pub Arc<Wire>);

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.0.poll(|stream| stream.poll_read(cx, buf));
        let mut state = self.0.lock();
        state.read += buf.filled().len() - before;
        if let Step::Part(number) = self.0.step
            && state.read > LARGE * (3 * number - 2)
        {
            self.0.befall(&mut state);
        }
        read
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.0.poll(|stream| stream.poll_write(cx, buf));
        if written.is_ready() {
            self.0.reach(Step::Register);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll(|stream| stream.poll_shutdown(cx))
    }
}
