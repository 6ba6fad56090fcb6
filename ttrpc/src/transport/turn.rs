//! Turns: a task that never has to wait lets other tasks run now and then.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// Short messages for which one unit of the task's budget is spent. A task has 128 units in a turn, made for steps that
/// may cost a system call each. A short message costs a small part of one, what is sent in one turn is written together,
/// and a change of tasks may wake a thread: a turn is as many messages as a queue or an inbox has room for.
const MESSAGES_PER_UNIT: usize = 32;

/// Bytes that take about as long as a short message takes beside its bytes.
const BYTES_PER_MESSAGE: usize = 512;

/// Counts what a task sends, or takes, without having to wait.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// In short messages.
    spent: usize,
}

impl Turn {
    /// Pending until the task's next turn if this one is over.
    #[inline]
    pub(crate) fn poll_go_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.spent >= MESSAGES_PER_UNIT {
            ready!(poll_proceed(cx)).made_progress();
            self.spent = 0;
        }
        Poll::Ready(())
    }

    /// A message of so many bytes was sent or taken. It costs no more than a unit.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.spent += 1 + bytes / BYTES_PER_MESSAGE;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Messages of so many bytes in one turn.
    async fn turn_of(bytes: usize) -> usize {
        let (mut turn, mut messages) = (Turn::default(), 0);
        poll_fn(|cx| {
            while turn.poll_go_on(cx).is_ready() {
                turn.spend(bytes);
                messages += 1;
            }
            Poll::Ready(())
        })
        .await;
        messages
    }

    #[tokio::test]
    async fn a_turn_is_several_messages_for_each_unit_of_the_budget_and_fewer_if_they_are_long() {
        // A budget is 128 units.
        assert_eq!(turn_of(64).await, 128 * MESSAGES_PER_UNIT + MESSAGES_PER_UNIT);
        tokio::task::yield_now().await;
        assert_eq!(turn_of(4 << 10).await, (128 + 1) * MESSAGES_PER_UNIT.div_ceil(9));
        tokio::task::yield_now().await;
        assert_eq!(turn_of(4 << 20).await, 128 + 1);
    }
}
