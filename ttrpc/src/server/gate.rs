//! Admission: how many calls and how many bytes of requests may be in flight.
//!
//! One gate per connection and one for the whole server. What passes is counted until it is
//! released; what does not pass waits as long as something is released now and then, and is
//! refused after [`stall_timeout`](crate::ServerConfig::stall_timeout) without that, and at once
//! from then on until something is.

use std::{
    sync::atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::transport::{
    stall::{Ask, wait_while_moving},
    wait_until,
};

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

/// Bits of a packed load that count bytes; the others count calls. A terabyte of requests and 16
/// million calls are more than any limit that makes sense.
const BYTES_BITS: u32 = 40;

/// Half of the bytes that can be counted, or of those that there can be on a system of 32 bits.
const MAX_BYTES: usize =
    if usize::BITS < BYTES_BITS { usize::MAX / 2 } else { (1u64 << (BYTES_BITS - 1)) as usize };

impl Load {
    /// Both counts in one word, so that they change in one step.
    fn pack(self) -> u64 {
        ((self.calls as u64) << BYTES_BITS) + self.bytes as u64
    }

    fn unpack(packed: u64) -> Self {
        let bytes = packed & ((1 << BYTES_BITS) - 1);
        Load { calls: (packed >> BYTES_BITS) as usize, bytes: bytes as usize }
    }

    /// Whether this may come to what is there. The last bytes may go over the limit: else what is
    /// longer than the limit could never come in, nor what is longer than what others leave free.
    fn fits(self, there: Load, limit: Load) -> bool {
        (self.calls == 0 || there.calls < limit.calls)
            && (self.bytes == 0 || there.bytes < limit.bytes)
    }
}

/// One pair of limits.
#[derive(Debug)]
pub(super) struct Gate {
    limit: Load,
    /// A packed [`Load`].
    inside: AtomicU64,
    /// Tasks that wait for `left`.
    waiting: AtomicUsize,
    left: Notify,
    is_stalled: AtomicBool,
}

/// Counts a waiting task until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, SeqCst);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Gate {
    pub(super) fn new(limit: Load) -> Self {
        // Half of each range is kept free for what goes over.
        let limit = Load {
            calls: limit.calls.clamp(1, 1 << (u64::BITS - BYTES_BITS - 1)),
            bytes: limit.bytes.clamp(1, MAX_BYTES),
        };
        Gate {
            limit,
            inside: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            left: Notify::new(),
            is_stalled: AtomicBool::new(false),
        }
    }

    /// Lets the load in if there is room now.
    pub(super) fn try_enter(&self, load: Load) -> bool {
        let add = |inside| {
            let fits = load.fits(Load::unpack(inside), self.limit);
            fits.then_some(inside + load.pack())
        };
        self.inside.fetch_update(SeqCst, SeqCst, add).is_ok()
    }

    /// Lets the load in, waiting as long as others leave. `false` when nobody does; time during
    /// which `is_paused` holds does not count.
    pub(super) async fn enter(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: Ask<'_, bool>,
    ) -> bool {
        if self.try_enter(load) {
            return true;
        }
        if self.is_stalled.load(Relaxed) {
            return false;
        }
        let _waiting = Waiting::new(&self.waiting);
        let attempt = || self.try_enter(load);
        let left = &self.left;
        let entered = wait_while_moving(left, stall_timeout, &attempt, &|| 0, is_paused).await;
        if !entered {
            self.is_stalled.store(true, Relaxed);
        }
        entered
    }

    /// Counts a load that is let in whether or not there is room.
    pub(super) fn force(&self, load: Load) {
        self.inside.fetch_add(load.pack(), SeqCst);
    }

    /// Takes back what was let in.
    pub(super) fn leave(&self, load: Load) {
        self.inside.fetch_sub(load.pack(), SeqCst);
        self.is_stalled.store(false, Relaxed);
        // A task that waits has said so before it looked whether there is room.
        if self.waiting.load(SeqCst) > 0 {
            self.left.notify_waiters();
        }
    }

    /// What is in flight.
    pub(super) fn load(&self) -> Load {
        Load::unpack(self.inside.load(SeqCst))
    }

    /// Waits until no call is in flight.
    pub(super) async fn no_calls(&self) {
        let _waiting = Waiting::new(&self.waiting);
        wait_until(&self.left, &|| self.load().calls == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: usize) -> Load {
        Load { calls: 0, bytes }
    }
    const CALL: Load = Load { calls: 1, bytes: 10 };

    #[test]
    fn the_last_load_may_go_over_the_limit() {
        let gate = Gate::new(Load { calls: 2, bytes: 100 });
        assert!(gate.try_enter(bytes(99)));
        assert!(gate.try_enter(bytes(500)));
        assert!(!gate.try_enter(bytes(1)));
        gate.leave(bytes(500));
        assert!(gate.try_enter(bytes(100)));
    }

    #[test]
    fn a_load_that_fails_at_its_bytes_leaves_no_call_behind() {
        let gate = Gate::new(Load { calls: 2, bytes: 10 });
        assert!(gate.try_enter(CALL));
        assert!(!gate.try_enter(CALL));
        gate.leave(CALL);
        assert_eq!(gate.load().calls, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_while_calls_leave_and_refuses_when_none_does() {
        let gate = Gate::new(Load { calls: 1, bytes: 100 });
        assert!(gate.try_enter(CALL));
        let second = Duration::from_secs(1);
        let waiting = gate.enter(CALL, second, &|| false);
        let leaving = async {
            tokio::time::sleep(second / 2).await;
            gate.leave(CALL);
        };
        let (entered, ()) = tokio::join!(waiting, leaving);
        assert!(entered);

        let start = tokio::time::Instant::now();
        assert!(!gate.enter(CALL, second, &|| false).await);
        assert_eq!(start.elapsed(), second);
        assert!(!gate.enter(CALL, second, &|| false).await);
        assert_eq!(start.elapsed(), second, "refused at once until something moves");
        gate.leave(CALL);
        assert!(gate.enter(CALL, second, &|| false).await);

        let leaving = async {
            tokio::time::sleep(second / 2).await;
            gate.leave(CALL);
        };
        let (entered, ()) = tokio::join!(gate.enter(CALL, second, &|| false), leaving);
        assert!(entered, "it waits again now that something has moved");
    }
}
