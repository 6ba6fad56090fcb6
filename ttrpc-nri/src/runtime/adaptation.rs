//! All plugins of a runtime.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    process::Child,
    sync::{RwLock, RwLockReadGuard, Semaphore, SemaphorePermit},
    task::JoinSet,
};
use ttrpc::{Connection, Status, server::Listener};

use super::{
    Host, PluginConnection, RuntimeInfo,
    launch::{self, Installed},
    merge::{CreateMerge, UpdateMerge},
};
use crate::{
    ConnectionSnapshot, Container, Error, Event, PluginId, PodSandbox,
    proto::{
        CreateContainerRequest, CreateContainerResponse, PluginInstance, StopContainerRequest,
        StopContainerResponse, UpdateContainerRequest, UpdateContainerResponse,
        UpdatePodSandboxRequest, ValidateContainerAdjustmentRequest,
    },
};

/// Plugins that may register at a time. Others wait in the socket's backlog.
const REGISTRATIONS: usize = 64;

/// The plugins of a runtime. It launches and accepts them, and passes requests through all of them in the order of
/// their indexes.
///
/// One request passes at a time, in the order in which they came: a plugin sees the state that the plugins before it have left. Each plugin has
/// [`RuntimeInfo::request_timeout`] for it, so a request waits for those before it no longer than plugins and requests are many. A plugin's own
/// calls ([`UpdateContainers`](super::UpdateContainers)) do not wait for requests, so they may be made in handlers.
///
/// Dropped, it disconnects all plugins and kills those that it has launched.
pub struct Adaptation {
    about: Arc<RuntimeInfo>,
    host: Arc<dyn Host>,
    /// One permit: for the request that passes, or the plugin that is synchronized.
    passing: Semaphore,
    /// Read by who changes what exists, written by the plugin that is synchronized, which then waits for `passing`.
    state: RwLock<()>,
    plugins: Mutex<Vec<Active>>,
}

/// A plugin that is synchronized. Dropped, its process is killed.
struct Active {
    connection: Arc<PluginConnection>,
    _child: Option<Child>,
}

/// Keeps plugins from being synchronized: see [`Adaptation::block_synchronization`].
#[derive(Debug)]
#[must_use = "plugins are synchronized when it is dropped"]
pub struct SynchronizationBlock<'a> {
    _state: RwLockReadGuard<'a, ()>,
}

/// The permit of a request. Dropped, those plugins are dropped too that the request has disconnected.
struct Passing<'a> {
    adaptation: &'a Adaptation,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        drop(self.adaptation.connected());
    }
}

impl Adaptation {
    /// Returns a runtime without plugins.
    pub fn new(about: RuntimeInfo, host: impl Host) -> Self {
        Adaptation {
            about: Arc::new(about),
            host: Arc::new(host),
            passing: Semaphore::new(1),
            state: RwLock::new(()),
            plugins: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Active>> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for those that came before.
    async fn pass(&self) -> Passing<'_> {
        let permit = self.passing.acquire().await.expect("it is never closed");
        Passing { adaptation: self, _permit: permit }
    }

    /// Launches the plugins in a folder, with configurations of another one. Returns those that have failed, and why: the others go on without them.
    ///
    /// # Errors
    /// If the folder of plugins cannot be read, or a program there is not called as plugins are.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub async fn launch(
        &self,
        plugins: impl AsRef<Path>,
        configs: impl AsRef<Path>,
    ) -> Result<Vec<(PluginId, Error)>, Error> {
        let mut failed = Vec::new();
        for installed in launch::installed(plugins.as_ref())? {
            if let Err(error) = self.launch_one(&installed, configs.as_ref()).await {
                tracing::warn!(plugin = %installed.id, %error, "the plugin is left out");
                failed.push((installed.id, error));
            }
        }
        Ok(failed)
    }

    async fn launch_one(&self, plugin: &Installed, configs: &Path) -> Result<(), Error> {
        let config = launch::config(configs, &plugin.id)?;
        let (child, stream) = launch::launch(plugin)?;
        let (about, host) = (self.about.clone(), self.host.clone().updates());
        let connection =
            PluginConnection::launched(stream, about, host, plugin.id.clone(), config).await?;
        self.synchronize(connection, Some(child)).await.map(drop)
    }

