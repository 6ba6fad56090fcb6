//! The record of a call that is observed: by observers, by interceptors or by a subscriber of `tracing`.

use std::{fmt, mem, sync::Arc};

use tokio::time::Instant;

use super::observe::{ObservedConnection, lost_call};
use crate::{
    Code, Extensions, Metadata, Name, Status,
    client::meta::{CallMeta, CallTimes, MethodKind, too_late},
    contain::{Contained, contain},
    observer::{CallEnd, CallInfo, CallOutcome, CallStats, EndCause, MessageInfo},
    proto::frame::HEADER_LEN,
    sync::Mutex,
    trace::{self, Span},
    transport::lock,
};

/// Called for each message of a call.
pub(in crate::client) type OnMessage = Contained<Arc<dyn Fn(&MessageInfo) + Send + Sync>>;

/// Called when a call ends.
pub(in crate::client) type OnEnd = Box<dyn FnOnce(&CallEnd<'_>) + Send>;

/// Additions of interceptors to a call before it is made.
#[derive(Default)]
pub(in crate::client) struct Intercepted {
    /// In place of the record's own.
    pub(in crate::client) extensions: Option<Arc<Extensions>>,
    pub(in crate::client) on_message: Option<OnMessage>,
}

/// A call as observers and interceptors learn of it, from its beginning to its end. A record that is dropped before
/// the end was reported reports that the call was given up.
pub(in crate::client) struct CallRecord {
    connection: Arc<ObservedConnection>,
    kind: MethodKind,
    service: Name,
    method: Name,
    metadata: Metadata,
    times: CallTimes,
    extensions: Extensions,
    intercepted: Intercepted,
    pub(in crate::client) stats: CallStats,
    span: Span,
    progress: Mutex<RecordProgress>,
}

#[derive(Default)]
struct RecordProgress {
    /// `None` until the Request is queued.
    stream_id: Option<u32>,
    /// How the call ended, once that is reported, or noted while the end is held.
    end: Option<(EndCause, Option<Status>)>,
    /// An end is noted and not reported: the call may be made again.
    holds_end: bool,
    /// Called at the end.
    on_end: Vec<OnEnd>,
}

impl CallRecord {
    pub(super) fn new(
        connection: &Arc<ObservedConnection>,
        CallMeta { kind, service, method, metadata, times }: CallMeta<'_>,
        intercepted: Intercepted,
        span: Span,
    ) -> Arc<Self> {
        Arc::new(CallRecord {
            connection: connection.clone(),
            kind,
            service: service.clone(),
            method: method.clone(),
            metadata: metadata.clone(),
            times,
            extensions: Extensions::default(),
            intercepted,
            stats: CallStats::new(times.started),
            span,
            progress: Mutex::default(),
        })
    }

    /// Reports that the call begins.
    pub(super) fn begun(&self) {
        self.connection.observers.notify(|observer| observer.call_begun(&self.info()));
    }

    /// The call is made on this connection.
    pub(in crate::client) fn move_to(&mut self, connection: &Arc<ObservedConnection>) {
        self.connection.clone_from(connection);
    }

    /// Takes over what interceptors have changed before the call is made.
    pub(in crate::client) fn change(
        &mut self,
        metadata: &Metadata,
        deadline: Option<Instant>,
        on_message: Option<OnMessage>,
    ) {
        self.intercepted.on_message = on_message;
        self.metadata.clone_from(metadata);
        self.times.deadline = deadline;
    }

    /// Counts and reports the Request, which is about to be queued in a frame of this length.
    pub(in crate::client) fn count_request(&self, frame_len: usize, has_message: bool) {
        let message = self.stats.sent(has_message.into(), frame_len - HEADER_LEN);
        if has_message {
            self.report_message(&message);
        }
    }

    /// Notes the stream id of the Request, which is queued.
    pub(super) fn queued(&self, stream_id: u32) {
        lock(&self.progress).stream_id = Some(stream_id);
    }

    /// Counts a message that is queued in a frame of this length. It is reported when the queue is unlocked.
    pub(in crate::client) fn count_sent(&self, frame_len: usize) -> MessageInfo {
        self.stats.sent(1, frame_len - HEADER_LEN)
    }

    /// Counts and reports a message of so many bytes that has arrived.
    pub(super) fn received(&self, bytes: usize) {
        self.report_message(&self.stats.received(1, bytes));
    }

    /// Counts and reports the Response: when it was read, and the length of its message if it has one.
    pub(super) fn answered(&self, read_at: Instant, message: Option<usize>) {
        self.stats.answered(read_at);
        if let Some(bytes) = message {
            self.received(bytes);
        }
    }

    /// Reports a message that was counted.
    pub(in crate::client) fn report_message(&self, message: &MessageInfo) {
        let observers = &self.connection.observers;
        if observers.want_messages() {
            observers.message(&self.info(), message);
        }
        if let Some(on_message) = &self.intercepted.on_message
            && contain(|| on_message(message)).is_err()
        {
            trace::warn!("what was to be called for a message panicked");
        }
    }

    /// Reports the call's end, or notes it while the end is held; the first one counts.
    pub(in crate::client) fn ended(&self, outcome: CallOutcome<'_>) {
        let mut progress = lock(&self.progress);
        if progress.end.is_some() {
            return;
        }
        progress.end = Some((outcome.cause, outcome.status.cloned()));
        if progress.holds_end {
            return;
        }
        let on_end = mem::take(&mut progress.on_end);
        drop(progress);
        self.report_end(outcome, on_end);
    }

    /// Holds the end from now on: the call may be made again.
    pub(in crate::client) fn hold_end(&self) {
        lock(&self.progress).holds_end = true;
    }

    /// Holds the end no longer, and reports one that was noted.
    pub(in crate::client) fn release_end(&self) {
        let mut progress = lock(&self.progress);
        if !mem::take(&mut progress.holds_end) {
            return;
        }
        let Some((cause, status)) = progress.end.clone() else { return };
        let on_end = mem::take(&mut progress.on_end);
        drop(progress);
        self.report_end(CallOutcome { cause, status: status.as_ref() }, on_end);
    }

    /// The call is made again after its Request was not sent.
    pub(in crate::client) fn begin_again(&self) {
        self.end_attempt();
        self.stats.begin_again();
    }

    /// The call is going to be made again: an end that was noted is not its end, but that of an attempt.
    pub(in crate::client) fn end_attempt(&self) {
        let mut progress = lock(&self.progress);
        progress.stream_id = None;
        let (end, on_end) = (progress.end.take(), mem::take(&mut progress.on_end));
        drop(progress);
        if let Some((cause, status)) = end {
            self.call_on_end(on_end, CallOutcome { cause, status: status.as_ref() });
        }
    }

    fn report_end(&self, outcome: CallOutcome<'_>, on_end: Vec<OnEnd>) {
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
            let end = self.stats.end(outcome);
            self.span
                .in_scope(|| observers.notify(|observer| observer.call_ended(&self.info(), &end)));
        }
        self.call_on_end(on_end, outcome);
    }

    pub(in crate::client) fn has_ended(&self) -> bool {
        lock(&self.progress).end.is_some()
    }

    fn stream_id(&self) -> Option<u32> {
        lock(&self.progress).stream_id
    }

    /// Calls this when the end is reported, at once if it was.
    pub(in crate::client) fn on_end(&self, on_end: OnEnd) {
        let mut progress = lock(&self.progress);
        let Some((cause, status)) = progress.end.clone() else {
            progress.on_end.push(on_end);
            return;
        };
        drop(progress);
        self.call_on_end(vec![on_end], CallOutcome { cause, status: status.as_ref() });
    }

    /// Calls what interceptors want called. A panic of theirs ends no task of the library's.
    fn call_on_end(&self, on_end: Vec<OnEnd>, outcome: CallOutcome<'_>) {
        for on_end in on_end {
            let end = self.stats.end(outcome);
            if contain(|| on_end(&end)).is_err() {
                trace::warn!("what was to be called at a call's end panicked");
            }
        }
    }

    /// Reports that the caller has taken the reply, which may not be what the method's types allow.
    pub(in crate::client) fn reply_taken(&self, violation: Option<&Status>) {
        self.ended(match violation {
            None => CallOutcome::REPLIED,
            status => CallOutcome { cause: EndCause::ProtocolViolation, status },
        });
    }

    /// Reports that the caller has dropped the call: it gave it up, or its deadline has passed and no other task has
    /// noticed that yet.
    pub(in crate::client) fn dropped(&self) {
        if self.has_ended() {
            return;
        }
        let (cause, status) = match self.times.are_over() {
            true => (EndCause::DeadlineHere, too_late()),
            false => (EndCause::GivenUp, Status::cancelled("the caller has given the call up")),
        };
        self.ended(CallOutcome { cause, status: Some(&status) });
    }

    /// Reports that the call has failed before it was queued.
    pub(in crate::client) fn not_queued(&self, status: &Status) {
        let cause = match status.code() {
            Code::DeadlineExceeded => EndCause::DeadlineHere,
            Code::Unavailable | Code::FailedPrecondition => lost_call(status.connection_error()),
            _ => EndCause::Limit,
        };
        self.ended(CallOutcome { cause, status: Some(status) });
    }

    fn info(&self) -> CallInfo<'_> {
        let CallRecord { kind, service, method, metadata, times, .. } = self;
        let meta = CallMeta { kind: *kind, service, method, metadata, times: *times };
        let extensions = self.intercepted.extensions.as_deref().unwrap_or(&self.extensions);
        self.connection.call(meta, self.stream_id(), extensions)
    }
}

impl fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallRecord").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.release_end();
        self.dropped();
    }
}
