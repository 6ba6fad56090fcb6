//! The task that connects, waits until the connection is lost, and begins again.
//!
//! It knows nothing of calls but whether one waits. All that wait for a connection look at one [`LinkState`].

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    sync::Arc,
    task::Poll,
};

use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use super::{
    Backoff,
    state::{ClientState, LinkState},
};
use crate::{
    Connection, ConnectionError, Error,
    client::connection::{ConnectionTasks, Settings, observe::ObservedConnection},
    contain::{Contained, Panicked, contain},
    snapshot::{ClientSnapshot, QueueSnapshot, merge_calls},
    sync::Mutex,
    transport::{BoxFuture, fork::Origin, lock, registry::Registry, spawn},
};

/// Opens a connection.
pub(in crate::client) type Open =
    Box<dyn Fn() -> BoxFuture<'static, Result<Connection, Error>> + Send + Sync>;

/// How a manager connects, and when.
pub(in crate::client) struct Plan {
    pub(in crate::client) open: Open,
    pub(in crate::client) backoff: Backoff,
    /// Connects as soon as there is no connection; else when a call needs one.
    pub(in crate::client) is_eager: bool,
    pub(in crate::client) settings: Settings,
}

/// Owns the task that connects. It ends when the last client and the last call that waits for a connection are gone.
pub(in crate::client) struct Manager {
    pub(super) shared: Arc<Shared>,
    task: AbortHandle,
    pub(super) origin: Origin,
}

/// What the task and those that wait for it share.
pub(super) struct Shared {
    pub(super) state: watch::Sender<LinkState>,
    /// The calls that wait for a connection.
    pub(super) registry: Registry,
    /// For calls that have no connection yet.
    pub(super) observed: Arc<ObservedConnection>,
    reports: Mutex<Reports>,
    plan: Plan,
}

/// The states that observers are going to receive.
#[derive(Default)]
struct Reports {
    states: VecDeque<ClientState>,
    /// A task reports them.
    is_busy: bool,
}

impl Manager {
    /// Spawns the task, which begins with a connection if there is one.
    pub(in crate::client) fn spawn(plan: Plan, first: Option<Connection>) -> Arc<Self> {
        let observed = ObservedConnection::none(plan.settings.observers.clone());
        let state = watch::Sender::new(LinkState::Idle);
        let shared = Arc::new(Shared {
            state,
            registry: Registry::default(),
            observed,
            reports: Mutex::default(),
            plan,
        });
        let first = first.and_then(|connection| shared.adopt(connection));
        // It says so also where nothing can be spawned, or when the runtime ends.
        let guard = EndGuard(shared.clone());
        let run = async move { guard.0.run(first).await.unwrap_or_default() };
        let task = spawn(Box::pin(run)).abort_handle();
        Arc::new(Manager { shared, task, origin: Origin::here() })
    }

    /// Makes no more connections. Returns the last one, which goes on until it is closed or the last client is gone.
    pub(super) fn shut_down(&self, reason: ConnectionError) -> Option<Arc<ConnectionTasks>> {
        if !self.origin.is_here() {
            return None;
        }
        self.shared.change_by(|present| match present {
            LinkState::Ready(tasks) => Some(LinkState::ShutDown(reason, Some(tasks.clone()))),
            _ => Some(LinkState::ShutDown(reason, None)),
        });
        self.connection()
    }

    pub(super) fn connection(&self) -> Option<Arc<ConnectionTasks>> {
        self.shared.state.borrow().connection().cloned()
    }

    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let state = self.shared.state.borrow().clone();
        let waiting = merge_calls([], self.shared.registry.callers());
        let mut snapshot = match state.connection() {
            Some(tasks) => tasks.connection.snapshot(),
            None => ClientSnapshot {
                state: ClientState::Idle,
                close_reason: None,
                queue: QueueSnapshot::of_no_connection(&self.shared.plan.settings.config),
                receiver: None,
                calls: Vec::new(),
            },
        };
        snapshot.close_reason = state.close_reason();
        snapshot.state = state.public();
        snapshot.calls.extend(waiting);
        snapshot
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if self.origin.is_here() {
            self.task.abort();
            self.shared.change(LinkState::ShutDown(ConnectionError::ClosedLocally, None));
            // Those that watch the state keep no connection open. It is dropped without the lock.
            let mut last = None;
            self.shared.state.send_if_modified(|state| {
                if let LinkState::ShutDown(_, tasks) = state {
                    last = tasks.take();
                }
                false
            });
        }
    }
}

/// Says that there will be no connection, in whatever way the task ends.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.change(LinkState::ShutDown(ConnectionError::ClosedLocally, None));
    }
}

