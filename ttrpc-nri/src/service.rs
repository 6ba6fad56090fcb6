//! A plugin as the service that a runtime calls.
//!
//! Made by `session` for one connection. Knows nothing of sockets.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::{Instant, sleep};
use ttrpc::{Context, Status};

use crate::{
    Container, Event, EventMask, Plugin, PodSandbox,
    proto::{self, *},
    state::{Session, lock},
    stub::Options,
    version::known_events,
};

/// One connection's service.
pub(crate) struct Service<P> {
    pub(crate) plugin: Arc<P>,
    pub(crate) options: Arc<Options>,
    pub(crate) session: Arc<Session>,
}

/// Reports a panic of the handler of this name, which ends a plugin as its failure does.
struct ReportsPanic<'a>(&'static str, &'a (dyn Fn(Result<(), Status>) + Sync));

impl Drop for ReportsPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.1)(Err(Status::internal(format!("the plugin's `{}` panicked", self.0))));
        }
    }
}

impl<P: Plugin> Service<P> {
    /// Runs a handler, and warns before the runtime gives up on it: when a quarter of a request's time is left, some of which parts that came
    /// before may have taken.
    async fn run<T>(
        &self,
        ctx: &Context,
        event: &'static str,
        of: &str,
        handler: impl Future<Output = T>,
    ) -> T {
        let limit = *lock(&self.session.request_timeout);
        if limit.is_zero() {
            return handler.await;
        }
        let started = Instant::now();
        let left = ctx.deadline().map_or(limit, |deadline| deadline - started).min(limit);
        let mut handler = std::pin::pin!(handler);
        tokio::select! {
            biased;
            result = &mut handler => return result,
            () = sleep(left.saturating_sub(limit / 4)) => {}
        }
        let elapsed = limit - left + started.elapsed();
        let slow = crate::SlowHandler { event, subject: of.to_owned(), elapsed, limit };
        tracing::warn!(%slow, "a handler is slow");
        if let Some(on_slow) = &self.options.on_slow {
            on_slow(&slow);
        }
        handler.await
    }

    async fn remove_pod(&self, ctx: &Context, pod: &PodSandbox) -> Result<(), Status> {
        match self.session.is_stand_in.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.plugin.remove_pod_sandbox(ctx, pod).await,
        }
    }

    async fn configured(
        &self,
        ctx: &Context,
        request: ConfigureRequest,
    ) -> Result<ConfigureResponse, Status> {
        let runtime = self.session.runtime.configured(&request);
        *lock(&self.session.request_timeout) = runtime.request_timeout();
        let handler = self.plugin.configure(&runtime, &request.config);
        let wanted = self.run(ctx, "Configure", "", handler).await?;
        let extra = wanted - P::EVENTS;
        if !extra.is_empty() {
            let message = format!("`configure` asks for events that have no handler: {extra}");
            return Err(Status::internal(message));
        }
        let known =
            known_events(&request.nri_version, &request.runtime_name, &request.runtime_version);
        let events = wanted & known;
        if events != wanted {
            tracing::warn!(unknown = %(wanted - known), runtime = runtime.name(), version = runtime.version(), "the runtime does not know these events");
        }
        // An empty mask means all events. The rarest stands for none, and its handler is not called.
        self.session.is_stand_in.store(events.is_empty(), Ordering::Relaxed);
        let events =
            if events.is_empty() { EventMask::NONE.with(Event::RemovePodSandbox) } else { events };
        let failure_policy = self.options.failure_policy;
        Ok(ConfigureResponse { events: events.bits(), failure_policy })
    }

    async fn synchronized(
        &self,
        ctx: &Context,
        request: SynchronizeRequest,
    ) -> Result<SynchronizeResponse, Status> {
        let Some(all) = self.session.add_part(request)? else {
            return Ok(SynchronizeResponse { update: Vec::new(), more: true });
        };
        let handler = self.plugin.synchronize(ctx, all.pods, all.containers);
        let update = self.run(ctx, "Synchronize", "", handler).await?;
        Ok(SynchronizeResponse { update, more: false })
    }
}

impl<P: Plugin> proto::Plugin for Service<P> {
    async fn configure(
        &self,
        ctx: &Context,
        request: ConfigureRequest,
    ) -> Result<ConfigureResponse, Status> {
        let report = |outcome| drop(self.session.configured.send_replace(Some(outcome)));
        let panic = ReportsPanic("configure", &report);
        let configured = self.configured(ctx, request).await;
        drop(panic);
        report(configured.as_ref().map(drop).map_err(Clone::clone));
        configured
    }

