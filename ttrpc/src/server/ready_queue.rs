//! Calls that have been let in and have not begun, and the tasks that they begin in.
//!
//! A call has a task to itself from its handler's first step to its end: a handler that waits,
//! computes or blocks its thread holds up no other. But most handlers are done with their first step,
//! and a task that is done with one call takes the next from here, which costs a fraction of making a
//! task for each. Such a task is a *runner* as long as the call that it runs has not had to wait.
//!
//! A handler that blocks its thread must not hold up the calls here either. So, as long as there are
//! any, one more task offers them to the threads of the runtime, one after the other: the thread that
//! comes to run it makes a runner, and leaves the offer to the others before it runs any call.
//!
//! A connection has at most [`MAX_RUNNERS`] runners, however many calls stand here and however late
//! they are: each turn of the runtime serves that many calls of each connection, so a connection with
//! a thousand calls does not take the turns of one with a single call.
//!
//! No call begins while the connection's outgoing queue is full. Its reply would have to wait there,
//! and a peer that asks for much and reads nothing would have the server hold all replies at once.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::Instant;

use super::connection::Connection;
#[cfg(doc)]
use super::driver::CallDriver;
use crate::transport::{BoxFuture, limiter::Closed, lock};

/// Calls that are held back before the clock is looked at.
const CALLS_PER_LOOK: usize = 32;

/// What takes longer is late: this is many times what a call takes.
const LATE: Duration = Duration::from_micros(100);

/// Runners of a connection at a time: enough to be spread over many threads, and few beside what a
/// runtime can take up in a turn.
const MAX_RUNNERS: usize = 32;

/// Calls for which an empty queue keeps room.
const IDLE_CAPACITY: usize = 32;

/// The ready queue of one connection. Its receiver and the runners own it, and not what the calls in
/// it know: it goes with them when a runtime that shuts down drops all.
pub(super) struct ReadyQueue {
    connection: Arc<Connection>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: VecDeque<BoxFuture<'static, ()>>,
    /// There is a task that offers them.
    is_offered: bool,
    /// A runner waits until the outgoing queue is not full; until then no call begins.
    is_held: bool,
    runners: usize,
}

impl State {
    /// Whether calls stand here for which nobody is on the way.
    fn wants_offer(&self) -> bool {
        !self.calls.is_empty() && !self.is_offered && !self.is_held
    }
}