    /// Registers and synchronizes an external plugin. Returns who it is.
    ///
    /// # Errors
    /// Those of [`PluginConnection::external`], [`Error::State`], and [`Error::Synchronize`]. Updates that it wants there and that fail are logged.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn add(&self, connection: impl Into<Connection>) -> Result<PluginId, Error> {
        let (about, host) = (self.about.clone(), self.host.clone().updates());
        let connection = PluginConnection::external(connection, about, host).await?;
        self.synchronize(connection, None).await
    }

    /// Accepts external plugins, until the future is dropped.
    ///
    /// # Errors
    /// [`Error::Server`] if the listener cannot be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn serve(self: &Arc<Self>, listener: impl Into<Listener>) -> Result<(), Error> {
        let failed = |source| Error::Launch { what: "listen for plugins".to_owned(), source };
        let mut acceptor = listener.into().start().map_err(failed)?;
        let mut registrations = JoinSet::new();
        while let Some(accepted) = acceptor.accept().await {
            match accepted {
                Ok(connection) => {
                    let adaptation = self.clone();
                    registrations.spawn(async move {
                        if let Err(error) = adaptation.add(connection).await {
                            tracing::warn!(%error, "an external plugin is refused");
                        }
                    });
                }
                Err(error) => tracing::warn!(%error, "an external plugin could not connect"),
            }
            while registrations.try_join_next().is_some() {}
            if registrations.len() >= REGISTRATIONS {
                registrations.join_next().await;
            }
        }
        Ok(())
    }

    /// Keeps plugins from being synchronized until it is dropped: hold it from the request to its effect in [`Host::state`]. In between, a
    /// plugin would learn of a new container by neither.
    ///
    /// ```
    /// # use ttrpc_nri::{Status, proto::CreateContainerRequest, runtime::Adaptation};
    /// # async fn example(nri: &Adaptation, request: CreateContainerRequest) -> Result<(), Status> {
    /// let block = nri.block_synchronization().await;
    /// let wanted = nri.create_container(request).await?;
    /// // … the container is created, and `Host::state` has it:
    /// drop(block);
    /// # Ok(()) }
    /// ```
    ///
    /// Any number may be held at a time. While a plugin waits for them, it waits for that plugin: so a task that holds one must not take
    /// another.
    pub async fn block_synchronization(&self) -> SynchronizationBlock<'_> {
        SynchronizationBlock { _state: self.state.read().await }
    }

    /// Reports the state to a plugin, and has it take part from then on. Neither a request passes meanwhile nor is there one that has passed and
    /// is to change the state, so it misses nothing.
    async fn synchronize(
        &self,
        connection: PluginConnection,
        child: Option<Child>,
    ) -> Result<PluginId, Error> {
        let id = connection.id().clone();
        let state = self.state.write().await;
        let passing = self.pass().await;
        let (pods, containers) = self.host.state().await.map_err(Error::State)?;
        let updates = connection.synchronize(&pods, &containers).await;
        let updates = updates.map_err(Error::Synchronize)?;
        let connection = Arc::new(connection);
        self.insert(Active { connection, _child: child });
        drop((passing, state));
        tracing::info!(plugin = %id, "the plugin takes part");
        if !updates.is_empty() {
            match self.host.update_containers(&id, updates, Vec::new()).await {
                Ok(failed) if failed.is_empty() => {}
                Ok(failed) => {
                    tracing::warn!(plugin = %id, failed = failed.len(), "updates have failed that the plugin wants");
                }
                Err(status) => {
                    tracing::warn!(plugin = %id, %status, "the updates that the plugin wants have failed");
                }
            }
        }
        Ok(id)
    }

    /// Returns the plugins that take part, in the order in which they are called.
    pub fn plugins(&self) -> Vec<PluginId> {
        self.connected().iter().map(|plugin| plugin.connection.id().clone()).collect()
    }

    /// Returns the state of the connection of each plugin that takes part, in the order in which they are called.
    pub fn snapshot(&self) -> Vec<(PluginId, ConnectionSnapshot)> {
        let plugins = self.active();
        plugins.iter().map(|plugin| (plugin.id().clone(), plugin.snapshot())).collect()
    }

    fn insert(&self, plugin: Active) {
        let mut plugins = self.lock();
        plugins.push(plugin);
        plugins.sort_by(|a, b| a.connection.id().cmp(b.connection.id()));
    }

    /// Those that are connected. The others are dropped.
    fn connected(&self) -> MutexGuard<'_, Vec<Active>> {
        let mut plugins = self.lock();
        plugins.retain(|plugin| !plugin.connection.is_closed());
        plugins
    }

    fn active(&self) -> Vec<Arc<PluginConnection>> {
        self.connected().iter().map(|plugin| plugin.connection.clone()).collect()
    }

    /// Passes the creation of a container through all plugins. Returns what they want together.
    ///
    /// # Errors
    /// What a plugin answers; ABORTED if two set the same; PERMISSION_DENIED if a validator rejects it.
    pub async fn create_container(
        &self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let _passing = self.pass().await;
        let plugins = self.active();
        let has_validators = plugins
            .iter()
            .any(|plugin| plugin.events().contains(Event::ValidateContainerAdjustment));
        let original = has_validators.then(|| request.clone());
        let mut merge = CreateMerge::new(request);
        for plugin in &plugins {
            if let Some(reply) = plugin.create_container(merge.request.clone()).await? {
                merge.apply(&plugin.id().to_string(), reply)?;
            }
        }
        let (adjust, others) = (merge.adjust, merge.others);
        if let Some(original) = original {
            let instance = |plugin: &Arc<PluginConnection>| PluginInstance {
                name: plugin.id().name().to_owned(),
                index: plugin.id().index().to_owned(),
            };
            let validation = ValidateContainerAdjustmentRequest {
                pod: original.pod,
                container: original.container,
                adjust: Some(adjust.clone()),
                update: others.updates.clone(),
                owners: Some(others.owners),
                plugins: plugins.iter().map(instance).collect(),
            };
            validate(plugins, validation).await?;
        }
        Ok(CreateContainerResponse {
            adjust: Some(adjust),
            update: others.updates,
            evict: others.evictions,
        })
    }

    /// Passes the update of a container through all plugins. The last of the returned updates is that of this container.
    ///
    /// # Errors
    /// What a plugin answers; ABORTED if two set the same.
    pub async fn update_container(
        &self,
        mut request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        let _passing = self.pass().await;
        let mut merge = UpdateMerge::default();
        for plugin in self.active() {
            if let Some(reply) = plugin.update_container(request.clone()).await? {
                merge.evictions.extend(reply.evict);
                merge.apply(&plugin.id().to_string(), reply.update, Some(&mut request))?;
            }
        }
        Ok(merge.finish(request))
    }

    /// Reports to all plugins that a container has stopped. Returns the updates of others that they want.
    ///
    /// # Errors
    /// What a plugin answers; ABORTED if two set the same.
    pub async fn stop_container(
        &self,
        request: StopContainerRequest,
    ) -> Result<StopContainerResponse, Status> {
        let _passing = self.pass().await;
        let mut merge = UpdateMerge::default();
        for plugin in self.active() {
            if let Some(reply) = plugin.stop_container(request.clone()).await? {
                merge.apply(&plugin.id().to_string(), reply.update, None)?;
            }
        }
        Ok(StopContainerResponse { update: merge.updates })
    }

    /// Reports to all plugins that a pod's resources are about to change.
    ///
    /// # Errors
    /// What a plugin answers.
    pub async fn update_pod_sandbox(&self, request: UpdatePodSandboxRequest) -> Result<(), Status> {
        let _passing = self.pass().await;
        for plugin in self.active() {
            plugin.update_pod_sandbox(request.clone()).await?;
        }
        Ok(())
    }

    /// Reports an event that has no reply to all plugins: of a pod or, with `container`, of a container.
    ///
    /// # Errors
    /// What a plugin answers; INVALID_ARGUMENT for an event with a method of its own.
    pub async fn notify(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), Status> {
        let _passing = self.pass().await;
        for plugin in self.active() {
            plugin.notify(event, pod, container).await?;
        }
        Ok(())
    }
}

/// Asks all validators at once, but for those that this request has disconnected: the next one would do without them too.
///
/// # Errors
/// That of the first one, in the order of their indexes, that rejects the adjustment or does not answer.
async fn validate(
    plugins: Vec<Arc<PluginConnection>>,
    request: ValidateContainerAdjustmentRequest,
) -> Result<(), Status> {
    let mut asked = JoinSet::new();
    for (at, plugin) in plugins.into_iter().enumerate() {
        let is_validator = plugin.events().contains(Event::ValidateContainerAdjustment);
        if is_validator && !plugin.is_closed() {
            let request = request.clone();
            asked.spawn(async move { (at, plugin.validate_container_adjustment(request).await) });
        }
    }
    let mut verdicts = asked.join_all().await;
    verdicts.sort_by_key(|(at, _)| *at);
    verdicts.into_iter().try_for_each(|(_, verdict)| verdict)
}

impl fmt::Debug for Adaptation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptation")
            .field("about", &self.about)
            .field("plugins", &self.plugins())
            .finish_non_exhaustive()
    }
}
