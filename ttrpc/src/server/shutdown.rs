//! The life of a server, from the first connection to the last.

use std::{
    future::Future,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, timeout_at},
};

use crate::server::{
    Listener, Shared,
    accept::{accepting::AcceptControl, unserved::Unserved},
};
use crate::{
    Connection, Error,
    contain::notify_waiters,
    snapshot::{ServerSnapshot, ServerState, time_until},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    transport::{lock, wait_until},
};

/// The stage of a server's life. It only moves forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) enum Stage {
    /// Not served yet.
    #[default]
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

/// The stage that a server is in, shared by its tasks and its handles.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    stage: Mutex<Stage>,
    /// New calls are accepted: the stage is [`Stage::Running`]. It is read for each call, without the lock.
    pub(super) is_running: AtomicBool,
    /// Notified of every change.
    changed: Notify,
}

impl Lifecycle {
    /// Returns whether a shutdown has begun.
    fn is_draining(&self) -> bool {
        self.stage() > Stage::Running
    }

    pub(super) fn snapshot(&self) -> ServerState {
        match self.stage() {
            Stage::Idle => ServerState::Idle,
            Stage::Running => ServerState::Serving,
            Stage::Draining(limit) => ServerState::Draining(time_until(limit)),
            Stage::Closing => ServerState::Draining(Duration::ZERO),
            Stage::Done => ServerState::Ended,
        }
    }

    fn stage(&self) -> Stage {
        *lock(&self.stage)
    }

    /// Moves on to the stage that follows the present one, and returns it.
    fn advance(&self, next: impl FnOnce(Stage) -> Stage) -> Stage {
        let mut guard = lock(&self.stage);
        let before = *guard;
        let stage = next(before);
        *guard = stage;
        self.is_running.store(stage == Stage::Running, SeqCst);
        drop(guard);
        if stage != before {
            notify_waiters(&self.changed);
        }
        stage
    }

    /// Begins to run. `false` if the server was shut down before.
    pub(super) fn start(&self) -> bool {
        let start = |stage| if stage == Stage::Idle { Stage::Running } else { stage };
        self.advance(start) == Stage::Running
    }

    /// Begins to drain. Of two limits the earlier counts.
    pub(super) fn drain(&self, limit: Instant) {
        self.advance(|stage| match stage {
            Stage::Idle => Stage::Done,
            Stage::Running => Stage::Draining(limit),
            Stage::Draining(earlier) => Stage::Draining(limit.min(earlier)),
            Stage::Closing | Stage::Done => stage,
        });
    }

    /// Begins to end the connections that are left.
    pub(super) fn close(&self) {
        self.advance(|_| Stage::Closing);
    }

    pub(super) fn finish(&self) {
        self.advance(|_| Stage::Done);
    }

    /// Waits until the server runs, or has run.
    async fn started(&self) {
        wait_until(&self.changed, &|| self.stage() > Stage::Idle).await;
    }

    /// Waits for a change behind this moment.
    pub(super) fn next_change(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits until the server accepts nothing any more.
    pub(super) async fn draining(&self) {
        wait_until(&self.changed, &|| self.is_draining()).await;
    }

    /// Waits until the connections that are left end.
    pub(super) async fn closing(&self) {
        wait_until(&self.changed, &|| self.stage() >= Stage::Closing).await;
    }

    async fn done(&self) {
        wait_until(&self.changed, &|| self.stage() == Stage::Done).await;
    }

    /// Waits until the drain's limit has passed, which may come nearer meanwhile, or the server closes.
    pub(super) async fn limit_passed(&self) {
        loop {
            let stage = self.stage();
            let is_another = || self.stage() != stage;
            let change = wait_until(&self.changed, &is_another);
            match stage {
                Stage::Idle | Stage::Running => change.await,
                Stage::Draining(limit) if timeout_at(limit, change).await.is_ok() => {}
                Stage::Draining(_) | Stage::Closing | Stage::Done => return,
            }
        }
    }
}

/// Controls a server from anywhere: shuts it down, adds listeners and connections, takes snapshots. Cheap to
/// clone.
///
/// It does not keep the server alive, so that a service of the server may hold it.
///
/// ```no_run
/// # use std::time::Duration; use ttrpc::Server;
/// # async fn example(server: Server) {
/// let handle = server.handle();
/// tokio::spawn(server.serve());
/// println!("{}", handle.snapshot());
/// handle.shutdown(Duration::from_secs(5)).await;
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ServerHandle {
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) accept_control: Arc<AcceptControl>,
    /// Set when the server is built.
    pub(super) server: Arc<OnceLock<Weak<Shared>>>,
}

impl ServerHandle {
    /// The server, if it has been built and has not ended.
    fn server(&self) -> Option<Arc<Shared>> {
        self.server.get()?.upgrade()
    }

