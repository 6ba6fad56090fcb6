//! The life of a server, from the first connection to the last.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::Shared;
use crate::{
    snapshot::{ServerSnapshot, ServerState, time_until},
    transport::lock,
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
    /// Served no more.
    Done,
}

/// A server's phase, shared by all who act on it.
pub(super) struct Lifecycle {
    phase: watch::Sender<Phase>,
    /// Whether the phase is [`Phase::Running`], for those who ask often.
    is_running: AtomicBool,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle { phase: watch::Sender::new(Phase::Idle), is_running: AtomicBool::new(false) }
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
            Phase::Done => ServerState::Ended,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Begins to run. `false` if the server was shut down before.
    pub(super) fn start(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let is_idle = *phase == Phase::Idle;
            if is_idle {
                *phase = Phase::Running;
                self.is_running.store(true, SeqCst);
            }
            is_idle
        })
    }

    /// Begins to drain. Of two limits the earlier counts.
    fn drain(&self, limit: Instant) {
        self.phase.send_if_modified(|phase| {
            let next = match *phase {
                Phase::Idle => Phase::Done,
                Phase::Running => Phase::Draining(limit),
                Phase::Draining(earlier) => Phase::Draining(limit.min(earlier)),
                Phase::Done => Phase::Done,
            };
            self.is_running.store(false, SeqCst);
            let is_change = next != *phase;
            *phase = next;
            is_change
        });
    }

    pub(super) fn finish(&self) {
        self.is_running.store(false, SeqCst);
        self.phase.send_replace(Phase::Done);
    }

    /// Waits until the phase is such.
    pub(super) async fn wait(&self, is_such: impl FnMut(&Phase) -> bool) {
        let mut phase = self.phase.subscribe();
        // The sender is part of `self` and outlives the wait.
        let _ = phase.wait_for(is_such).await;
    }

    /// Waits until the drain's limit has passed, which may come nearer meanwhile.
    pub(super) async fn limit_passed(&self) {
        let mut phase = self.phase.subscribe();
        loop {
            let limit = match *phase.borrow_and_update() {
                Phase::Draining(limit) => Some(limit),
                Phase::Done => return,
                Phase::Idle | Phase::Running => None,
            };
            tokio::select! {
                () = async { sleep_until(limit.unwrap_or_else(Instant::now)).await }, if limit.is_some() => return,
                _ = phase.changed() => {}
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
        async move { shared.lifecycle.wait(|phase| *phase == Phase::Done).await }
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
        self.shared.lifecycle.wait(|phase| *phase == Phase::Done).await;
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
        self.shared.calls.load().calls
    }
}
