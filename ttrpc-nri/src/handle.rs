//! A plugin's handle of its runtime.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use ttrpc::{Client, Status};

use crate::{
    ConnectionSnapshot, ContainerEviction, ContainerUpdate,
    instrument::Monitor,
    proto::{ConfigureRequest, RuntimeClient, UpdateContainersRequest},
};

/// How long a call may take, if the plugin does not say otherwise.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The times of runtimes that do not say them, as containerd does not before 1.7.26.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Calls in flight. A runtime in Go ends the connection at 257 unread mux frames, and a call takes two at most.
const CALLS: usize = 64;

/// A handle for calls to the runtime. Clones share the connection; after a reconnection `configure` has a new one.
#[derive(Clone)]
pub struct Runtime {
    client: RuntimeClient,
    permits: Arc<Semaphore>,
    timeout: Duration,
    about: Arc<About>,
    monitor: Monitor,
}

/// What a runtime says of itself.
#[derive(Debug, Default)]
struct About {
    name: String,
    version: String,
    nri_version: String,
    registration_timeout: Duration,
    request_timeout: Duration,
}

impl Runtime {
    pub(crate) fn new(client: Client, monitor: Monitor) -> Self {
        let permits = Arc::new(Semaphore::new(CALLS));
        Runtime {
            client: RuntimeClient::new(client),
            permits,
            timeout: CALL_TIMEOUT,
            about: Arc::default(),
            monitor,
        }
    }

    pub(crate) fn configured(&self, request: &ConfigureRequest) -> Self {
        let millis = |millis: i64| Duration::from_millis(u64::try_from(millis).unwrap_or(0));
        let or = |said: Duration, usual| if said.is_zero() { usual } else { said };
        let about = About {
            name: request.runtime_name.clone(),
            version: request.runtime_version.clone(),
            nri_version: request.nri_version.clone(),
            registration_timeout: or(millis(request.registration_timeout), REGISTRATION_TIMEOUT),
            request_timeout: or(millis(request.request_timeout), REQUEST_TIMEOUT),
        };
        Runtime { about: Arc::new(about), ..self.clone() }
    }

    /// Gives each call of this handle so much time, in place of 10 s. It covers the wait for one of 64 calls in flight.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Changes containers now, without an event. Returns the updates that failed, without those that ignore failures.
    ///
    /// In a handler, return updates instead. containerd 2.4 updates no container while an event passes, so such a call
    /// ends with its timeout. Give it less than [`Runtime::request_timeout`], after which the plugin would be dropped.
    ///
    /// # Errors
    /// The runtime's; DEADLINE_EXCEEDED after [`Runtime::with_timeout`]; UNAVAILABLE when the connection has ended.
    pub async fn update_containers(
        &self,
        updates: Vec<ContainerUpdate>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        self.update_and_evict(updates, Vec::new()).await
    }

    /// Ends containers. Runtimes up to containerd 2.4 take the request and evict nothing.
    ///
    /// # Errors
    /// Those of [`Runtime::update_containers`].
    pub async fn evict(&self, evictions: Vec<ContainerEviction>) -> Result<(), Status> {
        self.update_and_evict(Vec::new(), evictions).await.map(drop)
    }

    /// Changes some containers and ends others, in one call.
    ///
    /// # Errors
    /// Those of [`Runtime::update_containers`].
    pub async fn update_and_evict(
        &self,
        update: Vec<ContainerUpdate>,
        evict: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        // None is a time that never comes.
        let deadline = Instant::now().checked_add(self.timeout);
        let permit = self.permits.acquire();
        let late =
            |_| Status::deadline_exceeded("the runtime has not updated the containers in time");
        let _permit = match deadline {
            Some(deadline) => timeout_at(deadline, permit).await.map_err(late)?,
            None => permit.await,
        };
        let call = self.client.update_containers(UpdateContainersRequest { update, evict });
        let call = match deadline {
            Some(deadline) => call.deadline(deadline),
            None => call,
        };
        Ok(call.await?.failed)
    }

    /// Returns the runtime's name, such as `containerd`.
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// Returns the runtime's version.
    pub fn version(&self) -> &str {
        &self.about.version
    }

    /// Returns the version of NRI in the runtime. Empty if it does not say.
    pub fn nri_version(&self) -> &str {
        &self.about.nri_version
    }

    /// Returns the time that a plugin has from its connection to its registration.
    pub fn registration_timeout(&self) -> Duration {
        self.about.registration_timeout
    }

    /// Returns the time that a handler has. A plugin that takes longer is dropped.
    pub fn request_timeout(&self) -> Duration {
        self.about.request_timeout
    }

    /// Returns the client of the runtime's service, for its snapshot and for calls of one's own.
    pub fn client(&self) -> &RuntimeClient {
        &self.client
    }

    /// Returns what the plugin's connection and its calls are waiting for at this moment.
    pub fn snapshot(&self) -> ConnectionSnapshot {
        self.monitor.snapshot(self.client.client())
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("about", &self.about)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::{io::duplex, sync::oneshot};
    use ttrpc::{ClientConfig, Code, Connection, Context, Server};

    use super::*;
    use crate::proto::{
        self, Empty, RegisterPluginRequest, RuntimeServer, UpdateContainersResponse,
    };

    /// Tells the deadline of an update, and never answers it.
    struct Silent(Mutex<Option<oneshot::Sender<Option<Instant>>>>);

    impl proto::Runtime for Silent {
        async fn register_plugin(
            &self,
            _: &Context,
            _: RegisterPluginRequest,
        ) -> Result<Empty, Status> {
            Ok(Empty {})
        }

        async fn update_containers(
            &self,
            ctx: &Context,
            _: UpdateContainersRequest,
        ) -> Result<UpdateContainersResponse, Status> {
            let sender = self.0.lock().expect("no test panics here").take();
            let _ = sender.expect("it is called once").send(ctx.deadline());
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_runtime_that_says_no_times_has_the_usual_ones() {
        let (here, _there) = duplex(1);
        let client = Client::from_connection(Connection::new(here), ClientConfig::default());
        let runtime = Runtime::new(client, Monitor::of_no_mux());
        let old = runtime.configured(&ConfigureRequest::default());
        assert_eq!(old.request_timeout(), Duration::from_secs(2));
        assert_eq!(old.registration_timeout(), Duration::from_secs(5));
        let new = ConfigureRequest { request_timeout: 300, ..ConfigureRequest::default() };
        assert_eq!(runtime.configured(&new).request_timeout(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn the_runtime_knows_the_deadline_of_an_update() {
        let (here, there) = duplex(1 << 16);
        let (sender, deadline) = oneshot::channel();
        let server =
            Server::builder().add_service(RuntimeServer::new(Silent(Mutex::new(Some(sender)))));
        let server = server.connection(Connection::new(there)).build();
        tokio::spawn(server.expect("it has a connection").serve());
        let client = Client::from_connection(Connection::new(here), ClientConfig::default());
        let limit = Duration::from_secs(3);
        let began = Instant::now();
        let runtime = Runtime::new(client, Monitor::of_no_mux()).with_timeout(limit);
        let status = runtime.update_containers(Vec::new()).await.expect_err("nobody answers");
        assert_eq!((status.code(), began.elapsed()), (Code::DeadlineExceeded, limit));
        let deadline = deadline.await.expect("it was called").expect("it has a deadline");
        assert!(deadline <= began + limit, "{:?}", deadline - began);
    }
}
