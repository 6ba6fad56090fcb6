//! One plugin, as its runtime sees it: from its registration to its end. Its requests are in `requests`.

use std::{fmt, sync::Arc};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use ttrpc::{ClientConfig, Connection, Server, Status};

use super::{RuntimeInfo, UpdateContainers, registration::RuntimeService, synchronize};
use crate::{
    ConnectionSnapshot, Container, ContainerUpdate, Error, EventMask, FailurePolicy, PluginId,
    PodSandbox,
    instrument::Monitor,
    mux::{ConnId, Mux, MuxConfig, MuxError},
    proto::{ConfigureRequest, Empty, PluginClient, RuntimeServer},
};

/// A plugin that is connected, registered and configured. Dropped, it is disconnected.
pub struct PluginConnection {
    pub(super) id: PluginId,
    pub(super) client: PluginClient,
    mux: Mux,
    monitor: Monitor,
    pub(super) events: EventMask,
    pub(super) policy: FailurePolicy,
    pub(super) about: Arc<RuntimeInfo>,
    /// Serves the plugin's calls.
    _tasks: JoinSet<Result<(), ttrpc::Error>>,
}

impl PluginConnection {
    /// Waits for the registration of an external plugin and configures it.
    ///
    /// # Errors
    /// [`Error::Register`], [`Error::NotConfigured`], [`Error::Configure`], [`Error::Identity`], [`Error::Disconnected`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn external(
        connection: impl Into<Connection>,
        about: Arc<RuntimeInfo>,
        updates: Arc<dyn UpdateContainers>,
    ) -> Result<Self, Error> {
        PluginConnection::start(connection.into(), about, updates, None, String::new()).await
    }

    /// The same for a plugin that the runtime has launched: it has the identity of its file, and a configuration.
    ///
    /// # Errors
    /// Those of [`PluginConnection::external`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn launched(
        connection: impl Into<Connection>,
        about: Arc<RuntimeInfo>,
        updates: Arc<dyn UpdateContainers>,
        id: PluginId,
        config: String,
    ) -> Result<Self, Error> {
        PluginConnection::start(connection.into(), about, updates, Some(id), config).await
    }

    async fn start(
        connection: Connection,
        about: Arc<RuntimeInfo>,
        updates: Arc<dyn UpdateContainers>,
        launched: Option<PluginId>,
        config: String,
    ) -> Result<Self, Error> {
        let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
        let (mux, [called, served]) = Mux::start(connection, MuxConfig::default(), ids);
        let instruments = updates.instruments();
        let client = PluginClient::new(instruments.client(called, ClientConfig::default()));
        let known = launched.as_ref().map_or_else(|| "(unknown)".to_owned(), PluginId::to_string);
        let (service, registered) = RuntimeService::new(launched, updates);
        let server = instruments.server(Server::builder()).add_service(RuntimeServer::new(service));
        let monitor = Monitor { mux: mux.monitor(), server: server.handle() };
        let mut tasks = JoinSet::new();
        tasks.spawn(server.connection(served).build()?.serve());
        let registered = tokio::select! {
            biased;
            registered = timeout(about.registration_timeout, registered) => registered,
            why = mux.closed() => return Err(Error::Disconnected(why)),
        };
        let late = || {
            let source = Status::deadline_exceeded("the plugin has not registered in time");
            Error::Register { plugin: known, source }
        };
        let registered = registered.map_err(|_| late())?;
        // The service is gone: its connection has ended.
        let ended =
            |_| mux.close_reason().map_or(Error::LogicalConnection(None), Error::Disconnected);
        let id = registered.map_err(ended)??;
        let millis =
            |limit: std::time::Duration| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        let request = ConfigureRequest {
            config,
            runtime_name: about.name.clone(),
            runtime_version: about.version.clone(),
            registration_timeout: millis(about.registration_timeout),
            request_timeout: millis(about.request_timeout),
            nri_version: about.nri_version.clone(),
        };
        let configured = client.configure(request).timeout(about.request_timeout).await;
        let configured = configured.map_err(Error::Configure)?;
        let mut events = EventMask::from_bits(configured.events);
        if !(events - EventMask::ALL).is_empty() {
            let message = format!("the plugin {id} subscribes to unknown events: {events}");
            return Err(Error::Configure(Status::invalid_argument(message)));
        }
        if events.is_empty() {
            events = EventMask::ALL;
        }
        let policy = configured.failure_policy.unwrap_or_default();
        Ok(PluginConnection { id, client, mux, monitor, events, policy, about, _tasks: tasks })
    }

    /// Returns the plugin's index and name.
    pub fn id(&self) -> &PluginId {
        &self.id
    }

    /// Returns the events that the plugin has subscribed to.
    pub fn events(&self) -> EventMask {
        self.events
    }

    /// Returns the client of the plugin's service, for its snapshot and for calls of one's own.
    pub fn client(&self) -> &PluginClient {
        &self.client
    }

    /// Returns what the connection and its calls are waiting for at this moment.
    pub fn snapshot(&self) -> ConnectionSnapshot {
        self.monitor.snapshot(self.client.client())
    }

    /// Waits until the plugin is disconnected and returns why.
    ///
    /// Cancel safe.
    pub async fn closed(&self) -> MuxError {
        self.mux.closed().await
    }

    /// Returns whether the plugin is disconnected.
    pub fn is_closed(&self) -> bool {
        self.mux.close_reason().is_some()
    }

    /// Disconnects the plugin.
    pub fn close(&self) {
        self.mux.close();
    }

    /// Reports all pods and containers, in as many messages as it takes. Returns the updates that the plugin wants.
    ///
    /// # Errors
    /// The plugin's, and DEADLINE_EXCEEDED after the request's time, which is for all messages together. The plugin is
    /// disconnected then.
    pub async fn synchronize(
        &self,
        pods: &[PodSandbox],
        containers: &[Container],
    ) -> Result<Vec<ContainerUpdate>, Status> {
        // None is a time that never comes.
        let deadline = Instant::now().checked_add(self.about.request_timeout);
        for part in synchronize::parts(pods, containers) {
            let is_last = !part.more;
            let call = self.client.synchronize(part);
            let call = match deadline {
                Some(deadline) => call.deadline(deadline),
                None => call,
            };
            let reply = call.await;
            let reply = reply.inspect_err(|_| self.close())?;
            if is_last {
                return Ok(reply.update);
            }
            if !reply.more || !reply.update.is_empty() {
                self.close();
                return Err(Status::failed_precondition(
                    "the plugin takes no Synchronize in parts",
                ));
            }
        }
        Ok(Vec::new())
    }

    /// Asks the plugin to end.
    ///
    /// # Errors
    /// If the plugin does not answer in time.
    pub async fn shutdown(&self) -> Result<(), Status> {
        self.client.shutdown(Empty {}).timeout(self.about.request_timeout).await.map(drop)
    }
}

impl fmt::Debug for PluginConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginConnection")
            .field("id", &self.id)
            .field("events", &self.events)
            .field("close_reason", &self.mux.close_reason())
            .finish_non_exhaustive()
    }
}
