//! The life of a server, from the first connection to the last.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::Shared;
use crate::{
    snapshot::{ServerSnapshot, ServerState, time_until},
    transport::{lock, wait_until},
};

/// Where a server is in its life. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) enum Phase {
    /// Not served yet.
    Idle,
    /// Accepts connections and calls.
    Running,
    /// Accepts nothing and lets calls finish until this moment.
    Draining(Instant),
    /// Ends the connections that are left.
    Closing,
    /// Served no more.
    Done,
}

/// A server's phase, shared by all who act on it.
pub(super) struct Lifecycle {
    phase: Mutex<Phase>,
    /// Whether the phase is [`Phase::Running`], for those who ask often.
    is_running: AtomicBool,
    /// Notified of every change.
    changed: Notify,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle {
            phase: Mutex::new(Phase::Idle),
            is_running: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }
}

impl Lifecycle {
    /// Whether new calls are accepted.
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(SeqCst)
    }

    pub(super) fn snapshot(&self) -> ServerState {
        match self.phase() {
            Phase::Idle => ServerState::Idle,
            Phase::Running => ServerState::Serving,
            Phase::Draining(limit) => ServerState::Draining(time_until(limit)),
            Phase::Closing => ServerState::Draining(Duration::ZERO),
            Phase::Done => ServerState::Ended,
        }
    }

    fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    /// Moves on to the phase that follows the present one; gives back which that is.
    fn advance(&self, next: impl FnOnce(Phase) -> Phase) -> Phase {
        let mut guard = lock(&self.phase);
        let before = *guard;
        let phase = next(before);
        *guard = phase;
        self.is_running.store(phase == Phase::Running, SeqCst);
        drop(guard);
        if phase != before {
            self.changed.notify_waiters();
        }
        phase
    }

    /// Begins to run. `false` if the server was shut down before.
    pub(super) fn start(&self) -> bool {
        let start = |phase| if phase == Phase::Idle { Phase::Running } else { phase };
        self.advance(start) == Phase::Running
    }

    /// Begins to drain. Of two limits the earlier counts.
    fn drain(&self, limit: Instant) {
        self.advance(|phase| match phase {
            Phase::Idle => Phase::Done,
            Phase::Running => Phase::Draining(limit),
            Phase::Draining(earlier) => Phase::Draining(limit.min(earlier)),
            Phase::Closing | Phase::Done => phase,
        });
    }

    /// Begins to end the connections that are left.
    pub(super) fn close(&self) {
        self.advance(|_| Phase::Closing);
    }

    pub(super) fn finish(&self) {
        self.advance(|_| Phase::Done);
    }

    /// Waits until the server accepts nothing any more.
    pub(super) async fn draining(&self) {
        wait_until(&self.changed, &|| self.phase() > Phase::Running).await;
    }

    /// Waits until the connections that are left end.
    pub(super) async fn closing(&self) {
        wait_until(&self.changed, &|| self.phase() >= Phase::Closing).await;
    }

    async fn done(&self) {
        wait_until(&self.changed, &|| self.phase() == Phase::Done).await;
    }

    /// Waits until the drain's limit has passed, which may come nearer meanwhile, or the server closes.
    pub(super) async fn limit_passed(&self) {
        loop {
            let phase = self.phase();
            let is_another = || self.phase() != phase;
            let change = wait_until(&self.changed, &is_another);
            match phase {
                Phase::Idle | Phase::Running => change.await,
                Phase::Draining(limit) if timeout_at(limit, change).await.is_ok() => {}
                Phase::Draining(_) | Phase::Closing | Phase::Done => return,
            }
        }
    }
}

impl fmt::Debug for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.phase().fmt(f)
    }
}

/// Shuts a server down, from wherever. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl ServerHandle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        ServerHandle { shared }
    }

    /// Shuts the server down gracefully, and completes when it has ended.
    ///
    /// At once, whether or not the future is polled: listeners close, new calls get UNAVAILABLE,
    /// and connections close as soon as the calls that they have accepted are answered. What is not
    /// done after `limit` is aborted as by [`ServerHandle::close`]. Of several calls the earliest
    /// limit counts. A server that is not served yet will not be.
    ///
    /// A handler that awaits this waits for itself, and is aborted at the limit: there, use
    /// [`ServerHandle::begin_shutdown`].
    ///
    /// Cancel safe: dropped, the shutdown goes on.
    pub fn shutdown(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        self.begin_shutdown(limit);
        let shared = self.shared.clone();
        async move { shared.lifecycle.done().await }
    }

    /// Begins what [`ServerHandle::shutdown`] does, and does not wait for its end.
    pub fn begin_shutdown(&self, limit: Duration) {
        let now = Instant::now();
        // A limit too far away to be named is as good as 30 years.
        let far = Duration::from_secs(30 * 365 * 24 * 3600);
        self.shared.lifecycle.drain(now.checked_add(limit).unwrap_or(now + far));
    }

    /// Closes the server at once, and completes when it has ended: pending calls are lost with
    /// their connections, handlers are polled once more with their tokens fired and are dropped.
    pub fn close(&self) -> impl Future<Output = ()> + Send + 'static {
        self.shutdown(Duration::ZERO)
    }

    /// Waits until the server has ended.
    ///
    /// Cancel safe.
    pub async fn ended(&self) {
        self.shared.lifecycle.done().await;
    }

    /// What the server, its connections and its calls are waiting for at this moment. It takes a few
    /// locks one after another and may be made under load.
    pub fn snapshot(&self) -> ServerSnapshot {
        self.shared.snapshot()
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Calls in flight on all connections. A call is counted until its handler has ended, which may
    /// be later than its answer.
    pub fn calls_in_flight(&self) -> usize {
        self.shared.calls.load().count
    }
}
