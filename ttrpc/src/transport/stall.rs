//! Waiting for others only as long as they move.
//!
//! Handlers and consumers belong to the application and may depend on each other, so a receiver
//! never waits for one without end. But refusing at once would turn every burst into errors. The
//! rule for every limit that they hold up: wait while there is progress, and refuse after a time
//! without any.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::lock;

/// The time without progress is measured in this many parts, each of which starts only when the
/// task runs. A process that was stopped for longer than the whole time loses one part, not the
/// chance of the others to move.
const PARTS: u32 = 4;

/// Waits in vain after which a receiver waits no more for streams that stand still.
const MAX_HALVINGS: u32 = 10;

/// Something that a waiting task evaluates now and then.
pub(crate) type Condition<'a, T> = &'a (dyn Fn() -> T + Sync);

/// Completes when `moves`, which changes with every step that others take, has stood still for
/// `stall_timeout`; returns its value. Time during which `is_paused` holds does not count.
pub(crate) async fn stands_still(
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
/// Consumers that stand still together are waited for once: a stream whose consumer has not moved
/// since a wait that was in vain began is not waited for again. A consumer that has moved meanwhile
/// is given its own time. One that has never taken anything, and whose messages came later, is waited
/// for half as long after each wait in vain, so that all unread streams of a connection together hold
/// it up for less than twice the `stall_timeout`. For each `stall_timeout` that passes without such a
/// wait the patience doubles again, up to the whole.
///
/// Moves are dated by the number of waits that had begun, which is cheaper than a clock.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    waits: AtomicU64,
    /// The last wait that was in vain, by its number; 0 for none.
    in_vain: AtomicU64,
    exhaustion: Mutex<Option<Exhaustion>>,
}

/// Waits in vain, less those that have been made good by time.
#[derive(Clone, Copy, Debug)]
struct Exhaustion {
    halvings: u32,
    since: Instant,
}

impl Exhaustion {
    /// Halvings that still count.
    fn now(self, stall_timeout: Duration) -> u32 {
        let quiet = self.since.elapsed().as_nanos() / stall_timeout.as_nanos().max(1);
        self.halvings.saturating_sub(u32::try_from(quiet).unwrap_or(u32::MAX))
    }
}

/// A wait for a consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerWait {
    number: u64,
    /// For how long the consumer may stand still.
    pub(crate) time: Duration,
}

impl Patience {
    /// The date of a move that happens now.
    pub(crate) fn date(&self) -> u64 {
        self.waits.load(SeqCst)
    }

    /// Whether a consumer that last moved at this date has stood still for a whole wait.
    pub(crate) fn stood_still_since(&self, moved_at: u64) -> bool {
        moved_at < self.in_vain.load(SeqCst)
    }

    /// Begins to wait for a consumer; `is_read` says that it has taken something before.
    pub(crate) fn begin(&self, stall_timeout: Duration, is_read: bool) -> ConsumerWait {
        let number = self.waits.fetch_add(1, SeqCst) + 1;
        if is_read {
            return ConsumerWait { number, time: stall_timeout };
        }
        let exhaustion = *lock(&self.exhaustion);
        let halvings = exhaustion.map_or(0, |exhaustion| exhaustion.now(stall_timeout));
        let time = match halvings {
            MAX_HALVINGS => Duration::ZERO,
            halvings => stall_timeout / (1 << halvings),
        };
        ConsumerWait { number, time }
    }

    /// The consumer has not moved.
    pub(crate) fn note_in_vain(&self, wait: ConsumerWait, stall_timeout: Duration) {
        self.in_vain.store(wait.number, SeqCst);
        let mut exhaustion = lock(&self.exhaustion);
        let halvings = exhaustion.map_or(0, |exhaustion| exhaustion.now(stall_timeout));
        let halvings = (halvings + 1).min(MAX_HALVINGS);
        *exhaustion = Some(Exhaustion { halvings, since: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn patience_halves_with_every_wait_in_vain_and_comes_back_with_time() {
        let patience = Patience::default();
        let mut held_up = Duration::ZERO;
        for _ in 0..100 {
            let wait = patience.begin(SECOND, false);
            sleep(wait.time).await;
            held_up += wait.time;
            patience.note_in_vain(wait, SECOND);
        }
        assert!(held_up < 2 * SECOND, "{held_up:?}");
        sleep(SECOND * 8).await;
        assert_eq!(patience.begin(SECOND, false).time, SECOND / 4);
        assert_eq!(patience.begin(SECOND, true).time, SECOND, "it is read");
        sleep(SECOND * 2).await;
        assert_eq!(patience.begin(SECOND, false).time, SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn what_moves_or_is_paused_does_not_stand_still() {
        let start = Instant::now();
        let moves = || start.elapsed().as_secs().min(5);
        stands_still(SECOND, &moves, &|| false).await;
        assert_eq!(start.elapsed(), SECOND * 6);
        stands_still(SECOND, &|| 0, &|| start.elapsed() < SECOND * 10).await;
        assert_eq!(start.elapsed(), SECOND * 10 + SECOND * 3 / 4);
    }
}
