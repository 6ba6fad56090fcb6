//! Waiting for others only while they make progress.
//!
//! Handlers and consumers belong to the application and may depend on each other, so a receiver
//! never waits for one without end. But refusing at once would turn every burst into errors. The
//! rule for every limit that they block: wait while there is progress, and refuse after a time
//! without any.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lock;
use crate::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

/// The time without progress is measured in this many parts, each of which starts only when the
/// task runs. A process that was stopped for longer than the whole time loses one part, not the
/// chance of the others to move.
pub(crate) const PARTS: u32 = 4;

/// A wait for a consumer that would be shorter than this part of the `stall_timeout` is none.
const SHORTEST_PART: u32 = 64;

/// Something that a waiting task evaluates now and then.
pub(crate) type Condition<'a, T> = &'a (dyn Fn() -> T + Sync);

/// Completes when `moves`, which changes with every step that others take, has stalled for
/// `stall_timeout`; returns its value. Both are evaluated after each part of that time, see [`PARTS`]:
/// progress, or `is_paused`, starts the time anew.
pub(crate) async fn stalled(
    stall_timeout: Duration,
    moves: Condition<'_, u64>,
    is_paused: Condition<'_, bool>,
) -> u64 {
    let mut seen = moves();
    let mut idle_parts = 0;
    while idle_parts < PARTS {
        sleep(stall_timeout / PARTS).await;
        let now = moves();
        let is_idle = now == seen && !is_paused();
        idle_parts = if is_idle { idle_parts + 1 } else { 0 };
        seen = now;
    }
    seen
}

/// How long a connection's receiver waits for the consumers of full streams that do not move.
///
/// A consumer that stalls and one that is slow look alike until the slow one moves. A wait for the
/// first blocks all other calls for nothing. So a connection has a budget for waits without progress: twice the
/// `stall_timeout`, refilled by the time that is not charged to it, a second for each second.
///
/// - A consumer is waited for no longer than half of what is left in the budget, which is the whole
///   `stall_timeout` if none of it is spent. If the consumer does not move, that time is charged, and its
///   stream fails.
/// - A stream from which nothing was ever taken leaves a quarter of the budget to those that are read.
/// - A consumer that moved while it was waited for has a credit of the time that this took, up to the
///   `stall_timeout`. It is waited for that long, whatever is left in the budget. So a slow consumer keeps
///   its stream although others stall.
/// - Consumers that stall together are waited for once: one that has not moved since a wait of a whole
///   `stall_timeout` began, which timed out, is not waited for again.
///
/// Together: from any moment on, streams that stall block their connection for no longer than
/// twice the `stall_timeout`, and what is refilled since, and as long again as they have been waited for
/// while they moved.
///
/// A limit that streams share is reached by all of them together, so the receiver waits there for anyone to move. After the
/// whole `stall_timeout` in which nobody did, the stream whose message does not fit fails. A stream that still has messages,
/// and has not moved since such a wait began, is waited for within a second budget, by the rule for streams from which
/// nothing was taken. Other streams are waited for as before, however much of it is spent.
///
/// Moves are dated by the number of looks at consumers so far, which is cheaper than a clock: one as a wait begins, and some
/// during it.
#[derive(Debug)]
pub(crate) struct StallBudget {
    stall_timeout: Duration,
    /// The date.
    looks: AtomicU64,
    budgets: Mutex<[Budget; 2]>,
}

/// The limit that a stream's message does not fit into. Each has its own budget.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InboxLimit {
    /// That of its inbox.
    Own,
    /// That of its connection or its server.
    Shared,
}

#[derive(Debug, Default)]
struct Budget {
    /// The date of the last wait that has timed out after the whole `stall_timeout`; 0 for none.
    last_timed_out: u64,
    /// When the budget is whole again; `None` if nothing was ever spent.
    whole_at: Option<Instant>,
}

impl Budget {
    /// Returns what is spent at this moment.
    fn spent(&self, now: Instant) -> Duration {
        self.whole_at.map_or(Duration::ZERO, |whole_at| whole_at.saturating_duration_since(now))
    }
}

/// A wait for a consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerWait {
    limit: InboxLimit,
    date: u64,
    pub(super) began: Instant,
    /// For how long the consumer may stall.
    pub(crate) time: Duration,
}

impl StallBudget {
    pub(crate) fn new(stall_timeout: Duration) -> Self {
        StallBudget { stall_timeout, looks: AtomicU64::new(0), budgets: Mutex::default() }
    }

    /// The date of a move that happens now.
    pub(crate) fn date(&self) -> u64 {
        self.looks.load(SeqCst)
    }

    /// Returns the date of moves from now on.
    pub(crate) fn advance_date(&self) -> u64 {
        self.looks.fetch_add(1, SeqCst) + 1
    }

    /// Returns whether a whole wait at this limit began and timed out after a consumer last moved, at this date.
    pub(crate) fn has_timed_out_since(&self, limit: InboxLimit, moved_at: u64) -> bool {
        moved_at < lock(&self.budgets)[limit as usize].last_timed_out
    }

