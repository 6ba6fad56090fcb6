//! A limit on a count and a cost, granted first come, first served.
//!
//! A [`Quota`] is a limit and what counts against it: calls in flight, the bytes of their requests, the bytes in all
//! inboxes of a connection or a server, replies that wait, the frames and bytes of an outgoing queue. What it grants is
//! counted until it is released. A load for which there is no capacity waits in a queue: a newcomer to this limit never
//! overtakes, and a release wakes exactly the waiters that it admits. For limits that the application blocks, waiting
//! follows the rule of [`stall`](super::stall).
//!
//! A quota lies behind a lock: its own, which makes it a [`Limiter`], or that of what it limits ([`Limited`]), which is held
//! for a few instructions. Wakers are the program's code: they are cloned, woken and dropped without it.

mod waiting;

use std::{
    mem,
    ops::{AddAssign, SubAssign},
    task::Waker,
};

use self::waiting::WaitQueue;
pub(super) use self::waiting::acquire;
use super::lock;
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
    /// As many as there were when a wait last timed out.
    releases_at_stall: Option<u64>,
    is_closed: bool,
    /// `None` until somebody has to wait: an idle connection has none.
    waiting: Option<Box<WaitQueue>>,
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
            releases_at_stall: None,
            is_closed: false,
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
        self.return_capacity(load)
    }

    /// Returns capacity that was not used, which is no progress.
    pub(super) fn return_capacity(&mut self, load: Load) -> Wakers {
        self.used -= load;
        if self.waiting.is_some() { self.admit() } else { Wakers::new() }
    }
}

/// What has a quota, behind a lock.
pub(super) trait Limited: Unpin {
    /// Acts on the quota with the lock.
    fn quota<R>(&self, act: impl FnOnce(&mut Quota) -> R) -> R;
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
        self.quota(|quota| quota.releases_at_stall == Some(quota.releases))
    }

    /// Grants a load if there is capacity now and no other load waits.
    pub(crate) fn try_acquire(&self, load: Load) -> Option<Permit<'_>> {
        self.quota(|quota| quota.try_acquire(load)).then(|| self.permit(load))
    }

    fn permit(&self, load: Load) -> Permit<'_> {
        Permit { limiter: self, load }
    }

    /// Counts a load whether or not there is capacity.
    pub(crate) fn force(&self, load: Load) {
        self.quota(|quota| quota.force(load));
    }

    /// Releases a load that was granted or forced.
    pub(crate) fn release(&self, load: Load) {
        wake_all(self.quota(|quota| quota.release(load)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn limiter(count: usize, cost: usize) -> Limiter {
        Limiter::new(Load { count, cost }, Oversubscribe::OnlyWhenEmpty)
    }

    pub(super) fn take(limiter: &Limiter, load: Load) -> bool {
        limiter.try_acquire(load).map(Permit::into_load).is_some()
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

    #[test]
    fn limits_are_at_least_one_and_leave_room_to_count_beyond_them() {
        let half = usize::MAX / 2;
        let most = limiter(usize::MAX, usize::MAX);
        assert_eq!(most.limit(), Load { count: half, cost: half });
        most.force(Load { count: half, cost: half });
        assert!(most.try_acquire(Load::one(usize::MAX)).is_none());
        assert_eq!(limiter(0, 0).limit(), Load::one(1));
    }
}
