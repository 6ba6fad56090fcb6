//! The one kind of limit: a count and a cost, granted first come, first served.
//!
//! A [`Limiter`] bounds calls in flight, the bytes of their requests, the bytes in inboxes, and the
//! frames and bytes of an outgoing queue. What it grants is counted until it is released. A load for which there is no
//! capacity waits in a queue: a newcomer to this limit never overtakes, and a release wakes exactly the waiters that
//! it admits. For limits that the application blocks, waiting follows the rule of [`stall`](super::stall).
//!
//! Everything is behind one lock, which is held for a few instructions. Wakers are the program's code: they
//! are cloned, woken and dropped without it.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    lock,
    stall::{Condition, stalled},
};
use crate::{
    contain::wake_all,
    sync::{Mutex, MutexGuard},
};

/// The unit of a limit: a number of things, and what it costs to keep them, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) count: usize,
    pub(crate) cost: usize,
}

impl Load {
    /// One thing of this cost.
    pub(crate) const fn one(cost: usize) -> Self {
        Load { count: 1, cost }
    }

    /// A cost alone.
    pub(crate) const fn cost(cost: usize) -> Self {
        Load { count: 0, cost }
    }

    pub(crate) fn is_within(self, other: Load) -> bool {
        self.count <= other.count && self.cost <= other.cost
    }
}

/// The limiter is closed: its connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Why a load is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The limiter is closed.
    Closed,
    /// There is no capacity, and nothing has been released for a whole `stall_timeout`.
    Stalled,
}

/// Which load may exceed the limit on costs: one that costs more than the whole limit could otherwise never be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oversubscribe {
    /// Any load while the limit is not reached.
    AnyLast,
    /// A load that is the only one.
    OnlyWhenEmpty,
}

/// A limit that is at least 1 and leaves space to count loads beyond it.
pub(super) fn clamp(limit: usize) -> usize {
    limit.clamp(1, usize::MAX / 2)
}

/// A limit, and what counts against it.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: Load,
    oversubscribe: Oversubscribe,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: Load,
    /// Releases so far, of loads that were in use.
    releases: u64,
    is_closed: bool,
    /// A wait has timed out, and nothing has been released since.
    is_stalled: bool,
    /// `None` until somebody has to wait: an idle connection has none.
    waiting: Option<Box<WaitQueue>>,
}

/// Those that wait.
#[derive(Debug, Default)]
struct WaitQueue {
    /// By ticket, so in order of arrival. A waiter leaves from the middle as easily as from the front.
    waiters: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Woken by the next release, see [`Limiter::at_most`].
    watchers: Vec<Waker>,
}

#[derive(Debug)]
struct Waiter {
    load: Load,
    /// `None` once it has been woken by the end.
    waker: Option<Waker>,
}

/// Capacity that was granted. Dropping an unused permit returns capacity but does not count as progress.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    limiter: &'a Limiter,
    load: Load,
}

impl Permit<'_> {
    /// Leaves it to the caller to release the load.
    pub(crate) fn into_load(self) -> Load {
        let load = self.load;
        mem::forget(self);
        load
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.return_capacity(self.limiter.state(), self.load);
    }
}

impl Limiter {
    /// Both limits are clamped, see [`clamp`].
    pub(crate) fn new(limit: Load, oversubscribe: Oversubscribe) -> Self {
        let limit = Load { count: clamp(limit.count), cost: clamp(limit.cost) };
        Limiter { limit, oversubscribe, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn limit(&self) -> Load {
        self.limit
    }

    /// Returns the load that is in use.
    pub(crate) fn load(&self) -> Load {
        self.state().used
    }

    /// Returns whether the smallest load would have to wait now.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state();
        state.has_waiters() || !self.fits(Load::one(1), state.used)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Releases so far.
    pub(super) fn releases(&self) -> u64 {
        self.state().releases
    }

    /// Returns whether a wait has timed out, and nothing has been released since.
    pub(crate) fn is_stalled(&self) -> bool {
        self.state().is_stalled
    }

    fn fits(&self, load: Load, used: Load) -> bool {
        let (count, cost) = (self.limit.count, self.limit.cost);
        let fits_cost = match self.oversubscribe {
            Oversubscribe::AnyLast => used.cost < cost,
            Oversubscribe::OnlyWhenEmpty => {
                used.cost == 0 || used.cost.saturating_add(load.cost) <= cost
            }
        };
        (load.count == 0 || used.count.saturating_add(load.count) <= count)
            && (load.cost == 0 || fits_cost)
    }

    /// Grants a load that fits.
    fn grant(&self, state: &mut State, load: Load) -> bool {
        let is_granted = !state.is_closed && self.fits(load, state.used);
        if is_granted {
            state.add(load);
        }
        is_granted
    }

    /// Grants a load if there is capacity now and no other load waits.
    pub(crate) fn try_acquire(&self, load: Load) -> Option<Permit<'_>> {
        let mut state = self.state();
        let is_granted = !state.has_waiters() && self.grant(&mut state, load);
        drop(state);
        is_granted.then(|| Permit { limiter: self, load })
    }

    /// Waits in the queue until there is capacity.
    ///
    /// Cancel safe: dropped, it leaves the queue and releases what it had been granted. What is granted to a
    /// future that is neither polled nor dropped is lost to the others meanwhile.
    pub(crate) async fn acquire(&self, load: Load) -> Result<Permit<'_>, Closed> {
        match self.try_acquire(load) {
            Some(permit) => Ok(permit),
            None => Waiting { limiter: self, load, ticket: None }.await,
        }
    }

