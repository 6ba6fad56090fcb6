//! The task that leads a connection, on a runtime of several threads.
//!
//! It polls the connection's future, which reads frames and opens calls, and has the handler of each call begin before
//! it polls that future again. A handler may block the thread. So the future is not the task's own: as long as a
//! handler runs, another task may become the leader. It does so if the server's [`Watchdog`](super::watchdog::Watchdog)
//! finds the same handler running twice, and the task that has been replaced ends with its handler.
//!
//! A leader has one handler begin each time that it is polled, and first of all. A task that was woken on this thread in
//! the same turn, by the connection's future or by another handler, may be kept for the thread, to run it next, where no
//! other looks for it: a handler that blocks the thread would hold it up.

#[cfg(all(test, shuttle))]
mod interleavings;

use std::{
    cell::Cell,
    future::Future,
    ops::RangeInclusive,
    pin::Pin,
    sync::{Arc, TryLockError},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{boxed_call::BoxedCall, connection::Connection};
use crate::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        spawn,
    },
    transport::{BoxFuture, lock_often},
};

/// A handler whose first step takes longer is slow: other threads had better come for the next ones, and to have them
/// come takes a small part of that.
const SLOW: Duration = Duration::from_micros(10);

/// The time is taken of one handler in so many: no power of two, in which calls may come.
const CALLS_PER_LOOK: u32 = 7;

/// Calls that get a task each, behind a second slow one of the last eight whose time was taken. A single one may have
/// been slow since the thread had to wait for a processor.
const CALLS_BEHIND_SLOW: u32 = 64;

/// Calls behind one that has blocked its thread that get a task each. They are twice as many when another one does so
/// before twice as many have begun, until what that costs the connection counts for nothing. A thread that had to wait
/// for a processor may look as if it were blocked, now and then.
const CALLS_BEHIND_BLOCKED: RangeInclusive<u32> = CALLS_BEHIND_SLOW..=1 << 14;

thread_local! {
    /// The call that a connection's future gives to the leader that is polling it.
    static HANDED_OVER: Cell<Option<BoxedCall>> = const { Cell::new(None) };
}

/// What the leader of a connection and its receiver, whom it polls, tell each other.
#[derive(Default)]
pub(super) struct Handover {
    /// A call has been handed over in this poll of the connection's future. The thread has it until that ends.
    has_call: AtomicBool,
    /// The watchdog looks after the leader.
    is_watched: AtomicBool,
    /// Calls that get a task each.
    calls_for_tasks: AtomicU32,
}

impl Handover {
    /// Gives this call to the leader, which is polling the connection's future on this thread and takes it behind that.
    pub(super) fn put(&self, call: BoxedCall) {
        let before = HANDED_OVER.replace(Some(call));
        debug_assert!(before.is_none(), "a call is taken in the poll in which it is handed over");
        self.has_call.store(true, Relaxed);
    }

    /// Whether the leader has been given a call to begin.
    pub(super) fn has_call(&self) -> bool {
        self.has_call.load(Relaxed)
    }

    pub(super) fn take(&self) -> Option<BoxedCall> {
        if !self.has_call() {
            return None;
        }
        self.has_call.store(false, Relaxed);
        HANDED_OVER.take()
    }

    /// Whether the next call begins in the leader. A lone one gets a task: to have the leader come again takes as long,
    /// and the watchdog need not look after it.
    pub(super) fn begins_in_leader(&self, is_lone: bool) -> bool {
        match self.calls_for_tasks.load(Relaxed) {
            0 => !is_lone,
            calls => {
                self.calls_for_tasks.store(calls - 1, Relaxed);
                false
            }
        }
    }

    fn is_watched(&self) -> bool {
        self.is_watched.load(Relaxed)
    }

    pub(super) fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Relaxed);
    }

    pub(super) fn leave_to_tasks(&self, calls: u32) {
        self.calls_for_tasks.fetch_max(calls, Relaxed);
    }
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}

/// A connection's future, which its leader polls.
pub(super) struct Led {
    connection: Arc<Connection>,
    state: Mutex<State>,
}

