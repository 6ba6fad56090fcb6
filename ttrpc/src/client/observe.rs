//! Where a client tells of its connection and its calls: to `tracing`, and to observers.
//!
//! Most calls are unary and say no more than their entry in the connection's table: their callers tell of them, and
//! nothing is kept for that but two numbers. Others have a record.

mod entry;
mod intercepted;
mod record;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

pub(super) use self::{
    intercepted::{Intercepted, OnEnd, OnMessage, UnaryOnEnds},
    record::CallRecord,
};
use super::{
    entry::{CallEntry, CallHead, Times},
    owner::too_late,
};
use crate::{
    Code, ConnectionError, Extensions, Status,
    observer::{
        CallInfo, CallOutcome, ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause,
        Observers, Side,
    },
    proto::stream::Violation,
    server::Peer,
    snapshot::HeldUp,
    trace::{self, Span},
};

/// A client's connection as it is told of.
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
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        let id = CONNECTIONS.fetch_add(1, Relaxed) + 1;
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

    /// A call begins.
    pub(super) fn begin(self: &Arc<Self>, call: CallHead<'_>) -> Observed {
        let span = call.span();
        if self.observers.is_empty() && span.is_none() {
            return Observed::Nobody;
        }
        self.begin_observed(call, span)
    }

    fn begin_observed(self: &Arc<Self>, call: CallHead<'_>, span: Span) -> Observed {
        let is_plain = call.shape.is_unary() && call.metadata.is_empty();
        if !is_plain || !span.is_none() || self.observers.want_messages() {
            let record = CallRecord::new(self, call, Intercepted::default(), span);
            record.begun();
            return Observed::Recorded(record);
        }
        let extensions = Extensions::default();
        self.observers.call_begun(&self.call(call, None, &extensions));
        if extensions.is_empty() {
            return Observed::Unary(UnaryCount::default());
        }
        let mut record = CallRecord::new(self, call, Intercepted::default(), span);
        record.extensions = extensions;
        Observed::Recorded(record)
    }

    /// The same for a call that has to wait before it is queued, or that has interceptors. `None` if nobody wants to
    /// know.
    pub(super) fn begin_recorded(
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

    /// A unary call of which there is no record has ended.
    fn unary_ended(&self, entry: &CallEntry, stream_id: Option<u32>, outcome: CallOutcome<'_>) {
        let Observed::Unary(UnaryCount { answered, received }) = &entry.observed else { return };
        let took = match answered.load(Relaxed) {
            0 => None,
            after => Some(Duration::from_nanos(after)),
        };
        let received = received.load(Relaxed).checked_sub(1);
        let extensions = Extensions::default();
        let call = self.call(entry.head(), stream_id, &extensions);
        self.observers.call_ended(&call, &entry.unary_end(outcome, received, took));
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

/// How a connection's end ends the calls that are left.
pub(super) fn lost_call(reason: Option<&ConnectionError>) -> EndCause {
    match reason {
        None | Some(ConnectionError::ClosedLocally) => EndCause::Shutdown,
        Some(ConnectionError::IdsExhausted) => EndCause::Limit,
        Some(_) => EndCause::PeerGone,
    }
}

/// How a call ends that was not queued.
fn not_queued(status: &Status) -> EndCause {
    match status.code() {
        Code::DeadlineExceeded => EndCause::DeadlineHere,
        Code::Unavailable => lost_call(status.connection_error()),
        _ => EndCause::Limit,
    }
}

/// How a call ends that its caller has let go of: it is given up, or its time is over and it is dropped for that
/// before anything else finds out.
fn let_go(times: Times) -> (EndCause, Status) {
    match times.deadline {
        Some(deadline) if deadline <= Instant::now() => (EndCause::DeadlineHere, too_late()),
        _ => (EndCause::GivenUp, Status::cancelled("the caller has given the call up")),
    }
}

/// How a call ends whose reply was taken.
fn reply_outcome(violation: Option<&Status>) -> CallOutcome<'_> {
    match violation {
        None => CallOutcome::REPLIED,
        status => CallOutcome { cause: EndCause::ProtocolViolation, status },
    }
}

/// To whom a call's end is told.
#[derive(Debug)]
pub(super) enum Observed {
    /// To nobody.
    Nobody,
    /// To its interceptors, by the caller: a unary call of which nobody else wants to know.
    Intercepted(UnaryOnEnds),
    /// To observers, by the caller: a unary call without metadata, of which nobody wants to know more.
    Unary(UnaryCount),
    /// By whoever finds it.
    Recorded(Box<CallRecord>),
}

impl From<Option<Box<CallRecord>>> for Observed {
    fn from(record: Option<Box<CallRecord>>) -> Self {
        record.map_or(Observed::Nobody, Observed::Recorded)
    }
}

impl Observed {
    /// Of a call that was made through interceptors.
    pub(super) fn intercepted(record: Option<Box<CallRecord>>) -> Self {
        let unary = || Observed::Intercepted(UnaryOnEnds::default());
        record.map_or_else(unary, Observed::Recorded)
    }
}

/// What is counted of a unary call.
#[derive(Debug, Default)]
pub(super) struct UnaryCount {
    /// Nanoseconds from the start to when the answer was read; 0 if there is none.
    answered: AtomicU64,
    /// Bytes of the answer and one more; 0 if it has no message.
    received: AtomicU32,
}
