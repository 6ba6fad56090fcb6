//! A client's connection: what its callers, its sender and its receiver share.

use std::{mem, sync::Arc};

use tokio::sync::SetOnce;

use super::{
    entry::CallEntry,
    observe::{ObservedConnection, lost_call},
};
use crate::{
    ClientConfig, ConnectionError, Status,
    contain::contain,
    proto::table::ClientTable,
    snapshot::{ClientSnapshot, QueueSnapshot, merge_calls},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    transport::{
        limiter::{Limiter, Load, Oversubscribe},
        queue::Queue,
        registry::Registry,
        stall::Patience,
    },
};

/// Shared by the callers, the sender and the receiver. Its parts are locked one at a time, each for
/// a few instructions.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) config: ClientConfig,
    /// The outgoing queue and the calls that the server may still answer.
    pub(super) queue: Queue<ClientTable<Arc<CallEntry>>>,
    /// Calls in flight.
    pub(super) calls: Limiter,
    pub(super) patience: Patience,
    pub(super) registry: Registry,
    pub(super) observed: Arc<ObservedConnection>,
    /// A call found that all stream ids have been used.
    is_spent: AtomicBool,
    closed: SetOnce<ConnectionError>,
    /// Set when the sender has failed and the receiver has had the time to find out why.
    pub(super) write_error: SetOnce<ConnectionError>,
    /// Set at the end of the sender's task: the writer is shut down, as far as it can be.
    pub(super) sender_ended: SetOnce<()>,
}

impl ClientConnection {
    pub(super) fn new(
        config: ClientConfig,
        table: ClientTable<Arc<CallEntry>>,
        observed: Arc<ObservedConnection>,
    ) -> Self {
        ClientConnection {
            queue: Queue::new(config.send_queue_frames, config.send_queue_bytes, table),
            calls: Limiter::new(Load { count: config.max_calls, cost: 1 }, Oversubscribe::AnyLast),
            patience: Patience::new(config.stall_timeout),
            registry: Registry::default(),
            observed,
            is_spent: AtomicBool::new(false),
            closed: SetOnce::new(),
            write_error: SetOnce::new(),
            sender_ended: SetOnce::new(),
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
        self.queue.streams(|table| table.len())
    }

    /// What the connection is doing at this moment.
    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let unsent = self.queue.unsent_requests();
        let calls: Vec<_> =
            self.queue.streams(|table| table.iter().map(|(id, call)| (id, call.clone())).collect());
        let calls = calls
            .iter()
            .map(|(id, call)| call.snapshot(unsent.binary_search(id).is_err().then_some(*id)));
        ClientSnapshot {
            close_reason: self.close_reason(),
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(calls, self.registry.callers()),
        }
    }

    /// Refuses further calls, and those that wait for a permit.
    pub(super) fn refuse_calls(&self) {
        self.calls.close();
    }

    /// The status of a call that ended with the connection.
    pub(super) fn unavailable(&self) -> Status {
        let reason = self.close_reason().unwrap_or(ConnectionError::ClosedLocally);
        unavailable(reason)
    }

    /// The status of a call whose Request was not queued: the connection has ended, or has no stream
    /// id left. It goes on until its last call has ended, so that this one alone is lost.
    pub(super) fn no_id(&self) -> Status {
        if self.queue.streams(|table| table.is_spent()) {
            self.is_spent.store(true, SeqCst);
            self.end_if_spent();
            return unavailable(ConnectionError::IdsExhausted);
        }
        self.unavailable()
    }

    /// Ends a connection that has no stream id left, once its last call has ended.
    pub(super) fn end_if_spent(&self) {
        if self.is_spent.load(SeqCst) && self.queue.streams(|table| table.is_empty()) {
            self.end(ConnectionError::IdsExhausted);
        }
    }

    /// The connection's end takes a call with it.
    pub(super) fn lose(&self, call: &CallEntry) {
        call.lose_connection(lost_call(self.closed.get()), &self.unavailable());
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
        for call in self.queue.streams(mem::take).into_handles() {
            let _ = contain(move || self.lose(&call));
        }
        if let Some(reason) = self.closed.get() {
            self.observed.closed(reason);
        }
    }
}

fn unavailable(reason: ConnectionError) -> Status {
    Status::unavailable(reason.to_string()).with_source(reason)
}