/// Failures in a row.
struct Outage {
    failures: u32,
    since: Instant,
}

impl Outage {
    fn begin() -> Self {
        Outage { failures: 0, since: Instant::now() }
    }
}

impl Shared {
    /// Connects, again and again, until the state is `ShutDown`.
    async fn run(&self, mut current: Option<Arc<ConnectionTasks>>) -> Option<()> {
        let mut state = self.state.subscribe();
        let backoff = &self.plan.backoff;
        if current.is_none() {
            self.needed(None, &mut state).await?;
        }
        let mut outage = Outage::begin();
        loop {
            let failure = match current.take() {
                Some(tasks) => {
                    let opened = Instant::now();
                    let reason = lost(tasks, &mut state).await?;
                    let is_short = opened.elapsed() < backoff.bound(1);
                    if !is_short {
                        outage = Outage::begin();
                    }
                    // One that is lost at once is no better than none: else the client would spin.
                    is_short.then_some(reason)
                }
                None => match self.attempt(&mut state).await? {
                    Ok(tasks) => {
                        current = Some(tasks);
                        continue;
                    }
                    Err(cause) => Some(cause),
                },
            };
            if let Some(cause) = &failure {
                outage.failures += 1;
                if is_final(cause) || backoff.is_exhausted(outage.failures, outage.since) {
                    self.change(LinkState::ShutDown(cause.clone(), None));
                    return None;
                }
                let until = Instant::now() + backoff.pause(outage.failures);
                self.change(LinkState::BackingOff(until, cause.clone()));
                unless_shut_down(&mut state, sleep_until(until)).await?;
            }
            if self.needed(failure, &mut state).await? {
                outage.since = Instant::now();
            }
        }
    }

    /// Waits until a connection is needed, which it is already while a call waits. Returns whether it waited. `None` when the
    /// client is shut down.
    async fn needed(
        &self,
        failure: Option<ConnectionError>,
        state: &mut watch::Receiver<LinkState>,
    ) -> Option<bool> {
        if self.plan.is_eager || !self.registry.callers().is_empty() {
            self.change(LinkState::Connecting(failure))?;
            return Some(false);
        }
        self.change(LinkState::Idle)?;
        let is_needed = state.wait_for(|state| !matches!(state, LinkState::Idle)).await.ok()?;
        (!is_needed.is_shut_down()).then_some(true)
    }

    /// Connects once. `None` when the client is shut down.
    async fn attempt(
        &self,
        state: &mut watch::Receiver<LinkState>,
    ) -> Option<Result<Arc<ConnectionTasks>, ConnectionError>> {
        match unless_shut_down(state, contained(&self.plan.open)).await? {
            Ok(Ok(connection)) => self.adopt(connection).map(Ok),
            Ok(Err(error)) => Some(Err(no_connection(error))),
            Err(Panicked) => {
                let panicked =
                    Error::Custom("the program's function that connects panicked".into());
                self.change(LinkState::ShutDown(no_connection(panicked), None));
                None
            }
        }
    }

    /// Uses a connection from now on. `None` when the client is shut down.
    fn adopt(&self, connection: Connection) -> Option<Arc<ConnectionTasks>> {
        let tasks = ConnectionTasks::spawn(connection, &self.plan.settings);
        tasks.connection.queue.keep_unsent();
        self.change(LinkState::Ready(tasks.clone()))?;
        Some(tasks)
    }

    /// Changes the state, unless it is `ShutDown`. Returns the state before.
    fn change(&self, state: LinkState) -> Option<LinkState> {
        self.change_by(|_| Some(state))
    }

    /// Changes the state to the one that follows, if one does, unless it is `ShutDown`. Returns the state before.
    pub(super) fn change_by(
        &self,
        next: impl FnOnce(&LinkState) -> Option<LinkState>,
    ) -> Option<LinkState> {
        let mut before = None;
        self.state.send_if_modified(|present| {
            if present.is_shut_down() {
                return false;
            }
            let Some(state) = next(present) else { return false };
            // A call and the task may both see that a connection is needed.
            let is_seen = !matches!(
                (&*present, &state),
                (LinkState::Connecting(_), LinkState::Connecting(_))
            );
            if is_seen && !self.plan.settings.observers.is_empty() {
                lock(&self.reports).states.push_back(state.public());
            }
            before = Some(mem::replace(present, state));
            is_seen
        });
        self.report();
        before
    }

