//! One plugin, as its runtime sees it.

use std::{fmt, sync::Arc};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use ttrpc::{ClientConfig, Code, Connection, Server, Status, client::UnaryCall, prost::Message};

use super::{RuntimeInfo, UpdateContainers, registration::RuntimeService, synchronize};
use crate::{
    ConnectionSnapshot, Container, ContainerUpdate, Error, Event, EventMask, FailurePolicy,
    PluginId, PodSandbox,
    instrument::Monitor,
    mux::{ConnId, Mux, MuxConfig, MuxError},
    proto::{self, *},
};

/// A plugin that is connected, registered and configured. Dropped, it is disconnected.
pub struct PluginConnection {
    id: PluginId,
    client: PluginClient,
    mux: Mux,
    monitor: Monitor,
    events: EventMask,
    policy: FailurePolicy,
    about: Arc<RuntimeInfo>,
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
        let id = registered.map_err(|_| Error::Disconnected(MuxError::Closed))??;
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

    /// Calls the plugin for an event. `None` if it has not subscribed to it, or if it has failed and the request is to go on without it.
    async fn call<Req, Resp>(
        &self,
        event: Event,
        call: impl FnOnce(&PluginClient) -> UnaryCall<Req, Resp>,
    ) -> Result<Option<Resp>, Status>
    where
        Req: Message + 'static,
        Resp: Message + Default + 'static,
    {
        if !self.events.contains(event) || self.is_closed() {
            return Ok(None);
        }
        let asked = Instant::now();
        match call(&self.client).timeout(self.about.request_timeout).await {
            Ok(reply) => Ok(Some(reply)),
            Err(status) => self.failed(event, status, asked).map(|()| None),
        }
    }

    /// Whether the plugin has taken too long. It may have said so itself, at the moment at which this side gave up.
    fn is_late(&self, status: &Status, asked: Instant) -> bool {
        status.code() == Code::DeadlineExceeded
            && (!status.is_from_peer() || asked.elapsed() >= self.about.request_timeout)
    }

    /// What becomes of a request that the plugin has not answered. A status that it has answered with in time is the request's.
    fn failed(&self, event: Event, status: Status, asked: Instant) -> Result<(), Status> {
        let is_late = self.is_late(&status, asked);
        if status.is_from_peer() && !is_late {
            return Err(status);
        }
        if is_too_long(&status) {
            return Err(self.not_asked(event, status));
        }
        if !is_late || !self.policy.keep_connected {
            tracing::error!(plugin = %self.id, %event, %status, "the plugin is disconnected");
            self.close();
        }
        if self.policy.fail_request {
            return Err(self.not_asked(event, status));
        }
        tracing::warn!(plugin = %self.id, %event, %status, "the request goes on without the plugin");
        Ok(())
    }

    fn not_asked(&self, event: Event, status: Status) -> Status {
        let message =
            format!("the plugin {} has not handled {event}: {}", self.id, status.message());
        Status::new(status.code(), message).with_source(status)
    }

    /// Reports an event that has no reply. A plugin of before NRI v0.12 does not know its method, and gets a StateChange.
    async fn report<Req, Resp>(
        &self,
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container>,
        call: impl FnOnce(&PluginClient, Option<PodSandbox>, Option<Container>) -> UnaryCall<Req, Resp>,
    ) -> Result<(), Status>
    where
        Req: Message + 'static,
        Resp: Message + Default + 'static,
    {
        let reported =
            self.call(event, |client| call(client, pod.clone(), container.clone())).await;
        match reported {
            Err(status) if status.code() == Code::Unimplemented => {
                let request = StateChangeEvent { event: event.into(), pod, container };
                self.call(event, |client| client.state_change(request)).await.map(drop)
            }
            reported => reported.map(drop),
        }
    }

    /// Asks for changes to a container that is about to be created.
    ///
    /// # Errors
    /// What the plugin answers; what it does not, if its [`FailurePolicy`] says so.
    pub async fn create_container(
        &self,
        request: CreateContainerRequest,
    ) -> Result<Option<CreateContainerResponse>, Status> {
        self.call(Event::CreateContainer, |client| client.create_container(request)).await
    }

