//! Calls that a receiver has let in, on their way into the connection's table and to their handlers' first step.
//!
//! On a runtime of several threads the receiver hands them on to the ready queue together: the table and the queue are
//! locked once for the calls that were read together, and not for each. It does so before it waits for anything, and
//! before it acts on a frame that may be for one of them.
//!
//! A runtime of one thread has nobody to offer calls to, and a handler that blocks its thread blocks all. There the
//! receiver's task begins each call before it acts on the next frame, so that one call uses what the call before it
//! has left in malloc's lists and in the processor's cache. Other tasks run between turns of them, and sockets and timers
//! are looked at, see [`CallTurn`].

use std::{
    future::poll_fn,
    iter, mem,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
};

use tokio::task::yield_now;

use super::{
    call::Call,
    call_turn::{CallTurn, TurnEnd},
    ready_queue::{BoxedCall, ReadyQueue},
};

/// Calls that are handed on together at most: with more of them the locks cost next to nothing per call already.
const MAX_CALLS: usize = 16;

/// Bytes of the frames of a call, by which is guessed how many calls have been read.
const CALL_LEN: usize = 64;

/// The opened calls of one connection that have not been handed on.
pub(super) struct OpenedCalls {
    ready_queue: Arc<ReadyQueue>,
    /// The turn of the receiver's task, where that begins the calls.
    turn: Option<CallTurn>,
    /// Apart from the others, so that a connection with one call at a time allocates nothing for it here.
    first: Option<(Arc<Call>, BoxedCall)>,
    /// For the table.
    others: Vec<Arc<Call>>,
    /// Their futures.
    futures: Vec<BoxedCall>,
}

impl OpenedCalls {
    /// `is_single`: the runtime has one thread.
    pub(super) fn new(ready_queue: Arc<ReadyQueue>, is_single: bool) -> Self {
        let turn = is_single.then(CallTurn::default);
        OpenedCalls { ready_queue, turn, first: None, others: Vec::new(), futures: Vec::new() }
    }

    /// Whether the sender is told of the calls before they begin.
    pub(super) fn are_announced(&self) -> bool {
        self.turn.is_none()
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
        if self.are_announced() {
            queue.announced.announce(1 + self.others.len());
        }
        let read_at = first.head.started;
        queue.streams(|table| {
            for call in iter::once(first).chain(self.others.drain(..)) {
                table.open(call.head.stream_id, call.head.flags, call);
            }
        });
        self.ready_queue.push(future, self.futures.drain(..), read_at);
    }

    /// On a runtime of one thread, opens the stream of the call that was added last and begins it. So many bytes have
    /// been read that the receiver has not acted on.
    pub(super) async fn begin_here(&mut self, bytes_left: usize) {
        let OpenedCalls { ready_queue, turn: Some(turn), first, .. } = self else { return };
        let Some((call, future)) = first.take() else { return };
        let connection = ready_queue.connection();
        connection.queue.streams(|table| table.open(call.head.stream_id, call.head.flags, call));
        let more_follows = bytes_left > 0;
        turn.begin(more_follows);
        connection.more_calls_follow.store(more_follows, Relaxed);
        let mut future = Some(future);
        poll_fn(|cx| {
            future.take().into_iter().for_each(|call| ready_queue.begin(call, cx));
            Poll::Ready(())
        })
        .await;
        connection.more_calls_follow.store(false, Relaxed);
    }

    /// Whether a call waits for [`OpenedCalls::begin_here`].
    pub(super) fn has_call_to_begin_here(&self) -> bool {
        self.turn.is_some() && self.first.is_some()
    }

    /// Why others have to run before the next call begins here.
    pub(super) fn turn_end(&mut self) -> Option<TurnEnd> {
        self.turn.as_mut()?.end()
    }

    /// The receiver's task runs anew.
    pub(super) fn begin_turn(&mut self) {
        self.turn.iter_mut().for_each(|turn| *turn = CallTurn::default());
    }

    /// Lets others run. So many bytes have been read that the receiver has not acted on.
    pub(super) async fn let_others_run(&mut self, end: TurnEnd, bytes_left: usize) {
        match end {
            // Woken when the runtime has looked at them.
            TurnEnd::SocketsAndTimers => yield_now().await,
            TurnEnd::Tasks => self.let_tasks_run(bytes_left).await,
        }
        self.turn.iter_mut().for_each(|turn| turn.next(end));
    }

    /// Lets the tasks run that are scheduled. The sender waits a little for the replies to the calls that are left.
    async fn let_tasks_run(&mut self, bytes_left: usize) {
        let announced = &self.ready_queue.connection().queue.announced;
        let calls = 1 + bytes_left / CALL_LEN;
        announced.announce(calls);
        let mut have_run = false;
        poll_fn(|cx| {
            if mem::replace(&mut have_run, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        announced.retract(calls);
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
    use std::{future::ready, mem, pin::pin, time::Duration};

    use super::*;
    use crate::server::ready_queue::tests::queue;

    /// Else calls that have waited for long would wait on behind one that was read just now.
    #[tokio::test(start_paused = true)]
    async fn calls_that_are_handed_on_together_are_as_late_as_the_first_of_them() {
        let (_server, queue) = queue();
        let mut opened = OpenedCalls::new(queue.clone(), false);
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

    /// Else each reply of those that were read together would be written by itself.
    #[tokio::test]
    async fn a_reply_is_not_alone_while_more_has_been_read() {
        for (bytes_left, more_follow) in [(0, false), (1, true)] {
            let (_server, queue) = queue();
            let mut opened = OpenedCalls::new(queue.clone(), true);
            let begun = queue.clone();
            let handler = async move {
                let connection = begun.connection();
                assert_eq!(connection.more_calls_follow.load(Relaxed), more_follow);
                assert_eq!(connection.queue.streams(|table| table.len()), 1);
            };
            opened.add(queue.new_call(1), BoxedCall::new(handler));
            opened.begin_here(bytes_left).await;
            let connection = queue.connection();
            assert!(!connection.more_calls_follow.load(Relaxed), "it may be, later");
            drop(connection.queue.streams(mem::take));
        }
    }

    /// The sender lingers as long as the number falls.
    #[tokio::test]
    async fn the_sender_is_told_how_much_is_left_while_others_run() {
        let (_server, queue) = queue();
        let mut opened = OpenedCalls::new(queue.clone(), true);
        let announced = &queue.connection().queue.announced;
        let mut before = usize::MAX;
        for bytes_left in [1000, 500, 0] {
            let mut others = pin!(opened.let_others_run(TurnEnd::Tasks, bytes_left));
            assert!(poll_fn(|cx| Poll::Ready(others.as_mut().poll(cx))).await.is_pending());
            assert!((1..before).contains(&announced.count()));
            before = announced.count();
            others.await;
            assert_eq!(announced.count(), 0);
        }
    }
}
