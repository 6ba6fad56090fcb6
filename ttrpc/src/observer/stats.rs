//! Counts what one observed call sends, receives and waits for.

use std::time::Duration;

use tokio::time::Instant;

use super::{CallEnd, Direction, EndCause, MessageInfo, Traffic};
use crate::{Code, Status, sync::Mutex, transport::lock};

/// How a call ends: why, and with which status if not well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallOutcome<'a> {
    pub(crate) cause: EndCause,
    pub(crate) status: Option<&'a Status>,
}

impl<'a> CallOutcome<'a> {
    /// A good end.
    pub(crate) const REPLIED: CallOutcome<'static> =
        CallOutcome { cause: EndCause::Replied, status: None };

    pub(crate) fn code(self) -> Code {
        self.status.map_or(Code::Ok, Status::code)
    }

    pub(crate) fn message(self) -> &'a str {
        self.status.map_or("", Status::message)
    }
}

/// Counters of one observed call, shared by the tasks that work for it.
#[derive(Debug)]
pub(crate) struct CallStats {
    started: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    traffic: Traffic,
    /// How often the call was made after the first time.
    repeats: u32,
    /// Time from the start until the answer was read.
    answered: Option<Duration>,
    /// `None` for a call that has not waited, which most do not.
    waits: Option<Box<Waits>>,
}

/// What a call has waited for.
#[derive(Debug, Default)]
struct Waits {
    for_admission: WaitedTime,
    for_capacity: WaitedTime,
}

impl Counts {
    fn sent(&mut self, messages: u64, bytes: usize) -> MessageInfo {
        let number = self.traffic.messages_sent + 1;
        self.traffic.messages_sent += messages;
        self.traffic.bytes_sent += bytes as u64;
        MessageInfo { direction: Direction::Sent, number, bytes }
    }
}

impl CallStats {
    pub(crate) fn new(started: Instant) -> Self {
        CallStats { started, counts: Mutex::default() }
    }

    /// Those of a server's call, whose Request has this length.
    pub(crate) fn of_request(started: Instant, has_message: bool, bytes: usize) -> Self {
        let (messages_received, bytes_received) = (has_message.into(), bytes as u64);
        let traffic = Traffic { messages_received, bytes_received, ..Traffic::default() };
        CallStats { started, counts: Mutex::new(Counts { traffic, ..Counts::default() }) }
    }

    /// Notes when the answer that ends the call was read.
    pub(crate) fn answered(&self, read_at: Instant) {
        let took = read_at.saturating_duration_since(self.started);
        lock(&self.counts).answered = Some(took);
    }

    /// Counts one more attempt. What the last one was answered is not the call's answer.
    pub(crate) fn begin_again(&self) {
        let mut counts = lock(&self.counts);
        counts.repeats = counts.repeats.saturating_add(1);
        counts.answered = None;
    }

    /// Counts a frame that is queued, with so many messages and bytes of data. Returns its message.
    pub(crate) fn sent(&self, messages: u64, bytes: usize) -> MessageInfo {
        lock(&self.counts).sent(messages, bytes)
    }

    /// Counts a frame that has arrived, with so many messages and bytes of data. Returns its message.
    pub(crate) fn received(&self, messages: u64, bytes: usize) -> MessageInfo {
        let traffic = &mut lock(&self.counts).traffic;
        let number = traffic.messages_received + 1;
        traffic.messages_received += messages;
        traffic.bytes_received += bytes as u64;
        MessageInfo { direction: Direction::Received, number, bytes }
    }