    /// Asks for changes to the update of a container.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn update_container(
        &self,
        request: UpdateContainerRequest,
    ) -> Result<Option<UpdateContainerResponse>, Status> {
        self.call(Event::UpdateContainer, |client| client.update_container(request)).await
    }

    /// Reports that a container has stopped, and asks for changes to others.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn stop_container(
        &self,
        request: StopContainerRequest,
    ) -> Result<Option<StopContainerResponse>, Status> {
        self.call(Event::StopContainer, |client| client.stop_container(request)).await
    }

    /// Reports that a pod's resources are about to change.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn update_pod_sandbox(&self, request: UpdatePodSandboxRequest) -> Result<(), Status> {
        let call = |client: &PluginClient| client.update_pod_sandbox(request);
        self.call(Event::UpdatePodSandbox, call).await.map(drop)
    }

    /// Asks the plugin's judgement of what all plugins want. Unlike other requests this fails with a plugin that does not answer.
    ///
    /// # Errors
    /// PERMISSION_DENIED with the plugin's reason; what the plugin answers, or that it does not.
    pub async fn validate_container_adjustment(
        &self,
        request: proto::ValidateContainerAdjustmentRequest,
    ) -> Result<(), Status> {
        if !self.events.contains(Event::ValidateContainerAdjustment) {
            return Ok(());
        }
        let asked = Instant::now();
        let call = self.client.validate_container_adjustment(request);
        let verdict = call.timeout(self.about.request_timeout).await;
        let verdict = verdict.map_err(|status| {
            let is_late = self.is_late(&status, asked);
            if status.is_from_peer() && !is_late {
                return status;
            }
            let is_kept = if is_late { self.policy.keep_connected } else { is_too_long(&status) };
            if !is_kept {
                self.close();
            }
            self.not_asked(Event::ValidateContainerAdjustment, status)
        })?;
        if verdict.reject {
            let message = format!(
                "the validator {} rejects the container's adjustment: {}",
                self.id, verdict.reason
            );
            return Err(Status::permission_denied(message));
        }
        Ok(())
    }

    /// Reports what has happened to a pod or, with `container`, to a container: any event without a reply.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn notify(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), Status> {
        let (pod, container) = (Some(pod.clone()), container.cloned());
        macro_rules! report {
            (pod: $method:ident, $request:ident) => {
                self.report(event, pod, None, |client, pod, _| client.$method($request { pod }))
                    .await
            };
            ($method:ident, $request:ident) => {
                self.report(event, pod, container, |client, pod, container| {
                    client.$method($request { pod, container })
                })
                .await
            };
        }
        match event {
            Event::RunPodSandbox => report!(pod: run_pod_sandbox, RunPodSandboxRequest),
            Event::PostUpdatePodSandbox => {
                report!(pod: post_update_pod_sandbox, PostUpdatePodSandboxRequest)
            }
            Event::StopPodSandbox => report!(pod: stop_pod_sandbox, StopPodSandboxRequest),
            Event::RemovePodSandbox => report!(pod: remove_pod_sandbox, RemovePodSandboxRequest),
            Event::PostCreateContainer => {
                report!(post_create_container, PostCreateContainerRequest)
            }
            Event::StartContainer => report!(start_container, StartContainerRequest),
            Event::PostStartContainer => report!(post_start_container, PostStartContainerRequest),
            Event::PostUpdateContainer => {
                report!(post_update_container, PostUpdateContainerRequest)
            }
            Event::RemoveContainer => report!(remove_container, RemoveContainerRequest),
            Event::Unknown
            | Event::Last
            | Event::CreateContainer
            | Event::UpdateContainer
            | Event::StopContainer
            | Event::UpdatePodSandbox
            | Event::ValidateContainerAdjustment => {
                Err(Status::invalid_argument(format!("{event} has a method of its own")))
            }
        }
    }

    /// Asks the plugin to end.
    ///
    /// # Errors
    /// If the plugin does not answer in time.
    pub async fn shutdown(&self) -> Result<(), Status> {
        self.client.shutdown(Empty {}).timeout(self.about.request_timeout).await.map(drop)
    }
}

/// Whether a message was refused on this side: other plugins have made it longer than a frame may be. It is no fault of the one that is asked.
fn is_too_long(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && !status.is_from_peer()
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
