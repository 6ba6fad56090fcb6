//! Who waits inside of a connection, for what and since when: for snapshots and traces.
//!
//! Only those who really have to wait are noted, so that a call which never waits pays nothing.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{lock, slab::Slab};
use crate::snapshot::{CallWait, HeldUp, ReceiverWait};

/// What is told of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallInfo {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    /// `None` while the call's Request is not written.
    pub(crate) stream_id: Option<u32>,
    pub(crate) started: Instant,
    pub(crate) deadline: Option<Instant>,
}

/// The waits of one connection.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    callers: Slab<Waiter>,
    /// The time that those who are done have waited.
    total: Duration,
    receiver: Option<(ReceiverWait, Instant)>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    call: CallInfo,
    wait: CallWait,
    since: Instant,
}

/// A caller or a handler that waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    waits: &'a Waits,
    key: usize,
}

impl Waits {
    /// Notes that a call waits.
    pub(crate) fn enter(&self, call: CallInfo, wait: CallWait) -> Waiting<'_> {
        let waiter = Waiter { call, wait, since: Instant::now() };
        Waiting { waits: self, key: lock(&self.state).callers.insert(waiter) }
    }

    /// Notes what holds the receiver up, until what is given back is dropped.
    pub(crate) fn hold_up(&self, wait: ReceiverWait) -> HoldUp<'_> {
        lock(&self.state).receiver = Some((wait, Instant::now()));
        HoldUp(self)
    }

    /// The calls that wait, in the order in which they began to, each with what it waits for.
    pub(crate) fn callers(&self) -> Vec<(CallInfo, CallWait)> {
        let mut waiters: Vec<_> = lock(&self.state).callers.iter().copied().collect();
        waiters.sort_by_key(|waiter| waiter.since);
        waiters.into_iter().map(|waiter| (waiter.call, waiter.wait)).collect()
    }

    /// The time that calls have waited in sum, those that still do included.
    pub(crate) fn total(&self) -> Duration {
        let state = lock(&self.state);
        let waiting = state.callers.iter().map(|waiter| waiter.since.elapsed());
        state.total + waiting.sum::<Duration>()
    }

    /// What holds the receiver up now.
    pub(crate) fn receiver(&self) -> Option<HeldUp> {
        let (by, since) = lock(&self.state).receiver?;
        Some(HeldUp { by, duration: since.elapsed() })
    }
}

impl Waiting<'_> {
    /// The call waits for something else from here on.
    pub(crate) fn now_for(&self, wait: CallWait) {
        if let Some(waiter) = lock(&self.waits.state).callers.get_mut(self.key) {
            waiter.wait = wait;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.waits.state);
        let Some(Waiter { call, wait, since }) = state.callers.remove(self.key) else { return };
        let waited = since.elapsed();
        state.total += waited;
        drop(state);
        tracing::debug!(
            service = call.service,
            method = call.method,
            stream_id = call.stream_id,
            "waited {waited:?} for {wait}",
        );
    }
}

/// The receiver is held up until this is dropped.
#[derive(Debug)]
pub(crate) struct HoldUp<'a>(&'a Waits);

impl Drop for HoldUp<'_> {
    fn drop(&mut self) {
        let held_up = lock(&self.0.state).receiver.take();
        if let Some((by, since)) = held_up {
            tracing::debug!("the receiver was held up for {:?} by {by}", since.elapsed());
        }
    }
}
