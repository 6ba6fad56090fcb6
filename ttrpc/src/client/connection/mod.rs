//! A client's connection: what its callers, its sender and its receiver share.
//!
//! Callers come in through [`ConnectionTasks`], which own the two tasks, and put Requests and messages into
//! [`ClientConnection::queue`]; the receiver ([`receiver`]) brings what arrives to the calls in its table ([`calls`]). This
//! module knows nothing of a call before its Request is queued.

pub(super) mod calls;
mod observe;
mod receiver;
pub(super) mod record;
pub(super) mod state;
mod tasks;
pub(super) mod upkeep;

use std::{future::poll_fn, sync::Arc};

use bytes::Bytes;
use tokio::{sync::SetOnce, task::AbortHandle, time::Instant};

pub(super) use self::observe::ObservedConnection;
use self::{
    calls::{Calls, Change, Observed},
    observe::lost_call,
    state::CallFailure,
    upkeep::cancel::Cancels,
};
use super::reconnect::state::state_of;
use crate::{
    ClientConfig, ConnectionError, Status,
    contain::{contain, drop_contained},
    observer::EndCause,
    proto::message::begins_with_status,
    snapshot::{ClientSnapshot, QueueSnapshot, merge_calls},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    transport::{
        fork::Origin,
        limiter::{Limiter, Load, Oversubscribe},
        queue::Queue,
        registry::Registry,
        stall::StallBudget,
    },
};

/// Owns a connection's two tasks: they end when the last client and the last call are gone. The
/// sender's ends with the receiver's.
#[derive(Debug)]
pub(super) struct ConnectionTasks {
    connection: Arc<ClientConnection>,
    receiver: AbortHandle,
}

impl ConnectionTasks {
    pub(super) fn connection(&self) -> &Arc<ClientConnection> {
        &self.connection
    }

    /// Ends the connection, unless it is that of a parent process.
    pub(super) fn close(&self, reason: ConnectionError) {
        if !self.connection.origin.is_here() {
            return;
        }
        self.connection.end(reason);
        self.receiver.abort();
    }
}

impl Drop for ConnectionTasks {
    fn drop(&mut self) {
        self.close(ConnectionError::ClosedLocally);
    }
}

/// Shared by the callers, the sender and the receiver. Its parts are locked one at a time, each for
/// a few instructions.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) config: ClientConfig,
    pub(super) origin: Origin,
    /// The outgoing queue and the table of calls.
    pub(super) queue: Queue<Calls>,
    /// Limits the calls in flight.
    pub(super) calls: Limiter,
    pub(super) patience: StallBudget,
    pub(super) registry: Registry,
    pub(super) observed: Arc<ObservedConnection>,
    /// The calls that the server is to be told of, if it is.
    cancels: Option<Box<Cancels>>,
    /// A call found that all stream ids have been used.
    is_spent: AtomicBool,
    closed: SetOnce<ConnectionError>,
    /// Set when the sender has failed and the receiver has had the time to find out why.
    pub(super) write_error: SetOnce<ConnectionError>,
    /// Set at the end of the sender's task: the writer is shut down, as far as it can be.
    pub(super) sender_ended: SetOnce<()>,
}

impl ClientConnection {
    pub(super) fn new(config: ClientConfig, observed: Arc<ObservedConnection>) -> Self {
        let (frames, bytes) = (config.send_queue_frames, config.send_queue_bytes);
        ClientConnection {
            queue: Queue::new(frames, bytes, Calls::default()),
            calls: Limiter::new(Load { count: config.max_calls, cost: 1 }, Oversubscribe::AnyLast),
            patience: StallBudget::new(config.stall_timeout),
            registry: Registry::default(),
            observed,
            cancels: None,
            is_spent: AtomicBool::new(false),
            closed: SetOnce::new(),
            write_error: SetOnce::new(),
            sender_ended: SetOnce::new(),
            origin: Origin::here(),
            config,
        }
    }

    pub(super) async fn closed(&self) -> ConnectionError {
        self.closed.wait().await.clone()
    }

    pub(super) fn close_reason(&self) -> Option<ConnectionError> {
        self.closed.get().cloned()
    }

    pub(super) fn streams_open(&self) -> usize {
        self.queue.streams(|calls| calls.open_count())
    }

