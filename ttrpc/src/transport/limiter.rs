//! The one kind of limit: a count and a cost, granted first come, first served.
//!
//! A [`Quota`] is a limit and what counts against it: calls in flight, the bytes of their requests, the bytes in
//! inboxes, the frames and bytes of an outgoing queue. What it grants is counted until it is released. A load for which
//! there is no capacity waits in a queue: a newcomer to this limit never overtakes, and a release wakes exactly the waiters
//! that it admits. For limits that the application blocks, waiting follows the rule of [`stall`](super::stall).
//!
//! A quota lies behind a lock: its own, which makes it a [`Limiter`], or that of what it limits ([`Limited`]), which is held
//! for a few instructions. Wakers are the program's code: they are cloned, woken and dropped without it.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    mem,
    ops::{AddAssign, SubAssign},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    lock,
    stall::{Condition, stalled},
};
use crate::{contain::wake_all, sync::Mutex};

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

    /// A limit that is at least 1 in both parts and leaves space to count loads beyond it.
    pub(crate) fn limit(count: usize, cost: usize) -> Self {
        let clamp = |limit: usize| limit.clamp(1, usize::MAX / 2);
        Load { count: clamp(count), cost: clamp(cost) }
    }

    pub(crate) fn is_within(self, other: Load) -> bool {
        self.count <= other.count && self.cost <= other.cost
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.count += other.count;
        self.cost += other.cost;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Load) {
        self.count -= other.count;
        self.cost -= other.cost;
    }
}

/// The limiter is closed: its connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Which load may exceed the limit on costs: one that costs more than the whole limit could otherwise never be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oversubscribe {
    /// Any load while the limit is not reached.
    AnyLast,
    /// A load that is the only one.
    OnlyWhenEmpty,
}

/// A limit, and what counts against it.
#[derive(Debug)]
pub(crate) struct Quota {
    limit: Load,
    oversubscribe: Oversubscribe,
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

/// Wakers of those that may go on, to be woken without the lock.
pub(super) type Wakers = Vec<Waker>;

impl Quota {
    /// Both parts of the limit are clamped, see [`Load::limit`].
    pub(super) fn new(limit: Load, oversubscribe: Oversubscribe) -> Self {
        Quota {
            limit: Load::limit(limit.count, limit.cost),
            oversubscribe,
            used: Load::default(),
            releases: 0,
            is_closed: false,
            is_stalled: false,
            waiting: None,
        }
    }

    pub(super) fn used(&self) -> Load {
        self.used
    }

    /// Returns whether the smallest load would have to wait now.
    pub(super) fn is_full(&self) -> bool {
        self.has_waiters() || !self.fits(Load::one(1))
    }

    /// Releases so far.
    pub(super) fn releases(&self) -> u64 {
        self.releases
    }

    fn has_waiters(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.waiters.is_empty())
    }

    fn fits(&self, load: Load) -> bool {
        let (used, limit) = (self.used, self.limit);
        let fits_cost = match self.oversubscribe {
            Oversubscribe::AnyLast => used.cost < limit.cost,
            Oversubscribe::OnlyWhenEmpty => {
                used.cost == 0 || used.cost.saturating_add(load.cost) <= limit.cost
            }
        };
        (load.count == 0 || used.count.saturating_add(load.count) <= limit.count)
            && (load.cost == 0 || fits_cost)
    }

    /// Grants a load if there is capacity now and no other load waits.
    pub(super) fn try_acquire(&mut self, load: Load) -> bool {
        let is_granted = !self.is_closed && !self.has_waiters() && self.fits(load);
        if is_granted {
            self.used += load;
        }
        is_granted
    }

    /// Counts a load whether or not there is capacity.
    pub(super) fn force(&mut self, load: Load) {
        self.used += load;
    }

    /// Releases a load that was granted or forced.
    pub(super) fn release(&mut self, load: Load) -> Wakers {
        self.releases += 1;
        self.is_stalled = false;
        self.return_capacity(load)
    }

    /// Returns capacity that was not used, which is no progress.
    pub(super) fn return_capacity(&mut self, load: Load) -> Wakers {
        self.used -= load;
        if self.waiting.is_some() { self.admit() } else { Wakers::new() }
    }

    /// Polls for a waiter, which enters the queue unless it has a ticket. Returns its ticket while it waits, and the waiter
    /// that is left over.
    fn wait(
        &mut self,
        ticket: Option<u64>,
        waiter: Waiter,
    ) -> (Poll<Result<(), Closed>>, Option<u64>, Option<Waiter>) {
        let is_closed = self.is_closed;
        let WaitQueue { waiters, next_ticket, .. } = &mut **self.waiting.get_or_insert_default();
        match ticket {
            None if is_closed => (Poll::Ready(Err(Closed)), None, Some(waiter)),
            None => {
                let ticket = *next_ticket;
                *next_ticket += 1;
                (Poll::Pending, Some(ticket), waiters.insert(ticket, waiter))
            }
            Some(ticket) => match waiters.get_mut(&ticket) {
                None => (Poll::Ready(Ok(())), None, Some(waiter)),
                Some(_) if is_closed => (Poll::Ready(Err(Closed)), None, waiters.remove(&ticket)),
                Some(before) => (Poll::Pending, Some(ticket), Some(mem::replace(before, waiter))),
            },
        }
    }

