//! Waiting until what is queued has been written.

use std::{
    future::poll_fn,
    mem,
    task::{Poll, Waker},
};

use super::{Queue, QueueState};
use crate::{sync::MutexGuard, transport::lock};

impl<T> Queue<T> {
    /// The batch that was taken last has been written.
    pub(super) fn end_batch<'a>(
        &'a self,
        mut state: MutexGuard<'a, QueueState<T>>,
    ) -> MutexGuard<'a, QueueState<T>> {
        state.batches_written = state.batches_taken;
        if state.flush_waiters.is_empty() {
            return state;
        }
        let flushed = mem::take(&mut state.flush_waiters);
        drop(state);
        flushed.into_iter().for_each(Waker::wake);
        lock(&self.state)
    }

    /// Waits until every frame that is queued now has been written, and for none that comes later.
    pub(crate) async fn flushed(&self) {
        let mut last_batch = None;
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = lock(&self.state);
            // What is queued goes with the next batch as a whole.
            let next = state.batches_taken + u64::from(!state.chunks.is_empty());
            let last_batch = *last_batch.get_or_insert(next);
            if state.is_closed || state.batches_written >= last_batch {
                return Poll::Ready(());
            }
            if !state.flush_waiters.iter().any(|waiter| waiter.will_wake(&waker)) {
                state.flush_waiters.push(waker);
            }
            Poll::Pending
        })
        .await
    }
}
