//! The requests of one plugin: an event each.

use tokio::time::Instant;
use ttrpc::{Code, Status, client::UnaryCall, prost::Message};

use super::{MESSAGE_BYTES, PluginConnection};
use crate::{
    Container, Event, PodSandbox,
    proto::{self, *},
};

/// Why a request has no reply.
enum Failure {
    /// The plugin answers with a status.
    Answered(Status),
    /// Other plugins have made the request longer than a message may be.
    TooLong(Status),
    /// The plugin has not answered in time.
    Late(Status),
    /// The plugin or the connection violates the protocol, or has ended.
    Broken(Status),
}

impl PluginConnection {
    async fn ask<Req, Resp>(
        &self,
        request: Req,
        call: impl FnOnce(&PluginClient, Req) -> UnaryCall<Req, Resp>,
    ) -> Result<Resp, Failure>
    where
        Req: Message + 'static,
        Resp: Message + Default + 'static,
    {
        let bytes = request.encoded_len();
        if bytes > MESSAGE_BYTES {
            let message = format!(
                "{bytes} bytes, with what other plugins want, are more than the {MESSAGE_BYTES} that a request can have"
            );
            return Err(Failure::TooLong(Status::resource_exhausted(message)));
        }
        let (asked, limit) = (Instant::now(), self.about.request_timeout);
        call(&self.client, request).timeout(limit).await.map_err(|status| {
            let is_late = status.code() == Code::DeadlineExceeded;
            match status.is_from_peer() {
                // The plugin may have said so itself, at the moment at which this side gave up.
                true if is_late && asked.elapsed() >= limit => Failure::Late(status),
                true => Failure::Answered(status),
                false if is_late => Failure::Late(status),
                false => Failure::Broken(status),
            }
        })
    }

    /// Calls the plugin for an event. `None` if it has not subscribed to it, or if it has failed and the request is to go on without it.
    async fn call<Req, Resp>(
        &self,
        event: Event,
        request: Req,
        call: impl FnOnce(&PluginClient, Req) -> UnaryCall<Req, Resp>,
    ) -> Result<Option<Resp>, Status>
    where
        Req: Message + 'static,
        Resp: Message + Default + 'static,
    {
        if !self.events.contains(event) || self.is_closed() {
            return Ok(None);
        }
        match self.ask(request, call).await {
            Ok(reply) => Ok(Some(reply)),
            Err(failure) => {
                let status = self.failed(event, failure)?;
                if self.policy.fail_request {
                    return Err(status);
                }
                tracing::warn!(plugin = %self.id, %event, %status, "the request goes on without the plugin");
                Ok(None)
            }
        }
    }

    /// Disconnects a plugin that has failed, unless its policy says otherwise. `Err` if the request fails whatever the policy says.
    fn failed(&self, event: Event, failure: Failure) -> Result<Status, Status> {
        let (status, is_kept) = match failure {
            Failure::Answered(status) => return Err(status),
            Failure::TooLong(status) => return Err(self.not_handled(event, status)),
            Failure::Late(status) => (status, self.policy.keep_connected),
            Failure::Broken(status) => (status, false),
        };
        if !is_kept {
            tracing::error!(plugin = %self.id, %event, %status, "the plugin is disconnected");
            self.close();
        }
        Ok(self.not_handled(event, status))
    }

    fn not_handled(&self, event: Event, status: Status) -> Status {
        let message =
            format!("the plugin {} has not handled {event}: {}", self.id, status.message());
        Status::new(status.code(), message).with_source(status)
    }

    /// Reports an event that has no reply. A plugin of before NRI v0.12 does not know its method, and gets a StateChange.
    async fn report<Req, Resp>(
        &self,
        event: Event,
        request: Req,
        call: impl FnOnce(&PluginClient, Req) -> UnaryCall<Req, Resp>,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), Status>
    where
        Req: Message + 'static,
        Resp: Message + Default + 'static,
    {
        match self.call(event, request, call).await {
            Err(status) if status.code() == Code::Unimplemented => {
                let (pod, container) = (Some(pod.clone()), container.cloned());
                let request = StateChangeEvent { event: event.into(), pod, container };
                self.call(event, request, PluginClient::state_change).await.map(drop)
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
        self.call(Event::CreateContainer, request, PluginClient::create_container).await
    }

    /// Asks for changes to the update of a container.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn update_container(
        &self,
        request: UpdateContainerRequest,
    ) -> Result<Option<UpdateContainerResponse>, Status> {
        self.call(Event::UpdateContainer, request, PluginClient::update_container).await
    }

    /// Reports that a container has stopped, and asks for changes to others.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn stop_container(
        &self,
        request: StopContainerRequest,
    ) -> Result<Option<StopContainerResponse>, Status> {
        self.call(Event::StopContainer, request, PluginClient::stop_container).await
    }

    /// Reports that a pod's resources are about to change.
    ///
    /// # Errors
    /// Those of [`PluginConnection::create_container`].
    pub async fn update_pod_sandbox(&self, request: UpdatePodSandboxRequest) -> Result<(), Status> {
        let reply = self.call(Event::UpdatePodSandbox, request, PluginClient::update_pod_sandbox);
        reply.await.map(drop)
    }

    /// Asks the plugin's judgement of what all plugins want. Unlike other requests this fails with a plugin that does not answer.
    ///
    /// # Errors
    /// PERMISSION_DENIED with the plugin's reason; what the plugin answers, or that it does not.
    pub async fn validate_container_adjustment(
        &self,
        request: proto::ValidateContainerAdjustmentRequest,
    ) -> Result<(), Status> {
        let event = Event::ValidateContainerAdjustment;
        if !self.events.contains(event) {
            return Ok(());
        }
        let verdict = self.ask(request, PluginClient::validate_container_adjustment).await;
        let verdict = verdict.or_else(|failure| self.failed(event, failure).and_then(Err))?;
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
        macro_rules! report {
            (pod: $method:ident, $request:ident) => {{
                let request = $request { pod: Some(pod.clone()) };
                self.report(event, request, PluginClient::$method, pod, None).await
            }};
            ($method:ident, $request:ident) => {{
                let request = $request { pod: Some(pod.clone()), container: container.cloned() };
                self.report(event, request, PluginClient::$method, pod, container).await
            }};
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
}
