//! Calls that have been let in and have not begun, and the tasks that they begin in.
//!
//! A call has a task to itself from its handler's first step to its end: a handler that waits,
//! computes or blocks its thread holds up no other. But most handlers are done with their first step,
//! and a task that is done with one call takes the next from here, which costs a fraction of making a
//! task for each. Such a task is a *runner*; once its call has had to wait it is that call's task alone.
//!
//! A handler that blocks its thread must not hold up the calls here either. So, as long as there are
//! any, one more task offers them to the threads of the runtime, one after the other: the thread that
//! comes to run it makes a runner, and leaves the offer to the others before it runs any call.
//!
//! A connection has few runners scheduled at a time, [`MIN_RUNNERS`] on most machines, however many
//! calls stand here and however late they are: each turn of the runtime serves that many calls of each
//! connection, so a connection with a thousand calls does not take the turns of one with a single call.
//! A runner that runs is not counted, since its handler may block its thread.
//!
//! On a runtime of one thread no call stands here, see [`opened_calls`](super::opened_calls). A task is made for one
//! that has to wait.
//!
//! No call begins while the connection's outgoing queue is full, or as many replies wait for room as may. Its
//! reply would have to wait there, and a peer that asks for much and reads nothing would have the server hold all
//! replies at once. One runner waits in line for room on behalf of all, and lets one call begin when its turn has come.

mod boxed_call;
#[cfg(all(test, shuttle))]
mod interleavings;
mod runner;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

pub(super) use self::boxed_call::BoxedCall;
use self::runner::{Runner, RunnerStep};
use super::connection::Connection;
use crate::{
    sync::{Mutex, MutexGuard, spawn},
    transport::lock,
};

/// The clock is read once for so many calls that are held back.
const CALLS_PER_LOOK: usize = 32;

/// A call that waits for longer is late: many times what a call takes.
const LATE: Duration = Duration::from_micros(100);

/// Runners of a connection that may be scheduled at a time, or twice as many as the runtime has threads
/// if that is more: enough to be spread over all threads, and few beside what a turn can take up.
const MIN_RUNNERS: usize = 32;

/// Calls for which an empty queue keeps room.
const IDLE_CAPACITY: usize = 32;

/// The ready queue of one connection. The receiver and the runners own it, and the calls in it do not: so it is
/// dropped, with its calls, when a runtime that shuts down drops these tasks.
pub(super) struct ReadyQueue {
    connection: Arc<Connection>,
    max_runners: usize,
    state: Mutex<Calls>,
}

/// The calls, and what is under way to begin them.
#[derive(Default)]
struct Calls {
    calls: VecDeque<BoxedCall>,
    /// There is a task that offers them.
    is_offered: bool,
    /// A runner waits for room in the outgoing queue; until then no call begins.
    is_held: bool,
    /// Runners that are scheduled and do not run.
    scheduled: usize,
}

impl Calls {
    /// Whether there are calls, and neither an offer nor a wait for room is under way for them.
    fn wants_offer(&self) -> bool {
        !self.calls.is_empty() && !self.is_offered && !self.is_held
    }

    fn pop(&mut self) -> Option<BoxedCall> {
        let call = self.calls.pop_front();
        if self.calls.is_empty() {
            self.calls.shrink_to(IDLE_CAPACITY);
        }
        call
    }
}

