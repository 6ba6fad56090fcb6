//! Turns: a task that never has to wait lets other tasks run now and then.

use std::{
    pin::pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    task::{coop::poll_proceed, yield_now},
    time::Instant,
};

/// Short messages for which one unit of the task's budget is spent. A task has 128 units in a turn, made for steps that
/// may cost a system call each. A short message costs a small part of one, what is sent in one turn is written together,
/// and a change of tasks may wake a thread: a turn is as many messages as a queue or an inbox has room for by default.
const MESSAGES_PER_UNIT: usize = 32;

/// Bytes that take about as long as a short message takes beside its bytes.
const BYTES_PER_MESSAGE: usize = 512;

/// A turn ends about here if the program takes its time between the messages. Short messages alone take a small part of
/// it, unless the system has other processes run meanwhile.
const LONGEST: Duration = Duration::from_millis(10);

/// Counts what a task sends, or takes, without having to wait.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What belongs to the present unit, in short messages.
    spent: usize,
    /// When the first unit of the turn had been spent.
    since: Option<Instant>,
}

impl Turn {
    /// One more message is about to be sent or taken. Pending until the task's next turn if this one is over.
    #[inline]
    pub(crate) fn poll_spend(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.spent >= MESSAGES_PER_UNIT {
            ready!(self.poll_unit(cx));
        }
        self.spent += 1;
        Poll::Ready(())
    }

    /// The message has so many bytes. However many, they end one unit.
    #[inline]
    pub(crate) fn spend_bytes(&mut self, bytes: usize) {
        self.spent += bytes / BYTES_PER_MESSAGE;
    }

    fn poll_unit(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= LONGEST {
            self.since = None;
            self.spent = 0;
            // Woken when the runtime has looked at sockets and timers.
            return pin!(yield_now()).poll(cx);
        }
        let Poll::Ready(proceeds) = poll_proceed(cx) else {
            self.since = None;
            return Poll::Pending;
        };
        proceeds.made_progress();
        self.spent = 0;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::advance;

    use super::*;

    /// Messages of so many bytes in one turn.
    async fn turn_of(turn: &mut Turn, bytes: usize) -> usize {
        let mut messages = 0;
        poll_fn(|cx| {
            while turn.poll_spend(cx).is_ready() {
                turn.spend_bytes(bytes);
                messages += 1;
            }
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
        messages
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_several_messages_for_each_unit_of_the_budget_and_fewer_if_they_are_long() {
        // A budget is 128 units.
        let turn_of = async |bytes| turn_of(&mut Turn::default(), bytes).await;
        assert_eq!(turn_of(64).await, (128 + 1) * MESSAGES_PER_UNIT);
        assert_eq!(turn_of(4 << 10).await, (128 + 1) * MESSAGES_PER_UNIT.div_ceil(9));
        assert_eq!(turn_of(4 << 20).await, 128 + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_when_its_time_is_over_and_the_next_one_has_its_own() {
        let mut turn = Turn::default();
        for _ in 0..3 {
            let mut messages = 0;
            loop {
                let polled = poll_fn(|cx| Poll::Ready(turn.poll_spend(cx))).await;
                if polled.is_pending() {
                    break;
                }
                messages += 1;
                advance(LONGEST / 50).await;
            }
            assert_eq!(
                messages,
                3 * MESSAGES_PER_UNIT,
                "two units take longer, the first is not timed"
            );
        }
    }
}