    async fn synchronize(
        &self,
        ctx: &Context,
        request: SynchronizeRequest,
    ) -> Result<SynchronizeResponse, Status> {
        let report = |outcome| drop(self.session.synchronized.set(outcome));
        let panic = ReportsPanic("synchronize", &report);
        let synchronized = self.synchronized(ctx, request).await;
        drop(panic);
        match &synchronized {
            Ok(SynchronizeResponse { more: true, .. }) => {}
            ended => report(ended.as_ref().map(drop).map_err(Clone::clone)),
        }
        synchronized
    }

    async fn shutdown(&self, ctx: &Context, _request: Empty) -> Result<Empty, Status> {
        self.plugin.shutdown(ctx).await;
        // The driver lets this call be answered before it ends.
        self.session.shutdown.cancel();
        Ok(Empty {})
    }

    async fn run_pod_sandbox(
        &self,
        ctx: &Context,
        request: RunPodSandboxRequest,
    ) -> Result<RunPodSandboxResponse, Status> {
        let pod = request.pod.unwrap_or_default();
        self.run(ctx, "RunPodSandbox", &pod.id, self.plugin.run_pod_sandbox(ctx, &pod)).await?;
        Ok(RunPodSandboxResponse {})
    }

    async fn update_pod_sandbox(
        &self,
        ctx: &Context,
        request: UpdatePodSandboxRequest,
    ) -> Result<UpdatePodSandboxResponse, Status> {
        let pod = request.pod.unwrap_or_default();
        let overhead = request.overhead_linux_resources.unwrap_or_default();
        let resources = request.linux_resources.unwrap_or_default();
        let handler = self.plugin.update_pod_sandbox(ctx, &pod, &overhead, &resources);
        self.run(ctx, "UpdatePodSandbox", &pod.id, handler).await?;
        Ok(UpdatePodSandboxResponse {})
    }

    async fn post_update_pod_sandbox(
        &self,
        ctx: &Context,
        request: PostUpdatePodSandboxRequest,
    ) -> Result<PostUpdatePodSandboxResponse, Status> {
        let pod = request.pod.unwrap_or_default();
        let handler = self.plugin.post_update_pod_sandbox(ctx, &pod);
        self.run(ctx, "PostUpdatePodSandbox", &pod.id, handler).await?;
        Ok(PostUpdatePodSandboxResponse {})
    }

    async fn stop_pod_sandbox(
        &self,
        ctx: &Context,
        request: StopPodSandboxRequest,
    ) -> Result<StopPodSandboxResponse, Status> {
        let pod = request.pod.unwrap_or_default();
        self.run(ctx, "StopPodSandbox", &pod.id, self.plugin.stop_pod_sandbox(ctx, &pod)).await?;
        Ok(StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        ctx: &Context,
        request: RemovePodSandboxRequest,
    ) -> Result<RemovePodSandboxResponse, Status> {
        let pod = request.pod.unwrap_or_default();
        self.run(ctx, "RemovePodSandbox", &pod.id, self.remove_pod(ctx, &pod)).await?;
        Ok(RemovePodSandboxResponse {})
    }

    async fn create_container(
        &self,
        ctx: &Context,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.create_container(ctx, &pod, &container);
        let wanted = self.run(ctx, "CreateContainer", &container.id, handler).await?;
        Ok(CreateContainerResponse {
            adjust: Some(wanted.adjustment),
            update: wanted.updates,
            evict: wanted.evictions,
        })
    }

    async fn post_create_container(
        &self,
        ctx: &Context,
        request: PostCreateContainerRequest,
    ) -> Result<PostCreateContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.post_create_container(ctx, &pod, &container);
        self.run(ctx, "PostCreateContainer", &container.id, handler).await?;
        Ok(PostCreateContainerResponse {})
    }

