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
        if self.is_observed() {
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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::observer::Observer;

    struct Deaf;

    impl Observer for Deaf {}

    const SECOND: Duration = Duration::from_secs(1);

    fn count(is_observed: bool, is_simple: bool) -> CallCount {
        let mut observers = Observers::default();
        if is_observed {
            observers.add(Deaf);
        }
        CallCount::new(&observers, Instant::now(), 7, is_simple)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_counters_of_its_own_if_it_is_observed_and_not_simple() {
        for (is_observed, is_simple) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let count = count(is_observed, is_simple);
            assert_eq!(count.is_observed(), is_observed);
            assert_eq!(count.stats().is_some(), is_observed && !is_simple);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_last_frame_that_waits_for_room_is_counted_until_the_end() {
        for is_simple in [true, false] {
            let (count, started) = (count(true, is_simple), Instant::now());
            advance(SECOND).await;
            let end = count.end(started, CallOutcome::REPLIED, None);
            assert_eq!(end.waited_for_room, Duration::ZERO);
            let waiting = count.wait_for_last_room(started);
            assert_eq!(waiting.is_none(), is_simple);
            advance(2 * SECOND).await;
            drop(waiting);
            let end = count.end(started, CallOutcome::REPLIED, Some(HEADER_LEN + 3));
            assert_eq!((end.waited_for_room, end.duration()), (2 * SECOND, 3 * SECOND));
            if is_simple {
                assert_eq!((end.traffic.messages_sent, end.traffic.bytes_sent), (1, 3));
                assert_eq!((end.traffic.messages_received, end.traffic.bytes_received), (1, 7));
            }
        }
    }
}
