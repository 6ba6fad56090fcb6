//! What is counted of a server's call, for observers.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    observer::{CallEnd, CallOutcome, CallStats, Observers, Traffic, Waiting},
    proto::frame::HEADER_LEN,
};

/// What is counted of a call for observers. Most calls have one request and one reply and wait for nothing:
/// they have their numbers here, and allocate nothing for them.
#[derive(Debug)]
pub(super) struct CallCount {
    /// Bytes of the Request's data; [`NOT_OBSERVED`] if there are no observers.
    request_bytes: u32,
    /// Microseconds from the call's start to when its reply began to wait for room; 0 if it has not.
    reply_waits_since: AtomicU32,
    /// For calls with streams, and calls that had to wait to be let in.
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

    /// The counters of a call that is more than one request and one reply.
    pub(super) fn stats(&self) -> Option<&CallStats> {
        self.stats.as_deref()
    }

    pub(super) fn is_observed(&self) -> bool {
        self.request_bytes != NOT_OBSERVED
    }

    /// The reply of a call that began then begins to wait for room. Returns what counts that, where a call is
    /// more than one request and one reply.
    pub(super) fn wait_for_last_room(&self, started: Instant) -> Option<Waiting<'_>> {
        if self.stats.is_none() && self.is_observed() {
            let since = u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX).max(1);
            self.reply_waits_since.store(since, Relaxed);
        }
        self.stats().map(CallStats::wait_for_room)
    }

    /// The end of a call that began then. `reply_len` is the length of the frame that ends it, if that is
    /// its reply.
    pub(super) fn end<'a>(
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