    /// Waits like [`Limiter::acquire`] while loads are released. When none has been for `stall_timeout`, it refuses, and
    /// refuses at once from then on until one is. Time during which `is_paused` holds does not count.
    pub(crate) async fn acquire_while_moving(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: Condition<'_, bool>,
    ) -> Result<Permit<'_>, Refused> {
        if let Some(permit) = self.try_acquire(load) {
            return Ok(permit);
        }
        if self.is_stalled() {
            return Err(Refused::Stalled);
        }
        tokio::select! {
            biased;
            permit = self.acquire(load) => permit.map_err(|Closed| Refused::Closed),
            () = self.stall(stall_timeout, is_paused) => Err(Refused::Stalled),
        }
    }

    /// Waits until nothing has been released for `stall_timeout`, and notes that.
    async fn stall(&self, stall_timeout: Duration, is_paused: Condition<'_, bool>) {
        let releases = || self.releases();
        while !self.note_stall(stalled(stall_timeout, &releases, is_paused).await) {}
    }

    /// Notes that a wait has timed out, unless something has been released after all.
    pub(in crate::transport) fn note_stall(&self, releases: u64) -> bool {
        let mut state = self.state();
        let is_stalled = state.releases == releases;
        state.is_stalled |= is_stalled;
        is_stalled
    }

    /// Counts a load whether or not there is capacity.
    pub(crate) fn force(&self, load: Load) {
        self.state().add(load);
    }

    /// Releases a load that was granted or forced.
    pub(crate) fn release(&self, load: Load) {
        let mut state = self.state();
        state.releases += 1;
        state.is_stalled = false;
        self.return_capacity(state, load);
    }

    /// Returns capacity, and wakes the waiters that it admits.
    fn return_capacity(&self, mut state: MutexGuard<'_, State>, load: Load) {
        state.used.count -= load.count;
        state.used.cost -= load.cost;
        self.admit(state);
    }

    /// Admits the first waiters that fit, and wakes them and all watchers without the lock.
    fn admit(&self, mut state: MutexGuard<'_, State>) {
        let Some(mut waiting) = state.waiting.take() else { return };
        let mut wakers = mem::take(&mut waiting.watchers);
        while let Some(first) = waiting.waiters.first_entry()
            && self.grant(&mut state, first.get().load)
        {
            wakers.extend(first.remove().waker);
        }
        state.waiting = Some(waiting);
        drop(state);
        wake_all(wakers);
    }

    /// Waits until no more than this is in use. It blocks no waiter.
    ///
    /// Cancel safe.
    pub(crate) async fn at_most(&self, load: Load) {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = self.state();
            if state.used.is_within(load) {
                return Poll::Ready(());
            }
            let watchers = &mut state.waiting.get_or_insert_default().watchers;
            if !watchers.iter().any(|watcher| watcher.will_wake(&waker)) {
                watchers.push(waker);
            }
            Poll::Pending
        })
        .await
    }

    /// Waits like [`Limiter::at_most`] while loads are released, see [`Limiter::acquire_while_moving`].
    pub(crate) async fn at_most_while_moving(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: Condition<'_, bool>,
    ) -> Result<(), Refused> {
        tokio::select! {
            biased;
            () = self.at_most(load) => Ok(()),
            () = async {}, if self.is_stalled() => Err(Refused::Stalled),
            () = self.stall(stall_timeout, is_paused) => Err(Refused::Stalled),
        }
    }

    /// Grants nothing any more, and wakes all waiters.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiters = state.waiting.iter_mut().flat_map(|waiting| waiting.waiters.values_mut());
        let wakers: Vec<_> = waiters.filter_map(|waiter| waiter.waker.take()).collect();
        drop(state);
        wake_all(wakers);
    }
}