    /// Counts a wait for admission, which lasts until the result is dropped.
    pub(crate) fn wait_for_admission(&self) -> Waiting<'_> {
        Waiting::new(self, |waits| &mut waits.for_admission)
    }

    /// Counts a wait for capacity in the send queue, which lasts until the result is dropped.
    pub(crate) fn wait_for_capacity(&self) -> Waiting<'_> {
        Waiting::new(self, |waits| &mut waits.for_capacity)
    }

    /// Counts the time from the call's start until now as a wait for admission.
    pub(crate) fn has_waited_for_admission(&self) {
        let waited = self.started.elapsed();
        lock(&self.counts).waits.get_or_insert_default().for_admission.ended += waited;
    }

    /// Returns the call's end with this outcome and all that was counted.
    pub(crate) fn end<'a>(&self, outcome: CallOutcome<'a>) -> CallEnd<'a> {
        self.end_of(&lock(&self.counts), outcome)
    }

    /// Counts the reply that ends the call. Returns it, and the call's end.
    pub(crate) fn end_with_reply(&self, bytes: usize) -> (MessageInfo, CallEnd<'static>) {
        let mut counts = lock(&self.counts);
        let message = counts.sent(1, bytes);
        (message, self.end_of(&counts, CallOutcome::REPLIED))
    }

    fn end_of<'a>(&self, counts: &Counts, outcome: CallOutcome<'a>) -> CallEnd<'a> {
        let now = || counts.answered.unwrap_or_else(|| self.started.elapsed());
        let waited = |waited: fn(&Waits) -> &WaitedTime| {
            counts.waits.as_deref().map_or(Duration::ZERO, |waits| waited(waits).total(now))
        };
        CallEnd {
            code: outcome.code(),
            message: outcome.message(),
            cause: outcome.cause,
            attempts: counts.repeats.saturating_add(1),
            traffic: counts.traffic,
            waited_for_admission: waited(|waits| &waits.for_admission),
            waited_for_capacity: waited(|waits| &waits.for_capacity),
            started: self.started,
            took: counts.answered,
        }
    }
}

/// The time that a call has waited. Several waits of one call may overlap: each counts.
#[derive(Debug, Default)]
struct WaitedTime {
    /// The ends of all waits that are over, from the call's start, in sum.
    ended: Duration,
    /// The starts of all waits, from the call's start, in sum.
    begun: Duration,
    /// Waits that are not over.
    waiting: u32,
}

impl WaitedTime {
    /// Returns the sum of all waits. `now` is the time since the call's start.
    fn total(&self, now: impl Fn() -> Duration) -> Duration {
        let unfinished = if self.waiting == 0 { Duration::ZERO } else { now() * self.waiting };
        (self.ended + unfinished).saturating_sub(self.begun)
    }
}

/// A wait of a call, which is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    stats: &'a CallStats,
    waited: fn(&mut Waits) -> &mut WaitedTime,
}

impl<'a> Waiting<'a> {
    fn new(stats: &'a CallStats, waited: fn(&mut Waits) -> &mut WaitedTime) -> Self {
        let now = stats.started.elapsed();
        let waiting = Waiting { stats, waited };
        waiting.change(|waited| {
            waited.begun += now;
            waited.waiting += 1;
        });
        waiting
    }

    fn change(&self, change: impl FnOnce(&mut WaitedTime)) {
        let mut counts = lock(&self.stats.counts);
        change((self.waited)(counts.waits.get_or_insert_default()));
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.stats.started.elapsed();
        self.change(|waited| {
            waited.ended += now;
            waited.waiting -= 1;
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_counted_while_it_lasts_and_not_behind_its_end() {
        let stats = CallStats::new(Instant::now());
        let waited = || {
            let end = stats.end(CallOutcome::REPLIED);
            (end.waited_for_admission, end.waited_for_capacity)
        };
        let place = stats.wait_for_admission();
        advance(SECOND).await;
        assert_eq!(waited(), (SECOND, Duration::ZERO));
        drop(place);
        advance(SECOND).await;
        assert_eq!(waited(), (SECOND, Duration::ZERO));
        let rooms = [stats.wait_for_capacity(), stats.wait_for_capacity()];
        advance(SECOND).await;
        drop(rooms);
        advance(SECOND).await;
        assert_eq!(waited(), (SECOND, 2 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_takes_until_its_answer_was_read_or_until_now() {
        let stats = CallStats::new(Instant::now());
        advance(SECOND).await;
        let end = stats.end(CallOutcome::REPLIED);
        advance(SECOND).await;
        assert_eq!(end.duration(), 2 * SECOND);
        stats.answered(Instant::now());
        advance(SECOND).await;
        assert_eq!(stats.end(CallOutcome::REPLIED).duration(), 2 * SECOND);
    }

    #[test]
    fn an_end_without_a_status_is_a_good_one() {
        let stats = CallStats::new(Instant::now());
        assert!(stats.end(CallOutcome::REPLIED).is_ok());
        let status = Status::not_found("gone");
        let failed = CallOutcome { cause: EndCause::Failed, status: Some(&status) };
        let end = stats.end(failed);
        assert_eq!((end.is_ok(), end.code, end.message), (false, Code::NotFound, "gone"));
    }
}
