//! A runtime in memory, for tests of plugins: the multiplexer and both services are the real ones.
//!
//! ```
//! # use ttrpc_nri::{Container, ContainerAdjustment, Context, Creation, Plugin, PodSandbox, Status, plugin};
//! # struct Pinner;
//! # #[plugin]
//! # impl Plugin for Pinner {
//! #     async fn create_container(&self, _: &Context, pod: &PodSandbox, _: &Container) -> Result<Creation, Status> {
//! #         Ok(ContainerAdjustment::new().env("CPUS", pod.annotation("cpus").unwrap_or("all")).into())
//! #     }
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let runtime = ttrpc_nri::testing::Runtime::start(Pinner).await;
//! let pod = PodSandbox::named("p").with_annotation("cpus", "0-1");
//! let container = Container::named("c");
//! let created = runtime.create_container(&pod, &container).await.unwrap();
//! assert_eq!(created.adjustment.env_value("CPUS"), Some("0-1"));
//! runtime.stop_container(&pod, &container).await.unwrap();
//! runtime.shutdown().await.unwrap();
//! # }
//! ```

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{io::duplex, sync::mpsc, task::JoinSet};
use ttrpc::{Connection, Status, async_trait};

use crate::{
    Container, ContainerEviction, ContainerUpdate, Creation, Error, Event, LinuxResources, Plugin,
    PluginId, PodSandbox, Stub, Updates,
    proto::{self, ValidateContainerAdjustmentRequest},
    runtime::{PluginConnection, RuntimeInfo, UpdateContainers},
};

/// What the runtime's pipe holds, as a socket's buffer would.
const PIPE: usize = 64 << 10;
/// Requests that are kept for [`Runtime::next_update`]. More are refused with RESOURCE_EXHAUSTED.
const REQUESTS: usize = 1024;

/// What a plugin asks for without an event.
type Request = (Vec<ContainerUpdate>, Vec<ContainerEviction>);
/// What the runtime answers to updates.
type Answer = Box<dyn Fn(&[ContainerUpdate]) -> Result<Vec<ContainerUpdate>, Status> + Send + Sync>;

/// A runtime in memory, before its plugin starts.
#[must_use = "a runtime begins with `start`"]
pub struct Setup {
    about: RuntimeInfo,
    config: String,
    answer: Answer,
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
}

impl Default for Setup {
    fn default() -> Self {
        let about = RuntimeInfo::new("testing", env!("CARGO_PKG_VERSION"));
        let answer: Answer = Box::new(|_| Ok(Vec::new()));
        Setup { about, config: String::new(), answer, pods: Vec::new(), containers: Vec::new() }
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("about", &self.about)
            .field("config", &self.config)
            .field("pods", &self.pods)
            .field("containers", &self.containers)
            .finish_non_exhaustive()
    }
}

impl Setup {
    /// Sets the plugin's configuration.
    pub fn config(mut self, config: impl Into<String>) -> Self {
        self.config = config.into();
        self
    }

    /// Sets what the runtime says of itself, and the times that handlers have.
    pub fn about(mut self, about: RuntimeInfo) -> Self {
        self.about = about;
        self
    }

    /// Sets the pods and containers that exist when the plugin starts.
    pub fn state(mut self, pods: Vec<PodSandbox>, containers: Vec<Container>) -> Self {
        (self.pods, self.containers) = (pods, containers);
        self
    }

    /// Decides what becomes of the updates that the plugin makes without an event: it gets those that are returned, as failed,
    /// or the status. By default none fails.
    pub fn answer_updates(
        mut self,
        answer: impl Fn(&[ContainerUpdate]) -> Result<Vec<ContainerUpdate>, Status>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.answer = Box::new(answer);
        self
    }

    /// Starts the plugin: it is registered, configured and synchronized when this returns.
    ///
    /// # Errors
    /// Those of the plugin: [`Error::Configure`] and [`Error::Synchronize`] where they are its own.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self, plugin: impl Plugin) -> Result<Runtime, Error> {
        self.start_stub(Stub::new(plugin)).await
    }

    /// Starts a runtime with a plugin whose stub has options.
    ///
    /// # Errors
    /// Those of [`Setup::start`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start_stub(self, stub: Stub<impl Plugin>) -> Result<Runtime, Error> {
        let (here, there) = duplex(PIPE);
        let stub = stub.name("plugin").index("00").connection(Connection::new(there));
        let mut stubs = JoinSet::new();
        stubs.spawn(stub.run());
        let (sender, requests) = mpsc::channel(REQUESTS);
        let updates = Arc::new(Recorder { sender, answer: self.answer });
        let id = PluginId::new("00", "plugin")?;
        let (about, config) = (Arc::new(self.about), self.config);
        let plugin =
            PluginConnection::launched(Connection::new(here), about, updates, id, config).await?;
        let synchronized = plugin.synchronize(&self.pods, &self.containers).await;
        let synchronized = synchronized.map_err(Error::Synchronize)?;
        Ok(Runtime { plugin, stubs, synchronized, requests: Mutex::new(requests) })
    }
}

