//! The record of an observed call for which its entry is not enough: one with streams, with metadata or with
//! interceptors, one that had to wait before it was queued, one that is traced.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicU8, AtomicU32,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use tokio::time::Instant;

use super::{
    super::{
        head::{CallHead, CallShape, Times},
        options::CallOptions,
    },
    Intercepted, ObservedConnection, OnEnd, OnMessage, let_go, not_queued,
};
use crate::{
    Extensions, Metadata, Name, Status,
    observer::{CallInfo, CallOutcome, CallStats, MessageInfo},
    proto::frame::HEADER_LEN,
    trace::{self, Span},
};

/// What observers and interceptors are told of a call, from its beginning to its end. If it is dropped before the end
/// was reported, the call was given up.
pub(in crate::client) struct CallRecord {
    connection: Arc<ObservedConnection>,
    shape: CallShape,
    service: Name,
    method: Name,
    metadata: Metadata,
    times: Times,
    /// 0 while it has none.
    stream_id: AtomicU32,
    pub(super) extensions: Extensions,
    intercepted: Intercepted,
    pub(in crate::client) stats: CallStats,
    span: Span,
    /// Bits of what has happened.
    events: AtomicU8,
}

/// The end was told to the observers.
const IS_TOLD: u8 = 1;
/// An interceptor has asked for the end.
const HAS_ON_END: u8 = 1 << 1;

impl CallRecord {
    pub(super) fn new(
        connection: &Arc<ObservedConnection>,
        CallHead { shape, service, method, metadata, times }: CallHead<'_>,
        intercepted: Intercepted,
        span: Span,
    ) -> Box<Self> {
        Box::new(CallRecord {
            connection: connection.clone(),
            shape,
            service: service.clone(),
            method: method.clone(),
            metadata: metadata.clone(),
            times,
            stream_id: AtomicU32::new(0),
            extensions: Extensions::default(),
            intercepted,
            stats: CallStats::new(times.started),
            span,
            events: AtomicU8::new(0),
        })
    }

    /// The call begins.
    pub(super) fn begun(&self) {
        self.connection.observers.call_begun(&self.info());
    }

    /// Interceptors have said with what the call is made.
    pub(in crate::client) fn change(
        &mut self,
        options: &CallOptions,
        deadline: Option<Instant>,
        on_message: Option<OnMessage>,
    ) {
        self.intercepted.on_message = on_message;
        self.metadata.clone_from(options.metadata());
        self.times.deadline = deadline;
    }

    /// The Request is about to be queued, in a frame of this length.
    pub(in crate::client) fn count_request(&self, frame_len: usize, has_message: bool) {
        let message = self.stats.sent(has_message.into(), frame_len - HEADER_LEN);
        if has_message {
            self.tell_message(&message);
        }
    }

    /// The Request was queued.
    pub(in crate::client) fn queued(&self, stream_id: u32) {
        self.stream_id.store(stream_id, Relaxed);
    }

    /// Tells of a message that was counted.
    pub(super) fn tell_message(&self, message: &MessageInfo) {
        let observers = &self.connection.observers;
        if observers.want_messages() {
            observers.message(&self.info(), message);
        }
        self.intercepted.tell_message(message);
    }

    /// The call has ended; the first end counts.
    pub(in crate::client) fn ended(&self, outcome: CallOutcome<'_>) {
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

    pub(super) fn is_told(&self) -> bool {
        self.events.load(SeqCst) & IS_TOLD != 0
    }

    fn stream_id(&self) -> Option<u32> {
        Some(self.stream_id.load(Relaxed)).filter(|id| *id != 0)
    }

    /// Calls this when the call ends. Returns whether that was told already.
    pub(super) fn on_end(&self, told: OnEnd) -> bool {
        self.intercepted.on_ends.push(told);
        self.events.fetch_or(HAS_ON_END, SeqCst) & IS_TOLD != 0
    }

    /// Tells those who wait for the end.
    pub(super) fn call_on_end(&self, outcome: CallOutcome<'_>) {
        self.intercepted.on_ends.call(|| self.stats.end(outcome));
    }

    /// The caller has let go of the call.
    pub(super) fn dropped(&self) {
        if !self.is_told() {
            let (cause, status) = let_go(self.times);
            self.ended(CallOutcome { cause, status: Some(&status) });
        }
    }

    /// The call has failed before it was queued.
    pub(in crate::client) fn not_queued(&self, status: &Status) {
        self.ended(CallOutcome { cause: not_queued(status), status: Some(status) });
    }

    fn info(&self) -> CallInfo<'_> {
        let CallRecord { shape, service, method, metadata, times, .. } = self;
        let head = CallHead { shape: *shape, service, method, metadata, times: *times };
        let extensions = self.intercepted.extensions.as_deref().unwrap_or(&self.extensions);
        self.connection.call(head, self.stream_id(), extensions)
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