impl ReadyQueue {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        let runtime = Handle::current();
        let max_runners = MIN_RUNNERS.max(2 * runtime.metrics().num_workers());
        Arc::new(ReadyQueue { connection, max_runners, state: Mutex::default() })
    }

    /// Adds calls, the first of which was read at this time. They are held back until the receiver has acted on
    /// all that was read with them, see [`ReadyQueue::drive`], since several calls that begin together cost less.
    /// Calls that are late are offered at once.
    pub(super) fn push(
        self: &Arc<Self>,
        first: BoxedCall,
        others: impl Iterator<Item = BoxedCall>,
        read_at: Instant,
    ) {
        let mut state = lock(&self.state);
        let before = state.calls.len();
        state.calls.push_back(first);
        for call in others {
            state.calls.push_back(call);
        }
        let is_looked_at = before / CALLS_PER_LOOK != state.calls.len() / CALLS_PER_LOOK;
        let is_late = || is_looked_at && read_at.elapsed() > LATE;
        if state.wants_offer() && is_late() {
            state.is_offered = true;
            drop(state);
            self.offer_beside_a_runner();
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
                // A single call needs no offer to other threads: this one is about to be free for it.
                let is_offered = state.calls.len() > 1;
                state.is_offered = is_offered;
                drop(state);
                if is_offered { self.offer() } else { self.add_runners(1) }
            }
            polled
        })
    }

    /// Begins a call in this task. One that has to wait gets a task.
    pub(super) fn begin(self: &Arc<Self>, mut call: BoxedCall, cx: &mut Context<'_>) {
        match call.poll(cx) {
            Poll::Pending => self.spawn(RunnerStep::Call(call), false),
            Poll::Ready(()) => call.recycle(),
        }
    }

    /// What a runner does next; `None` if there is nothing for it. While the connection is full, one
    /// runner waits for room, and there is nothing for the others.
    fn next_step(&self, mut state: MutexGuard<'_, Calls>) -> Option<RunnerStep> {
        let connection = &self.connection;
        if state.calls.is_empty() || !connection.is_full() || connection.queue.is_closed() {
            return state.pop().map(RunnerStep::Call);
        }
        if mem::replace(&mut state.is_held, true) {
            return None;
        }
        drop(state);
        let connection = connection.clone();
        Some(RunnerStep::WaitForRoom(Box::pin(async move { connection.has_room().await })))
    }

    /// The turn in the line for room has come: one call begins, however full the queue is again, and the
    /// others are offered.
    fn release(self: &Arc<Self>, mut state: MutexGuard<'_, Calls>) -> Option<RunnerStep> {
        state.is_held = false;
        let call = state.pop()?;
        if state.wants_offer() {
            state.is_offered = true;
            drop(state);
            self.offer_beside_a_runner();
        }
        Some(RunnerStep::Call(call))
    }

    /// Offers the calls, for a task that goes on to run. The runtime may keep the last task that it makes
    /// for its thread, which may be blocked soon: a runner takes the offer's place there.
    fn offer_beside_a_runner(self: &Arc<Self>) {
        self.offer();
        self.add_runners(1);
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
        spawn(poll_fn(move |cx| {
            if !queue.keep_offering() {
                return Poll::Ready(());
            }
            let now = Instant::now();
            let is_late = now.duration_since(mem::replace(&mut last, now)) > LATE;
            queue.add_runners(if is_late { queue.max_runners } else { 1 });
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }

    /// Whether there are calls that may begin. They are offered even while no more runners may be made:
    /// those that there are may have been kept for threads that are blocked.
    fn keep_offering(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_offered = !state.is_held && !state.calls.is_empty();
        state.is_offered
    }

    /// Makes so many runners, as long as no more are scheduled than may be.
    pub(super) fn add_runners(self: &Arc<Self>, count: usize) {
        let mut state = lock(&self.state);
        let count = count.min(self.max_runners.saturating_sub(state.scheduled));
        state.scheduled += count;
        drop(state);
        for _ in 0..count {
            self.spawn(RunnerStep::TakeCall, true);
        }
    }

    /// Makes a runner that goes on with this step.
    fn spawn(self: &Arc<Self>, step: RunnerStep, is_scheduled: bool) {
        spawn(Runner { queue: self.clone(), step, is_scheduled });
    }

    /// Whether a runner that has run comes again: there are calls that no scheduled runner comes for, and
    /// not too many runners.
    fn reschedule(&self) -> bool {
        let mut state = lock(&self.state);
        let is_wanted = state.calls.len() > state.scheduled
            && !state.is_held
            && state.scheduled < self.max_runners;
        state.scheduled += usize::from(is_wanted);
        is_wanted
    }

    /// A runner is not scheduled any more: it runs, or never will.
    fn count_out(&self, is_scheduled: &mut bool) -> MutexGuard<'_, Calls> {
        let mut state = lock(&self.state);
        state.scheduled -= usize::from(mem::take(is_scheduled));
        state
    }

    /// A call has to wait: its runner's task is its own from here on, and another one runs the rest.
    fn hand_over(self: &Arc<Self>) {
        let state = lock(&self.state);
        let is_wanted = !state.calls.is_empty() && !state.is_held;
        drop(state);
        if is_wanted {
            self.add_runners(1);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        future::{pending, ready},
        iter,
    };

    use super::*;
    use crate::{
        Server, ServerConfig,
        server::{
            call::Call,
            tests::{idle_connection, unary_call},
        },
    };

    const MAX_RUNNERS: usize = 2;

    /// A queue as on a runtime of several threads. This one has one: tasks that are made do not run before the test
    /// waits.
    pub(in crate::server) fn queue() -> (Server, Arc<ReadyQueue>) {
        let (server, connection) = idle_connection(ServerConfig::default());
        let state = Mutex::default();
        let max_runners = MAX_RUNNERS;
        (server, Arc::new(ReadyQueue { connection, max_runners, state }))
    }

    impl ReadyQueue {
        /// Calls, scheduled runners, and whether there is an offer.
        pub(in crate::server) fn state(&self) -> (usize, usize, bool) {
            let state = lock(&self.state);
            (state.calls.len(), state.scheduled, state.is_offered)
        }

        /// A call of its connection that was read just now.
        pub(in crate::server) fn new_call(&self, stream_id: u32) -> Arc<Call> {
            unary_call(self.connection.clone(), stream_id)
        }

        fn set(&self, calls: usize, scheduled: usize, is_held: bool) {
            let mut state = lock(&self.state);
            state.calls = (0..calls).map(|_| BoxedCall::new(ready(()))).collect();
            (state.scheduled, state.is_held) = (scheduled, is_held);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_held_back_until_the_receiver_is_done_unless_many_are_late() {
        let start = Instant::now();
        for (age, is_offered) in [(LATE, false), (2 * LATE, true)] {
            let (_server, queue) = queue();
            tokio::time::advance(start + age - Instant::now()).await;
            for _ in 1..CALLS_PER_LOOK {
                queue.push(BoxedCall::new(ready(())), iter::empty(), start);
            }
            assert_eq!(queue.state(), (CALLS_PER_LOOK - 1, 0, false));
            queue.push(BoxedCall::new(ready(())), iter::empty(), start);
            let runners = usize::from(is_offered);
            assert_eq!(queue.state(), (CALLS_PER_LOOK, runners, is_offered));
            for _ in 0..CALLS_PER_LOOK {
                queue.push(BoxedCall::new(ready(())), iter::empty(), start);
            }
            let calls = 2 * CALLS_PER_LOOK;
            assert_eq!(queue.state(), (calls, runners, is_offered), "there is one offer");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_is_looked_at_also_where_calls_come_together() {
        let (start, (_server, queue)) = (Instant::now(), queue());
        tokio::time::advance(2 * LATE).await;
        let others = (0..CALLS_PER_LOOK).map(|_| BoxedCall::new(ready(())));
        queue.push(BoxedCall::new(ready(())), others, start);
        assert_eq!(queue.state(), (CALLS_PER_LOOK + 1, 1, true));
    }

    #[tokio::test]
    async fn calls_behind_a_turn_of_the_receiver_are_offered_and_a_single_one_has_a_runner() {
        for (calls, offered) in [(0, (0, 0, false)), (1, (1, 1, false)), (2, (2, 0, true))] {
            let (_server, queue) = queue();
            queue.set(calls, 0, false);
            let mut receiver = std::pin::pin!(pending::<()>());
            let mut driven = std::pin::pin!(queue.drive(receiver.as_mut()));
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(driven.as_mut().poll(&mut cx).is_pending());
            assert_eq!(queue.state(), offered);
        }
    }

    #[tokio::test]
    async fn a_runner_comes_again_while_there_are_more_calls_than_runners_to_come() {
        for (calls, scheduled, is_held, comes_again) in [
            (0, 0, false, false),
            (1, 0, false, true),
            (1, 1, false, false),
            (2, 1, false, true),
            (3, 2, false, false),
            (4, 3, false, false),
            (1, 2, false, false),
            (1, 0, true, false),
        ] {
            let (_server, queue) = queue();
            queue.set(calls, scheduled, is_held);
            assert_eq!(queue.reschedule(), comes_again, "{calls} calls, {scheduled} runners");
            let runners = scheduled + usize::from(comes_again);
            assert_eq!(queue.state(), (calls, runners, false));
        }
    }

    #[tokio::test]
    async fn a_call_that_waits_leaves_the_others_to_another_runner() {
        for (calls, is_held, runners) in [(0, false, 0), (1, false, 1), (1, true, 0), (0, true, 0)]
        {
            let (_server, queue) = queue();
            queue.set(calls, 0, is_held);
            queue.hand_over();
            assert_eq!(queue.state(), (calls, runners, false), "{calls} calls");
        }
    }

    #[tokio::test]
    async fn calls_are_offered_as_long_as_there_are_any_that_may_begin() {
        for (calls, is_held, is_offered) in [(0, false, false), (1, false, true), (1, true, false)]
        {
            let (_server, queue) = queue();
            queue.set(calls, 0, is_held);
            assert_eq!(queue.keep_offering(), is_offered);
            assert_eq!(queue.state(), (calls, 0, is_offered));
        }
    }

    #[tokio::test]
    async fn no_more_runners_are_scheduled_than_may_be_and_one_that_is_dropped_is_not() {
        let (_server, queue) = queue();
        queue.add_runners(1);
        queue.add_runners(5);
        assert_eq!(queue.state(), (0, MAX_RUNNERS, false));
        drop(Runner { queue: queue.clone(), step: RunnerStep::TakeCall, is_scheduled: true });
        assert_eq!(queue.state(), (0, MAX_RUNNERS - 1, false));
        drop(Runner { queue: queue.clone(), step: RunnerStep::TakeCall, is_scheduled: false });
        assert_eq!(queue.state(), (0, MAX_RUNNERS - 1, false));
    }
}
