//! The calls that a receiver's task begins in a row, on a runtime of one thread.

use std::{mem, time::Duration};

use tokio::{task::coop::has_budget_remaining, time::Instant};

/// Calls of a turn: few beside what a turn of the runtime can take up, so that a connection with a thousand calls
/// does not take the turns of one with a single call.
const CALLS_PER_TURN: usize = 32;

/// After so long the runtime looks at its sockets and timers: few handlers compute for so long, and others' wait no
/// longer than for that and one handler.
const LONG: Duration = Duration::from_millis(1);

/// A turn of a receiver's task.
#[derive(Debug, Default)]
pub(super) struct CallTurn {
    calls: usize,
    /// When the first of several calls began, in this turn or in those before it that were not late.
    started: Option<Instant>,
    /// A call has begun since the last look.
    is_changed: bool,
}

/// Why no other call may begin in a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TurnEnd {
    /// Many calls have begun: other tasks come first.
    Tasks,
    /// It has taken long: so do sockets and timers.
    SocketsAndTimers,
}

impl CallTurn {
    /// A call begins.
    pub(super) fn begin(&mut self, more_follows: bool) {
        self.calls += 1;
        self.is_changed = true;
        if more_follows || self.calls > 1 {
            self.started.get_or_insert_with(Instant::now);
        }
    }

    /// Whether no other call may begin in this turn, said once for each that has.
    pub(super) fn end(&mut self) -> Option<TurnEnd> {
        if !mem::take(&mut self.is_changed) {
            return None;
        }
        // The clock is looked at after the first call, the second, the fourth.
        let is_late = || self.started.is_some_and(|started| started.elapsed() > LONG);
        match self.calls {
            calls if calls.is_power_of_two() && is_late() => Some(TurnEnd::SocketsAndTimers),
            CALLS_PER_TURN.. => Some(TurnEnd::Tasks),
            _ if !has_budget_remaining() => Some(TurnEnd::Tasks),
            _ => None,
        }
    }

    /// The next turn, when others have run.
    pub(super) fn next(&mut self, end: TurnEnd) {
        match end {
            TurnEnd::Tasks => self.calls = 0,
            TurnEnd::SocketsAndTimers => *self = CallTurn::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_after_some_calls_or_when_it_has_taken_long() {
        let mut turn = CallTurn::default();
        for _ in 1..CALLS_PER_TURN {
            turn.begin(true);
            assert_eq!(turn.end(), None);
        }
        turn.begin(true);
        assert_eq!(turn.end(), Some(TurnEnd::Tasks));
        assert_eq!(turn.end(), None, "it is said once");
        for (calls, is_late, ends) in
            [(1, false, false), (1, true, true), (2, true, true), (3, true, false), (4, true, true)]
        {
            let mut turn = CallTurn::default();
            (0..calls).for_each(|_| turn.begin(true));
            let late = Duration::from_millis(u64::from(is_late));
            tokio::time::advance(LONG + late).await;
            assert_eq!(turn.end(), ends.then_some(TurnEnd::SocketsAndTimers), "{calls}, {is_late}");
        }
    }

    /// Else sockets and timers would wait as long as no turn by itself is late.
    #[tokio::test(start_paused = true)]
    async fn turns_that_follow_each_other_take_no_longer_together() {
        let mut turn = CallTurn::default();
        for (nth, end) in [None, Some(TurnEnd::SocketsAndTimers), None].into_iter().enumerate() {
            turn.begin(true);
            assert_eq!(turn.end(), end, "{nth}");
            turn.next(end.unwrap_or(TurnEnd::Tasks));
            tokio::time::advance(LONG + Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_call_is_not_timed_and_those_that_follow_it_in_its_turn_are() {
        let mut turn = CallTurn::default();
        turn.begin(false);
        assert_eq!(turn.started, None);
        turn.begin(false);
        tokio::time::advance(2 * LONG).await;
        assert_eq!(turn.end(), Some(TurnEnd::SocketsAndTimers));
    }

    /// The first call of the next turn would find the budget used up, and wait for nothing.
    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_when_the_tasks_budget_is_used_up_but_has_one_call() {
        let mut turn = CallTurn::default();
        while has_budget_remaining() {
            tokio::task::coop::consume_budget().await;
        }
        assert_eq!(turn.end(), None);
        turn.begin(true);
        assert_eq!(turn.end(), Some(TurnEnd::Tasks));
    }
}
