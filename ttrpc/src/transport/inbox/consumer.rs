//! The consumer of an inbox.

use std::{
    mem,
    task::{Context, Waker},
};

/// What the consumer does.
#[derive(Debug, Default)]
pub(super) enum Consumer {
    /// Does something else.
    #[default]
    Busy,
    /// Waits for a message or the end.
    Waiting(Waker),
    /// Takes no more; what arrives is dropped.
    Gone,
}

impl Consumer {
    /// Takes the waker of a consumer that waits.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        match mem::take(self) {
            Consumer::Waiting(waker) => Some(waker),
            Consumer::Busy => None,
            Consumer::Gone => {
                *self = Consumer::Gone;
                None
            }
        }
    }

    /// Notes the waker of a consumer that waits. Returns what it had before, which is to be dropped
    /// without the lock: dropping a waker runs code of the program's.
    pub(super) fn wait(&mut self, cx: &Context<'_>) -> Consumer {
        match self {
            Consumer::Waiting(waker) if waker.will_wake(cx.waker()) => Consumer::Busy,
            _ => mem::replace(self, Consumer::Waiting(cx.waker().clone())),
        }
    }
}