/// The future, and where its leader is.
struct State {
    /// `None` when it has ended.
    future: Option<BoxFuture<'static, ()>>,
    /// The call that begins next.
    call: Option<BoxedCall>,
    /// Which task leads.
    leader: u32,
    /// Handlers that have begun in leaders.
    begun: u32,
    /// The last of them runs.
    is_running: bool,
    /// Which of the last ones whose time was taken were slow, a bit each.
    slow: u8,
    /// The last handler that has blocked its thread.
    last_blocked: u32,
    /// The calls behind it that got a task each.
    calls_behind_blocked: u32,
}

/// What the watchdog sees of a leader.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sight {
    /// It polls the connection's future.
    Polls,
    /// It waits, and so many handlers have begun.
    Waits(u32),
    /// It runs the handler of this number.
    Runs(u32),
}

/// Makes the task that leads this connection.
pub(super) fn lead(connection: Arc<Connection>, future: BoxFuture<'static, ()>) {
    let led = Led::new(connection, future);
    spawn(Leader { led, number: 0 });
}

impl Led {
    fn new(connection: Arc<Connection>, future: BoxFuture<'static, ()>) -> Arc<Self> {
        let state = State {
            future: Some(future),
            call: None,
            leader: 0,
            begun: 0,
            is_running: false,
            slow: 0,
            last_blocked: 0,
            calls_behind_blocked: 0,
        };
        Arc::new(Led { connection, state: Mutex::new(state) })
    }

    /// The state, if this task leads.
    fn led_by(&self, number: u32) -> Option<MutexGuard<'_, State>> {
        Some(lock_often(&self.state)).filter(|state| state.leader == number)
    }

    /// Has a handler begin in the leader. `None` if another task leads when its first step is done.
    fn begin<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        call: BoxedCall,
        cx: &mut Context<'_>,
    ) -> Option<MutexGuard<'a, State>> {
        let (handover, number) = (&self.connection.handover, state.leader);
        if !handover.is_watched() && !self.connection.server.watchdog.watch(self) {
            handover.leave_to_tasks(*CALLS_BEHIND_BLOCKED.end());
            call.spawn();
            return Some(state);
        }
        handover.set_watched(true);
        let started = state.begun.is_multiple_of(CALLS_PER_LOOK).then(Instant::now);
        state.begun = state.begun.wrapping_add(1);
        state.is_running = true;
        drop(state);
        call.begin(cx);
        let time = started.map(|started| started.elapsed());
        let mut state = self.led_by(number)?;
        state.is_running = false;
        if let Some(time) = time {
            self.note_time(&mut state, time);
        }
        Some(state)
    }

    /// A handler's first step has taken so long.
    fn note_time(&self, state: &mut State, time: Duration) {
        state.slow = state.slow << 1 | u8::from(time > SLOW);
        if time <= SLOW {
            return;
        }
        // The replies of those before it have waited for long enough.
        self.connection.queue.let_sender_go();
        if state.slow.count_ones() > 1 {
            state.slow = 0;
            self.connection.handover.leave_to_tasks(CALLS_BEHIND_SLOW);
        }
    }

    /// The state, unless the leader polls the future.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What the leader does at this moment. If that is `idle`, it is not looked after any more.
    pub(super) fn look(&self, idle: Option<Sight>) -> Sight {
        let Some(state) = self.try_state() else { return Sight::Polls };
        let sight = if state.is_running { Sight::Runs } else { Sight::Waits }(state.begun);
        if idle == Some(sight) {
            self.connection.handover.set_watched(false);
        }
        sight
    }

    /// The task that leads from here on, if this handler blocks the leader's thread. Whoever asks has it run.
    pub(super) fn replace_leader(self: &Arc<Self>, handler: u32) -> Option<Leader> {
        let mut state = self.try_state()?;
        if !state.is_running || state.begun != handler {
            return None;
        }
        state.is_running = false;
        state.leader = state.leader.wrapping_add(1);
        let number = state.leader;
        let last_calls = state.calls_behind_blocked;
        let is_soon = handler.wrapping_sub(state.last_blocked) <= 2 * last_calls;
        let calls = if is_soon { 2 * last_calls } else { 0 };
        let calls = calls.clamp(*CALLS_BEHIND_BLOCKED.start(), *CALLS_BEHIND_BLOCKED.end());
        (state.last_blocked, state.calls_behind_blocked) = (handler, calls);
        drop(state);
        self.connection.handover.leave_to_tasks(calls);
        Some(Leader { led: self.clone(), number })
    }
}