    /// A waiter leaves the queue, or returns the load that it was granted. Returns the wakers of others, and the waiter.
    fn leave(&mut self, ticket: u64, load: Load) -> (Wakers, Option<Waiter>) {
        let waiter = self.waiting.as_mut().and_then(|waiting| waiting.waiters.remove(&ticket));
        let wakers = match waiter {
            // The next one may need less.
            Some(_) => self.admit(),
            None => self.return_capacity(load),
        };
        (wakers, waiter)
    }

    /// Admits the first waiters that fit. Returns their wakers and those of all watchers.
    fn admit(&mut self) -> Wakers {
        let Some(mut waiting) = self.waiting.take() else { return Wakers::new() };
        let mut wakers = mem::take(&mut waiting.watchers);
        while let Some(first) = waiting.waiters.first_entry()
            && !self.is_closed
            && self.fits(first.get().load)
        {
            let Waiter { load, waker } = first.remove();
            self.used += load;
            wakers.extend(waker);
        }
        self.waiting = Some(waiting);
        wakers
    }

    /// Notes that a wait has timed out, unless something has been released after all.
    fn note_stall(&mut self, releases: u64) -> bool {
        let is_stalled = self.releases == releases;
        self.is_stalled |= is_stalled;
        is_stalled
    }

    /// Grants nothing any more. Returns the wakers of all waiters.
    pub(super) fn close(&mut self) -> Wakers {
        self.is_closed = true;
        let waiters = self.waiting.iter_mut().flat_map(|waiting| waiting.waiters.values_mut());
        waiters.filter_map(|waiter| waiter.waker.take()).collect()
    }
}

/// What has a quota, behind a lock.
pub(super) trait Limited: Unpin {
    /// Acts on the quota with the lock.
    fn quota<R>(&self, act: impl FnOnce(&mut Quota) -> R) -> R;
}

/// Waits in the queue until a load is granted, which the caller releases then.
///
/// Cancel safe: dropped, it leaves the queue and releases what it had been granted. What is granted to a
/// future that is neither polled nor dropped is lost to the others meanwhile.
pub(super) fn acquire<L: Limited>(
    limited: L,
    load: Load,
) -> impl Future<Output = Result<(), Closed>> {
    Waiting { limited, load, ticket: None }
}

/// A waiter, which enters the queue when it is first polled.
struct Waiting<L: Limited> {
    limited: L,
    load: Load,
    /// `None` before the first poll and after the end.
    ticket: Option<u64>,
}

impl<L: Limited> Future for Waiting<L> {
    type Output = Result<(), Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Waiting { limited, load, ticket } = &*self;
        let (load, ticket) = (*load, *ticket);
        let waiter = Waiter { load, waker: Some(cx.waker().clone()) };
        // What is removed or replaced is dropped without the lock.
        let (polled, ticket, _before) = limited.quota(|quota| match ticket {
            None if quota.try_acquire(load) => (Poll::Ready(Ok(())), None, Some(waiter)),
            _ => quota.wait(ticket, waiter),
        });
        self.ticket = ticket;
        polled
    }
}

impl<L: Limited> Drop for Waiting<L> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let (wakers, _waiter) = self.limited.quota(|quota| quota.leave(ticket, self.load));
        wake_all(wakers);
    }
}

/// A quota with a lock of its own.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<Quota>);

impl Limited for &Limiter {
    fn quota<R>(&self, act: impl FnOnce(&mut Quota) -> R) -> R {
        act(&mut lock(&self.0))
    }
}

/// Capacity that was granted. Dropped, it is returned unused, which is no progress.
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
        wake_all(self.limiter.quota(|quota| quota.return_capacity(self.load)));
    }
}

impl Limiter {
    /// Both parts of the limit are clamped, see [`Load::limit`].
    pub(crate) fn new(limit: Load, oversubscribe: Oversubscribe) -> Self {
        Limiter(Mutex::new(Quota::new(limit, oversubscribe)))
    }

    pub(crate) fn limit(&self) -> Load {
        self.quota(|quota| quota.limit)
    }

    /// Returns the load that is in use.
    pub(crate) fn load(&self) -> Load {
        self.quota(|quota| quota.used)
    }

