//! Where the server tells of its connections and calls: to `tracing`, and to observers.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use super::{Peer, Shared, call::Call, connection::Connection};
use crate::{
    Extensions, Metadata, Status,
    observer::{
        CallEnd, CallInfo, CallOutcome, CallStats, ConnectionEnd, ConnectionEndCause,
        ConnectionInfo, EndCause, MessageInfo, Observers, Side, Traffic, Waiting,
    },
    proto::{
        frame::{Flags, HEADER_LEN},
        stream::Violation,
    },
    snapshot::ReceiverWait,
    trace,
    transport::registry::ReceiverRegistration,
};

/// What is counted of a call for observers. Most calls have one request and one reply and wait for nothing:
/// they have their numbers here, and allocate nothing for them.
#[derive(Debug)]
pub(super) struct CallCount {
    /// Bytes of the Request's data; [`NOT_OBSERVED`] if there are no observers.
    request_bytes: u32,
    /// Microseconds from the call's start to when its reply began to wait for room; 0 if it has not.
    reply_waits_since: AtomicU32,
    /// Of calls with streams, and of those that had to wait to be let in.
    stats: Option<Box<CallStats>>,
}

/// No frame has so many bytes.
const NOT_OBSERVED: u32 = u32::MAX;

impl CallCount {
    /// `is_simple` is a call with one request and one reply that did not have to wait to be let in.
    pub(super) fn new(
        observers: &Observers,
        started: Instant,
        request_bytes: usize,
        is_simple: bool,
    ) -> Self {
        let is_observed = !observers.is_empty();
        let has_stats = is_observed && (!is_simple || observers.want_messages());
        CallCount {
            request_bytes: if is_observed { request_bytes as u32 } else { NOT_OBSERVED },
            reply_waits_since: AtomicU32::new(0),
            stats: has_stats.then(|| Box::new(CallStats::new(started))),
        }
    }

    /// Of a call that is more than one request and one reply.
    pub(super) fn stats(&self) -> Option<&CallStats> {
        self.stats.as_deref()
    }

    fn is_observed(&self) -> bool {
        self.request_bytes != NOT_OBSERVED
    }

    /// The end of a call that began then. `reply_len` is the length of the frame that ends it, if that is
    /// its reply.
    fn end<'a>(
        &self,
        started: Instant,
        outcome: CallOutcome<'a>,
        reply_len: Option<usize>,
    ) -> CallEnd<'a> {
        if let Some(stats) = &self.stats {
            return stats.end(outcome);
        }
        CallEnd {
            code: outcome.code(),
            message: outcome.message(),
            cause: outcome.cause,
            traffic: Traffic {
                messages_sent: reply_len.is_some().into(),
                messages_received: 1,
                bytes_sent: reply_len.map_or(0, |len| (len - HEADER_LEN) as u64),
                bytes_received: self.request_bytes.into(),
            },
            waited_for_place: Duration::ZERO,
            waited_for_room: match self.reply_waits_since.load(Relaxed) {
                0 => Duration::ZERO,
                since => started.elapsed().saturating_sub(Duration::from_micros(since.into())),
            },
            started,
            took: None,
        }
    }
}

impl Call {
    /// The call begins, before anything can end it.
    pub(super) fn begun(&self, request_bytes: usize, messages: u64) {
        if self.count.is_observed() {
            self.connection.server.observers.call_begun(&self.observed());
        }
        if let Some(stats) = self.count.stats() {
            let message = stats.received(messages, request_bytes);
            self.tell_message((messages > 0).then_some(message));
        }
    }

    /// Tells of a message that was counted.
    pub(super) fn tell_message(&self, message: Option<MessageInfo>) {
        let observers = &self.connection.server.observers;
        if let Some(message) = message
            && observers.want_messages()
        {
            observers.message(&self.observed(), &message);
        }
    }

