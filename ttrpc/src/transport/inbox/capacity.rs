//! Capacity in an inbox: the receiver waits for it while the consumer takes messages.

use std::time::Duration;

use tokio::{task::yield_now, time::timeout};

use super::{Inbox, StreamState};
use crate::{
    contain::notify_waiters,
    transport::{
        lock,
        messages::Fill,
        stall::{Condition, StallBudget, stalled},
        wait_until,
    },
};

impl<S: StreamState + Send> Inbox<S> {
    /// Returns whether a message of this many bytes fits, or would be dropped since the inbox is closed.
    /// Room stays until the producer uses it.
    pub(crate) fn has_room(&self, bytes: usize, limits: Fill) -> bool {
        let state = lock(&self.state);
        state.fill.has_room(bytes, limits) || state.is_closed()
    }

    /// Waits for capacity for a message of this many bytes, while the consumer takes messages. `false` if it
    /// does not, or if it has stalled while another inbox of the connection was waited for.
    pub(crate) async fn wait_for_room(
        &self,
        bytes: usize,
        limits: Fill,
        budget: &StallBudget,
        is_paused: Condition<'_, bool>,
    ) -> bool {
        let (moved_at, is_read, credit) = {
            let state = lock(&self.state);
            (state.moved_at, state.takes > 0, state.credit)
        };
        if budget.has_timed_out_since(moved_at) {
            return self.has_room(bytes, limits);
        }
        let has_room = || self.watches_room(bytes, limits);
        let moves = || lock(&self.state).takes;
        let wait = budget.begin(is_read, credit);
        let unnoticed = if wait.time.is_zero() {
            // A consumer that was just woken runs first.
            yield_now().await;
            has_room().then_some(Duration::ZERO)
        } else {
            tokio::select! {
                biased;
                unnoticed = self.room(wait.time, &has_room) => Some(unnoticed),
                _ = stalled(wait.time, &moves, is_paused) => has_room().then_some(wait.time),
            }
        };
        let earned = unnoticed.map(|unnoticed| budget.note_move(wait, unnoticed));
        if earned.is_none() {
            budget.note_timeout(wait);
        }
        let state = &mut *lock(&self.state);
        state.wake_at = None;
        state.credit = state.credit.saturating_add(earned.unwrap_or_default());
        earned.is_some()
    }

    /// Returns whether there is capacity. What the consumer takes afterwards wakes the receiver.
    pub(in crate::transport) fn watches_room(&self, bytes: usize, limits: Fill) -> bool {
        lock(&self.state).wake_at = Some(Fill::wake_at(bytes, limits));
        self.has_room(bytes, limits)
    }

    /// Waits for capacity, and looks for it now and then, at longer and longer intervals: capacity for one
    /// message alone wakes nobody. Returns how long there may have been capacity unnoticed.
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

    /// Notes that the consumer has taken a message.
    pub(super) fn count_out(&self, bytes: usize, budget: &StallBudget) {
        let mut state = lock(&self.state);
        state.fill.remove(Fill::one(bytes));
        state.takes = state.takes.wrapping_add(1);
        state.moved_at = budget.date();
        let wakes = state.wake_at.is_some_and(|wake_at| state.fill.is_within(wake_at));
        if wakes {
            // Once: the receiver asks again if it has to.
            state.wake_at = None;
        }
        drop(state);
        if wakes {
            notify_waiters(&self.changed);
        }
    }
}
