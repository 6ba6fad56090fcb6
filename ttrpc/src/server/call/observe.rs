//! Shows a server's connections and calls to others: to observers and `tracing`, and in snapshots.

use tokio::time::Instant;

use crate::server::call::{
    reasons::{EndReason, Refusal},
    shared::Connection,
    state::{Call, CallHead},
};
use crate::{
    Error, Extensions, Metadata,
    observer::{
        CallInfo, CallOutcome, CallStats, ConnectionEnd, ConnectionEndCause, ConnectionInfo,
        Direction, MessageInfo, Side,
    },
    proto::{
        frame::{HEADER_LEN, Header},
        stream::Violation,
    },
    snapshot::{
        CallSnapshot, CallWait, ConnectionSnapshot, Fill, QueueSnapshot, ReceiverWait, merge_calls,
    },
    trace,
    transport::{lock, registry},
};

impl Connection {
    pub(in crate::server) fn opened(&self) {
        trace::debug!("connection accepted");
        self.server.observers.notify(|observer| observer.connection_opened(&self.observed()));
    }

    /// The connection has ended, and so have its calls.
    pub(in crate::server) fn closed(&self) {
        let duration = self.accepted.elapsed();
        let closed_here = EndReason::closed_here();
        let EndReason { cause, message } = self.end_reason.get().unwrap_or(&closed_here);
        trace::debug!(%cause, reason = message, ?duration, "connection ended");
        if *cause == ConnectionEndCause::Failed {
            let (peer, reason) = (self.peer.to_string(), message.clone());
            let failed = Error::ConnectionFailed { peer, reason };
            lock(&self.server.failed).get_or_insert(failed);
        }
        let end = ConnectionEnd { cause: *cause, message, duration };
        self.server.observers.notify(|observer| observer.connection_closed(&self.observed(), &end));
    }

    /// The client has broken the protocol.
    pub(in crate::server) fn violated(&self, Violation(rule): Violation) {
        self.server
            .observers
            .notify(|observer| observer.protocol_violation(&self.observed(), rule));
    }

    /// The receiver is stalled by this until the result is dropped.
    pub(in crate::server) fn stall(&self, wait: ReceiverWait) -> impl Drop {
        self.registry.stall(wait, |stall| {
            self.server
                .observers
                .notify(|observer| observer.receiver_stalled(&self.observed(), stall));
        })
    }

    /// The call of this Request is refused: it begins and ends. The names are empty if they cannot be read.
    pub(in crate::server) fn refused(
        &self,
        Header { stream_id, flags, data_len, .. }: Header,
        (service, method): (&str, &str),
        arrived: Instant,
        has_waited: bool,
        refusal: &Refusal,
    ) {
        let outcome = refusal.outcome();
        let (code, cause, message) = (outcome.code(), outcome.cause, outcome.message());
        trace::debug!(stream_id, service, method, %code, %cause, error = message, "call refused");
        if self.server.observers.is_empty() {
            return;
        }
        let stats = CallStats::of_request(arrived, false, data_len as usize);
        if has_waited {
            stats.has_waited_for_admission();
        }
        let (metadata, extensions) = (Metadata::new(), Extensions::default());
        let target = self.server.services.find_method(service.as_bytes(), method.as_bytes());
        let method_id = target.and_then(|target| target.method_id);
        let call = CallInfo {
            side: Side::Server,
            connection_id: self.id,
            peer: &self.peer,
            stream_id: Some(stream_id),
            service,
            method,
            is_known: method_id.is_some(),
            method_id,
            is_stream: flags.open_a_stream(),
            metadata: &metadata,
            started: arrived,
            deadline: None,
            extensions: &extensions,
        };
        self.server.observers.notify(|observer| observer.call_begun(&call));
        let end = stats.end(outcome);
        self.server.observers.notify(|observer| observer.call_ended(&call, &end));
    }

