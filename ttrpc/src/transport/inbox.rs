//! The inbox of a stream: messages that arrived and that the consumer has not taken yet.
//!
//! Bounded in messages and in bytes. Its one producer is the connection's receiver, which waits for
//! room only as long as the consumer moves (see [`stall`](super::stall)).

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{lock, stall::Stalls};
use crate::Status;

/// The inbox of one stream.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Notified when the consumer takes a message or goes away, and at the stream's end, if
    /// `State::is_watched`.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// When the consumer last took a message, or the first of these came; see [`Stalls`].
    moved_at: u64,
    /// The payload of a Response, behind all messages. Kept apart since most calls have nothing else.
    last: Option<Bytes>,
    /// Set once nothing more comes: the stream ended well, or how it failed.
    end: Option<Result<(), Status>>,
    /// The consumer is gone; what arrives is dropped.
    is_abandoned: bool,
    consumer: Option<Waker>,
    /// Somebody waits for changes.
    is_watched: bool,
}

/// How much an inbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxLimits {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Inbox {
    /// Whether a message of this many bytes has room, or would be dropped since nobody waits for it
    /// any more. A message longer than the limit in bytes has room in an empty inbox, else it could
    /// never be received. Room stays until the producer uses it.
    pub(crate) fn has_room(&self, bytes: usize, limits: InboxLimits) -> bool {
        let state = lock(&self.state);
        state.messages.is_empty()
            || state.is_closed()
            || (state.messages.len() < limits.messages && state.bytes + bytes <= limits.bytes)
    }

    /// Waits for room for a message of this many bytes, as long as the consumer moves. `false` if it
    /// does not, or if it has stood still while another inbox of the connection was waited for.
    pub(crate) async fn wait_for_room(
        &self,
        bytes: usize,
        limits: InboxLimits,
        stalls: &Stalls,
        stall_timeout: Duration,
        is_paused: impl Fn() -> bool,
    ) -> bool {
        if stalls.stood_still_since(lock(&self.state).moved_at) {
            return false;
        }
        let has_room = || self.has_room(bytes, limits);
        stalls.wait(self.changed(), stall_timeout, has_room, is_paused).await
    }

    /// Adds a message, for which there is room. `false` if nobody waits for it any more.
    pub(crate) fn push(&self, message: Bytes, stalls: &Stalls) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed() {
            return false;
        }
        if state.messages.is_empty() {
            state.moved_at = stalls.now();
        }
        state.bytes += message.len();
        state.messages.push_back(message);
        let consumer = state.consumer.take();
        drop(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        true
    }

    /// Notified when the consumer takes a message or goes away, and at the stream's end.
    pub(crate) fn changed(&self) -> &Notify {
        lock(&self.state).is_watched = true;
        &self.changed
    }

    fn notify(&self, state: MutexGuard<'_, State>) {
        let is_watched = state.is_watched;
        drop(state);
        if is_watched {
            self.changed.notify_waiters();
        }
    }

    /// Says that nothing more comes after what is in the inbox, and how the stream ended. A last
    /// message, the payload of a Response, needs no room. The first end counts.
    ///
    /// If the consumer waits, `before_wake` runs before it can see the end.
    pub(crate) fn end(
        &self,
        last: Option<Bytes>,
        end: Result<(), Status>,
        before_wake: impl FnOnce(),
    ) {
        let mut state = lock(&self.state);
        if state.end.is_none() {
            state.last = last.filter(|_| !state.is_abandoned);
            state.end = Some(end);
        }
        let consumer = state.consumer.take();
        if consumer.is_some() {
            before_wake();
        }
        self.notify(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }

    /// Ends the stream with a failure that overtakes what is in the inbox. Gives back the bytes that
    /// this frees.
    pub(crate) fn fail(&self, status: Status) -> usize {
        let mut state = lock(&self.state);
        let freed = state.clear();
        state.end = Some(Err(status));
        let consumer = state.consumer.take();
        self.notify(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        freed
    }

    /// The consumer goes away. Gives back the bytes that this frees.
    pub(crate) fn abandon(&self) -> usize {
        let mut state = lock(&self.state);
        state.is_abandoned = true;
        state.consumer = None;
        let freed = state.clear();
        self.notify(state);
        freed
    }

    /// How the stream ended, if it has.
    pub(crate) fn end_status(&self) -> Option<Result<(), Status>> {
        lock(&self.state).end.clone()
    }

    /// Messages that are not taken, their bytes, and whether the consumer waits for the next one.
    pub(crate) fn fill(&self) -> (usize, usize, bool) {
        let state = lock(&self.state);
        (state.messages.len(), state.bytes, state.consumer.is_some())
    }

    /// The next message, for the one consumer: `Ok(None)` at a good end, and from then on.
    pub(crate) fn poll_take(
        &self,
        cx: &mut Context<'_>,
        stalls: &Stalls,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let mut state = lock(&self.state);
        if let Some(message) = state.messages.pop_front() {
            state.moved_at = stalls.now();
            state.bytes -= message.len();
            self.notify(state);
            return Poll::Ready(Ok(Some(message)));
        }
        if let Some(message) = state.last.take() {
            return Poll::Ready(Ok(Some(message)));
        }
        match &state.end {
            Some(Ok(())) => Poll::Ready(Ok(None)),
            Some(Err(status)) => Poll::Ready(Err(status.clone())),
            None => {
                match &mut state.consumer {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => state.consumer = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl State {
    /// Whether further messages are dropped.
    fn is_closed(&self) -> bool {
        self.is_abandoned || self.end.is_some()
    }

    /// Drops the messages. Gives back their bytes.
    fn clear(&mut self) -> usize {
        self.messages = VecDeque::new();
        self.last = None;
        std::mem::take(&mut self.bytes)
    }
}