    async fn start_container(
        &self,
        ctx: &Context,
        request: StartContainerRequest,
    ) -> Result<StartContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.start_container(ctx, &pod, &container);
        self.run(ctx, "StartContainer", &container.id, handler).await?;
        Ok(StartContainerResponse {})
    }

    async fn post_start_container(
        &self,
        ctx: &Context,
        request: PostStartContainerRequest,
    ) -> Result<PostStartContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.post_start_container(ctx, &pod, &container);
        self.run(ctx, "PostStartContainer", &container.id, handler).await?;
        Ok(PostStartContainerResponse {})
    }

    async fn update_container(
        &self,
        ctx: &Context,
        request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let resources = request.linux_resources.unwrap_or_default();
        let handler = self.plugin.update_container(ctx, &pod, &container, &resources);
        let wanted = self.run(ctx, "UpdateContainer", &container.id, handler).await?;
        Ok(UpdateContainerResponse { update: wanted.updates, evict: wanted.evictions })
    }

    async fn post_update_container(
        &self,
        ctx: &Context,
        request: PostUpdateContainerRequest,
    ) -> Result<PostUpdateContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.post_update_container(ctx, &pod, &container);
        self.run(ctx, "PostUpdateContainer", &container.id, handler).await?;
        Ok(PostUpdateContainerResponse {})
    }

    async fn stop_container(
        &self,
        ctx: &Context,
        request: StopContainerRequest,
    ) -> Result<StopContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.stop_container(ctx, &pod, &container);
        let update = self.run(ctx, "StopContainer", &container.id, handler).await?;
        Ok(StopContainerResponse { update })
    }

    async fn remove_container(
        &self,
        ctx: &Context,
        request: RemoveContainerRequest,
    ) -> Result<RemoveContainerResponse, Status> {
        let (pod, container) = both(request.pod, request.container);
        let handler = self.plugin.remove_container(ctx, &pod, &container);
        self.run(ctx, "RemoveContainer", &container.id, handler).await?;
        Ok(RemoveContainerResponse {})
    }

    /// How runtimes of before v0.12 report what has a method of its own since.
    async fn state_change(
        &self,
        ctx: &Context,
        request: StateChangeEvent,
    ) -> Result<Empty, Status> {
        let event = request.event();
        let (pod, container) = both(request.pod, request.container);
        let plugin = &self.plugin;
        let handler = async {
            match event {
                Event::RunPodSandbox => plugin.run_pod_sandbox(ctx, &pod).await,
                Event::PostUpdatePodSandbox => plugin.post_update_pod_sandbox(ctx, &pod).await,
                Event::StopPodSandbox => plugin.stop_pod_sandbox(ctx, &pod).await,
                Event::RemovePodSandbox => self.remove_pod(ctx, &pod).await,
                Event::PostCreateContainer => {
                    plugin.post_create_container(ctx, &pod, &container).await
                }
                Event::StartContainer => plugin.start_container(ctx, &pod, &container).await,
                Event::PostStartContainer => {
                    plugin.post_start_container(ctx, &pod, &container).await
                }
                Event::PostUpdateContainer => {
                    plugin.post_update_container(ctx, &pod, &container).await
                }
                Event::RemoveContainer => plugin.remove_container(ctx, &pod, &container).await,
                // These have replies, and have always had methods of their own.
                Event::CreateContainer
                | Event::UpdateContainer
                | Event::StopContainer
                | Event::UpdatePodSandbox
                | Event::ValidateContainerAdjustment
                | Event::Unknown
                | Event::Last => Ok(()),
            }
        };
        let subject = if container.id.is_empty() { &pod.id } else { &container.id };
        self.run(ctx, event.name(), subject, handler).await?;
        Ok(Empty {})
    }

    async fn validate_container_adjustment(
        &self,
        ctx: &Context,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, Status> {
        let subject = request.container.as_ref().map_or("", |container| &container.id);
        let handler = self.plugin.validate_container_adjustment(ctx, &request);
        let verdict = self.run(ctx, "ValidateContainerAdjustment", subject, handler).await;
        Ok(match verdict {
            Ok(()) => ValidateContainerAdjustmentResponse::default(),
            Err(status) => ValidateContainerAdjustmentResponse {
                reject: true,
                reason: status.message().to_owned(),
            },
        })
    }
}

fn both(pod: Option<PodSandbox>, container: Option<Container>) -> (PodSandbox, Container) {
    (pod.unwrap_or_default(), container.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use ttrpc::{Client, ClientConfig, Code, Connection, Server};

    use super::*;
    use crate::state::{SYNCHRONIZE_BYTES, tests::session};

    struct Nothing;

    impl Plugin for Nothing {
        const EVENTS: EventMask = EventMask::NONE;
    }

    #[tokio::test]
    async fn parts_of_synchronize_that_are_too_much_end_it() {
        let session = Arc::new(session());
        lock(&session.parts).bytes = SYNCHRONIZE_BYTES;
        let service = Service {
            plugin: Arc::new(Nothing),
            options: Arc::default(),
            session: session.clone(),
        };
        let (here, there) = duplex(1 << 16);
        let server = Server::builder().add_service(PluginServer::new(service));
        let server = server.connection(Connection::new(there)).build();
        tokio::spawn(server.expect("it has a connection").serve());
        let client = Client::from_connection(Connection::new(here), ClientConfig::default());
        let client = PluginClient::new(client);
        let part = |containers| SynchronizeRequest { containers, more: true, ..Default::default() };
        client.synchronize(part(Vec::new())).await.expect("it fits");
        assert_eq!(session.synchronized.get(), None);
        let status = client.synchronize(part(vec![Container::default()])).await;
        let status = status.expect_err("it is too much");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let ended = session.synchronized.get().expect("it has ended").as_ref();
        assert_eq!(ended.expect_err("it has failed").code(), Code::ResourceExhausted);
    }
}