    /// The call has ended: whoever took it out of the table says so, and nobody else. `reply_len` is the length of
    /// the frame that ends it, if that is its reply.
    pub(super) fn ended(&self, outcome: CallOutcome<'_>, reply_len: Option<usize>) {
        // The clock is read only where somebody traces.
        let started = self.head.started;
        self.span.in_scope(|| {
            let (code, cause) = (outcome.code(), outcome.cause);
            match outcome.status {
                None => trace::debug!(%code, %cause, duration = ?started.elapsed(), "call ended"),
                Some(status) => {
                    let error = status.message();
                    trace::debug!(%code, %cause, error, duration = ?started.elapsed(), "call ended");
                }
            }
        });
        if let Some(len) = reply_len {
            self.tell_message(self.count_sent(len));
        }
        if self.count.is_observed() {
            let end = self.count.end(started, outcome, reply_len);
            self.connection.server.observers.call_ended(&self.observed(), &end);
        }
    }

    /// The call's last frame waits for room until the result is dropped.
    pub(super) fn wait_for_last_room(&self) -> Option<Waiting<'_>> {
        let stats = self.count.stats();
        if stats.is_none() && self.count.is_observed() {
            let since = self.head.started.elapsed().as_micros();
            let since = u32::try_from(since).unwrap_or(u32::MAX).max(1);
            self.count.reply_waits_since.store(since, Relaxed);
        }
        stats.map(CallStats::wait_for_room)
    }

    /// A message is queued in a frame of this length. Counted with the queue locked, and told behind that.
    pub(super) fn count_sent(&self, frame_len: usize) -> Option<MessageInfo> {
        Some(self.count.stats()?.sent(1, frame_len - HEADER_LEN))
    }

    /// A message of so many bytes has come, behind the Request.
    pub(super) fn count_received(&self, bytes: usize) {
        if let Some(stats) = self.count.stats() {
            self.tell_message(Some(stats.received(1, bytes)));
        }
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
            is_known: head.is_known,
            is_stream: head.is_stream,
            metadata: &head.metadata,
            started: head.started,
            deadline: self.deadline(),
            extensions: &self.extensions,
        }
    }
}

/// A call that comes to no handler.
pub(super) struct RefusedCall<'a> {
    pub(super) stream_id: u32,
    pub(super) flags: Flags,
    pub(super) service: &'a str,
    pub(super) method: &'a str,
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
    /// It was not refused at once, but had to wait to be let in.
    pub(super) has_waited: bool,
}

/// Why a frame's stream is refused, or ends.
pub(super) struct Refusal {
    pub(super) cause: EndCause,
    pub(super) status: Status,
}

impl Refusal {
    /// A limit of the server's: RESOURCE_EXHAUSTED.
    pub(super) fn limit(message: impl Into<String>) -> Self {
        Refusal { cause: EndCause::Limit, status: Status::resource_exhausted(message) }
    }

    /// What the client has sent is wrong: INVALID_ARGUMENT.
    pub(super) fn violation(message: impl Into<String>) -> Self {
        Refusal { cause: EndCause::ProtocolViolation, status: Status::invalid_argument(message) }
    }

    pub(super) fn outcome(&self) -> CallOutcome<'_> {
        CallOutcome { cause: self.cause, status: Some(&self.status) }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) struct EndReason {
    cause: ConnectionEndCause,
    message: String,
}

impl EndReason {
    pub(super) fn closed_by_client() -> Self {
        EndReason { cause: ConnectionEndCause::ClosedByPeer, message: String::new() }
    }

    pub(super) fn closed_here() -> Self {
        EndReason { cause: ConnectionEndCause::ClosedHere, message: String::new() }
    }

    /// Writing has failed: most often since the client has gone.
    pub(super) fn not_written(error: &io::Error) -> Self {
        let is_gone =
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        let cause =
            if is_gone { ConnectionEndCause::ClosedByPeer } else { ConnectionEndCause::Failed };
        EndReason { cause, message: error.to_string() }
    }

