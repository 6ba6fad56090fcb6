//! Accepting connections from several listeners.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io, mem,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use super::listener::{Acceptor, Listener};
use crate::{
    Connection, Error,
    sync::Mutex,
    trace,
    transport::{lock, wait_until},
};

/// The pause after `accept` failed. What fails is usually the lack of descriptors (EMFILE, ENFILE)
/// or memory; the connection stays in the backlog, and without a pause the loop would spin.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// What the server's handles ask of the accepting task.
#[derive(Default)]
pub(super) struct AcceptControl {
    state: Mutex<ControlState>,
    /// Notified of every change.
    changed: Notify,
}

#[derive(Default)]
struct ControlState {
    /// Added, and not yet taken over by the accepting task.
    added: Vec<Acceptor>,
    is_paused: bool,
    /// The accepting task polls listeners.
    is_accepting: bool,
    /// Nothing is accepted any more.
    is_closed: bool,
}

impl AcceptControl {
    /// Adds a listener.
    ///
    /// # Errors
    /// [`Error::Listener`], and [`Error::ServerEnded`] if nothing is accepted any more.
    pub(super) fn add(&self, listener: Listener) -> Result<(), Error> {
        let acceptor = listener.start().map_err(Error::Listener)?;
        let mut state = lock(&self.state);
        if state.is_closed {
            drop(state);
            return Err(Error::ServerEnded);
        }
        state.added.push(acceptor);
        drop(state);
        self.changed.notify_waiters();
        Ok(())
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        lock(&self.state).is_paused = is_paused;
        self.changed.notify_waiters();
    }

    /// Waits until the accepting task does not poll listeners, or is asked to poll them again.
    pub(super) async fn paused(&self) {
        let is_paused = || {
            let state = lock(&self.state);
            !state.is_accepting || !state.is_paused
        };
        wait_until(&self.changed, &is_paused).await;
    }

    /// Waits until the accepting task, which is paused or not, is asked for something else.
    pub(super) async fn asks_for_more(&self, is_paused: bool) {
        let asks_for_more = || {
            let state = lock(&self.state);
            !state.added.is_empty() || state.is_paused != is_paused
        };
        wait_until(&self.changed, &asks_for_more).await;
    }

    /// Ends accepting: what was added and not taken over is dropped.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.is_accepting = false;
        let added = mem::take(&mut state.added);
        drop(state);
        drop(added);
        self.changed.notify_waiters();
    }
}

/// The connections that a server is to serve: those that were handed over before it started, and those
/// that its listeners accept.
pub(super) struct Accepting {
    handed_over: VecDeque<Connection>,
    acceptors: Vec<Acceptor>,
    /// Which acceptor to ask first, so that a busy one does not starve the others.
    next: usize,
    is_paused: bool,
}

impl Accepting {
    /// Hands the listeners to the runtime.
    ///
    /// # Errors
    /// [`Error::Listener`].
    pub(super) fn start(
        listeners: Vec<Listener>,
        handed_over: Vec<Connection>,
    ) -> Result<Self, Error> {
        let acceptors = listeners.into_iter().map(Listener::start).collect::<Result<_, _>>();
        Ok(Accepting {
            handed_over: handed_over.into(),
            acceptors: acceptors.map_err(Error::Listener)?,
            next: 0,
            is_paused: false,
        })
    }

    /// Does what the handles have asked for meanwhile. Returns whether accepting is paused.
    pub(super) fn update(&mut self, control: &AcceptControl) -> bool {
        let mut state = lock(&control.state);
        self.acceptors.append(&mut state.added);
        self.is_paused = state.is_paused;
        let has_changed = state.is_accepting == state.is_paused;
        state.is_accepting = !state.is_paused;
        drop(state);
        if has_changed {
            control.changed.notify_waiters();
        }
        self.is_paused
    }

    /// Whether no connection can come any more.
    pub(super) fn is_done(&self) -> bool {
        self.handed_over.is_empty() && self.acceptors.is_empty()
    }

    /// The next connection, `None` if the last listener is done. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Connection> {
        if let Some(connection) = self.handed_over.pop_front() {
            return Some(connection);
        }
        loop {
            match poll_fn(|cx| self.poll_accept(cx)).await? {
                Ok(connection) => return Some(connection),
                Err(error) => {
                    trace::warn!("accepting a connection failed: {error}");
                    sleep(PAUSE_AFTER_ERROR).await;
                }
            }
        }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        if self.is_paused {
            return Poll::Pending;
        }
        let mut asked = 0;
        while asked < self.acceptors.len() {
            let index = (self.next + asked) % self.acceptors.len();
            match self.acceptors[index].poll_accept(cx) {
                Poll::Ready(Some(accepted)) => {
                    self.next = index + 1;
                    return Poll::Ready(Some(accepted));
                }
                Poll::Ready(None) => {
                    self.acceptors.remove(index);
                    if self.acceptors.is_empty() {
                        return Poll::Ready(None);
                    }
                }
                Poll::Pending => asked += 1,
            }
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for AcceptControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcceptControl").finish_non_exhaustive()
    }
}