    /// Returns whether the smallest load would have to wait now.
    pub(crate) fn is_full(&self) -> bool {
        self.quota(|quota| quota.is_full())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.quota(|quota| quota.is_closed)
    }

    /// Returns whether a wait has timed out, and nothing has been released since.
    pub(crate) fn is_stalled(&self) -> bool {
        self.quota(|quota| quota.is_stalled)
    }

    /// Grants a load if there is capacity now and no other load waits.
    pub(crate) fn try_acquire(&self, load: Load) -> Option<Permit<'_>> {
        self.quota(|quota| quota.try_acquire(load)).then(|| self.permit(load))
    }

    /// Waits in the queue until there is capacity. Cancel safe, see [`acquire`].
    pub(crate) async fn acquire(&self, load: Load) -> Result<Permit<'_>, Closed> {
        acquire(self, load).await.map(|()| self.permit(load))
    }

    fn permit(&self, load: Load) -> Permit<'_> {
        Permit { limiter: self, load }
    }

    /// Waits like [`Limiter::acquire`] while loads are released. `None` when none has been for `stall_timeout`, and at once
    /// from then on until one is; and when the limiter is closed. Time during which `is_paused` holds does not count.
    pub(crate) async fn acquire_while_moving(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: Condition<'_, bool>,
    ) -> Option<Permit<'_>> {
        tokio::select! {
            biased;
            permit = self.acquire(load) => permit.ok(),
            () = self.stall(stall_timeout, is_paused) => None,
        }
    }

    /// Waits until nothing has been released for `stall_timeout`, and notes that. Completes at once from then on until
    /// something is.
    pub(crate) async fn stall(&self, stall_timeout: Duration, is_paused: Condition<'_, bool>) {
        let releases = || self.quota(|quota| quota.releases);
        while !self.is_stalled()
            && !self.note_stall(stalled(stall_timeout, &releases, is_paused).await)
        {}
    }

    /// Notes that a wait has timed out, unless something has been released after all.
    pub(in crate::transport) fn note_stall(&self, releases: u64) -> bool {
        self.quota(|quota| quota.note_stall(releases))
    }

    /// Counts a load whether or not there is capacity.
    pub(crate) fn force(&self, load: Load) {
        self.quota(|quota| quota.force(load));
    }

    /// Releases a load that was granted or forced.
    pub(crate) fn release(&self, load: Load) {
        wake_all(self.quota(|quota| quota.release(load)));
    }

    /// Waits until no more than this is in use. It blocks no waiter.
    ///
    /// Cancel safe.
    pub(crate) async fn at_most(&self, load: Load) {
        poll_fn(|cx| {
            // Copied, and dropped if it is there already, without the lock.
            let mut waker = Some(cx.waker().clone());
            self.quota(|quota| {
                if quota.used.is_within(load) {
                    return Poll::Ready(());
                }
                let watchers = &mut quota.waiting.get_or_insert_default().watchers;
                if !watchers.iter().any(|watcher| watcher.will_wake(cx.waker())) {
                    watchers.extend(waker.take());
                }
                Poll::Pending
            })
        })
        .await
    }

    /// Grants nothing any more, and wakes all waiters.
    pub(crate) fn close(&self) {
        wake_all(self.quota(|quota| quota.close()));
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
        assert!(acquire().await.is_none());
        assert_eq!(start.elapsed(), SECOND);
        assert!(acquire().await.is_none());
        assert_eq!(start.elapsed(), SECOND, "refused at once until something is released");
        limiter.release(call);
        acquire().await.unwrap().into_load();
        assert!(acquire().await.is_none());
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
        let less = || async {
            tokio::select! {
                biased;
                () = limiter.at_most(Load::one(1)) => true,
                () = limiter.stall(SECOND, &|| false) => false,
            }
        };
        for _ in 0..4 {
            assert!(take(&limiter, Load::one(1)));
        }
        let releases = async {
            for _ in 0..3 {
                tokio::time::sleep(SECOND * 3 / 4).await;
                limiter.release(Load::one(1));
            }
        };
        assert!(tokio::join!(less(), releases).0);

        assert!(take(&limiter, Load::one(1)));
        let start = Instant::now();
        for _ in 0..2 {
            assert!(!less().await);
            assert_eq!(start.elapsed(), SECOND, "refused at once until something is released");
        }
        limiter.release(Load::one(1));
        assert!(less().await);
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
            let state = lock(&limiter.0);
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
        let mut waiting = pin!(acquire(&limiter, Load::one(1)));
        is_ready(waiting.as_mut()).await.expect("there is room").expect("it is open");
        assert_eq!(limiter.load(), Load::one(1));
        limiter.release(Load::one(1));
        limiter.close();
        assert_eq!(
            is_ready(pin!(acquire(&limiter, Load::one(1)))).await.unwrap().unwrap_err(),
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
            if self.limiter.0.try_lock().is_err() {
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
