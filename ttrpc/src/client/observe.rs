//! Where a client tells of its connection and its calls: to `tracing`, and to observers.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicU8, AtomicU32, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use tokio::time::Instant;

use super::{
    entry::{CallEntry, Times},
    options::CallOptions,
    owner::too_late,
    pending::PendingCall,
    state::CallState,
};
use crate::{
    ConnectionError, Extensions, Metadata, Name, Status,
    observer::{
        CallEnd, CallInfo, CallOutcome, CallStats, ConnectionEnd, ConnectionEndCause,
        ConnectionInfo, EndCause, MessageInfo, Observers, Side,
    },
    proto::{frame::HEADER_LEN, stream::Violation},
    server::Peer,
    snapshot::HeldUp,
    sync::Mutex,
    trace::{self, Span},
    transport::lock,
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

/// A call as it is told of, from its begin to its end. Dropped before its end is told, it was given up.
pub(super) struct CallRecord {
    connection: Arc<ObservedConnection>,
    service: Name,
    method: Name,
    is_stream: bool,
    metadata: Metadata,
    times: Times,
    /// 0 while it has none.
    stream_id: AtomicU32,
    extensions: Extensions,
    /// Those of an interceptor, in place of its own.
    shared_extensions: Option<Arc<Extensions>>,
    /// What an interceptor does with messages.
    on_message: Option<OnMessage>,
    pub(super) stats: CallStats,
    span: Span,
    /// Bits of what has happened.
    events: AtomicU8,
    on_end: Mutex<Vec<OnEnd>>,
}

/// The end was told to the observers.
const IS_TOLD: u8 = 1;
/// Somebody waits for the end.
const HAS_ON_END: u8 = 1 << 1;

/// Called for each message of a call.
pub(super) type OnMessage = Arc<dyn Fn(&MessageInfo) + Send + Sync>;

/// What interceptors add to a call.
#[derive(Default)]
pub(super) struct Intercepted {
    pub(super) extensions: Option<Arc<Extensions>>,
    pub(super) on_message: Option<OnMessage>,
}

/// Called when a call ends.
type OnEnd = Box<dyn FnOnce(&CallEnd<'_>) + Send>;

impl CallRecord {
    /// The call begins. `None` if nobody wants to know.
    pub(super) fn begin<Req>(
        connection: &Arc<ObservedConnection>,
        pending: &PendingCall<Req>,
        times: Times,
        intercepted: Option<Intercepted>,
    ) -> Option<Box<Self>> {
        let PendingCall { service, method, .. } = pending;
        let span = trace::span!("call", service = &**service, method = &**method);
        if connection.observers.is_empty() && span.is_none() && intercepted.is_none() {
            return None;
        }
        Some(CallRecord::new(connection, pending, times, intercepted.unwrap_or_default(), span))
    }

    fn new<Req>(
        connection: &Arc<ObservedConnection>,
        PendingCall { shape, service, method, options, .. }: &PendingCall<Req>,
        times: Times,
        Intercepted { extensions: shared_extensions, on_message }: Intercepted,
        span: Span,
    ) -> Box<Self> {
        let record = Box::new(CallRecord {
            connection: connection.clone(),
            service: service.clone(),
            method: method.clone(),
            is_stream: shape.is_stream(),
            metadata: if options.metadata.is_empty() {
                Metadata::new()
            } else {
                options.metadata.clone()
            },
            times,
            stream_id: AtomicU32::new(0),
            extensions: Extensions::default(),
            shared_extensions,
            on_message,
            stats: CallStats::new(times.started),
            span,
            events: AtomicU8::new(0),
            on_end: Mutex::default(),
        });
        connection.observers.call_begun(&record.info());
        record
    }

    /// Interceptors have said with what the call is made.
    pub(super) fn change(
        &mut self,
        options: &CallOptions,
        deadline: Option<Instant>,
        on_message: Option<OnMessage>,
    ) {
        self.on_message = on_message;
        self.metadata.clone_from(&options.metadata);
        self.times.deadline = deadline;
    }

    /// The Request is about to be queued, in a frame of this length.
    pub(super) fn count_request(&self, frame_len: usize, has_message: bool) {
        let message = self.stats.sent(has_message.into(), frame_len - HEADER_LEN);
        if has_message {
            self.tell_message(&message);
        }
    }

    /// The Request was queued.
    pub(super) fn queued(&self, stream_id: u32) {
        self.stream_id.store(stream_id, Relaxed);
    }

    /// Tells of a message that was counted.
    fn tell_message(&self, message: &MessageInfo) {
        let observers = &self.connection.observers;
        if observers.want_messages() {
            observers.message(&self.info(), message);
        }
        if let Some(on_message) = &self.on_message
            && catch_unwind(AssertUnwindSafe(|| on_message(message))).is_err()
        {
            trace::warn!("what was to be called for a message panicked");
        }
    }

    /// The call has ended; the first end counts.
    pub(super) fn ended(&self, outcome: CallOutcome<'_>) {
        let before = self.events.fetch_or(IS_TOLD, SeqCst);
        if before & IS_TOLD != 0 {
            return;
        }
        // The clock is read only where somebody traces.
        let started = self.times.started;
        self.span.in_scope(|| {
            let (code, cause) = (outcome.code(), outcome.cause);
            match outcome.status {
                None => {
                    let stream_id = self.stream_id();
                    trace::debug!(stream_id, %code, %cause, duration = ?started.elapsed(), "call ended");
                }
                Some(status) => trace::debug!(
                    stream_id = self.stream_id(),
                    %code,
                    %cause,
                    error = status.message(),
                    duration = ?started.elapsed(),
                    "call ended"
                ),
            }
        });
        let observers = &self.connection.observers;
        if !observers.is_empty() {
            observers.call_ended(&self.info(), &self.stats.end(outcome));
        }
        if before & HAS_ON_END != 0 {
            self.call_on_end(outcome);
        }
    }

    fn is_told(&self) -> bool {
        self.events.load(SeqCst) & IS_TOLD != 0
    }

    fn stream_id(&self) -> Option<u32> {
        Some(self.stream_id.load(Relaxed)).filter(|id| *id != 0)
    }

    /// Tells those who wait for the end. They are the program's, and a panic of theirs ends no task of the
    /// library's.
    fn call_on_end(&self, outcome: CallOutcome<'_>) {
        let waiting = mem::take(&mut *lock(&self.on_end));
        for told in waiting {
            let end = self.stats.end(outcome);
            if catch_unwind(AssertUnwindSafe(|| told(&end))).is_err() {
                trace::warn!("what was to be called at a call's end panicked");
            }
        }
    }

    /// The caller has let go of the call: if that is its end, it gives the call up, or its time is over and it
    /// is dropped for that before anything else finds out.
    fn dropped(&self) {
        if self.is_told() {
            return;
        }
        let is_too_late = self.times.deadline.is_some_and(|deadline| deadline <= Instant::now());
        let (cause, status) = match is_too_late {
            true => (EndCause::DeadlineHere, too_late()),
            false => (EndCause::GivenUp, Status::cancelled("the caller has given the call up")),
        };
        self.ended(CallOutcome { cause, status: Some(&status) });
    }

    /// The call has failed before it was queued.
    pub(super) fn not_queued(&self, status: &Status, reason: Option<&ConnectionError>) {
        let cause = match status.code() {
            crate::Code::DeadlineExceeded => EndCause::DeadlineHere,
            crate::Code::Unavailable => lost_call(reason),
            _ => EndCause::Limit,
        };
        self.ended(CallOutcome { cause, status: Some(status) });
    }

    fn info(&self) -> CallInfo<'_> {
        let ObservedConnection { id, peer, .. } = &*self.connection;
        CallInfo {
            side: Side::Client,
            connection_id: *id,
            peer,
            stream_id: self.stream_id(),
            service: &self.service,
            method: &self.method,
            is_known: true,
            is_stream: self.is_stream,
            metadata: &self.metadata,
            started: self.times.started,
            deadline: self.times.deadline,
            extensions: self.shared_extensions.as_deref().unwrap_or(&self.extensions),
        }
    }
}

impl fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRecord").field("is_told", &self.is_told()).finish_non_exhaustive()
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.dropped();
    }
}

