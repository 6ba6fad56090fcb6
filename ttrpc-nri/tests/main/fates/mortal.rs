//! A plugin that meets its fate.

use std::sync::{Arc, Mutex, OnceLock};

use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerUpdate, Context, Creation, Event, EventMask,
    LinuxResources, Plugin, PodSandbox, Runtime, Status, Updates, plugin,
    proto::ValidateContainerAdjustmentRequest,
};

use super::wire::{Step, Wire};

/// The events that plugins have handled.
pub type Seen = Arc<Mutex<Vec<(&'static str, Event)>>>;

/// Meets its fate, if it has one, and notes the events that it has handled.
pub struct Mortal {
    pub name: &'static str,
    pub wire: Option<Arc<Wire>>,
    pub seen: Seen,
    pub runtime: OnceLock<Runtime>,
}

impl Mortal {
    /// Never returns if it is the plugin's last step.
    async fn reach(&self, step: Step) {
        if let Some(wire) = &self.wire {
            wire.reach(step);
            if step == wire.step {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn handle(&self, event: Event) -> Result<(), Status> {
        self.reach(Step::Handle(event)).await;
        if event == Event::StartContainer
            && self.wire.as_ref().is_some_and(|wire| wire.step == Step::Update)
        {
            let runtime = self.runtime.get().expect("it is configured");
            runtime.update_containers(vec![ContainerUpdate::of("c")]).await?;
        }
        self.seen.lock().expect("no test panics here").push((self.name, event));
        Ok(())
    }
}

macro_rules! handlers {
    (pods: $($pod:ident $pod_event:ident)*; containers: $($container:ident $event:ident)*) => {
        #[plugin]
        impl Plugin for Mortal {
            async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
                let _ = self.runtime.set(runtime.clone());
                self.reach(Step::Configure).await;
                Ok(Self::EVENTS)
            }

            async fn synchronize(&self, _: &Context, _: Vec<PodSandbox>, _: Vec<Container>) -> Result<Vec<ContainerUpdate>, Status> {
                self.reach(Step::Synchronize).await;
                Ok(Vec::new())
            }

            async fn shutdown(&self, _: &Context) {
                self.reach(Step::Shutdown).await;
            }

            async fn create_container(&self, _: &Context, _: &PodSandbox, container: &Container) -> Result<Creation, Status> {
                self.handle(Event::CreateContainer).await?;
                let before = container.env_value("NAMES").unwrap_or("");
                let adjustment = ContainerAdjustment::new().remove_env("NAMES");
                Ok(adjustment.env("NAMES", format!("{before}{} ", self.name)).into())
            }

            async fn update_container(&self, _: &Context, _: &PodSandbox, _: &Container, _: &LinuxResources) -> Result<Updates, Status> {
                self.handle(Event::UpdateContainer).await?;
                Ok(Updates::default())
            }

            async fn stop_container(&self, _: &Context, _: &PodSandbox, _: &Container) -> Result<Vec<ContainerUpdate>, Status> {
                self.handle(Event::StopContainer).await?;
                Ok(Vec::new())
            }

            async fn update_pod_sandbox(&self, _: &Context, _: &PodSandbox, _: &LinuxResources, _: &LinuxResources) -> Result<(), Status> {
                self.handle(Event::UpdatePodSandbox).await
            }

            async fn validate_container_adjustment(&self, _: &Context, _: &ValidateContainerAdjustmentRequest) -> Result<(), Status> {
                self.handle(Event::ValidateContainerAdjustment).await
            }

            $(async fn $pod(&self, _: &Context, _: &PodSandbox) -> Result<(), Status> {
                self.handle(Event::$pod_event).await
            })*

            $(async fn $container(&self, _: &Context, _: &PodSandbox, _: &Container) -> Result<(), Status> {
                self.handle(Event::$event).await
            })*
        }
    };
}

handlers! {
    pods: run_pod_sandbox RunPodSandbox post_update_pod_sandbox PostUpdatePodSandbox stop_pod_sandbox StopPodSandbox
        remove_pod_sandbox RemovePodSandbox;
    containers: post_create_container PostCreateContainer start_container StartContainer post_start_container PostStartContainer
        post_update_container PostUpdateContainer remove_container RemoveContainer
}