    /// Reports the states to observers in the order in which they came, whichever task changes them. No lock is held
    /// meanwhile, and a task that finds another one reporting leaves its own to that.
    fn report(&self) {
        let mut is_mine = false;
        loop {
            let mut reports = lock(&self.reports);
            if reports.is_busy && !is_mine {
                return;
            }
            let state = reports.states.pop_front();
            is_mine = state.is_some();
            reports.is_busy = is_mine;
            drop(reports);
            let Some(state) = state else { return };
            self.plan.settings.observers.notify(|observer| observer.client_state_changed(&state));
        }
    }
}

fn no_connection(error: Error) -> ConnectionError {
    ConnectionError::NoConnection(Arc::new(error))
}

/// Opens a connection in the program's way.
async fn contained(open: &Open) -> Result<Result<Connection, Error>, Panicked> {
    let mut opening = Contained::new(contain(open)?);
    poll_fn(|cx| {
        contain(|| opening.as_mut().poll(cx))
            .map_or_else(|panicked| Poll::Ready(Err(panicked)), |polled| polled.map(Ok))
    })
    .await
}

/// Returns whether it makes no sense to try again.
fn is_final(cause: &ConnectionError) -> bool {
    matches!(cause, ConnectionError::NoConnection(error) if matches!(**error, Error::Address { .. }))
}

/// Waits until a connection has ended, or has no stream ids left. `None` when the client is shut down.
async fn lost(
    tasks: Arc<ConnectionTasks>,
    state: &mut watch::Receiver<LinkState>,
) -> Option<ConnectionError> {
    tokio::select! {
        reason = tasks.connection.closed() => Some(reason),
        changed = state.wait_for(|state| !matches!(state, LinkState::Ready(_))) => {
            let is_spent = changed.is_ok_and(|state| !state.is_shut_down());
            is_spent.then_some(ConnectionError::IdsExhausted)
        }
    }
}

/// Waits for something else, as long as the client is not shut down.
async fn unless_shut_down<T>(
    state: &mut watch::Receiver<LinkState>,
    other: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        _ = state.wait_for(LinkState::is_shut_down) => None,
        output = other => Some(output),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::Mutex,
        task::{Context, Waker},
        time::Duration,
    };

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::{
        Client,
        client::{ConnectOptions, connection::calls::Calls},
    };

    /// Reads a Request, and answers it with an empty Response. Returns its stream id.
    async fn answer(server: &mut DuplexStream) -> u32 {
        let mut header = [0; 10];
        server.read_exact(&mut header).await.expect("a Request comes");
        let [.., l2, l3, i0, i1, i2, i3, _, _] = header;
        let mut data = vec![0; usize::from(l2) << 8 | usize::from(l3)];
        server.read_exact(&mut data).await.expect("it is whole");
        let response = [0, 0, 0, 2, i0, i1, i2, i3, 2, 0, 0x12, 0];
        server.write_all(&response).await.expect("the client reads");
        u32::from_be_bytes([i0, i1, i2, i3])
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_finds_no_stream_id_is_made_on_a_new_connection_and_others_go_on() {
        let accepted = Arc::new(Mutex::new(Vec::new()));
        let others = accepted.clone();
        let client = ConnectOptions::new().connect_through(move || {
            let (here, there) = duplex(1000);
            others.lock().unwrap().push(there);
            async move { Ok::<_, std::io::Error>(Connection::new(here)) }
        });
        let take = || accepted.lock().unwrap().pop().expect("the client has connected");
        let call = |client: &Client| client.unary::<(), ()>("S", "M", ());
        let (first, _) = tokio::join!(call(&client), async {
            while accepted.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let mut server = take();
            assert_eq!(answer(&mut server).await, 1);
            accepted.lock().unwrap().push(server);
        });
        first.expect("it is answered");
        let mut spent = take();
        let tasks = client.link.connection(false).expect("it is connected");
        tasks.connection.queue.streams(|calls| *calls = Calls::starting_at(u32::MAX));
        drop(tasks);
        // One that is lost at once counts as a failure to connect.
        tokio::time::advance(Duration::from_secs(3600)).await;
        let mut last = call(&client);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut last).poll(&mut cx).is_pending());
        let mut next = tokio::spawn(call(&client));
        let mut server = loop {
            assert!(!next.is_finished());
            if let Some(server) = accepted.lock().unwrap().pop() {
                break server;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(answer(&mut server).await, 1, "the new one has new ids");
        (&mut next).await.expect("no panic").expect("it is answered");
        assert_eq!(answer(&mut spent).await, u32::MAX);
        last.await.expect("the old one goes on until it is answered");
        let (third, id) = tokio::join!(call(&client), answer(&mut server));
        third.expect("it is answered");
        assert_eq!(id, 3);
        // The spent one ends with its last call.
        assert_eq!(spent.read(&mut [0]).await.expect("no failure"), 0);
    }
}
