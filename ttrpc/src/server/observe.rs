//! Where the server tells of its connections and calls: to `tracing`, and to observers.

use std::io;

use tokio::time::Instant;

use super::{Peer, Shared, call::Call, connection::Connection};
use crate::{
    Extensions, Metadata, Status,
    observer::{
        CallInfo, CallOutcome, ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause, Side,
    },
    proto::{frame::HEADER_LEN, stream::Violation},
    trace,
};

impl Call {
    /// The call begins, before anything can end it.
    pub(super) fn begun(&self, request_bytes: usize, messages: u64) {
        if let Some(stats) = &self.stats {
            stats.received(messages, request_bytes);
            self.connection.server.observers.call_begun(&self.observed());
        }
    }

    /// The call has ended: whoever took it out of the table says so, and nobody else.
    pub(super) fn ended(&self, outcome: CallOutcome<'_>) {
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
        if let Some(stats) = &self.stats {
            self.connection.server.observers.call_ended(&self.observed(), stats, outcome);
        }
    }

    /// A message is queued in a frame of this length.
    pub(super) fn count_sent(&self, frame_len: usize) {
        if let Some(stats) = &self.stats {
            stats.sent(1, frame_len - HEADER_LEN);
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
            metadata: self.metadata(),
            started: head.started,
            deadline: self.deadline(),
            extensions: &self.extensions,
        }
    }
}

/// A call that comes to no handler.
pub(super) struct RefusedCall<'a> {
    pub(super) stream_id: u32,
    pub(super) service: &'a str,
    pub(super) method: &'a str,
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
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
        let RefusedCall { stream_id, service, method, bytes, arrived } = *call;
        let (code, cause, message) = (outcome.code(), outcome.cause, outcome.message());
        trace::debug!(stream_id, service, method, %code, %cause, error = message, "call refused");
        let Some(stats) = self.server.observers.stats(arrived) else { return };
        stats.received(0, bytes);
        stats.has_waited_for_place();
        let (metadata, extensions) = (Metadata::new(), Extensions::default());
        let call = CallInfo {
            side: Side::Server,
            connection_id: self.id,
            peer: &self.peer,
            stream_id: Some(stream_id),
            service,
            method,
            is_known: self.server.services.has_method(service, method),
            metadata: &metadata,
            started: arrived,
            deadline: None,
            extensions: &extensions,
        };
        self.server.observers.call_begun(&call);
        self.server.observers.call_ended(&call, &stats, outcome);
    }

    fn observed(&self) -> ConnectionInfo<'_> {
        let (side, extensions) = (Side::Server, &self.extensions);
        ConnectionInfo { side, id: self.id, peer: &self.peer, extensions }
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