impl State {
    fn has_waiters(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.waiters.is_empty())
    }

    fn add(&mut self, load: Load) {
        self.used.count += load.count;
        self.used.cost += load.cost;
    }
}

/// A waiter, which enters the queue when it is first polled.
struct Waiting<'a> {
    limiter: &'a Limiter,
    load: Load,
    /// `None` before the first poll and after the end.
    ticket: Option<u64>,
}

impl<'a> Future for Waiting<'a> {
    type Output = Result<Permit<'a>, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Waiting { limiter, load, ticket } = *self;
        let waker = cx.waker().clone();
        let mut state = limiter.state();
        if ticket.is_none() && !state.has_waiters() && limiter.grant(&mut state, load) {
            // There was a release since it was found full.
            return Poll::Ready(Ok(Permit { limiter, load }));
        }
        let is_closed = state.is_closed;
        let WaitQueue { waiters, next_ticket, .. } = &mut **state.waiting.get_or_insert_default();
        // What is removed or replaced is dropped without the lock.
        let (polled, _before) = match ticket {
            None if is_closed => (Poll::Ready(Err(Closed)), None),
            None => {
                let ticket = *next_ticket;
                *next_ticket += 1;
                self.ticket = Some(ticket);
                (Poll::Pending, waiters.insert(ticket, Waiter { load, waker: Some(waker) }))
            }
            Some(ticket) if !waiters.contains_key(&ticket) => {
                self.ticket = None;
                (Poll::Ready(Ok(Permit { limiter, load })), None)
            }
            Some(ticket) if is_closed => {
                self.ticket = None;
                (Poll::Ready(Err(Closed)), waiters.remove(&ticket))
            }
            Some(ticket) => {
                (Poll::Pending, waiters.insert(ticket, Waiter { load, waker: Some(waker) }))
            }
        };
        drop(state);
        polled
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.limiter.state();
        let waiter = state.waiting.as_mut().and_then(|waiting| waiting.waiters.remove(&ticket));
        match waiter {
            // The next one may need less.
            Some(_) => self.limiter.admit(state),
            None => {
                drop(state);
                self.limiter.release(self.load);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, poll_fn},
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
        task::{Context, Poll, Wake, Waker},
    };

    use tokio::time::{Instant, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limiter(count: usize, cost: usize) -> Limiter {
        Limiter::new(Load { count, cost }, Oversubscribe::OnlyWhenEmpty)
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program's");
        }
    }

    /// A release wakes several at a time, and so does the end.
    #[tokio::test(start_paused = true)]
    async fn a_waker_that_panics_keeps_no_other_waiter_from_being_woken() {
        for is_closed in [false, true] {
            let limiter = limiter(2, 10);
            limiter.force(Load { count: 2, cost: 2 });
            let mut first = pin!(limiter.acquire(Load::one(1)));
            let panics = Arc::new(Panics).into();
            assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
            let mut second = pin!(limiter.acquire(Load::one(1)));
            let polled = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            match is_closed {
                true => limiter.close(),
                false => limiter.release(Load { count: 2, cost: 2 }),
            }
            let woken = timeout(SECOND, second).await.expect("it is woken");
            assert_eq!(woken.is_err(), is_closed);
        }
    }

    fn take(limiter: &Limiter, load: Load) -> bool {
        limiter.try_acquire(load).map(Permit::into_load).is_some()
    }

