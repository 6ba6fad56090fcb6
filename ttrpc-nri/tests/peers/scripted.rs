//! A plugin whose handlers are another process's: it passes each event to a service on a second socket, and returns its replies.
//! `tests/nri/conformance` puts it in the place of the plugins of containerd/nri's own tests.
//!
//!     scripted SOCKET CONTROL [fail] [keep]
//!
//! `SOCKET` is the runtime's, `CONTROL` that of the service. Calls to the runtime are accepted at `CONTROL.calls`. An adjustment
//! is made anew by the builders of this crate, and is an error if that makes another one.

#[path = "rebuild.rs"]
mod rebuild;

use std::env;

use tokio::sync::watch;
use ttrpc::{Client, Server};
use ttrpc_nri::{
    Container, ContainerUpdate, Context, Creation, EventMask, FailurePolicy, LinuxResources,
    Plugin, PodSandbox, Runtime, Status, Stub, Updates, plugin, proto, proto::*,
};

struct Scripted {
    control: PluginClient,
    runtime: watch::Sender<Option<Runtime>>,
}

/// Passes an event that has no reply.
macro_rules! passed {
    (pods: $($pod:ident $pod_request:ident)*; containers: $($container:ident $request:ident)*) => {
        #[plugin]
        impl Plugin for Scripted {
            async fn configure(&self, runtime: &Runtime, config: &str) -> Result<EventMask, Status> {
                let millis = |time: std::time::Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
                self.runtime.send_replace(Some(runtime.clone()));
                let request = ConfigureRequest {
                    config: config.to_owned(),
                    runtime_name: runtime.name().to_owned(),
                    runtime_version: runtime.version().to_owned(),
                    registration_timeout: millis(runtime.registration_timeout()),
                    request_timeout: millis(runtime.request_timeout()),
                    nri_version: runtime.nri_version().to_owned(),
                };
                match self.control.configure(request).await?.events {
                    0 => Ok(Self::EVENTS),
                    events => Ok(EventMask::from_bits(events)),
                }
            }

            async fn synchronize(&self, _: &Context, pods: Vec<PodSandbox>, containers: Vec<Container>) -> Result<Vec<ContainerUpdate>, Status> {
                Ok(self.control.synchronize(SynchronizeRequest { pods, containers, more: false }).await?.update)
            }

            async fn shutdown(&self, _: &Context) {
                let _ = self.control.shutdown(Empty {}).await;
            }

            async fn create_container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<Creation, Status> {
                let (pod, container) = (Some(pod.clone()), Some(container.clone()));
                let reply = self.control.create_container(CreateContainerRequest { pod, container }).await?;
                let adjustment = rebuild::adjustment(reply.adjust.unwrap_or_default())?;
                Ok((adjustment, rebuild::updates(reply.update)?).into())
            }

            async fn update_container(&self, _: &Context, pod: &PodSandbox, container: &Container, resources: &LinuxResources) -> Result<Updates, Status> {
                let (pod, container, linux_resources) = (Some(pod.clone()), Some(container.clone()), Some(resources.clone()));
                let request = UpdateContainerRequest { pod, container, linux_resources };
                Ok(rebuild::updates(self.control.update_container(request).await?.update)?.into())
            }

            async fn stop_container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<Vec<ContainerUpdate>, Status> {
                let (pod, container) = (Some(pod.clone()), Some(container.clone()));
                rebuild::updates(self.control.stop_container(StopContainerRequest { pod, container }).await?.update)
            }

            async fn update_pod_sandbox(&self, _: &Context, pod: &PodSandbox, overhead: &LinuxResources, resources: &LinuxResources) -> Result<(), Status> {
                let request = UpdatePodSandboxRequest {
                    pod: Some(pod.clone()),
                    overhead_linux_resources: Some(overhead.clone()),
                    linux_resources: Some(resources.clone()),
                };
                self.control.update_pod_sandbox(request).await.map(drop)
            }

            async fn validate_container_adjustment(&self, _: &Context, request: &ValidateContainerAdjustmentRequest) -> Result<(), Status> {
                let reply = self.control.validate_container_adjustment(request.clone()).await?;
                if reply.reject { Err(Status::permission_denied(reply.reason)) } else { Ok(()) }
            }

            $(async fn $pod(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
                self.control.$pod($pod_request { pod: Some(pod.clone()) }).await.map(drop)
            })*

            $(async fn $container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<(), Status> {
                let (pod, container) = (Some(pod.clone()), Some(container.clone()));
                self.control.$container($request { pod, container }).await.map(drop)
            })*
        }
    };
}

passed! {
    pods: run_pod_sandbox RunPodSandboxRequest
        post_update_pod_sandbox PostUpdatePodSandboxRequest
        stop_pod_sandbox StopPodSandboxRequest
        remove_pod_sandbox RemovePodSandboxRequest;
    containers: post_create_container PostCreateContainerRequest
        start_container StartContainerRequest
        post_start_container PostStartContainerRequest
        post_update_container PostUpdateContainerRequest
        remove_container RemoveContainerRequest
}

/// Passes calls to the runtime.
struct Calls {
    runtime: watch::Receiver<Option<Runtime>>,
}

impl proto::Runtime for Calls {
    async fn register_plugin(
        &self,
        _: &Context,
        _: RegisterPluginRequest,
    ) -> Result<Empty, Status> {
        Err(Status::unimplemented("the stub registers the plugin"))
    }

    async fn update_containers(
        &self,
        _: &Context,
        request: UpdateContainersRequest,
    ) -> Result<UpdateContainersResponse, Status> {
        let mut runtime = self.runtime.clone();
        let runtime = runtime.wait_for(Option::is_some).await;
        let runtime = runtime.ok().and_then(|runtime| runtime.clone());
        let runtime = runtime.ok_or_else(|| Status::unavailable("the plugin ends"))?;
        let failed = runtime.update_and_evict(request.update, request.evict).await?;
        Ok(UpdateContainersResponse { failed })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = env::args().skip(1).collect();
    let [socket, control, policy @ ..] = &args[..] else {
        return Err("usage: scripted SOCKET CONTROL [fail] [keep]".into());
    };
    let (runtime, calls) = watch::channel(None);
    let control_client = PluginClient::new(Client::connect(&format!("unix://{control}")).await?);
    let server = Server::builder()
        .add_service(RuntimeServer::new(Calls { runtime: calls }))
        .bind(&format!("unix://{control}.calls"))?;
    let served = tokio::spawn(server.serve());
    let mut stub = Stub::new(Scripted { control: control_client, runtime }).socket(socket);
    if !policy.is_empty() {
        let has = |word: &str| policy.iter().any(|each| each == word);
        stub = stub.failure_policy(FailurePolicy {
            fail_request: has("fail"),
            keep_connected: has("keep"),
        });
    }
    let ended = stub.run_until(ttrpc_nri::terminated()).await;
    served.abort();
    Ok(ended?)
}