    /// Returns a snapshot of the connection and its calls.
    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let unsent = self.queue.unsent_requests();
        let calls = self.queue.streams(|calls| calls.sketches());
        let calls = calls.into_iter().map(|call| call.finish(&unsent));
        let close_reason = self.close_reason();
        ClientSnapshot {
            state: state_of(close_reason.clone()),
            close_reason,
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(calls, self.registry.callers()),
        }
    }

    /// The status of a call that ended with the connection.
    pub(super) fn unavailable(&self) -> Status {
        let reason = self.close_reason().unwrap_or(ConnectionError::ClosedLocally);
        unavailable(reason)
    }

    /// The status of a call whose Request was not queued: the connection has ended, or has no stream
    /// id left. It goes on until its last call has ended, so that this one alone is lost.
    pub(super) fn no_id(&self) -> Status {
        if self.queue.streams(|calls| calls.are_ids_exhausted()) {
            self.is_spent.store(true, SeqCst);
            self.end_if_spent();
            return unavailable(ConnectionError::IdsExhausted);
        }
        self.unavailable()
    }

    /// Ends a connection that has no stream id left, once its last call has ended.
    pub(super) fn end_if_spent(&self) {
        if self.is_spent.load(SeqCst) && self.streams_open() == 0 {
            self.end(ConnectionError::IdsExhausted);
        }
    }

    /// Hands a Response to its call.
    fn answer(&self, id: u32, response: Bytes, read_at: impl FnOnce() -> Instant) {
        let ended = self.queue.streams(|calls| calls.end_by_response(id, response));
        let change = ended.unwrap_or_else(|Observed { record, ends_stream, response }| {
            // Observers see the answer before the caller does.
            let is_bare_end = ends_stream && response.is_empty();
            let has_message = !is_bare_end && !begins_with_status(&response);
            record.answered(read_at(), has_message.then_some(response.len()));
            self.queue.streams(|calls| calls.answer(id, response))
        });
        change.publish();
    }

    /// Waits until a call has ended.
    pub(super) async fn ended(&self, id: u32) {
        poll_fn(|cx| {
            // A waker is the program's: it is copied and dropped without the lock.
            let mut waker = Some(cx.waker().clone());
            self.queue.streams(|calls| calls.poll_ended(id, &mut waker))
        })
        .await;
    }

    /// Fails a call for a reason that this side has found.
    fn fail(&self, id: u32, cause: EndCause, status: Status) {
        let failure = CallFailure::here(cause, status);
        let (was_open, change) =
            self.queue.streams(|calls| (calls.contains(id), calls.fail(id, failure)));
        change.publish();
        self.given_up(was_open.then_some(id), false);
    }

    /// Ends a call because its deadline has passed, unless it has ended before. A Request that has not begun to be
    /// written never is.
    pub(super) fn expire(&self, id: u32, status: Status) {
        self.withdraw(id, CallFailure::deadline(status), false);
    }

    /// Fails a call of which the server hears nothing more, but that it was given up.
    fn withdraw(&self, id: u32, failure: CallFailure, owes_close: bool) {
        let mut change = Change::default();
        let begun = self.queue.withdraw(|calls| {
            let was_open = calls.contains(id);
            change = calls.fail(id, failure);
            was_open.then_some(id)
        });
        change.publish();
        self.given_up(begun, owes_close);
    }

    /// Removes a call whose owner lets go of it. A Request that has not begun to be written never is.
    pub(super) fn release(&self, id: u32) {
        self.given_up(self.remove(id), false);
    }

    /// Removes a call. Returns its id if it was open, and its Request has begun to be written.
    fn remove(&self, id: u32) -> Option<u32> {
        let mut entry = None;
        let begun = self.queue.withdraw(|calls| {
            let (was_open, released) = calls.release(id);
            entry = released;
            was_open.then_some(id)
        });
        // Dropped without the lock: it has a waker.
        let _ = drop_contained(entry);
        begun
    }

    /// Ends the connection: every call that is pending is answered, at once, with the cause. The
    /// first cause counts.
    pub(super) fn end(&self, reason: ConnectionError) {
        if self.closed.set(reason).is_err() {
            return;
        }
        let _ = contain(|| self.calls.close());
        // Nothing is queued, and so no call comes into the table, from here on.
        let _ = contain(|| self.queue.close());
        let failure = CallFailure::lost(lost_call(self.closed.get()), self.unavailable());
        let unsent = self.queue.first_unsent();
        for change in self.queue.streams(|calls| calls.fail_all(&failure, unsent)) {
            let _ = contain(move || change.publish());
        }
        if let Some(reason) = self.closed.get() {
            self.observed.closed(reason);
        }
    }
}

/// The status of a call without a connection, for this reason.
pub(super) fn unavailable(reason: ConnectionError) -> Status {
    Status::unavailable(reason.to_string()).with_source(reason)
}