/// A runtime in memory and its plugin. Dropped, it ends the plugin.
#[derive(Debug)]
pub struct Runtime {
    plugin: PluginConnection,
    stubs: JoinSet<Result<(), Error>>,
    synchronized: Vec<ContainerUpdate>,
    requests: Mutex<mpsc::Receiver<Request>>,
}

impl Runtime {
    /// Starts the plugin with no configuration and nothing that exists. [`Setup`] has more.
    ///
    /// # Panics
    /// If the plugin does not start, and outside of a tokio runtime.
    pub async fn start(plugin: impl Plugin) -> Self {
        Setup::default().start(plugin).await.expect("the plugin starts")
    }

    /// Returns the plugin's connection: its subscription, and calls of one's own.
    pub fn plugin(&self) -> &PluginConnection {
        &self.plugin
    }

    /// Returns what the plugin has wanted in `synchronize`.
    pub fn synchronized(&self) -> &[ContainerUpdate] {
        &self.synchronized
    }

    /// Creates a container: returns what the plugin wants of it. Nothing if the plugin has not subscribed to it.
    ///
    /// # Errors
    /// What the plugin answers.
    pub async fn create_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        let request = proto::CreateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
        };
        let reply = self.plugin.create_container(request).await?.unwrap_or_default();
        let mut creation = Creation::from((reply.adjust.unwrap_or_default(), reply.update));
        creation.evictions = reply.evict;
        Ok(creation)
    }

    /// Updates a container's resources.
    ///
    /// # Errors
    /// What the plugin answers.
    pub async fn update_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
        resources: LinuxResources,
    ) -> Result<Updates, Status> {
        let request = proto::UpdateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            linux_resources: Some(resources),
        };
        let reply = self.plugin.update_container(request).await?.unwrap_or_default();
        let mut updates = Updates::from(reply.update);
        updates.evictions = reply.evict;
        Ok(updates)
    }

    /// Stops a container.
    ///
    /// # Errors
    /// What the plugin answers.
    pub async fn stop_container(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        let request = proto::StopContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
        };
        Ok(self.plugin.stop_container(request).await?.unwrap_or_default().update)
    }

    /// Reports an event of a pod or, with `container`, of a container, that has no reply.
    ///
    /// # Errors
    /// What the plugin answers.
    pub async fn notify(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), Status> {
        self.plugin.notify(event, pod, container).await
    }

    /// Updates a pod's resources.
    ///
    /// # Errors
    /// What the plugin answers.
    pub async fn update_pod_sandbox(
        &self,
        pod: &PodSandbox,
        overhead: LinuxResources,
        resources: LinuxResources,
    ) -> Result<(), Status> {
        let request = proto::UpdatePodSandboxRequest {
            pod: Some(pod.clone()),
            overhead_linux_resources: Some(overhead),
            linux_resources: Some(resources),
        };
        self.plugin.update_pod_sandbox(request).await
    }

    /// Asks the plugin's judgement of an adjustment.
    ///
    /// # Errors
    /// PERMISSION_DENIED with the plugin's reason.
    pub async fn validate(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), Status> {
        self.plugin.validate_container_adjustment(request).await
    }

    /// Waits for the next call by which the plugin changes containers without an event. It was answered as [`Setup::answer_updates`] says; the test has to take these, 1,024 are kept.
    ///
    /// Cancel safe. `None` when the plugin has ended.
    pub async fn next_update(&mut self) -> Option<(Vec<ContainerUpdate>, Vec<ContainerEviction>)> {
        self.requests.get_mut().unwrap_or_else(PoisonError::into_inner).recv().await
    }

    /// Asks the plugin to end, and waits for that.
    ///
    /// # Errors
    /// Why the plugin has ended otherwise.
    pub async fn shutdown(mut self) -> Result<(), Error> {
        self.plugin.shutdown().await.map_err(Error::Configure)?;
        self.ended().await
    }

    /// Closes the connection, as a runtime that ends does, and waits for the plugin's end.
    ///
    /// # Errors
    /// Why the plugin has ended: [`Error::Disconnected`].
    pub async fn disconnect(mut self) -> Result<(), Error> {
        self.plugin.close();
        self.ended().await
    }

    async fn ended(&mut self) -> Result<(), Error> {
        match self.stubs.join_next().await {
            Some(ended) => {
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
            }
            None => Ok(()),
        }
    }
}

/// Keeps every update for the test, and answers as the test wants.
struct Recorder {
    sender: mpsc::Sender<Request>,
    answer: Answer,
}

#[async_trait]
impl UpdateContainers for Recorder {
    async fn update_containers(
        &self,
        _plugin: &PluginId,
        updates: Vec<ContainerUpdate>,
        evictions: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        let answer = (self.answer)(&updates);
        let kept = self.sender.try_send((updates, evictions));
        let full =
            |_| Status::resource_exhausted(format!("the test has not taken {REQUESTS} updates"));
        kept.map_err(full)?;
        answer
    }
}
