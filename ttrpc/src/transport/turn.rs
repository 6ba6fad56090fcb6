//! Turns: a task that never has to wait lets other tasks run now and then.

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

/// Messages for which one unit of the task's budget is spent. A task has 128 units in a turn, made for steps that may
/// cost a system call each. A message costs a small part of one, and what is sent in one turn is written together.
const MESSAGES_PER_UNIT: u8 = 6;

/// Counts the messages that a task sends, or takes, without having to wait.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    messages: u8,
}

impl Turn {
    /// One more message is about to be sent or taken. Pending until the task's next turn if this one is over.
    #[inline]
    pub(crate) fn poll_spend(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.messages == MESSAGES_PER_UNIT {
            ready!(poll_proceed(cx)).made_progress();
            self.messages = 0;
        }
        self.messages += 1;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_turn_is_several_messages_for_each_unit_of_the_budget() {
        let (mut turn, mut messages) = (Turn::default(), 0);
        poll_fn(|cx| {
            while turn.poll_spend(cx).is_ready() {
                messages += 1;
            }
            Poll::Ready(())
        })
        .await;
        // A budget is 128 units.
        assert!((512..1000).contains(&messages), "{messages} messages");
    }
}