    async fn is_ready<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut future = future;
        poll_fn(|cx| {
            Poll::Ready(match future.as_mut().poll(cx) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn limits_hold_and_what_is_longer_than_the_limit_comes_in_alone() {
        let limiter = limiter(3, 100);
        assert!(take(&limiter, Load::one(500)));
        assert!(!take(&limiter, Load::one(1)));
        limiter.release(Load::one(500));
        assert!(take(&limiter, Load::one(60)));
        assert!(!take(&limiter, Load::one(41)));
        assert!(take(&limiter, Load::one(40)));
        assert!(take(&limiter, Load::one(0)));
        assert!(!take(&limiter, Load::one(0)), "three are in");
        assert_eq!(limiter.load(), Load { count: 3, cost: 100 });
    }

    #[test]
    fn the_last_load_may_go_over_the_limit() {
        let limiter = Limiter::new(Load { count: 9, cost: 100 }, Oversubscribe::AnyLast);
        assert!(take(&limiter, Load::one(99)) && take(&limiter, Load::one(500)));
        assert!(!take(&limiter, Load::one(1)));
        limiter.release(Load::one(500));
        assert!(take(&limiter, Load::one(100)));
    }

    #[tokio::test]
    async fn waiting_is_first_come_first_served_and_a_newcomer_does_not_overtake() {
        let limiter = limiter(10, 100);
        assert!(take(&limiter, Load::one(90)));
        let mut large = pin!(limiter.acquire(Load::one(50)));
        let mut small = pin!(limiter.acquire(Load::one(5)));
        assert!(is_ready(large.as_mut()).await.is_none());
        assert!(is_ready(small.as_mut()).await.is_none(), "it fits, but another was first");
        assert!(limiter.try_acquire(Load::one(1)).is_none());
        limiter.release(Load::one(90));
        let (large, small) = (is_ready(large).await, is_ready(small).await);
        assert!(large.is_some_and(|large| large.is_ok()) && small.is_some_and(|s| s.is_ok()));
        assert_eq!(limiter.load(), Load::default(), "permits are released when they are dropped");
    }

    #[tokio::test]
    async fn a_waiter_that_goes_lets_in_those_behind_it_and_keeps_nothing() {
        let limiter = limiter(10, 100);
        assert!(take(&limiter, Load::one(90)));
        let mut large = Box::pin(limiter.acquire(Load::one(50)));
        let mut small = pin!(limiter.acquire(Load::one(5)));
        assert!(is_ready(large.as_mut()).await.is_none());
        assert!(is_ready(small.as_mut()).await.is_none());
        drop(large);
        drop(is_ready(small).await.expect("it is let in"));

        let mut granted = Box::pin(limiter.acquire(Load::one(50)));
        assert!(is_ready(granted.as_mut()).await.is_none());
        limiter.release(Load::one(90));
        drop(granted);
        assert_eq!(limiter.load(), Load::default(), "granted, and given up before it was seen");
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_while_others_release_and_refuses_when_none_does() {
        let limiter = limiter(1, 100);
        let call = Load::one(10);
        assert!(take(&limiter, call));
        let releases = async {
            tokio::time::sleep(SECOND / 2).await;
            limiter.release(call);
        };
        let acquire = || limiter.acquire_while_moving(call, SECOND, &|| false);
        let (permit, ()) = tokio::join!(acquire(), releases);
        permit.unwrap().into_load();

        let start = Instant::now();
        assert_eq!(acquire().await.unwrap_err(), Refused::Stalled);
        assert_eq!(start.elapsed(), SECOND);
        assert_eq!(acquire().await.unwrap_err(), Refused::Stalled);
        assert_eq!(start.elapsed(), SECOND, "refused at once until something is released");
        limiter.release(call);
        acquire().await.unwrap().into_load();
        assert_eq!(acquire().await.unwrap_err(), Refused::Stalled);
        assert_eq!(start.elapsed(), 2 * SECOND, "it waits again, since something was released");
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_as_long_as_others_move_however_long_that_is() {
        let limiter = limiter(1, 1);
        assert!(take(&limiter, Load::one(0)));
        let busy = async {
            for _ in 0..100 {
                tokio::time::sleep(SECOND / 2).await;
                limiter.release(Load::one(0));
                let permit = limiter.acquire_while_moving(Load::one(0), SECOND, &|| false).await;
                permit.unwrap().into_load();
            }
        };
        let patient = async {
            for _ in 0..3 {
                drop(limiter.acquire_while_moving(Load::one(0), SECOND, &|| false).await.unwrap());
            }
        };
        tokio::join!(busy, patient);
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_for_less_in_flight_while_loads_are_released() {
        let limiter = limiter(10, 100);
        let less = || limiter.at_most_while_moving(Load::one(1), SECOND, &|| false);
        for _ in 0..4 {
            assert!(take(&limiter, Load::one(1)));
        }
        let releases = async {
            for _ in 0..3 {
                tokio::time::sleep(SECOND * 3 / 4).await;
                limiter.release(Load::one(1));
            }
        };
        assert_eq!(tokio::join!(less(), releases).0, Ok(()));

        assert!(take(&limiter, Load::one(1)));
        let start = Instant::now();
        for _ in 0..2 {
            assert_eq!(less().await, Err(Refused::Stalled));
            assert_eq!(start.elapsed(), SECOND, "refused at once until something is released");
        }
        limiter.release(Load::one(1));
        assert_eq!(less().await, Ok(()));
    }

    #[tokio::test]
    async fn a_task_that_waits_for_less_in_flight_is_woken_and_holds_up_no_waiter() {
        let limiter = limiter(2, 100);
        assert!(take(&limiter, Load::one(1)) && take(&limiter, Load::one(1)));
        let mut rest = pin!(limiter.at_most(Load::one(1)));
        assert!(is_ready(rest.as_mut()).await.is_none());
        limiter.release(Load::one(1));
        assert!(is_ready(rest).await.is_some());
        assert!(take(&limiter, Load::one(1)));
    }

    #[tokio::test]
    async fn a_closed_limiter_tells_those_who_wait_and_those_who_come() {
        let limiter = limiter(1, 1);
        assert!(take(&limiter, Load::one(0)));
        let mut waiting = pin!(limiter.acquire(Load::one(0)));
        assert!(is_ready(waiting.as_mut()).await.is_none());
        limiter.close();
        assert_eq!(is_ready(waiting).await.unwrap().unwrap_err(), Closed);
        assert_eq!(limiter.acquire(Load::one(0)).await.unwrap_err(), Closed);
        limiter.release(Load::one(0));
        assert!(limiter.try_acquire(Load::one(0)).is_none());
    }

    #[test]
    fn limits_are_at_least_one_and_leave_room_to_count_beyond_them() {
        let half = usize::MAX / 2;
        let most = limiter(usize::MAX, usize::MAX);
        assert_eq!(most.limit(), Load { count: half, cost: half });
        most.force(Load { count: half, cost: half });
        assert!(most.try_acquire(Load::one(usize::MAX)).is_none());
        assert_eq!(limiter(0, 0).limit(), Load::one(1));
    }

    #[tokio::test]
    async fn nobody_is_left_in_the_queue_when_nobody_waits_or_watches_any_more() {
        let limiter = limiter(1, 100);
        let waiting = || {
            let state = limiter.state();
            let queue = state.waiting.as_ref().expect("somebody has waited");
            (queue.waiters.len(), queue.watchers.len())
        };
        assert!(take(&limiter, Load::one(1)));
        let mut watches = [0; 2].map(|_| Box::pin(limiter.at_most(Load::default())));
        let mut waits = pin!(limiter.acquire(Load::one(1)));
        for _ in 0..2 {
            for watch in &mut watches {
                assert!(is_ready(watch.as_mut()).await.is_none());
            }
            assert!(is_ready(waits.as_mut()).await.is_none());
        }
        assert_eq!(waiting(), (1, 1), "one task watches");
        limiter.release(Load::one(1));
        assert_eq!(waiting(), (0, 0));
        assert!(is_ready(waits).await.is_some_and(|granted| granted.is_ok()));
    }

    #[tokio::test]
    async fn a_load_that_finds_room_as_it_enters_the_queue_does_not_wait() {
        let limiter = limiter(1, 100);
        // As if there had been a release since it was found full.
        let mut waiting = pin!(Waiting { limiter: &limiter, load: Load::one(1), ticket: None });
        let permit = is_ready(waiting.as_mut()).await.expect("there is room").expect("it is open");
        assert_eq!(limiter.load(), Load::one(1));
        drop(permit);
        limiter.close();
        assert_eq!(
            is_ready(pin!(Waiting { limiter: &limiter, load: Load::one(1), ticket: None }))
                .await
                .unwrap()
                .unwrap_err(),
            Closed
        );
    }

    /// Notes whether the limiter is locked when it is dropped.
    struct LooksAtTheLock {
        limiter: Arc<Limiter>,
        was_locked: Arc<AtomicBool>,
    }

    impl Wake for LooksAtTheLock {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for LooksAtTheLock {
        fn drop(&mut self) {
            if self.limiter.state.try_lock().is_err() {
                self.was_locked.store(true, Relaxed);
            }
        }
    }

    #[test]
    fn a_waker_that_another_one_replaces_is_dropped_without_the_lock() {
        let (limiter, was_locked) = (Arc::new(limiter(1, 1)), Arc::<AtomicBool>::default());
        assert!(take(&limiter, Load::one(0)));
        {
            let mut waiting = pin!(limiter.acquire(Load::one(0)));
            for _ in 0..3 {
                let (limiter, was_locked) = (limiter.clone(), was_locked.clone());
                let waker = Waker::from(Arc::new(LooksAtTheLock { limiter, was_locked }));
                assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
        }
        assert!(!was_locked.load(Relaxed));
    }
}
