//! Waiting for a limit: first come, first served, and only while something is released.
//!
//! A waiter enters the queue when it is first polled. A release admits the first ones that fit, which find that out when they
//! are polled; one that gives up leaves the queue, or returns what it was granted. Watchers wait until little is in use,
//! and block no waiter.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{Closed, Limited, Limiter, Load, Permit, Quota, Wakers};
use crate::{
    contain::wake_all,
    transport::stall::{Condition, stalled},
};

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    /// By ticket, so in order of arrival. A waiter leaves from the middle as easily as from the front.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Woken by the next release, see [`Limiter::at_most`].
    watchers: Vec<Waker>,
}

#[derive(Debug)]
pub(super) struct Waiter {
    load: Load,
    /// `None` once it has been woken by the end.
    waker: Option<Waker>,
}

impl Quota {
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
    pub(super) fn admit(&mut self) -> Wakers {
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

    /// Grants nothing any more. Returns the wakers of all waiters.
    pub(in crate::transport) fn close(&mut self) -> Wakers {
        self.is_closed = true;
        let waiters = self.waiting.iter_mut().flat_map(|waiting| waiting.waiters.values_mut());
        waiters.filter_map(|waiter| waiter.waker.take()).collect()
    }
}

/// Waits in the queue until a load is granted, which the caller releases then.
///
/// Cancel safe: dropped, it leaves the queue and releases what it had been granted. What is granted to a
/// future that is neither polled nor dropped is lost to the others meanwhile.
pub(in crate::transport) fn acquire<L: Limited>(
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

impl Limiter {
    /// Waits in the queue until there is capacity. Cancel safe, see [`acquire`].
    pub(crate) async fn acquire(&self, load: Load) -> Result<Permit<'_>, Closed> {
        acquire(self, load).await.map(|()| self.permit(load))
    }

    /// Waits like [`Limiter::acquire`] while loads are released. `None` when none has been for `stall_timeout`, and at once
    /// from then on until one is; and when the limiter is closed. The time starts anew while `is_paused` holds.
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
        while !self.is_stalled() {
            self.note_stall(stalled(stall_timeout, &releases, is_paused).await);
        }
    }

    /// Notes that a wait has timed out after so many releases.
    pub(in crate::transport) fn note_stall(&self, releases: u64) {
        self.quota(|quota| quota.releases_at_stall = quota.releases_at_stall.max(Some(releases)));
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
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
        task::Wake,
    };

    use tokio::time::{Instant, timeout};

    use super::{
        super::tests::{limiter, take},
        *,
    };
    use crate::transport::lock;

    const SECOND: Duration = Duration::from_secs(1);

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
