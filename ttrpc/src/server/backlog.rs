//! Calls that have been let in and have not begun, and the tasks that they begin in.
//!
//! A call has a task to itself from its handler's first step to its end: a handler that waits,
//! computes or blocks its thread holds up no other. But most handlers are done with their first step,
//! and a task that is done with one call takes the next from here, which costs a fraction of making a
//! task for each.
//!
//! A handler that blocks its thread must not hold up the calls here either. So, as long as there are
//! any, one more task offers them to the threads of the runtime, one after the other: the thread that
//! comes to run it makes a task for calls, and leaves the offer to the others before it runs any call.

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

use crate::transport::{BoxFuture, lock};

/// Calls that are held back before the clock is looked at.
const CALLS_PER_LOOK: usize = 32;

/// What takes longer is late: this is many times what a call takes.
const LATE: Duration = Duration::from_micros(100);

/// Calls for which an empty backlog keeps room.
const IDLE_CAPACITY: usize = 32;

/// The backlog of one connection. Its receiver and the tasks own it, and not what the calls in it know:
/// it goes with them when a runtime that shuts down drops all.
#[derive(Default)]
pub(super) struct Backlog {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: VecDeque<BoxFuture<'static, ()>>,
    /// There is a task that offers them.
    is_offered: bool,
}

impl Backlog {
    /// Adds a call that was read at this time. It is held back until the receiver has acted on all that was
    /// read with it, see [`Backlog::around`]: several begin at less cost than one. But not for long.
    pub(super) fn push(self: &Arc<Self>, call: BoxFuture<'static, ()>, read_at: Instant) {
        let mut state = lock(&self.state);
        state.calls.push_back(call);
        let is_late =
            || state.calls.len().is_multiple_of(CALLS_PER_LOOK) && read_at.elapsed() > LATE;
        if !state.is_offered && is_late() {
            state.is_offered = true;
            drop(state);
            self.offer();
            // While the receiver goes on, the runtime may keep the last task that it has made for its
            // thread. This one takes the offer's place there.
            self.run_calls();
        }
    }

    /// Polls the receiver, and each time has the calls that it has added begin.
    pub(super) fn around<T>(
        self: &Arc<Self>,
        mut receiver: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = T> {
        poll_fn(move |cx| {
            let polled = receiver.as_mut().poll(cx);
            let mut state = lock(&self.state);
            let calls = state.calls.len();
            if calls > 0 && !state.is_offered {
                // This thread is about to be free for it: one needs no offer to others.
                state.is_offered = calls > 1;
                drop(state);
                if calls > 1 { self.offer() } else { self.run_calls() }
            }
            polled
        })
    }

    fn take(&self) -> Option<BoxFuture<'static, ()>> {
        let mut state = lock(&self.state);
        let call = state.calls.pop_front();
        if state.calls.is_empty() {
            state.calls.shrink_to(IDLE_CAPACITY);
        }
        call
    }

    fn is_empty(&self) -> bool {
        lock(&self.state).calls.is_empty()
    }

    /// The number of calls to be offered; with the last one the offer is over.
    fn keep_offering(&self) -> usize {
        let mut state = lock(&self.state);
        state.is_offered = !state.calls.is_empty();
        state.calls.len()
    }

    /// Offers the calls until there are none.
    ///
    /// A worker of the runtime may keep a task that it has made for itself, to run it next. But a task
    /// that has run and is scheduled again is where all of them look: so this one does not lie behind a
    /// handler that blocks a worker.
    ///
    /// Each time, it makes one task more. Where the runtime has so much else to do that its turn is long
    /// in coming, it makes one for each call.
    fn offer(self: &Arc<Self>) {
        let backlog = self.clone();
        let mut last = Instant::now();
        tokio::spawn(poll_fn(move |cx| {
            let calls = backlog.keep_offering();
            if calls == 0 {
                return Poll::Ready(());
            }
            let now = Instant::now();
            let is_late = now.duration_since(mem::replace(&mut last, now)) > LATE;
            (0..if is_late { calls } else { 1 }).for_each(|_| backlog.run_calls());
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Makes a task for calls.
    fn run_calls(self: &Arc<Self>) {
        tokio::spawn(CallTask { backlog: self.clone(), call: None });
    }
}

/// A task that runs one call after another until none is left.
struct CallTask {
    backlog: Arc<Backlog>,
    call: Option<BoxFuture<'static, ()>>,
}

impl Future for CallTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let CallTask { backlog, call } = &mut *self;
        if call.is_none() {
            *call = backlog.take();
        }
        let Some(running) = call else { return Poll::Ready(()) };
        ready!(running.as_mut().poll(cx));
        *call = None;
        if backlog.is_empty() {
            return Poll::Ready(());
        }
        // Not at once: the runtime may keep a task that this call has woken for this thread, to run it
        // next, and the next call may block the thread.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
