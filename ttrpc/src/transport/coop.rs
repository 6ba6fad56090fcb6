//! The cooperative budget of a task that sends or takes messages and never has to wait.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// Short messages for which one unit of the task's budget is spent. A task has 128 units until it gives way, made for steps
/// that may cost a system call each. A short message costs a small part of one, and what is sent before the task gives way
/// is written together.
const MESSAGES_PER_UNIT: usize = 32;

/// Bytes that take about as long as a short message takes without its bytes.
const BYTES_PER_MESSAGE: usize = 512;

/// Counts what a task sends, or takes, without having to wait.
#[derive(Debug, Default)]
pub(crate) struct CoopBudget {
    /// The present unit so far, in short messages.
    spent: usize,
}

impl CoopBudget {
    /// Counts a message that is about to be sent or taken. Pending while the task has to give way.
    pub(crate) fn poll_spend(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.spent >= MESSAGES_PER_UNIT {
            ready!(poll_proceed(cx)).made_progress();
            self.spent = 0;
        }
        self.spent += 1;
        Poll::Ready(())
    }

    /// Counts the bytes of that message. However many, they end one unit.
    pub(crate) fn spend_bytes(&mut self, bytes: usize) {
        self.spent += bytes / BYTES_PER_MESSAGE;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Messages of so many bytes until the task gives way.
    async fn messages(bytes: usize) -> usize {
        let (mut budget, mut messages) = (CoopBudget::default(), 0);
        poll_fn(|cx| {
            while budget.poll_spend(cx).is_ready() {
                budget.spend_bytes(bytes);
                messages += 1;
            }
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
        messages
    }

    #[tokio::test]
    async fn a_task_gives_way_after_several_messages_for_each_unit_and_fewer_if_they_are_long() {
        // A budget is 128 units.
        assert_eq!(messages(64).await, (128 + 1) * MESSAGES_PER_UNIT);
        assert_eq!(messages(4 << 10).await, (128 + 1) * MESSAGES_PER_UNIT.div_ceil(9));
        assert_eq!(messages(4 << 20).await, 128 + 1);
    }
}
