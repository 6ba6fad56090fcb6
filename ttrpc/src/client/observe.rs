//! Reports a client's connection and its calls to `tracing` and to observers.
//!
//! A call that is observed has a [`CallRecord`]; any other has none, and costs a branch.

mod entry;
mod record;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::time::Instant;

pub(super) use self::record::{CallRecord, Intercepted, OnEnd, OnMessage};
use super::head::{CallHead, Times, too_late};
use crate::{
    Code, ConnectionError, Extensions, Status,
    observer::{
        CallInfo, CallOutcome, ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause,
        Observers, Side,
    },
    proto::stream::Violation,
    snapshot::HeldUp,
    trace::{self, Span},
    transport::peer::Peer,
};

/// What observers are told of a client's connection.
#[derive(Debug)]
pub(super) struct ObservedConnection {
    observers: Observers,
    id: u64,
    peer: Peer,
    // A client may be dropped with its thread, where tokio's clock may be gone.
    opened: std::time::Instant,
    extensions: Extensions,
    pub(super) span: Span,
}

impl ObservedConnection {
    /// The connection is open.
    pub(super) fn open(observers: Observers, peer: Peer, extensions: Extensions) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let span = trace::span!("connection", id, %peer);
        let opened = std::time::Instant::now();
        let connection = ObservedConnection { observers, id, peer, opened, extensions, span };
        connection.observers.connection_opened(&connection.info());
        Arc::new(connection)
    }

    /// The connection has ended.
    pub(super) fn closed(&self, reason: &ConnectionError) {
        let duration = self.opened.elapsed();
        self.span.in_scope(|| trace::debug!(%reason, ?duration, "connection ended"));
        if self.observers.is_empty() {
            return;
        }
        let cause = match reason {
            ConnectionError::ClosedByServer => ConnectionEndCause::ClosedByPeer,
            ConnectionError::ClosedLocally => ConnectionEndCause::ClosedHere,
            ConnectionError::IdsExhausted => ConnectionEndCause::IdsExhausted,
            ConnectionError::Truncated | ConnectionError::Read(_) | ConnectionError::Write(_) => {
                ConnectionEndCause::Failed
            }
        };
        let end = ConnectionEnd { cause, message: &reason.to_string(), duration };
        self.observers.connection_closed(&self.info(), &end);
    }

    /// The server has broken the protocol.
    pub(super) fn violated(&self, Violation(rule): Violation) {
        self.observers.protocol_violation(&self.info(), rule);
    }

    /// The receiver was held up, and goes on.
    pub(super) fn receiver_held_up(&self, held_up: Option<HeldUp>) {
        if let Some(held_up) = held_up {
            self.observers.receiver_held_up(&self.info(), &held_up);
        }
    }

    pub(super) fn has_observers(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Reports that a call begins. Returns its record, or `None` if nobody observes it.
    pub(super) fn begin(
        self: &Arc<Self>,
        call: CallHead<'_>,
        intercepted: Option<Intercepted>,
    ) -> Option<Box<CallRecord>> {
        let span = call.span();
        if self.observers.is_empty() && span.is_none() && intercepted.is_none() {
            return None;
        }
        let record = CallRecord::new(self, call, intercepted.unwrap_or_default(), span);
        record.begun();
        Some(record)
    }

    fn call<'a>(
        &'a self,
        CallHead { shape, service, method, metadata, times }: CallHead<'a>,
        stream_id: Option<u32>,
        extensions: &'a Extensions,
    ) -> CallInfo<'a> {
        CallInfo {
            side: Side::Client,
            connection_id: self.id,
            peer: &self.peer,
            stream_id,
            service,
            method,
            is_known: true,
            is_stream: shape.is_stream(),
            metadata,
            started: times.started,
            deadline: times.deadline,
            extensions,
        }
    }

    fn info(&self) -> ConnectionInfo<'_> {
        let ObservedConnection { id, peer, extensions, .. } = self;
        ConnectionInfo { side: Side::Client, id: *id, peer, extensions }
    }
}

/// The cause with which pending calls end when their connection ends.
pub(super) fn lost_call(reason: Option<&ConnectionError>) -> EndCause {
    match reason {
        None | Some(ConnectionError::ClosedLocally) => EndCause::Shutdown,
        Some(ConnectionError::IdsExhausted) => EndCause::Limit,
        Some(_) => EndCause::PeerGone,
    }
}

/// The cause with which a call ends that was not queued.
fn not_queued(status: &Status) -> EndCause {
    match status.code() {
        Code::DeadlineExceeded => EndCause::DeadlineHere,
        Code::Unavailable => lost_call(status.connection_error()),
        _ => EndCause::Limit,
    }
}

/// The cause with which a call ends that its caller has dropped: it was given up, or its deadline has passed and no
/// other task has noticed that yet.
fn let_go(times: Times) -> (EndCause, Status) {
    match times.deadline {
        Some(deadline) if deadline <= Instant::now() => (EndCause::DeadlineHere, too_late()),
        _ => (EndCause::GivenUp, Status::cancelled("the caller has given the call up")),
    }
}

/// The end of a call whose reply was taken.
fn reply_outcome(violation: Option<&Status>) -> CallOutcome<'_> {
    match violation {
        None => CallOutcome::REPLIED,
        status => CallOutcome { cause: EndCause::ProtocolViolation, status },
    }
}
