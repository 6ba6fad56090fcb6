//! Waiting for others only as long as they move.
//!
//! Handlers and consumers belong to the application and may depend on each other, so a receiver
//! never waits for one without end. But refusing at once would turn every burst into errors. The
//! rule for every limit that they hold up: wait while there is progress, and give up after a time
//! without any.

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

/// The time without progress is measured in this many parts, each of which starts only when the
/// task runs. A process that was stopped for longer than the whole time loses one part, not the
/// chance of the others to move.
const PARTS: u32 = 4;

/// What those who wait ask now and then.
pub(crate) type Ask<'a, T> = &'a (dyn Fn() -> T + Sync);

/// Repeats `attempt` after every notification of `progress`, and a few times in between, until it
/// succeeds (`true`) or there was no progress for `stall_timeout` (`false`). Progress is also when
/// `moves` changes, for those who do not notify of every step. Time during which `is_paused` holds
/// does not count.
pub(crate) async fn wait_while_moving(
    progress: &Notify,
    stall_timeout: Duration,
    attempt: Ask<'_, bool>,
    moves: Ask<'_, u64>,
    is_paused: Ask<'_, bool>,
) -> bool {
    let mut idle_parts = 0;
    let mut seen = moves();
    while idle_parts < PARTS {
        let mut moved = pin!(progress.notified());
        moved.as_mut().enable();
        if attempt() {
            return true;
        }
        let is_notified = timeout(stall_timeout / PARTS, moved).await.is_ok();
        let now = moves();
        let is_idle = !is_notified && now == seen && !is_paused();
        idle_parts = if is_idle { idle_parts + 1 } else { 0 };
        seen = now;
    }
    attempt()
}

/// Completes when `count`, which rises with every step that others take, has stood still for
/// `stall_timeout`. Time during which `is_paused` holds does not count.
///
/// For those who wait in a queue of their own and must not be woken by every step.
pub(crate) async fn stands_still(
    stall_timeout: Duration,
    count: Ask<'_, usize>,
    is_paused: Ask<'_, bool>,
) {
    let mut seen = count();
    let mut idle_parts = 0;
    while idle_parts < PARTS {
        sleep(stall_timeout / PARTS).await;
        let now = count();
        let is_idle = now == seen && !is_paused();
        idle_parts = if is_idle { idle_parts + 1 } else { 0 };
        seen = now;
    }
}

/// Remembers, for all inboxes of a connection, whether one of them was waited for in vain.
///
/// Consumers that stand still together are then waited for once, and not one after another; but one
/// that has moved since, or whose messages came later, is given its own time. Moves are dated by
/// the number of waits that had begun, which is cheaper than a clock.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    waits: AtomicU64,
    /// The last wait that was in vain, by its number; 0 for none.
    in_vain: AtomicU64,
}

impl Stalls {
    /// The date of a move that happens now.
    pub(crate) fn now(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Whether a consumer that last moved at this date has stood still for a whole wait.
    pub(crate) fn stood_still_since(&self, moved_at: u64) -> bool {
        moved_at < self.in_vain.load(Relaxed)
    }

    /// Waits as [`wait_while_moving`] does, and remembers if it was in vain.
    pub(crate) async fn wait(
        &self,
        progress: &Notify,
        stall_timeout: Duration,
        attempt: Ask<'_, bool>,
        moves: Ask<'_, u64>,
        is_paused: Ask<'_, bool>,
    ) -> bool {
        let number = self.waits.fetch_add(1, Relaxed) + 1;
        let is_done = wait_while_moving(progress, stall_timeout, attempt, moves, is_paused).await;
        if !is_done {
            self.in_vain.store(number, Relaxed);
        }
        is_done
    }
}
