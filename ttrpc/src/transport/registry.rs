//! The waits inside of a connection, for what and since when: for snapshots and traces.
//!
//! Registered are a receiver while it is blocked, and a call while it waits for a connection, a permit or capacity. A
//! call that never does pays nothing.

use std::{fmt, time::Duration};

use slab::Slab;
use tokio::time::Instant;

use super::lock;
use crate::{Name, sync::Mutex, trace};

/// The reason for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallWait {
    /// Client: a connection, which is to be made.
    Connection,
    /// A permit: one of the client's [`max_calls`](crate::ClientConfig::max_calls), or of the server's
    /// [`max_blocking_calls`](crate::ServerConfig::max_blocking_calls).
    Admission,
    /// Capacity of the send queue, for a request, a message or a reply.
    Capacity,
    /// Client: its Request is in the queue, and waits for the sender.
    Sender,
    /// Client: the server's answer. The Request is written or being written.
    Reply,
    /// A message from the other side of its stream.
    Message,
    /// The consumer of the messages that have arrived: the program takes none at this moment.
    Consumer,
    /// Server: its handler, which runs or waits for something of its own.
    Handler,
}

/// The reason for which a receiver is blocked. While it is, nothing that arrives on the connection is acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReceiverWait {
    /// Server: the send queue is full, or the limit on waiting replies is reached. The client does not read.
    SendQueue,
    /// Server: calls or bytes in flight are at their limit.
    Admission,
    /// The inbox of this stream is full, and its consumer takes nothing at this moment.
    Stream(u32),
}

/// A receiver that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// By what.
    pub by: ReceiverWait,
    /// For how long so far.
    pub duration: Duration,
}

/// Identifies a call in snapshots and traces.
#[derive(Clone, Debug)]
pub(crate) struct CallInfo {
    pub(crate) service: Name,
    pub(crate) method: Name,
    /// `None` while the call's Request is not written.
    pub(crate) stream_id: Option<u32>,
    pub(crate) started: Instant,
    pub(crate) deadline: Option<Instant>,
}

/// The calls that wait on one connection, and what stalls its receiver.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// `None` while nothing has ever waited, so that an idle connection is small.
    state: Mutex<Option<Box<Registrations>>>,
}

#[derive(Debug, Default)]
struct Registrations {
    callers: Slab<WaitingCall>,
    /// The sum of all waits that are over.
    total: Duration,
    receiver: Option<(ReceiverWait, Instant)>,
}

#[derive(Clone, Debug)]
struct WaitingCall {
    call: CallInfo,
    wait: CallWait,
    since: Instant,
}

/// A caller or a handler that waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration<'a> {
    registry: &'a Registry,
    key: usize,
}

impl Registry {
    /// Registers a call that waits.
    pub(crate) fn enter(&self, call: CallInfo, wait: CallWait) -> Registration<'_> {
        let waiter = WaitingCall { call, wait, since: Instant::now() };
        let key = self.change(|state| state.callers.insert(waiter));
        Registration { registry: self, key }
    }

    /// Registers what stalls the receiver, until the result is dropped: then it is reported.
    pub(crate) fn stall<F: Fn(&Stall)>(
        &self,
        wait: ReceiverWait,
        report: F,
    ) -> ReceiverRegistration<'_, F> {
        self.change(|state| state.receiver = Some((wait, Instant::now())));
        ReceiverRegistration { registry: self, report }
    }

    /// The calls that wait, in the order in which they began to, each with what it waits for.
    pub(crate) fn callers(&self) -> Vec<(CallInfo, CallWait)> {
        let mut waiters: Vec<_> = lock(&self.state)
            .iter()
            .flat_map(|state| state.callers.iter().map(|(_, caller)| caller.clone()))
            .collect();
        waiters.sort_unstable_by_key(|waiter| waiter.since);
        waiters.into_iter().map(|waiter| (waiter.call, waiter.wait)).collect()
    }

    /// The sum of all waits, those that go on included.
    pub(crate) fn total(&self) -> Duration {
        let state = lock(&self.state);
        let Some(state) = state.as_ref() else { return Duration::ZERO };
        let waiting = state.callers.iter().map(|(_, waiter)| waiter.since.elapsed());
        state.total + waiting.sum::<Duration>()
    }

    /// Returns what blocks the receiver now.
    pub(crate) fn receiver(&self) -> Option<Stall> {
        let (by, since) = lock(&self.state).as_ref()?.receiver?;
        Some(Stall { by, duration: since.elapsed() })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Registrations) -> T) -> T {
        change(lock(&self.state).get_or_insert_default())
    }
}

impl Registration<'_> {
    /// The call waits for something else from here on.
    pub(crate) fn now_for(&self, wait: CallWait) {
        self.registry.change(|state| {
            if let Some(waiter) = state.callers.get_mut(self.key) {
                waiter.wait = wait;
            }
        });
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let ended = self.registry.change(|state| {
            let waiting = state.callers.try_remove(self.key)?;
            if state.callers.is_empty() {
                state.callers = Slab::new();
            }
            let waited = waiting.since.elapsed();
            state.total += waited;
            Some((waiting, waited))
        });
        let Some((WaitingCall { call, wait, .. }, waited)) = ended else { return };
        trace::debug!(
            service = call.service.as_str(),
            method = call.method.as_str(),
            stream_id = call.stream_id,
            "waited {waited:?} for {wait}",
        );
    }
}

/// The receiver is blocked until this is dropped.
pub(crate) struct ReceiverRegistration<'a, F: Fn(&Stall)> {
    registry: &'a Registry,
    report: F,
}

impl<F: Fn(&Stall)> Drop for ReceiverRegistration<'_, F> {
    fn drop(&mut self) {
        if let Some(stall) = self.registry.receiver() {
            (self.report)(&stall);
            self.registry.change(|state| state.receiver = None);
            trace::debug!("{stall}");
        }
    }
}

impl fmt::Display for CallWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallWait::Connection => "a connection",
            CallWait::Admission => "a permit among the calls in flight",
            CallWait::Capacity => "capacity of the send queue",
            CallWait::Sender => "the sender, which writes its Request",
            CallWait::Reply => "its reply",
            CallWait::Message => "a message",
            CallWait::Consumer => "its consumer",
            CallWait::Handler => "its handler",
        })
    }
}

impl fmt::Display for ReceiverWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiverWait::SendQueue => {
                f.write_str("the full send queue or replies that wait for it")
            }
            ReceiverWait::Admission => f.write_str("the limits on what is in flight"),
            ReceiverWait::Stream(id) => write!(f, "the full inbox of stream {id}"),
        }
    }
}
