//! Calls that have been let in and have not begun, and the tasks that they begin in.
//!
//! A call has a task to itself from its handler's first step to its end: a handler that waits,
//! computes or blocks its thread holds up no other. But most handlers are done with their first step,
//! and a task that is done with one call takes the next from here, which costs a fraction of making a
//! task for each.
//!
//! A handler that blocks its thread must not hold up the calls here either. So, as long as there are
//! any, one more task offers them to the threads of the runtime. Each thread that comes to run it makes
//! a task for calls, and leaves the offer to the other threads before it runs any call.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};

use super::call::BoxFuture;
use crate::transport::lock;

/// Calls that the receiver lets in before the first of them begins, if there are so many frames in
/// what it has read: several begin at less cost than one.
const MAX_HELD_BACK: usize = 32;

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
    /// Adds a call. It begins when many have been added, or with the end of [`Backlog::drain`].
    pub(super) fn push(self: &Arc<Self>, call: BoxFuture<'static, ()>) {
        let mut state = lock(&self.state);
        state.calls.push_back(call);
        if state.calls.len() >= MAX_HELD_BACK && !mem::replace(&mut state.is_offered, true) {
            drop(state);
            self.offer();
        }
    }

    /// Polls the receiver, and has the calls that it has added begin.
    pub(super) async fn drain<T>(self: &Arc<Self>, receiver: impl Future<Output = T>) -> T {
        let mut receiver = pin!(receiver);
        poll_fn(|cx| {
            let polled = receiver.as_mut().poll(cx);
            let mut state = lock(&self.state);
            let calls = state.calls.len();
            if calls > 0 && !state.is_offered {
                // One needs no offer: this thread is about to be free for it.
                state.is_offered = calls > 1;
                drop(state);
                if calls > 1 { self.offer() } else { self.run_calls() }
            }
            polled
        })
        .await
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

    /// Whether there are calls to be offered.
    fn is_offered(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_offered = !state.calls.is_empty();
        state.is_offered
    }

    /// Offers the calls until there are none.
    ///
    /// A worker of the runtime may keep a task that it has made for itself, to run it next. But a task
    /// that has run and is scheduled again is where all of them look: so this one does not lie behind a
    /// handler that blocks a worker.
    fn offer(self: &Arc<Self>) {
        let backlog = self.clone();
        tokio::spawn(poll_fn(move |cx| {
            if !backlog.is_offered() {
                return Poll::Ready(());
            }
            backlog.run_calls();
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
