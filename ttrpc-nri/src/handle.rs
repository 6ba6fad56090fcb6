//! A plugin's handle of its runtime.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::timeout};
use ttrpc::{Client, Status};

use crate::{
    ContainerEviction, ContainerUpdate,
    proto::{ConfigureRequest, RuntimeClient, UpdateContainersRequest},
};

/// How long a call may take, if the plugin does not say otherwise.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls in flight. A runtime in Go ends the connection at 257 unread mux frames, and a call takes two at most.
const CALLS: usize = 64;

/// A handle for calls to the runtime. Clones share the connection; after a reconnection `configure` has a new one.
#[derive(Clone)]
pub struct Runtime {
    client: RuntimeClient,
    permits: Arc<Semaphore>,
    timeout: Duration,
    about: Arc<About>,
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
    pub(crate) fn new(client: Client) -> Self {
        let permits = Arc::new(Semaphore::new(CALLS));
        Runtime {
            client: RuntimeClient::new(client),
            permits,
            timeout: CALL_TIMEOUT,
            about: Arc::default(),
        }
    }

    pub(crate) fn configured(&self, request: &ConfigureRequest) -> Self {
        let millis = |millis: i64| Duration::from_millis(u64::try_from(millis).unwrap_or(0));
        let about = About {
            name: request.runtime_name.clone(),
            version: request.runtime_version.clone(),
            nri_version: request.nri_version.clone(),
            registration_timeout: millis(request.registration_timeout),
            request_timeout: millis(request.request_timeout),
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
        let call = async {
            let _permit = self.permits.acquire().await;
            self.client.update_containers(UpdateContainersRequest { update, evict }).await
        };
        let late =
            |_| Status::deadline_exceeded("the runtime has not updated the containers in time");
        Ok(timeout(self.timeout, call).await.map_err(late)??.failed)
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
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("about", &self.about)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