impl ReadyQueue {
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        Arc::new(ReadyQueue { connection, state: Mutex::default() })
    }

    /// Adds a call that was read at this time. It is held back until the receiver has acted on all that was
    /// read with it, see [`ReadyQueue::drive`]: several begin at less cost than one. But not for long.
    pub(super) fn push(self: &Arc<Self>, call: BoxFuture<'static, ()>, read_at: Instant) {
        let mut state = lock(&self.state);
        state.calls.push_back(call);
        let is_late =
            || state.calls.len().is_multiple_of(CALLS_PER_LOOK) && read_at.elapsed() > LATE;
        if state.wants_offer() && is_late() {
            state.is_offered = true;
            drop(state);
            self.offer();
            // While the receiver goes on, the runtime may keep the last task that it has made for its
            // thread. This one takes the offer's place there.
            self.add_runners(1);
        }
    }

    /// Polls the receiver, and each time has the calls that it has added begin.
    pub(super) fn drive<T>(
        self: &Arc<Self>,
        mut receiver: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = T> {
        poll_fn(move |cx| {
            let polled = receiver.as_mut().poll(cx);
            let mut state = lock(&self.state);
            if state.wants_offer() {
                // This thread is about to be free for it: one needs no offer to others.
                let is_offered = state.calls.len() > 1;
                state.is_offered = is_offered;
                drop(state);
                if is_offered { self.offer() } else { self.add_runners(1) }
            }
            polled
        })
    }

    /// What a runner does next.
    fn next(&self) -> Next {
        let mut state = lock(&self.state);
        if state.calls.is_empty() {
            return Next::Nothing;
        }
        let outgoing = &self.connection.queue;
        if outgoing.is_full() && !outgoing.is_closed() {
            let is_held = mem::replace(&mut state.is_held, true);
            return if is_held { Next::Nothing } else { Next::WaitForRoom };
        }
        let call = state.calls.pop_front().expect("there is one");
        if state.calls.is_empty() {
            state.calls.shrink_to(IDLE_CAPACITY);
        }
        Next::Call(call)
    }

    /// There is room again: the calls are offered anew.
    fn release(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.is_held = false;
        if state.wants_offer() {
            state.is_offered = true;
            drop(state);
            self.offer();
        }
    }

    fn is_empty(&self) -> bool {
        lock(&self.state).calls.is_empty()
    }

    /// Offers the calls until there are none.
    ///
    /// A worker of the runtime may keep a task that it has made for itself, to run it next. But a task
    /// that has run and is scheduled again is where all of them look: so this one does not lie behind a
    /// handler that blocks a worker.
    ///
    /// Each time, it makes one runner more, or all that there may be where the runtime has so much else
    /// to do that its turn was long in coming.
    fn offer(self: &Arc<Self>) {
        let queue = self.clone();
        let mut last = Instant::now();
        tokio::spawn(poll_fn(move |cx| {
            if !queue.keep_offering() {
                return Poll::Ready(());
            }
            let now = Instant::now();
            let is_late = now.duration_since(mem::replace(&mut last, now)) > LATE;
            queue.add_runners(if is_late { MAX_RUNNERS } else { 1 });
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Whether one more runner would find a call.
    fn keep_offering(&self) -> bool {
        let mut state = lock(&self.state);
        let has_room = !state.is_held && state.runners < MAX_RUNNERS;
        state.is_offered = has_room && !state.calls.is_empty();
        state.is_offered
    }

    /// Makes so many runners, as long as there are no more than there may be.
    fn add_runners(self: &Arc<Self>, count: usize) {
        let mut state = lock(&self.state);
        let count = count.min(MAX_RUNNERS.saturating_sub(state.runners));
        state.runners += count;
        drop(state);
        for _ in 0..count {
            tokio::spawn(Runner { queue: self.clone(), step: Step::Next, is_runner: true });
        }
    }
}

/// A task that runs one call after another until none is left, or one has to wait.
struct Runner {
    queue: Arc<ReadyQueue>,
    step: Step,
    /// It counts as a runner.
    is_runner: bool,
}

enum Step {
    Next,
    WaitForRoom(BoxFuture<'static, Result<(), Closed>>),
    Call(BoxFuture<'static, ()>),
}

/// What a runner finds.
enum Next {
    Call(BoxFuture<'static, ()>),
    /// The outgoing queue is full, and nobody else waits for it on behalf of this queue.
    WaitForRoom,
    Nothing,
}

impl Future for Runner {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.step = match &mut self.step {
                Step::Next => match self.queue.next() {
                    Next::Call(call) => Step::Call(call),
                    Next::WaitForRoom => {
                        let connection = self.queue.connection.clone();
                        Step::WaitForRoom(Box::pin(
                            async move { connection.queue.has_room().await },
                        ))
                    }
                    Next::Nothing => return Poll::Ready(()),
                },
                Step::WaitForRoom(room) => {
                    // Calls of a connection that has ended do not run, see [`CallDriver`].
                    let _ = ready!(room.as_mut().poll(cx));
                    self.queue.release();
                    Step::Next
                }
                Step::Call(call) => {
                    if call.as_mut().poll(cx).is_pending() {
                        self.retire();
                        return Poll::Pending;
                    }
                    self.step = Step::Next;
                    if !self.is_runner || self.queue.is_empty() {
                        return Poll::Ready(());
                    }
                    // Not at once: the runtime may keep a task that this call has woken for this
                    // thread, to run it next, and the next call may block the thread.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
        }
    }
}

impl Runner {
    /// The call has to wait: the task is its own from here on, and another takes its place.
    fn retire(&mut self) {
        if mem::take(&mut self.is_runner) {
            let mut state = lock(&self.queue.state);
            state.runners -= 1;
            let is_wanted = !state.calls.is_empty() && !state.is_held;
            drop(state);
            if is_wanted {
                self.queue.add_runners(1);
            }
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.is_runner {
            lock(&self.queue.state).runners -= 1;
        }
    }
}
