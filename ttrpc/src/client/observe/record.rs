//! The record of a call that is observed: by observers, by interceptors or by a subscriber of `tracing`.

use std::{fmt, mem, sync::Arc};

use tokio::time::Instant;

use super::{
    super::{
        head::{CallHead, CallShape, Times},
        options::CallOptions,
    },
    ObservedConnection, let_go, not_queued,
};
use crate::{
    Extensions, Metadata, Name, Status,
    contain::contain,
    observer::{CallEnd, CallInfo, CallOutcome, CallStats, EndCause, MessageInfo},
    proto::frame::HEADER_LEN,
    sync::Mutex,
    trace::{self, Span},
    transport::lock,
};

/// Called for each message of a call.
pub(in crate::client) type OnMessage = Arc<dyn Fn(&MessageInfo) + Send + Sync>;

/// Called when a call ends.
pub(in crate::client) type OnEnd = Box<dyn FnOnce(&CallEnd<'_>) + Send>;

/// What interceptors add to a call before it is made.
#[derive(Default)]
pub(in crate::client) struct Intercepted {
    /// In place of the record's own.
    pub(in crate::client) extensions: Option<Arc<Extensions>>,
    pub(in crate::client) on_message: Option<OnMessage>,
}

/// What observers and interceptors learn of a call, from its beginning to its end. A record that is dropped before
/// the end was reported reports that the call was given up.
pub(in crate::client) struct CallRecord {
    connection: Arc<ObservedConnection>,
    shape: CallShape,
    service: Name,
    method: Name,
    metadata: Metadata,
    times: Times,
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
    /// How the call ended, once that is reported.
    end: Option<(EndCause, Option<Status>)>,
    /// Called at the end.
    on_end: Vec<OnEnd>,
}

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
            extensions: Extensions::default(),
            intercepted,
            stats: CallStats::new(times.started),
            span,
            progress: Mutex::default(),
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
        lock(&self.progress).stream_id = Some(stream_id);
    }

    /// Tells of a message that was counted.
    pub(super) fn tell_message(&self, message: &MessageInfo) {
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

    /// Reports the call's end; the first one counts.
    pub(in crate::client) fn ended(&self, outcome: CallOutcome<'_>) {
        let mut progress = lock(&self.progress);
        if progress.end.is_some() {
            return;
        }
        progress.end = Some((outcome.cause, outcome.status.cloned()));
        let on_end = mem::take(&mut progress.on_end);
        drop(progress);
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
        self.call_on_end(on_end, outcome);
    }

    pub(super) fn has_ended(&self) -> bool {
        lock(&self.progress).end.is_some()
    }

    fn stream_id(&self) -> Option<u32> {
        lock(&self.progress).stream_id
    }

    /// Calls this when the end is reported, at once if it was.
    pub(super) fn on_end(&self, on_end: OnEnd) {
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

    /// The caller has let go of the call.
    pub(super) fn dropped(&self) {
        if !self.has_ended() {
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
        f.debug_struct("CallRecord").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        self.dropped();
    }
}