impl State {
    /// Polls the connection's future, which may give the call that begins next.
    fn poll(&mut self, handover: &Handover, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(cx);
        self.call = handover.take();
        polled
    }
}

/// The task that leads a connection.
pub(super) struct Leader {
    led: Arc<Led>,
    /// Which one it is.
    number: u32,
}

impl Future for Leader {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Leader { led, number } = &*self;
        let Some(mut state) = led.led_by(*number) else { return Poll::Ready(()) };
        if let Some(call) = state.call.take() {
            match led.begin(state, call, cx) {
                Some(led) => state = led,
                None => return Poll::Ready(()),
            }
        }
        if state.poll(&led.connection.handover, cx).is_ready() {
            let ended = state.future.take();
            drop(state);
            drop(ended);
            return Poll::Ready(());
        }
        if state.call.is_some() {
            // Unlike `tokio::task::yield_now`, this leaves the task where other threads find it.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Leader {
    /// A runtime that shuts down drops its tasks, and what they lead goes with them.
    fn drop(&mut self) {
        if let Some(mut state) = self.led.led_by(self.number) {
            let led = (state.call.take(), state.future.take());
            drop(state);
            drop(led);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        future::{pending, poll_fn},
        sync::mpsc,
        task::Waker,
    };

    use super::*;
    use crate::{Server, ServerConfig, server::tests::idle_connection, transport::lock};

    /// A leader whose connection's future hands over these calls, each when it is polled, and never ends.
    pub(in crate::server) fn leader(
        calls: impl IntoIterator<Item = BoxedCall>,
    ) -> (Server, Arc<Led>, Leader) {
        let (server, connection) = idle_connection(ServerConfig::default());
        connection.handover.set_watched(true);
        let mut calls = calls.into_iter().collect::<std::collections::VecDeque<_>>();
        let hands_over = connection.clone();
        let future = poll_fn(move |_| {
            calls.pop_front().into_iter().for_each(|call| hands_over.handover.put(call));
            Poll::Pending
        });
        let led = Led::new(connection, Box::pin(future));
        (server, led.clone(), Leader { led, number: 0 })
    }

    impl Led {
        pub(in crate::server) fn is_watched(&self) -> bool {
            self.connection.handover.is_watched()
        }

        pub(in crate::server) fn set_watched(&self, is_watched: bool) {
            self.connection.handover.set_watched(is_watched);
        }
    }

    fn poll(leader: &mut Leader) -> Poll<()> {
        Pin::new(leader).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A handler that does this in its first step.
    pub(in crate::server) fn call(act: impl FnOnce() + Send + 'static) -> BoxedCall {
        BoxedCall::new(async { act() })
    }

    /// What was woken before would wait on this thread while the handler blocks it.
    #[tokio::test]
    async fn one_handler_begins_in_a_turn_and_first_of_all() {
        let begun = Arc::new(AtomicU32::new(0));
        let calls = (0..3).map(|_| {
            let begun = begun.clone();
            call(move || {
                begun.fetch_add(1, Relaxed);
            })
        });
        let (_server, _led, mut leader) = leader(calls);
        for turn in 0..=3 {
            assert!(poll(&mut leader).is_pending());
            assert_eq!(begun.load(Relaxed), turn);
        }
    }

    #[tokio::test]
    async fn a_leader_that_a_handler_blocks_is_replaced_once_and_ends_with_the_handler() {
        let (tell, told) = mpsc::channel();
        let replaced = Arc::new(Mutex::new(None));
        let (led, others) = (Arc::new(Mutex::new(None::<Arc<Led>>)), replaced.clone());
        let its_led = led.clone();
        let blocks = move || {
            let led = lock(&its_led).take().expect("it was put there");
            let Sight::Runs(handler) = led.look(None) else { panic!("a handler runs") };
            assert!(led.replace_leader(handler.wrapping_add(1)).is_none(), "it is over");
            *lock(&others) = led.replace_leader(handler);
            assert!(led.replace_leader(handler).is_none());
            assert!(led.look(None) == Sight::Waits(handler), "the other one leads");
        };
        let next = move || tell.send(()).expect("the test goes on");
        let (_server, its, mut leader) = leader([call(blocks), call(next)]);
        *lock(&led) = Some(its.clone());
        assert!(poll(&mut leader).is_pending());
        assert!(poll(&mut leader).is_ready());
        drop(leader);
        let mut next_leader = lock(&replaced).take().expect("it was replaced");
        // The next calls get tasks.
        let calls_for_tasks = its.connection.handover.calls_for_tasks.load(Relaxed);
        assert_eq!(calls_for_tasks, *CALLS_BEHIND_BLOCKED.start());
        for _ in 0..2 {
            assert!(told.try_recv().is_err());
            assert!(poll(&mut next_leader).is_pending());
        }
        told.try_recv().expect("the other one has had it begin");
    }

    #[tokio::test]
    async fn behind_handlers_that_block_one_after_the_other_more_and_more_calls_get_tasks() {
        let (_server, led, _leader) = leader([]);
        let calls_for_tasks = &led.connection.handover.calls_for_tasks;
        let blocked_by = |handler| {
            (lock_often(&led.state).begun, lock_often(&led.state).is_running) = (handler, true);
            drop(led.replace_leader(handler).expect("it is replaced"));
            calls_for_tasks.swap(0, Relaxed)
        };
        let (fewest, most) = CALLS_BEHIND_BLOCKED.into_inner();
        let mut handler = 1;
        let mut expected = fewest;
        while expected < most {
            assert_eq!(blocked_by(handler), expected);
            handler += 2 * expected;
            expected *= 2;
        }
        for _ in 0..2 {
            assert_eq!(blocked_by(handler), most);
            handler += 2 * most;
        }
        assert_eq!(blocked_by(handler + 1), fewest);
    }

    /// Which of the handlers whose time is taken, of these times, is the one behind which others get tasks.
    fn found_behind(times: &[Duration]) -> Option<usize> {
        let (_server, led, _leader) = leader([]);
        let mut state = lock_often(&led.state);
        times.iter().position(|&time| {
            led.note_time(&mut state, time);
            led.connection.handover.calls_for_tasks.swap(0, Relaxed) == CALLS_BEHIND_SLOW
        })
    }

    #[tokio::test]
    async fn behind_slow_handlers_others_get_tasks() {
        let (quick, slow) = (SLOW, 2 * SLOW);
        assert_eq!(found_behind(&[quick; 100]), None);
        assert_eq!(found_behind(&[slow, slow]), Some(1));
        let apart = |quick_ones| [&[slow][..], &vec![quick; quick_ones], &[slow]].concat();
        assert_eq!(found_behind(&apart(6)), Some(7));
        assert_eq!(found_behind(&apart(7)), None, "the thread had to wait twice");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_few_handlers_is_taken() {
        let slow = || BoxedCall::new(async { tokio::time::advance(2 * SLOW).await });
        let begun = CALLS_PER_LOOK as usize;
        let calls = (0..=2 * begun).map(|_| slow());
        let (_server, led, mut leader) = leader(calls);
        let mut found = Vec::new();
        // A call is begun in the turn behind the one in which it was read.
        for turn in 0..=2 * begun + 1 {
            assert!(poll(&mut leader).is_pending());
            if led.connection.handover.calls_for_tasks.swap(0, Relaxed) > 0 {
                found.push(turn);
            }
        }
        assert_eq!(found, [begun + 1]);
    }

    /// The runtime shuts down.
    #[tokio::test]
    async fn what_a_leader_leads_goes_with_it() {
        let (held, (_server, connection)) =
            (Arc::new(()), idle_connection(ServerConfig::default()));
        let holds = held.clone();
        let future = async move {
            pending::<()>().await;
            drop(holds);
        };
        let led = Led::new(connection, Box::pin(future));
        let holds = held.clone();
        lock(&led.state).call = Some(call(move || drop(holds)));
        lock(&led.state).leader = 1;
        drop(Leader { led: led.clone(), number: 0 });
        assert_eq!(Arc::strong_count(&held), 3, "another one leads");
        drop(Leader { led, number: 1 });
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