    pub(super) fn failed(message: impl ToString) -> Self {
        EndReason { cause: ConnectionEndCause::Failed, message: message.to_string() }
    }
}

impl Connection {
    pub(super) fn opened(&self) {
        trace::debug!("connection accepted");
        self.server.observers.connection_opened(&self.observed());
    }

    /// The connection has ended, and so have its calls.
    pub(super) fn closed(&self) {
        let duration = self.accepted.elapsed();
        let closed_here = EndReason::closed_here();
        let EndReason { cause, message } = self.end_reason.get().unwrap_or(&closed_here);
        trace::debug!(%cause, reason = message, ?duration, "connection ended");
        let end = ConnectionEnd { cause: *cause, message, duration };
        self.server.observers.connection_closed(&self.observed(), &end);
    }

    /// The client has broken the protocol.
    pub(super) fn violated(&self, Violation(rule): Violation) {
        self.server.observers.protocol_violation(&self.observed(), rule);
    }

    /// The receiver is held up by this until the result is dropped.
    pub(super) fn hold_up(&self, wait: ReceiverWait) -> HeldUpReceiver<'_> {
        HeldUpReceiver { _registration: self.registry.hold_up(wait), connection: self }
    }

    /// How the connection's end ends the calls that are left.
    pub(super) fn lost_call(&self) -> (EndCause, Status) {
        match self.end_reason.get() {
            None | Some(EndReason { cause: ConnectionEndCause::ClosedHere, .. }) => {
                (EndCause::Shutdown, Status::cancelled("the server has closed the connection"))
            }
            Some(_) => (EndCause::PeerGone, Status::cancelled("the client has gone away")),
        }
    }

    /// A call is refused: it begins and ends.
    pub(super) fn refused(&self, call: &RefusedCall<'_>, outcome: CallOutcome<'_>) {
        let RefusedCall { stream_id, flags, service, method, bytes, arrived, has_waited } = *call;
        let (code, cause, message) = (outcome.code(), outcome.cause, outcome.message());
        trace::debug!(stream_id, service, method, %code, %cause, error = message, "call refused");
        if self.server.observers.is_empty() {
            return;
        }
        let stats = CallStats::new(arrived);
        stats.received(0, bytes);
        if has_waited {
            stats.has_waited_for_place();
        }
        let (metadata, extensions) = (Metadata::new(), Extensions::default());
        let call = CallInfo {
            side: Side::Server,
            connection_id: self.id,
            peer: &self.peer,
            stream_id: Some(stream_id),
            service,
            method,
            is_known: self.server.services.has_method(service, method),
            is_stream: flags.open_a_stream(),
            metadata: &metadata,
            started: arrived,
            deadline: None,
            extensions: &extensions,
        };
        self.server.observers.call_begun(&call);
        self.server.observers.call_ended(&call, &stats.end(outcome));
    }

    fn observed(&self) -> ConnectionInfo<'_> {
        let (side, extensions) = (Side::Server, &self.extensions);
        ConnectionInfo { side, id: self.id, peer: &self.peer, extensions }
    }
}

/// A receiver that is held up.
#[derive(Debug)]
pub(super) struct HeldUpReceiver<'a> {
    _registration: ReceiverRegistration<'a>,
    connection: &'a Connection,
}

impl Drop for HeldUpReceiver<'_> {
    fn drop(&mut self) {
        let Connection { server, registry, .. } = self.connection;
        if !server.observers.is_empty()
            && let Some(held_up) = registry.receiver()
        {
            server.observers.receiver_held_up(&self.connection.observed(), &held_up);
        }
    }
}

impl Shared {
    /// A connection is refused.
    pub(super) fn connection_refused(&self, peer: &Peer, extensions: &Extensions, reason: &str) {
        trace::warn!(%peer, reason, "a connection is refused");
        let connection = ConnectionInfo { side: Side::Server, id: 0, peer, extensions };
        self.observers.connection_refused(&connection, reason);
    }
}