impl CallEntry {
    /// The call's state has changed: tells its end, if it is that. Whoever awaits a single reply tells of it
    /// itself, when the reply is decoded.
    pub(super) fn tell_end(&self) {
        if !self.is_unary() {
            self.tell_outcome_if(|status| status.is_some() || !self.has_one_reply());
        }
    }

    /// Tells how the call has ended, if it has.
    pub(super) fn tell_outcome(&self) {
        self.tell_outcome_if(|_| true);
    }

    fn tell_outcome_if(&self, is_told: impl FnOnce(Option<&Status>) -> bool) {
        let Some(record) = &self.record else { return };
        let outcome = self.inbox.with(|state: &mut CallState| state.outcome());
        if let Some((cause, status)) = outcome
            && is_told(status.as_ref())
        {
            record.ended(CallOutcome { cause, status: status.as_ref() });
        }
    }

    /// Tells how a call with one reply has ended, which the caller has taken.
    pub(super) fn tell_reply<M>(&self, reply: &Result<M, Status>) {
        let Some(record) = &self.record else { return };
        record.ended(match reply {
            Ok(_) => CallOutcome::REPLIED,
            Err(status) => CallOutcome { cause: EndCause::ProtocolViolation, status: Some(status) },
        });
    }

    /// Calls this when the call ends, or now if that was told already.
    pub(super) fn on_end(&self, told: OnEnd) {
        let Some(record) = &self.record else { return };
        lock(&record.on_end).push(told);
        if record.events.fetch_or(HAS_ON_END, SeqCst) & IS_TOLD != 0
            && let Some((cause, status)) = self.inbox.with(|state| state.outcome())
        {
            record.call_on_end(CallOutcome { cause, status: status.as_ref() });
        }
    }

