//! Moving frames: who may wait for whom.
//!
//! Every deadlock in ttrpc's history is a cycle of waits: a sender that waits for the socket while
//! it should be receiving, a lock held across a blocked write, a receive loop that waits for a
//! consumer who waits for the receive loop. This crate keeps one order. Each task waits only for what
//! stands to its right and, while that makes progress, for the application:
//!
//! ```text
//! caller → client sender → (socket) → server receiver → server sender → (socket) → client receiver → nobody
//! ```
//!
//! - A **caller** waits for a connection if its client reconnects, for a permit, for capacity in the
//!   client's outgoing [`queue`], and for its reply: for all of them no longer than its deadline.
//! - A **sender** ([`wire`]) waits for its queue and for the socket. After a failed write, a client's waits
//!   for the end of its receiver for a bounded time. It holds no lock while it writes. A lone frame is
//!   written by the task that pushes it, which waits for neither.
//! - A **server's receiver** waits for the socket, for capacity in the server's outgoing queue (only a
//!   write to the socket makes that, so a peer that never reads stops being read), and for handlers
//!   only while they make progress (`stall`).
//! - A **client's receiver** waits for the socket, and for the consumer of a stream whose [`inbox`]
//!   is full only while messages are taken from it (`stall`). Handing over a reply never waits.
//! - A **handler** waits for a permit to start or to resume, and for capacity in the server's queue. It may
//!   also wait for whatever a caller may, other calls included: no receiver waits for it without end.
//!
//! Every queue is bounded, in frames and in bytes; no lock is held across an await or around I/O.

pub(crate) mod address;
pub(crate) mod blocked;
pub(crate) mod connect;
pub(crate) mod coop;
#[cfg(test)]
pub(crate) mod fake_socket;
pub(crate) mod fork;
pub(crate) mod frames;
pub(crate) mod heard;
pub(crate) mod hvsock;
pub(crate) mod inbox;
#[cfg(all(test, shuttle))]
pub(crate) mod interleavings;
pub(crate) mod io;
pub(crate) mod limiter;
pub(crate) mod messages;
pub(crate) mod peer;
pub(crate) mod queue;
pub(crate) mod registry;
pub(crate) mod socket;
pub(crate) mod stall;
pub(crate) mod unix;
pub(crate) mod violations;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) mod vsock;
pub(crate) mod wire;
mod withdrawn;

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::PoisonError,
    task::Poll,
};

use tokio::{
    sync::Notify,
    task::{JoinHandle, coop::unconstrained},
};

use crate::{
    contain::{Contained, contain},
    sync::{Mutex, MutexGuard},
};
use stall::Condition;

/// A future whose type is forgotten.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Locks a mutex whose data stays valid if a holder panics: all critical sections of this crate
/// change their data in one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spawns a task that lives until its connection ends. The connection's stream of bytes may be the program's, whose
/// panic ends the task. All tasks are of one type, since the runtime's code for a task is compiled once for each.
pub(crate) fn spawn(future: BoxFuture<'static, ()>) -> JoinHandle<()> {
    let mut future = Contained::new(future);
    tokio::spawn(poll_fn(move |cx| contain(|| future.as_mut().poll(cx)).unwrap_or(Poll::Ready(()))))
}

/// Polls a future once, and from then on only when `is_due`, which a change that wakes it makes true first: for what seldom
/// happens to a task that wakes often. It belongs to one task, whose waker stays the same.
pub(crate) fn rarely<F: Future>(
    future: F,
    is_due: impl Fn(&F) -> bool,
) -> impl Future<Output = F::Output> {
    let (mut future, mut is_registered) = (Box::pin(future), false);
    poll_fn(move |cx| {
        if mem::replace(&mut is_registered, true) && !is_due(&future) {
            return Poll::Pending;
        }
        // A future that asks for a part of the task's budget, when that is spent, returns without having left the waker.
        pin!(unconstrained(future.as_mut())).poll(cx)
    })
}

/// Waits until `is_so`, which is looked at now and whenever a change is notified to all who wait.
pub(crate) async fn wait_until(changed: &Notify, is_so: Condition<'_, bool>) {
    loop {
        let mut change = pin!(changed.notified());
        // From here on no change is missed.
        change.as_mut().enable();
        if is_so() {
            return;
        }
        change.await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        sync::oneshot,
        task::{coop::consume_budget, yield_now},
        time::{Instant, timeout},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_seldom_happens_wakes_a_task_that_had_spent_its_budget() {
        let (ends, ended) = oneshot::channel::<()>();
        let mut seldom = pin!(rarely(tokio::spawn(ended), JoinHandle::is_finished));
        poll_fn(|cx| {
            while pin!(consume_budget()).poll(cx).is_ready() {}
            assert!(seldom.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        // What the spent budget has woken has run.
        yield_now().await;
        ends.send(()).expect("the task waits");
        let before = Instant::now();
        let ended = timeout(Duration::from_secs(1), seldom).await.expect("it has ended");
        ended.expect("the task does not panic").expect("it was sent");
        assert_eq!(Instant::now(), before, "it was woken");
    }
}
