//! Waiting until what is queued has been written.

use std::{
    future::poll_fn,
    mem,
    task::{Poll, Waker},
};

use super::{Queue, QueueState};
use crate::transport::lock;

impl<T> QueueState<T> {
    /// The batch that was taken last has been written. Returns the wakers of those who may wait for that.
    pub(super) fn end_batch(&mut self) -> Vec<Waker> {
        self.batches_written = self.batches_taken;
        mem::take(&mut self.flush_waiters)
    }
}

impl<T> Queue<T> {
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
