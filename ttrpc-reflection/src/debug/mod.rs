//! `ttrpc.debug.v1.Debug`.

mod counters;
mod describe;

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use ttrpc::{
    Context, Status, async_trait,
    observer::{CallEnd, CallInfo, Observer},
    server::{Routes, ServerHandle, Service, StreamSender},
    snapshot::{ServerSnapshot, ServerState},
};

use crate::proto::debug::{
    self, DebugServer, Sample, SnapshotRequest, SnapshotResponse, WatchRequest,
};
use counters::Counters;
use describe::{describe, from_proto, to_proto};

/// The time between samples that nobody has asked for otherwise, and its bounds.
const INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// Shows operators what a server waits for: its connections, their queues and their calls.
///
/// A snapshot names every client's process and every call. Serve it where that is no secret to
/// those who may connect.
///
/// The service is added before the server exists, so the server is handed over afterwards:
///
/// ```
/// # use ttrpc::Server; use ttrpc_reflection::Debug;
/// # fn example() -> Result<(), ttrpc::Error> {
/// let debug = Debug::new();
/// let server = Server::builder().add_service(debug.service()).bind("/run/greeter.sock")?.build()?;
/// debug.show(server.handle());
/// # Ok(()) }
/// ```
///
/// It answers while this value lives. The service alone does not keep the server alive.
#[derive(Debug, Default)]
pub struct Debug {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    server: OnceLock<ServerHandle>,
    counters: Option<Arc<Counters>>,
}

impl Debug {
    /// Shows nothing until [`Debug::show`].
    pub fn new() -> Self {
        Debug::default()
    }

    /// Counts calls by method, too, for `ttrpc top` and other clients of `Watch`. The server has to be observed:
    ///
    /// ```
    /// # use ttrpc::Server; use ttrpc_reflection::Debug;
    /// let debug = Debug::with_counters();
    /// let builder = Server::builder().add_service(debug.service()).observe(debug.observer());
    /// # drop(builder);
    /// ```
    ///
    /// The counters of a method take 1.3 KiB, and 1,000 methods have some of their own. A call costs some 740 instructions
    /// more, of which 160 are a look at the clock (`ttrpc-instructions --counters`).
    pub fn with_counters() -> Self {
        let (server, counters) = (OnceLock::new(), Some(Arc::default()));
        Debug { shared: Arc::new(Shared { server, counters }) }
    }

    /// Returns the service that answers clients.
    pub fn service(&self) -> DebugService {
        DebugService { shared: Arc::downgrade(&self.shared) }
    }

    /// Counts the calls of a server, for [`Debug::with_counters`]. That of [`Debug::new`] does nothing.
    pub fn observer(&self) -> DebugObserver {
        DebugObserver { counters: self.shared.counters.clone() }
    }

    /// Sets the server to show. Only the first call of this has an effect.
    pub fn show(&self, server: ServerHandle) {
        // A second one has nowhere to go.
        let _ = self.shared.server.set(server);
    }
}

/// Counts calls. Made by [`Debug::observer`].
#[derive(Clone, Debug)]
pub struct DebugObserver {
    counters: Option<Arc<Counters>>,
}

impl Observer for DebugObserver {
    fn call_begun(&self, call: &CallInfo<'_>) {
        if let Some(counters) = &self.counters {
            counters.call_begun(call);
        }
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        if let Some(counters) = &self.counters {
            counters.call_ended(call, end);
        }
    }
}

/// The service that answers clients. Made by [`Debug::service`].
#[derive(Debug)]
pub struct DebugService {
    /// Not a strong reference, since the server owns this service.
    shared: Weak<Shared>,
}

impl DebugService {
    fn snapshot(&self) -> Result<ServerSnapshot, Status> {
        let shared = self.shared.upgrade();
        let server = shared.as_ref().and_then(|shared| shared.server.get());
        let server = server.map(ServerHandle::snapshot);
        server.ok_or_else(|| Status::failed_precondition("this program shows no server"))
    }

    fn counters(&self) -> Result<Arc<Counters>, Status> {
        let shared = self.shared.upgrade();
        let counters = shared.as_ref().and_then(|shared| shared.counters.clone());
        counters.ok_or_else(|| {
            Status::unimplemented("this server keeps no counters: Debug::with_counters() has some")
        })
    }
}

#[async_trait]
impl debug::Debug for DebugService {
    async fn snapshot(
        &self,
        _ctx: &Context,
        request: SnapshotRequest,
    ) -> Result<SnapshotResponse, Status> {
        Ok(describe(&self.snapshot()?, &request))
    }

    async fn watch(
        &self,
        _ctx: &Context,
        request: WatchRequest,
        mut samples: StreamSender<Sample>,
    ) -> Result<(), Status> {
        let interval = request.interval.and_then(from_proto);
        let interval = interval.unwrap_or(INTERVAL).clamp(MIN_INTERVAL, MAX_INTERVAL);
        let part = request.snapshot.unwrap_or_default();
        let counters = self.counters()?;
        loop {
            let snapshot = self.snapshot()?;
            let is_serving = snapshot.state == ServerState::Serving;
            let sample = Sample {
                uptime: to_proto(counters.uptime()),
                methods: counters.stats(),
                snapshot: Some(describe(&snapshot, &part)),
                bounds_nanos: counters::bounds(),
            };
            drop(snapshot);
            samples.send(sample).await?;
            // A watch would hold up the end of the server.
            if !is_serving {
                return Ok(());
            }
            tokio::time::sleep(interval).await;
        }
    }
}

impl Service for DebugService {
    fn into_routes(self) -> Routes {
        DebugServer::new(self).into_routes()
    }
}
