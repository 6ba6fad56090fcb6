//! Calls that a receiver has let in, on their way into the connection's table and its ready queue.
//!
//! The receiver hands them on together: each of the two is locked once for the calls that were read together, and not
//! for each. It does so before it waits for anything, and before it acts on a frame that may be for one of them.

use std::{iter, sync::Arc};

use super::{
    call::Call,
    ready_queue::{BoxedCall, ReadyQueue},
};

/// Calls that are handed on together at most: with more of them the locks cost next to nothing per call already.
const MAX_CALLS: usize = 16;

/// The opened calls of one connection that have not been handed on.
pub(super) struct OpenedCalls {
    ready_queue: Arc<ReadyQueue>,
    /// Apart from the others, so that a connection with one call at a time allocates nothing for it here.
    first: Option<(Arc<Call>, BoxedCall)>,
    /// For the table.
    others: Vec<Arc<Call>>,
    /// Their futures.
    futures: Vec<BoxedCall>,
}

impl OpenedCalls {
    pub(super) fn new(ready_queue: Arc<ReadyQueue>) -> Self {
        OpenedCalls { ready_queue, first: None, others: Vec::new(), futures: Vec::new() }
    }

    pub(super) fn add(&mut self, call: Arc<Call>, future: BoxedCall) {
        if self.first.is_none() {
            self.first = Some((call, future));
            return;
        }
        // Two lists of what is a word or two: a pair would be made elsewhere, and a move right behind that has the
        // processor wait.
        self.others.push(call);
        self.futures.push(future);
        if self.others.len() + 1 == MAX_CALLS {
            self.hand_on();
        }
    }

    /// Opens the streams of the calls, and has their handlers begin.
    pub(super) fn hand_on(&mut self) {
        let Some((first, future)) = self.first.take() else { return };
        let queue = &self.ready_queue.connection().queue;
        queue.announced.announce(1 + self.others.len());
        let read_at = first.head.started;
        queue.streams(|table| {
            for call in iter::once(first).chain(self.others.drain(..)) {
                table.open(call.head.stream_id, call.head.flags, call);
            }
        });
        self.ready_queue.push(future, self.futures.drain(..), read_at);
    }
}

impl Drop for OpenedCalls {
    /// The end of the connection finds all calls that were told to have begun, also if the receiver panics.
    fn drop(&mut self) {
        self.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, mem, time::Duration};

    use super::*;
    use crate::server::ready_queue::tests::queue;

    /// Else calls that have waited for long would wait on behind one that was read just now.
    #[tokio::test(start_paused = true)]
    async fn calls_that_are_handed_on_together_are_as_late_as_the_first_of_them() {
        let (_server, queue) = queue(false);
        let mut opened = OpenedCalls::new(queue.clone());
        let mut add = |number: usize| {
            let call = queue.new_call(2 * number as u32 + 1);
            opened.add(call, BoxedCall::new(ready(())));
        };
        // The queue looks at the clock with the last of these.
        let calls = 2 * MAX_CALLS;
        for number in 0..calls - 1 {
            add(number);
        }
        assert_eq!(queue.state(), (MAX_CALLS, 0, false));
        tokio::time::advance(Duration::from_secs(1)).await;
        add(calls - 1);
        assert_eq!(queue.state(), (calls, 1, true), "they are offered");
        // The end of a connection, which its calls refer to.
        drop(queue.connection().queue.streams(mem::take));
    }
}
