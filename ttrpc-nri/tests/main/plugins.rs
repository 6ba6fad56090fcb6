//! Plugins for tests.

use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::oneshot;
use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Context, Creation, Event,
    EventMask, LinuxResources, Plugin, PodSandbox, Runtime, Status, Updates, plugin, proto,
};

/// Everything that the plugin has seen, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn add(&self, text: impl Into<String>) {
        self.0.lock().expect("no test panics here").push(text.into());
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panics here"))
    }
}

/// Implements everything, and behaves as the container's name says.
#[derive(Default)]
pub struct All {
    pub log: Log,
    runtime: OnceLock<Runtime>,
}

#[plugin]
impl Plugin for All {
    async fn configure(&self, runtime: &Runtime, config: &str) -> Result<EventMask, Status> {
        self.log.add(format!("configure {config} {} {}", runtime.name(), runtime.nri_version()));
        let _ = self.runtime.set(runtime.clone());
        match config {
            "refuse" => Err(Status::invalid_argument("a bad configuration")),
            "narrow" => Ok(EventMask::NONE.with(Event::StartContainer)),
            "none" => Ok(EventMask::NONE),
            _ => Ok(Self::EVENTS),
        }
    }

    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        self.log.add(format!("synchronize {} {}", pods.len(), containers.len()));
        Ok(vec![ContainerUpdate::of("first").cpu_shares(2)])
    }

    async fn shutdown(&self, _: &Context) {
        self.log.add("shutdown");
    }

    async fn run_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("run_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn update_pod_sandbox(
        &self,
        _: &Context,
        pod: &PodSandbox,
        overhead: &LinuxResources,
        resources: &LinuxResources,
    ) -> Result<(), Status> {
        self.log.add(format!(
            "update_pod_sandbox {} {} {}",
            pod.name,
            overhead.unified.len(),
            resources.unified.len()
        ));
        Ok(())
    }

    async fn post_update_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("post_update_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn stop_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("stop_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn remove_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("remove_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn create_container(
        &self,
        ctx: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        assert!(ctx.deadline().is_some(), "a request has a deadline");
        match &*container.name {
            "panics" => panic!("as the test wants"),
            "fails" => Err(Status::permission_denied("not this one")),
            "slow" => {
                ctx.cancelled().await;
                Ok(Creation::default())
            }
            "updates others" => {
                let runtime = self.runtime.get().expect("it is configured");
                runtime.update_containers(vec![ContainerUpdate::of("other")]).await?;
                Ok(Creation::default())
            }
            name => {
                let adjustment = ContainerAdjustment::new().env("NAME", name).cpuset_cpus("0");
                let update = ContainerUpdate::of("other").memory_limit(1);
                Ok(Creation::from(adjustment)
                    .update(update)
                    .evict(ContainerEviction::of("third", "full")))
            }
        }
    }

    async fn post_create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("post_create_container {}", container.name));
        Ok(())
    }

    async fn start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("start_container {}", container.name));
        Ok(())
    }

    async fn post_start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("post_start_container {}", container.name));
        Ok(())
    }

    async fn update_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
        resources: &LinuxResources,
    ) -> Result<Updates, Status> {
        self.log.add(format!("update_container {} {}", container.name, resources.unified.len()));
        Ok(ContainerUpdate::of(&container.id).pids_limit(9).into())
    }

    async fn post_update_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("post_update_container {}", container.name));
        Ok(())
    }

    async fn stop_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        self.log.add(format!("stop_container {}", container.name));
        Ok(vec![ContainerUpdate::of("other").ignore_failure()])
    }

    async fn remove_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("remove_container {}", container.name));
        Ok(())
    }

    async fn validate_container_adjustment(
        &self,
        _: &Context,
        request: &proto::ValidateContainerAdjustmentRequest,
    ) -> Result<(), Status> {
        match request.adjust {
            Some(_) => Err(Status::permission_denied("no adjustments here")),
            None => Ok(()),
        }
    }
}

/// Implements one event.
pub struct Starts;

#[plugin]
impl Plugin for Starts {
    async fn start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        _: &Container,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// Implements none.
pub struct Nothing;

#[plugin]
impl Plugin for Nothing {}

/// Hands its runtime to the test, and adjusts containers.
pub struct Caller(Mutex<Option<oneshot::Sender<Runtime>>>);

impl Caller {
    pub fn new() -> (Caller, oneshot::Receiver<Runtime>) {
        let (sender, runtime) = oneshot::channel();
        (Caller(Mutex::new(Some(sender))), runtime)
    }
}

#[plugin]
impl Plugin for Caller {
    async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
        let sender = self.0.lock().expect("no test panics here").take();
        sender.expect("it is configured once").send(runtime.clone()).expect("the test waits");
        Ok(Self::EVENTS)
    }

    async fn create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        _: &Container,
    ) -> Result<Creation, Status> {
        Ok(ContainerAdjustment::new().env("X", "1").into())
    }
}

/// A pod and its container.
pub fn both() -> (PodSandbox, Container) {
    (PodSandbox::named("p"), Container::named("c"))
}
