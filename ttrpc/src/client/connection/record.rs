//! Reports a client's calls to `tracing`, to observers and to interceptors.
//!
//! A call that is observed, traced or intercepted has a [`CallRecord`]; any other has none, and costs a branch.

use std::{mem, sync::Arc};

use tokio::time::Instant;

use super::{
    observe::{ObservedConnection, lost_call},
    state::CallEnd,
};
use crate::{
    Code, Extensions, Status,
    client::meta::{CallHead, is_over, too_late},
    contain::{Contained, contain},
    observer::{self, CallInfo, CallOutcome, CallStats, EndCause, MessageInfo, Side},
    proto::{frame::HEADER_LEN, message::begins_with_status},
    sync::{Mutex, MutexGuard},
    trace::{self, Span},
    transport::lock,
};

/// Called for each message of a call.
pub(in crate::client) type OnMessage = Contained<Arc<dyn Fn(&MessageInfo) + Send + Sync>>;

/// Called when a call ends.
pub(in crate::client) type OnEnd = Box<dyn FnOnce(&observer::CallEnd<'_>) + Send>;

/// A call as observers and interceptors learn of it, from its beginning to its end. A record that is dropped before
/// the end was reported reports that the call was given up.
pub(in crate::client) struct CallRecord {
    /// That on which the call is made.
    pub(in crate::client) connection: Arc<ObservedConnection>,
    pub(in crate::client) head: CallHead,
    extensions: Extensions,
    pub(in crate::client) on_message: Option<OnMessage>,
    pub(in crate::client) stats: CallStats,
    span: Span,
    progress: Mutex<RecordProgress>,
}

#[derive(Default)]
struct RecordProgress {
    /// `None` until the Request is queued.
    stream_id: Option<u32>,
    /// How the call ended, once that is reported, or noted while the end is held.
    end: Option<CallEnd>,
    /// An end is noted and not reported: the call may be made again.
    holds_end: bool,
    /// Called at the end.
    on_end: Vec<OnEnd>,
}

impl CallRecord {
    /// Reports that a call begins. One that is intercepted has extensions that observers see.
    pub(in crate::client) fn begin(
        connection: &Arc<ObservedConnection>,
        head: &CallHead,
        span: Span,
        intercepted: Option<&Extensions>,
    ) -> Arc<Self> {
        let observers = &connection.observers;
        // Nobody else sees them.
        let shared = intercepted.filter(|_| !observers.is_empty());
        let record = Arc::new(CallRecord {
            connection: connection.clone(),
            head: head.clone(),
            extensions: shared.map_or_else(Extensions::default, Extensions::share),
            on_message: None,
            stats: CallStats::new(head.options.started()),
            span,
            progress: Mutex::default(),
        });
        observers.notify(|observer| observer.call_begun(&record.info()));
        record
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

    /// Counts and reports the Response, which may be a bare end or carry a status instead of a message.
    pub(super) fn answered(&self, read_at: Instant, response: &[u8]) {
        self.stats.answered(read_at);
        let is_bare_end = self.head.kind.is_ended_by_response() && response.is_empty();
        if !is_bare_end && !begins_with_status(response) {
            self.received(response.len());
        }
    }

    /// Reports a message that was counted.
    pub(in crate::client) fn report_message(&self, message: &MessageInfo) {
        let observers = &self.connection.observers;
        if observers.want_messages() {
            observers.message(&self.info(), message);
        }
        if let Some(on_message) = &self.on_message
            && contain(|| on_message(message)).is_err()
        {
            trace::warn!("what was to be called for a message panicked");
        }
    }

    /// Reports the call's end, or notes it while the end is held; the first one counts.
    pub(in crate::client) fn ended(&self, end: CallEnd) {
        let mut progress = lock(&self.progress);
        if progress.end.is_none() {
            progress.end = Some(end);
            if !progress.holds_end {
                self.report_end(progress);
            }
        }
    }

    /// Holds the end from now on: the call may be made again.
    pub(in crate::client) fn hold_end(&self) {
        lock(&self.progress).holds_end = true;
    }

    /// Holds the end no longer, and reports one that was noted.
    pub(in crate::client) fn release_end(&self) {
        let mut progress = lock(&self.progress);
        if mem::take(&mut progress.holds_end) {
            self.report_end(progress);
        }
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
        if let Some(end) = end {
            self.call_on_end(on_end, &end);
        }
    }

    /// Reports an end that was noted.
    fn report_end(&self, mut progress: MutexGuard<'_, RecordProgress>) {
        let Some(end) = progress.end.clone() else { return };
        let (stream_id, on_end) = (progress.stream_id, mem::take(&mut progress.on_end));
        drop(progress);
        let outcome = outcome(&end);
        // The clock is read only where somebody traces.
        let started = self.head.options.started();
        self.span.in_scope(|| {
            // That of the span, so that a filter by target keeps both or none.
            trace::debug!(
                target: "ttrpc::client::call",
                stream_id,
                code = %outcome.code(),
                cause = %outcome.cause,
                error = outcome.status.map(Status::message),
                duration = ?started.elapsed(),
                "call ended"
            );
        });
        let observers = &self.connection.observers;
        if !observers.is_empty() {
            let end = self.stats.end(outcome);
            self.span
                .in_scope(|| observers.notify(|observer| observer.call_ended(&self.info(), &end)));
        }
        self.call_on_end(on_end, &end);
    }

    /// Calls this when the end is reported, at once if it was.
    pub(in crate::client) fn on_end(&self, on_end: OnEnd) {
        let mut progress = lock(&self.progress);
        match progress.end.clone() {
            None => progress.on_end.push(on_end),
            Some(end) => {
                drop(progress);
                self.call_on_end(vec![on_end], &end);
            }
        }
    }

    /// Calls what interceptors want called. A panic of theirs ends no task of the library's.
    fn call_on_end(&self, on_end: Vec<OnEnd>, end: &CallEnd) {
        for on_end in on_end {
            let end = self.stats.end(outcome(end));
            if contain(|| on_end(&end)).is_err() {
                trace::warn!("what was to be called at a call's end panicked");
            }
        }
    }

    /// Reports that the caller has taken the reply, which may not be what the method's types allow.
    pub(in crate::client) fn reply_taken(&self, violation: Option<&Status>) {
        let cause = violation.map_or(EndCause::Replied, |_| EndCause::ProtocolViolation);
        self.ended((cause, violation.cloned()));
    }

    /// Reports that the caller has dropped the call: it gave it up, or its deadline has passed and no other task has
    /// noticed that yet.
    pub(in crate::client) fn dropped(&self) {
        if lock(&self.progress).end.is_some() {
            return;
        }
        let (cause, status) = match is_over(self.head.options.deadline) {
            true => (EndCause::DeadlineHere, too_late()),
            false => (EndCause::GivenUp, Status::cancelled("the caller has given the call up")),
        };
        self.ended((cause, Some(status)));
    }

    /// Reports that the call has failed before it was queued.
    pub(in crate::client) fn not_queued(&self, status: &Status) {
        let cause = match status.code() {
            Code::DeadlineExceeded => EndCause::DeadlineHere,
            Code::Unavailable | Code::FailedPrecondition => lost_call(status.connection_error()),
            _ => EndCause::Limit,
        };
        self.ended((cause, Some(status.clone())));
    }

    fn info(&self) -> CallInfo<'_> {
        let CallRecord { connection, head, extensions, .. } = self;
        CallInfo {
            side: Side::Client,
            connection_id: connection.id,
            peer: &connection.peer,
            stream_id: lock(&self.progress).stream_id,
            service: &head.service,
            method: &head.method,
            is_known: true,
            method_id: None,
            is_stream: head.kind.is_stream(),
            metadata: head.options.metadata(),
            started: head.options.started(),
            deadline: head.options.deadline,
            extensions,
        }
    }
}

fn outcome((cause, status): &CallEnd) -> CallOutcome<'_> {
    CallOutcome { cause: *cause, status: status.as_ref() }
}

debug_in_short!(CallRecord);

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.release_end();
        self.dropped();
    }
}
