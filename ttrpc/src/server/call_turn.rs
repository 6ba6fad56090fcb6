//! The calls that a receiver's task begins in a row, on a runtime of one thread.

use std::time::Duration;

use tokio::{task::coop::has_budget_remaining, time::Instant};

/// Calls of a turn: few beside what a turn of the runtime can take up, so that a connection with a thousand calls
/// does not take the turns of one with a single call.
const MAX_CALLS: usize = 32;

/// A turn is over when it has taken so long: few handlers compute for so long, and others' I/O and timers wait no longer
/// than for that and one handler.
const LONG_TURN: Duration = Duration::from_millis(1);

/// A turn of a receiver's task.
#[derive(Debug, Default)]
pub(super) struct CallTurn {
    calls: usize,
    /// When the first call began that others were to follow.
    started: Option<Instant>,
}

impl CallTurn {
    /// A call begins.
    pub(super) fn begin(&mut self, more_follows: bool) {
        self.calls += 1;
        if more_follows {
            self.started.get_or_insert_with(Instant::now);
        }
    }

    /// Whether no other call may begin in this turn.
    pub(super) fn is_over(&mut self) -> bool {
        // The clock is looked at after the first call, the second, the fourth.
        let is_late = || self.started.is_some_and(|started| started.elapsed() > LONG_TURN);
        self.calls >= MAX_CALLS
            || (self.calls.is_power_of_two() && is_late())
            || (self.calls > 0 && !has_budget_remaining())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_over_after_some_calls_or_when_it_has_taken_long() {
        let mut turn = CallTurn::default();
        assert!(!turn.is_over());
        for _ in 0..MAX_CALLS {
            assert!(!turn.is_over());
            turn.begin(true);
        }
        assert!(turn.is_over());
        for (calls, late_by, is_over) in [
            (1, Duration::ZERO, false),
            (1, Duration::from_millis(1), true),
            (2, Duration::from_millis(1), true),
            (3, Duration::from_millis(1), false),
            (4, Duration::from_millis(1), true),
        ] {
            let mut turn = CallTurn::default();
            (0..calls).for_each(|_| turn.begin(true));
            tokio::time::advance(LONG_TURN + late_by).await;
            assert_eq!(turn.is_over(), is_over, "{calls} calls, late by {late_by:?}");
        }
    }

    /// The first call of the next turn would find the budget used up, and wait for nothing.
    #[tokio::test]
    async fn a_turn_is_over_when_the_tasks_budget_is_used_up_but_has_one_call() {
        let mut turn = CallTurn::default();
        while has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
        }
        assert!(!turn.is_over());
        turn.begin(true);
        assert!(turn.is_over());
    }
}