    /// The caller lets go of the call.
    pub(super) fn tell_dropped(&self) {
        if let Some(record) = &self.record
            && !record.is_told()
        {
            self.tell_outcome();
            record.dropped();
        }
    }

    /// The server's answer is not what the method's types allow.
    pub(super) fn tell_violation(&self, status: &Status) {
        if let Some(record) = &self.record {
            let cause = EndCause::ProtocolViolation;
            record.ended(CallOutcome { cause, status: Some(status) });
        }
    }

    /// A message is queued in a frame of this length. Counted with the queue locked, and told behind that.
    pub(super) fn count_sent(&self, frame_len: usize) -> Option<MessageInfo> {
        Some(self.record.as_ref()?.stats.sent(1, frame_len - HEADER_LEN))
    }

    /// Tells of a message that was counted.
    pub(super) fn tell_message(&self, message: Option<MessageInfo>) {
        if let (Some(record), Some(message)) = (&self.record, &message) {
            record.tell_message(message);
        }
    }

    /// The answer was read at this moment, with a message of so many bytes if it has one.
    pub(super) fn count_answer(&self, bytes: Option<usize>, read_at: impl FnOnce() -> Instant) {
        if let Some(record) = &self.record {
            record.stats.answered(read_at());
            if let Some(bytes) = bytes {
                record.tell_message(&record.stats.received(1, bytes));
            }
        }
    }

    /// A message of so many bytes has come.
    pub(super) fn count_received(&self, bytes: usize) {
        if let Some(record) = &self.record {
            record.tell_message(&record.stats.received(1, bytes));
        }
    }
}
