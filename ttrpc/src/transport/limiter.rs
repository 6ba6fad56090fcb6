//! The one kind of limit: a count and a cost, granted first come, first served.
//!
//! A [`Limiter`] bounds calls in flight, the bytes of their requests, the bytes in inboxes, and the
//! frames and bytes of an outgoing queue. What it grants is counted until it is released. A load that
//! finds no room waits in a queue: a newcomer never overtakes, and a release wakes exactly the waiters that
//! it lets in. For limits that the application holds up, waiting follows the rule of [`stall`](super::stall).
//!
//! Without contention, granting and releasing is one atomic operation each. All that others must
//! notice stands in the same word as the counts, as flags, so there is one order of all changes and
//! no pair of atomics whose order could matter:
//!
//! ```text
//! bit 63      62      61       60      59 … 38   37 … 0
//!     WAITING WATCHED STALLED  CLOSED  count     cost
//! ```
//!
//! A release that finds a flag set takes the lock and acts on it. A task that wants to be noticed sets
//! its flag under that lock *before* it looks whether there is room. Wakers are the program's code: they
//! are cloned, woken and dropped without the lock.

mod waiting;

use std::{mem, sync::OnceLock, time::Duration};

use tokio::sync::Notify;

use super::{
    lock,
    stall::{Condition, stands_still},
    wait_until,
};
use crate::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};
use waiting::{WaiterQueue, Waiting, Watch};

/// There are waiters.
const WAITING: u64 = 1 << 63;
/// A task waits until less is in flight.
const WATCHED: u64 = 1 << 62;
/// A wait was in vain, and nothing has been released since.
const STALLED: u64 = 1 << 61;
/// Nothing is granted any more.
const CLOSED: u64 = 1 << 60;
const FLAGS: u64 = WAITING | WATCHED | STALLED | CLOSED;

const COST_BITS: u32 = 38;
const COUNT_BITS: u32 = 22;

/// What is counted: a number of things, and what it costs to keep them, in bytes.
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

    fn pack(self) -> u64 {
        ((self.count as u64) << COST_BITS) + self.cost as u64
    }

    fn unpack(word: u64) -> Self {
        let word = word & !FLAGS;
        let cost = word & ((1 << COST_BITS) - 1);
        Load { count: (word >> COST_BITS) as usize, cost: cost as usize }
    }

    pub(crate) fn is_within(self, other: Load) -> bool {
        self.count <= other.count && self.cost <= other.cost
    }
}

/// The limiter is closed: its connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Why a load is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The limiter is closed.
    Closed,
    /// There is no room, and nothing has been released for a whole wait.
    Stalled,
}

/// How far a load may go over the limit on costs: else one that costs more than the whole limit could
/// never come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overshoot {
    /// The last load that comes in may go over.
    Last,
    /// One that comes in alone may go over.
    Alone,
}

/// A limit on what is counted in so many bits: at least 1, and no more than half of what can be counted,
/// since a load may be let in over its limit.
pub(super) fn clamp(limit: usize, bits: u32) -> usize {
    limit.clamp(1, usize::try_from(1_u64 << (bits - 1)).unwrap_or(usize::MAX))
}

/// The bits of a number of so many bits, of which two numbers have none only if their sum is within the limit.
fn at_least_half(limit: usize, bits: u32) -> u64 {
    let half = limit.checked_ilog2().map_or(0, |log| (1 << log) / 2);
    // All bits from that of the half on, or all if there is no half.
    ((1 << bits) - 1) & !(u64::max(half, 1) - 1)
}

/// A limit, and what counts against it.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: Load,
    overshoot: Overshoot,
    /// Bits of which `used` has none as long as no flag is set and neither the count nor the cost is near its limit.
    crowded: u64,
    /// A packed [`Load`] and the flags.
    used: AtomicU64,
    /// Made when somebody first has to wait: an idle connection has none.
    line: OnceLock<Box<Line>>,
}

/// Those who wait.
#[derive(Debug, Default)]
struct Line {
    queue: Mutex<WaiterQueue>,
    /// Notified of releases while [`WATCHED`].
    released: Notify,
}

/// Room that was granted. Dropped unused, it is free for others; that is no progress for those who wait as long
/// as others move.
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
        let Limiter { used, .. } = self.limiter;
        if used.fetch_sub(self.load.pack(), AcqRel) & (WAITING | WATCHED) != 0 {
            self.limiter.note_unused();
        }
    }
}

