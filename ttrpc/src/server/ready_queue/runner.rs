//! The tasks that run calls.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{BoxedCall, ReadyQueue};
use crate::transport::{BoxFuture, limiter::Closed, lock};

/// A task that runs one call after another until none is left, or one has to wait.
pub(super) struct Runner {
    pub(super) queue: Arc<ReadyQueue>,
    pub(super) step: RunnerStep,
    /// It counts as scheduled.
    pub(super) is_scheduled: bool,
}

/// What a runner does.
pub(super) enum RunnerStep {
    /// Takes a call from the queue.
    TakeCall,
    /// Waits for room in the outgoing queue, on behalf of all calls.
    WaitForRoom(BoxFuture<'static, Result<(), Closed>>),
    /// Runs a call.
    Call(BoxedCall),
}

impl Future for Runner {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Runner { queue, step, is_scheduled } = &mut *self;
        loop {
            let next = match step {
                RunnerStep::TakeCall => queue.next_step(queue.count_out(is_scheduled)),
                RunnerStep::WaitForRoom(room) => {
                    // Calls of a connection that has ended do not run: their driver sees to it.
                    let _ = ready!(room.as_mut().poll(cx));
                    queue.release(lock(&queue.state))
                }
                RunnerStep::Call(call) => {
                    if call.poll(cx).is_pending() {
                        queue.hand_over();
                        return Poll::Pending;
                    }
                    if let RunnerStep::Call(call) = mem::replace(step, RunnerStep::TakeCall) {
                        call.recycle();
                    }
                    if !queue.reschedule() {
                        return Poll::Ready(());
                    }
                    *is_scheduled = true;
                    // Not at once: the runtime may keep a task that this call has woken for this
                    // thread, to run it next, and the next call may block the thread.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            match next {
                Some(next) => *step = next,
                None => return Poll::Ready(()),
            }
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.is_scheduled {
            drop(self.queue.count_out(&mut self.is_scheduled));
        }
    }
}
