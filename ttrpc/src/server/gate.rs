//! Admission: how many calls and how many bytes of requests may be in flight.
//!
//! One gate per connection and one for the whole server. What passes is counted until it is
//! released; what does not pass waits as long as something is released now and then, and is
//! refused after [`stall_timeout`](crate::ServerConfig::stall_timeout) without that, and at once
//! from then on until something is.

use std::{
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::transport::stall::wait_while_moving;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

/// One pair of limits.
#[derive(Debug)]
pub(super) struct Gate {
    limit: Load,
    calls: AtomicUsize,
    bytes: AtomicUsize,
    released: Notify,
    is_stalled: AtomicBool,
}

impl Gate {
    pub(super) fn new(limit: Load) -> Self {
        Gate {
            limit: Load { calls: limit.calls.max(1), bytes: limit.bytes.max(1) },
            calls: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            released: Notify::new(),
            is_stalled: AtomicBool::new(false),
        }
    }

    /// Lets the load in if there is room now. A load of more bytes than the limit has room when
    /// there are no other bytes.
    pub(super) fn try_enter(&self, load: Load) -> bool {
        if load.calls > 0 && !add_up_to(&self.calls, load.calls, self.limit.calls) {
            return false;
        }
        if load.bytes > 0 && !add_up_to(&self.bytes, load.bytes, self.limit.bytes) {
            self.calls.fetch_sub(load.calls, SeqCst);
            return false;
        }
        true
    }

    /// Lets the load in, waiting as long as others leave. `false` when nobody does; time during
    /// which `is_paused` holds does not count.
    pub(super) async fn enter(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: impl Fn() -> bool,
    ) -> bool {
        if self.try_enter(load) {
            return true;
        }
        if self.is_stalled.load(Relaxed) {
            return false;
        }
        let attempt = || self.try_enter(load);
        let entered = wait_while_moving(&self.released, stall_timeout, attempt, is_paused).await;
        if !entered {
            self.is_stalled.store(true, Relaxed);
        }
        entered
    }

    /// Counts a load that is let in whether or not there is room.
    pub(super) fn force(&self, load: Load) {
        self.calls.fetch_add(load.calls, SeqCst);
        self.bytes.fetch_add(load.bytes, SeqCst);
    }

    /// Takes back what was let in.
    pub(super) fn leave(&self, load: Load) {
        self.calls.fetch_sub(load.calls, SeqCst);
        self.bytes.fetch_sub(load.bytes, SeqCst);
        if load.calls > 0 || load.bytes > 0 {
            self.is_stalled.store(false, Relaxed);
            self.released.notify_waiters();
        }
    }

    /// Calls in flight.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }

    /// Waits until no call is in flight.
    pub(super) async fn no_calls(&self) {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if self.calls() == 0 {
                return;
            }
            released.await;
        }
    }
}

/// Adds unless that goes over the limit; what alone is over the limit goes onto zero.
fn add_up_to(counter: &AtomicUsize, amount: usize, limit: usize) -> bool {
    let add = |now: usize| (now == 0 || now + amount <= limit).then_some(now + amount);
    counter.fetch_update(SeqCst, SeqCst, add).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: usize) -> Load {
        Load { calls: 0, bytes }
    }
    const CALL: Load = Load { calls: 1, bytes: 10 };

    #[test]
    fn a_load_over_the_limit_enters_alone() {
        let gate = Gate::new(Load { calls: 2, bytes: 100 });
        assert!(gate.try_enter(bytes(500)));
        assert!(!gate.try_enter(bytes(1)));
        gate.leave(bytes(500));
        assert!(gate.try_enter(bytes(100)));
    }

    #[test]
    fn a_load_that_fails_at_its_bytes_leaves_no_call_behind() {
        let gate = Gate::new(Load { calls: 2, bytes: 15 });
        assert!(gate.try_enter(CALL));
        assert!(!gate.try_enter(CALL));
        gate.leave(CALL);
        assert_eq!(gate.calls(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn it_waits_while_calls_leave_and_refuses_when_none_does() {
        let gate = Gate::new(Load { calls: 1, bytes: 100 });
        assert!(gate.try_enter(CALL));
        let second = Duration::from_secs(1);
        let waiting = gate.enter(CALL, second, || false);
        let leaving = async {
            tokio::time::sleep(second / 2).await;
            gate.leave(CALL);
        };
        let (entered, ()) = tokio::join!(waiting, leaving);
        assert!(entered);

        let start = tokio::time::Instant::now();
        assert!(!gate.enter(CALL, second, || false).await);
        assert_eq!(start.elapsed(), second);
        assert!(!gate.enter(CALL, second, || false).await);
        assert_eq!(start.elapsed(), second, "refused at once until something moves");
        gate.leave(CALL);
        assert!(gate.enter(CALL, second, || false).await);
    }
}
