//! Room in an inbox: the receiver waits for it as long as the consumer moves.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use tokio::{task::yield_now, time::timeout};

use super::{Inbox, StreamState};
use crate::contain::notify_waiters;
use crate::transport::{
    messages::{Fill, InboxLimits},
    stall::{Condition, Patience, stalled},
    wait_until,
};

impl<S: StreamState + Send> Inbox<S> {
    /// Whether a message of this many bytes has room, or would be dropped since the inbox is closed.
    /// Room stays until the producer uses it.
    pub(crate) fn has_room(&self, bytes: usize, limits: InboxLimits) -> bool {
        self.load().has_room(bytes, limits) || self.is_closed()
    }

    /// Waits for room for a message of this many bytes, as long as the consumer moves. `false` if it
    /// does not, or if it has stood still while another inbox of the connection was waited for.
    pub(crate) async fn wait_for_room(
        &self,
        bytes: usize,
        limits: InboxLimits,
        patience: &Patience,
        is_paused: Condition<'_, bool>,
    ) -> bool {
        if patience.stood_still_since(self.moved_at.load(SeqCst)) {
            return self.has_room(bytes, limits);
        }
        let has_room = || self.watches_room(bytes, limits);
        let moves = || self.fill.load(SeqCst);
        let credit = self.credit.load(SeqCst);
        let wait = patience.begin(self.is_read.load(SeqCst), Duration::from_nanos(credit));
        let unnoticed = if wait.time.is_zero() {
            // A consumer that was just woken gets its turn.
            yield_now().await;
            has_room().then_some(Duration::ZERO)
        } else {
            tokio::select! {
                biased;
                unnoticed = self.room(wait.time, &has_room) => Some(unnoticed),
                _ = stalled(wait.time, &moves, is_paused) => has_room().then_some(wait.time),
            }
        };
        self.wake_at.store(0, SeqCst);
        let Some(unnoticed) = unnoticed else {
            patience.note_in_vain(wait);
            return false;
        };
        let earned = patience.note_move(wait, unnoticed).as_nanos();
        let earned = u64::try_from(earned).unwrap_or(u64::MAX);
        self.credit.store(credit.saturating_add(earned), SeqCst);
        true
    }

    /// Whether there is room. What the consumer takes afterwards wakes the receiver.
    pub(in crate::transport) fn watches_room(&self, bytes: usize, limits: InboxLimits) -> bool {
        // Set before it looks.
        let wake_at = Fill::wake_at(bytes, limits).pack().max(1);
        self.wake_at.store(wake_at, SeqCst);
        self.has_room(bytes, limits)
    }

    /// Waits for room, and looks for it now and then, at longer and longer intervals: room for one
    /// message alone wakes nobody. Returns how long there may have been room unnoticed.
    async fn room(&self, stall: Duration, has_room: Condition<'_, bool>) -> Duration {
        let mut pause = stall / 64;
        while timeout(pause, wait_until(self.changed(), has_room)).await.is_err() {
            if has_room() {
                return pause;
            }
            pause = (2 * pause).min(stall / 4);
        }
        Duration::ZERO
    }

    /// The consumer has taken a message.
    #[inline]
    pub(super) fn count_out(&self, bytes: usize, patience: &Patience) {
        let taken = Fill::one(bytes).pack();
        let left = self.fill.fetch_sub(taken, SeqCst) - taken;
        let date = patience.date();
        // Most of the time it is the same, and a look costs less.
        if self.moved_at.load(SeqCst) != date {
            self.moved_at.store(date, SeqCst);
        }
        if !self.is_read.load(SeqCst) {
            self.is_read.store(true, SeqCst);
        }
        let wake_at = self.wake_at.load(SeqCst);
        if wake_at > 0 && Fill::unpack(left).is_within(Fill::unpack(wake_at)) {
            // Once: the receiver asks again if it has to.
            self.wake_at.store(0, SeqCst);
            notify_waiters(&self.changed);
        }
    }
}