    /// Shuts the server down gracefully, and completes when it has ended.
    ///
    /// At once, whether or not the future is polled: listeners close, new calls get UNAVAILABLE,
    /// and connections close as soon as the calls that they have accepted are answered. What is not
    /// done after `limit` is aborted as by [`ServerHandle::close`]. Of several calls the earliest
    /// limit counts. A server that is not served yet will not be.
    ///
    /// The future takes up to a second longer than `limit` while handlers run that cannot be dropped. These are
    /// the handlers of [`server::blocking`](crate::server::blocking) and those that block their thread. Their
    /// calls have been answered, and their threads go on.
    ///
    /// A handler that awaits this waits for itself, and is aborted at the limit: there, use
    /// [`ServerHandle::begin_shutdown`].
    ///
    /// Cancel safe: dropped, the shutdown goes on.
    pub fn shutdown(&self, limit: Duration) -> impl Future<Output = ()> + Send + 'static {
        self.begin_shutdown(limit);
        let lifecycle = self.lifecycle.clone();
        async move { lifecycle.done().await }
    }

    /// Begins what [`ServerHandle::shutdown`] does, and does not wait for its end.
    pub fn begin_shutdown(&self, limit: Duration) {
        let now = Instant::now();
        // A limit too far away to be named is as good as 30 years.
        let far = Duration::from_secs(1_000_000_000);
        self.lifecycle.drain(now.checked_add(limit).unwrap_or(now + far));
    }

    /// Closes the server at once, and completes when it has ended.
    ///
    /// Pending calls are lost with their connections. Handlers are polled once more with their tokens fired,
    /// and are dropped.
    ///
    /// The future waits up to a second for handlers that cannot be dropped, as those of
    /// [`server::blocking`](crate::server::blocking). Listeners, connections and calls have ended before that.
    pub fn close(&self) -> impl Future<Output = ()> + Send + 'static {
        self.shutdown(Duration::ZERO)
    }

    /// Waits until the server has ended.
    ///
    /// Cancel safe.
    pub async fn ended(&self) {
        self.lifecycle.done().await;
    }

    /// Listens on one more address while the server runs, as
    /// [`ServerBuilder::bind`](super::ServerBuilder::bind) does.
    ///
    /// # Errors
    /// Those of [`Listener::bind`] and [`ServerHandle::listen`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(&self, address: &str) -> Result<(), Error> {
        self.listen(Listener::bind(address)?)
    }

    /// Accepts connections from one more listener while the server runs. A server that is not served
    /// yet begins with it when it is.
    ///
    /// # Errors
    /// [`Error::Listener`], and [`Error::ServerEnded`] from the moment when a shutdown begins.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn listen(&self, listener: impl Into<Listener>) -> Result<(), Error> {
        if self.lifecycle.is_draining() {
            return Err(Error::ServerEnded);
        }
        self.accept_control.add(listener.into())
    }

    /// Serves a connection that the program has made or accepted itself, as if a listener had accepted it.
    ///
    /// The server's limits, policy, snapshot and shutdown hold for it. Returns when the connection is being
    /// served, not when it ends.
    ///
    /// Waits while the server is not served yet, while
    /// [`max_connections`](crate::ServerConfig::max_connections) are open, and while the server's
    /// [`ConnectionHook`](super::ConnectionHook) runs. The hook depends on the peer and may take as long as its
    /// limit.
    ///
    /// So do not await this in a loop that accepts connections: one peer would delay the next. Spawn a task for
    /// each (`tokio::spawn(async move { handle.serve_connection(connection).await })`), or serve
    /// [`Listener::incoming`], whose connections do not wait for each other's hooks.
    ///
    /// A server that does not accept ([`ServerHandle::pause_accepting`]) serves it nevertheless.
    ///
    /// Cancel safe: dropped before it is done, it closes the connection. Poll it to its end or drop it: one that waits
    /// for `max_connections` is counted as soon as it may be served, so that a server that ends with its last
    /// connection waits for it.
    ///
    /// # Errors
    /// [`Error::PeerRefused`] by the server's policy or hook; [`Error::ServerEnded`] from the moment when a
    /// shutdown begins. The connection is closed then.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn serve_connection(&self, connection: impl Into<Connection>) -> Result<(), Error> {
        let connection = Unserved::new(connection.into());
        let admit = async {
            self.lifecycle.started().await;
            let server = self.server().ok_or(Error::ServerEnded)?;
            let permit = server.connection_permit().await;
            server.admit(connection, permit).await
        };
        tokio::select! {
            biased;
            () = self.lifecycle.draining() => Err(Error::ServerEnded),
            result = admit => result,
        }
    }

    /// Stops accepting connections from all listeners. Open connections go on; new clients wait in the
    /// listeners' backlogs. One that was taken from a [`Listener::incoming`] before, and waits while
    /// [`max_connections`](crate::ServerConfig::max_connections) are open, is served nevertheless.
    ///
    /// A supervisor that hands its socket to another process does this before that one begins to accept.
    ///
    /// It takes effect whether or not the future is awaited. When the future completes, no connection
    /// is accepted any more, until [`ServerHandle::resume_accepting`].
    ///
    /// Cancel safe.
    pub fn pause_accepting(&self) -> impl Future<Output = ()> + Send + 'static {
        self.accept_control.set_paused(true);
        let accept_control = self.accept_control.clone();
        async move { accept_control.paused().await }
    }

    /// Accepts connections again after [`ServerHandle::pause_accepting`].
    pub fn resume_accepting(&self) {
        self.accept_control.set_paused(false);
    }

    /// Returns what the server, its connections and its calls are waiting for at this moment. It takes a few
    /// locks one after another and may be made under load. For a server that is not built yet, or has ended, it
    /// has no limits.
    pub fn snapshot(&self) -> ServerSnapshot {
        let nothing = || ServerSnapshot::of_no_server(self.lifecycle.snapshot());
        self.server().map_or_else(nothing, |server| server.snapshot())
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.server().map_or(0, |server| lock(&server.connections).len())
    }

    /// Returns the number of calls in flight on all connections. A call is counted until its handler has ended,
    /// which may be later than its answer.
    pub fn calls_in_flight(&self) -> usize {
        self.server().map_or(0, |server| server.call_load().count)
    }
}