    /// Begins to wait for a consumer, for at least the credit. `is_read` says that it has taken something before.
    pub(crate) fn begin(&self, limit: InboxLimit, is_read: bool, credit: Duration) -> ConsumerWait {
        let stall_timeout = self.stall_timeout;
        let spent = lock(&self.budgets)[limit as usize].spent(Instant::now());
        let left = stall_timeout.saturating_mul(2).saturating_sub(spent);
        let reserve = if is_read { Duration::ZERO } else { stall_timeout / 2 };
        let time = (left / 2).min(left.saturating_sub(reserve)).max(credit.min(stall_timeout));
        let is_worth_it = time >= stall_timeout / SHORTEST_PART;
        let time = if is_worth_it { time } else { Duration::ZERO };
        ConsumerWait { limit, date: self.advance_date(), began: Instant::now(), time }
    }

    /// Charges a wait that has timed out. One that ended sooner is not charged: a limit that has stalled refuses at once.
    pub(crate) fn note_timeout(&self, wait: ConsumerWait) {
        if wait.began.elapsed() < wait.time {
            return;
        }
        let state = &mut lock(&self.budgets)[wait.limit as usize];
        if wait.time >= self.stall_timeout {
            state.last_timed_out = wait.date;
        }
        let now = Instant::now();
        // The budget is not refilled by the time that is charged to it.
        let spent = state.spent(now - wait.time) + wait.time;
        state.whole_at = Some(now + spent.min(self.stall_timeout.saturating_mul(2)));
    }
}

#[cfg(test)]
mod tests {
    use super::{InboxLimit::Own, *};

    const SECOND: Duration = Duration::from_secs(1);
    const NO_CREDIT: Duration = Duration::ZERO;

    /// Lets so many waits time out; returns the time that this took.
    async fn time_out(budget: &StallBudget, times: usize, is_read: bool) -> Duration {
        let start = Instant::now();
        for _ in 0..times {
            let wait = budget.begin(Own, is_read, NO_CREDIT);
            sleep(wait.time).await;
            budget.note_timeout(wait);
        }
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn waits_without_progress_have_one_budget_which_time_refills() {
        let budget = StallBudget::new(SECOND);
        assert_eq!(time_out(&budget, 1, true).await, SECOND);
        assert!(time_out(&budget, 100, true).await < SECOND);
        assert_eq!(budget.begin(Own, true, NO_CREDIT).time, Duration::ZERO);
        sleep(SECOND).await;
        let time = budget.begin(Own, true, NO_CREDIT).time;
        assert!((SECOND / 2..SECOND * 33 / 64).contains(&time), "{time:?}");
        sleep(SECOND).await;
        assert_eq!(budget.begin(Own, true, NO_CREDIT).time, SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_were_never_read_leave_some_time_to_those_that_are() {
        let budget = StallBudget::new(SECOND);
        assert_eq!(time_out(&budget, 100, false).await, SECOND * 3 / 2);
        assert_eq!(budget.begin(Own, true, NO_CREDIT).time, SECOND / 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_refused_at_once_is_not_charged() {
        let budget = StallBudget::new(SECOND);
        let moved_at = budget.date();
        budget.note_timeout(budget.begin(Own, true, NO_CREDIT));
        assert_eq!(budget.begin(Own, true, NO_CREDIT).time, SECOND);
        assert!(!budget.has_timed_out_since(Own, moved_at));
    }

    #[tokio::test(start_paused = true)]
    async fn the_limits_have_budgets_apart() {
        let budget = StallBudget::new(SECOND);
        let moved_at = budget.date();
        time_out(&budget, 100, true).await;
        assert!(budget.has_timed_out_since(Own, moved_at));
        assert!(!budget.has_timed_out_since(InboxLimit::Shared, moved_at));
        assert_eq!(budget.begin(InboxLimit::Shared, true, NO_CREDIT).time, SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_wait_without_progress_says_nothing_of_other_streams() {
        let budget = StallBudget::new(SECOND);
        time_out(&budget, 1, true).await;
        let moved_at = budget.date();
        time_out(&budget, 100, true).await;
        assert!(!budget.has_timed_out_since(Own, moved_at));
    }

    #[tokio::test(start_paused = true)]
    async fn a_consumer_that_moves_is_waited_for_as_long_again_whatever_is_left() {
        let budget = StallBudget::new(SECOND);
        let credit = SECOND * 3 / 8;
        time_out(&budget, 100, true).await;
        assert_eq!(budget.begin(Own, true, credit).time, credit);
        assert_eq!(budget.begin(Own, true, 9 * SECOND).time, SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn what_moves_or_is_paused_does_not_stand_still() {
        let start = Instant::now();
        let moves = || start.elapsed().as_secs().min(5);
        stalled(SECOND, &moves, &|| false).await;
        assert_eq!(start.elapsed(), SECOND * 6);
        stalled(SECOND, &|| 0, &|| start.elapsed() < SECOND * 10).await;
        assert_eq!(start.elapsed(), SECOND * 10 + SECOND * 3 / 4);
    }
}