impl Limiter {
    /// Both limits are clamped, see [`clamp`].
    pub(crate) fn new(limit: Load, overshoot: Overshoot) -> Self {
        let limit =
            Load { count: clamp(limit.count, COUNT_BITS), cost: clamp(limit.cost, COST_BITS) };
        let crowded = FLAGS
            | at_least_half(limit.count, COUNT_BITS) << COST_BITS
            | at_least_half(limit.cost, COST_BITS);
        Limiter { limit, overshoot, crowded, used: AtomicU64::new(0), line: OnceLock::new() }
    }

    fn line(&self) -> &Line {
        self.line.get_or_init(Box::default)
    }

    fn queue(&self) -> MutexGuard<'_, WaiterQueue> {
        lock(&self.line().queue)
    }

    pub(crate) fn limit(&self) -> Load {
        self.limit
    }

    /// What is in flight.
    pub(crate) fn load(&self) -> Load {
        Load::unpack(self.used.load(Acquire))
    }

    /// Whether the smallest load would have to wait now.
    pub(crate) fn is_full(&self) -> bool {
        let used = self.used.load(Acquire);
        used & self.crowded != 0
            && (used & WAITING != 0 || !self.fits(Load::one(1), Load::unpack(used)))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.used.load(Acquire) & CLOSED != 0
    }

    /// Whether a wait was in vain, and nothing has been released since.
    pub(crate) fn is_stalled(&self) -> bool {
        self.used.load(Acquire) & STALLED != 0
    }

    /// Whether a load may come to what is there.
    fn fits(&self, load: Load, used: Load) -> bool {
        let (count, cost) = (self.limit.count, self.limit.cost);
        let fits_cost = match self.overshoot {
            Overshoot::Last => used.cost < cost,
            Overshoot::Alone => used.cost == 0 || used.cost + load.cost <= cost,
        };
        (load.count == 0 || used.count + load.count <= count) && (load.cost == 0 || fits_cost)
    }

    /// Grants a load if it fits and, unless `in_turn`, no other load waits.
    fn add(&self, load: Load, in_turn: bool) -> bool {
        let packed = load.pack();
        let obstacles = if in_turn { CLOSED } else { CLOSED | WAITING };
        let add = |used| {
            // Most of the time there is much room, which takes fewer steps to see.
            let is_granted = (used | packed) & self.crowded == 0
                || (used & obstacles == 0 && self.fits(load, Load::unpack(used)));
            is_granted.then(|| used + packed)
        };
        self.used.fetch_update(AcqRel, Acquire, add).is_ok()
    }

    /// Grants a load if there is room now and no other load waits.
    #[inline]
    pub(crate) fn try_acquire(&self, load: Load) -> Option<Permit<'_>> {
        self.add(load, false).then(|| Permit { limiter: self, load })
    }

    /// Waits for its turn and for room.
    ///
    /// Cancel safe: dropped, it leaves the queue and releases what it had been granted. What is granted to a
    /// future that is neither polled nor dropped is lost to the others meanwhile.
    pub(crate) async fn acquire(&self, load: Load) -> Result<Permit<'_>, Closed> {
        if let Some(permit) = self.try_acquire(load) {
            return Ok(permit);
        }
        Waiting::new(self, load).await
    }

    /// The same as long as loads are released. When none has been for `stall_timeout`, it refuses, and
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
            permit = Waiting::new(self, load) => permit.map_err(|Closed| Refused::Closed),
            () = self.stall(stall_timeout, is_paused) => Err(Refused::Stalled),
        }
    }

    /// Waits until nothing has been released for `stall_timeout`, and notes that.
    async fn stall(&self, stall_timeout: Duration, is_paused: Condition<'_, bool>) {
        let releases = || self.queue().releases;
        while !self.note_stall(stands_still(stall_timeout, &releases, is_paused).await) {}
    }

    /// Counts a load whether or not there is room.
    pub(crate) fn force(&self, load: Load) {
        self.used.fetch_add(load.pack(), AcqRel);
    }

    /// Releases a load that was granted or forced.
    pub(crate) fn release(&self, load: Load) {
        let before = self.used.fetch_sub(load.pack(), AcqRel);
        if before & FLAGS != 0 {
            self.note_release();
        }
    }

    /// Waits until no more than this is in flight. It holds up no waiter.
    ///
    /// Cancel safe.
    pub(crate) async fn at_most(&self, load: Load) {
        let _watch = Watch::new(self);
        wait_until(&self.line().released, &|| self.load().is_within(load)).await;
    }

    /// The same as long as loads are released, see [`Limiter::acquire_while_moving`].
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
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, poll_fn},
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{
                AtomicBool,
                Ordering::{Relaxed, SeqCst},
            },
        },
        task::{Context, Poll, Wake, Waker},
    };

    use tokio::time::{Instant, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limiter(count: usize, cost: usize) -> Limiter {
        Limiter::new(Load { count, cost }, Overshoot::Alone)
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

    #[test]
    fn what_seems_to_have_much_room_fits() {
        const MOST: usize = if cfg!(miri) { 5 } else { 40 };
        let loads = || (0..MOST).flat_map(|count| (0..MOST).map(move |cost| Load { count, cost }));
        for (count, cost) in [(1, 1), (1, 40), (40, 1), (2, 3), (4, 5), (16, 31), (32, 33)] {
            for overshoot in [Overshoot::Last, Overshoot::Alone] {
                let limiter = Limiter::new(Load { count, cost }, overshoot);
                for used in loads() {
                    limiter.used.store(used.pack(), SeqCst);
                    assert_eq!(limiter.is_full(), !limiter.fits(Load::one(1), used), "{used:?}");
                    for load in loads() {
                        let is_roomy = (used.pack() | load.pack()) & limiter.crowded == 0;
                        assert!(!is_roomy || limiter.fits(load, used), "{load:?} to {used:?}");
                    }
                }
            }
        }
        let limiter = limiter(64, 1 << 20);
        assert_eq!(Load { count: 31, cost: (1 << 19) - 1 }.pack() & limiter.crowded, 0);
        assert!(Load { count: 32, cost: 0 }.pack() & limiter.crowded != 0);
        assert!(Load { count: 0, cost: 1 << 19 }.pack() & limiter.crowded != 0);
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
        let limiter = Limiter::new(Load { count: 9, cost: 100 }, Overshoot::Last);
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
    fn limits_are_at_least_one_and_at_most_half_of_what_can_be_counted() {
        let limit = limiter(usize::MAX, usize::MAX).limit();
        let half = |bits: u32| usize::try_from(1_u64 << (bits - 1)).unwrap_or(usize::MAX);
        assert_eq!(limit, Load { count: half(COUNT_BITS), cost: half(COST_BITS) });
        assert_eq!(limit.count, 1 << 21);
        assert_eq!(limiter(0, 0).limit(), Load::one(1));
    }

    #[tokio::test]
    async fn a_limiter_is_unmarked_when_nobody_waits_or_watches_any_more() {
        let limiter = limiter(1, 100);
        let flags = || limiter.used.load(Acquire) & FLAGS;
        {
            assert!(take(&limiter, Load::one(1)));
            let mut first = pin!(limiter.at_most(Load::default()));
            let mut waiting = pin!(limiter.acquire(Load::one(1)));
            assert!(is_ready(first.as_mut()).await.is_none());
            {
                let mut second = pin!(limiter.at_most(Load::default()));
                assert!(is_ready(second.as_mut()).await.is_none());
            }
            assert!(is_ready(waiting.as_mut()).await.is_none());
            assert_eq!(flags(), WATCHED | WAITING);
            limiter.release(Load::one(1));
            assert_eq!(flags(), WATCHED);
            assert!(is_ready(waiting).await.is_some_and(|granted| granted.is_ok()));
        }
        assert_eq!(flags(), 0);
    }

    #[tokio::test]
    async fn a_load_that_finds_room_as_it_enters_the_queue_does_not_wait() {
        let limiter = limiter(1, 100);
        // As if there had been a release since it was found full.
        let mut waiting = pin!(Waiting::new(&limiter, Load::one(1)));
        let permit = is_ready(waiting.as_mut()).await.expect("there is room").expect("it is open");
        assert_eq!(limiter.used.load(Acquire), Load::one(1).pack());
        drop(permit);
        limiter.close();
        assert_eq!(
            is_ready(pin!(Waiting::new(&limiter, Load::one(1)))).await.unwrap().unwrap_err(),
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
            if self.limiter.line().queue.try_lock().is_err() {
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