    fn observed(&self) -> ConnectionInfo<'_> {
        let (side, extensions) = (Side::Server, &self.extensions);
        ConnectionInfo { side, id: self.id, peer: &self.peer, extensions }
    }

    /// Returns what the connection is doing at this moment.
    pub(in crate::server) fn snapshot(&self) -> ConnectionSnapshot {
        let open: Vec<_> = self.queue.streams(|table| table.handles().cloned().collect());
        let limit = self.server.config.max_calls_per_connection;
        ConnectionSnapshot {
            id: self.id,
            peer: self.peer.clone(),
            age: self.accepted.elapsed(),
            calls_in_flight: Fill { used: self.calls.load().count, limit },
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(open.iter().map(|call| call.snapshot()), self.registry.callers()),
        }
    }
}

/// What observers receive of a call that is observed.
impl Call {
    pub(super) fn report_begin(&self) {
        let (call, observers) = (self.observed(), &self.connection.server.observers);
        observers.notify(|observer| observer.call_begun(&call));
        if self.head.has_message {
            let bytes = self.head.data_len;
            let message = MessageInfo { direction: Direction::Received, number: 1, bytes };
            observers.message(&call, &message);
        }
    }

    /// Counts a message that is queued in a frame of this length. Reported after that, without the queue's lock.
    pub(super) fn count_sent(&self, frame_len: usize) -> Option<MessageInfo> {
        Some(self.stats.as_ref()?.sent(1, frame_len - HEADER_LEN))
    }

    /// A message of so many bytes has come, after the Request.
    pub(in crate::server) fn count_received(&self, bytes: usize) {
        if let Some(stats) = &self.stats {
            self.report_message(Some(&stats.received(1, bytes)));
        }
    }

    /// Reports a message that was counted.
    pub(super) fn report_message(&self, message: Option<&MessageInfo>) {
        let observers = &self.connection.server.observers;
        if let Some(message) = message
            && observers.want_messages()
        {
            observers.message(&self.observed(), message);
        }
    }

    pub(super) fn report_end(
        &self,
        stats: &CallStats,
        outcome: CallOutcome<'_>,
        reply_len: Option<usize>,
    ) {
        let (call, observers) = (self.observed(), &self.connection.server.observers);
        let end = match reply_len {
            None => stats.end(outcome),
            Some(len) => {
                let (message, end) = stats.end_with_reply(len - HEADER_LEN);
                observers.message(&call, &message);
                end
            }
        };
        self.span.in_scope(|| observers.notify(|observer| observer.call_ended(&call, &end)));
    }

    fn observed(&self) -> CallInfo<'_> {
        let head = &self.head;
        CallInfo {
            side: Side::Server,
            connection_id: self.connection.id,
            peer: &self.connection.peer,
            stream_id: Some(head.stream_id),
            service: &head.service,
            method: &head.method,
            is_known: head.method_id.is_some(),
            method_id: head.method_id,
            is_stream: head.flags.open_a_stream(),
            metadata: &head.metadata,
            started: head.started,
            deadline: self.deadline(),
            extensions: &self.extensions,
        }
    }
}

/// What snapshots show of a call.
impl Call {
    pub(in crate::server) fn info(&self) -> registry::CallInfo {
        let CallHead { service, method, stream_id, started, .. } = &self.head;
        registry::CallInfo {
            service: service.clone(),
            method: method.clone(),
            stream_id: Some(*stream_id),
            started: *started,
            deadline: self.deadline(),
        }
    }

    /// Returns the call at this moment. It does not wait for capacity: calls that do are registered elsewhere.
    fn snapshot(&self) -> CallSnapshot {
        let (fill, handler_waits) =
            self.inbox.as_ref().map(|inbox| inbox.fill()).unwrap_or_default();
        let wait = if handler_waits { CallWait::Message } else { CallWait::Handler };
        CallSnapshot::new(self.info(), wait, fill)
    }
}
