//! What an author of a plugin writes.

use ttrpc::{Context, Status};

use crate::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, EventMask, LinuxResources,
    PodSandbox, Runtime, proto,
};

/// A plugin: what it does when something happens to a pod or a container. Every handler has a default that changes nothing.
///
/// The attribute [`plugin`](macro@crate::plugin) subscribes to the events whose handlers are written:
///
/// ```
/// use ttrpc_nri::{
///     Container, ContainerAdjustment, Context, Creation, Plugin, PodSandbox, Status, plugin,
/// };
///
/// struct Pinner;
///
/// #[plugin]
/// impl Plugin for Pinner {
///     async fn create_container(
///         &self,
///         _: &Context,
///         pod: &PodSandbox,
///         _: &Container,
///     ) -> Result<Creation, Status> {
///         let Some(cpus) = pod.annotation("pin.example/cpus") else {
///             return Ok(Creation::default());
///         };
///         Ok(ContainerAdjustment::new().cpuset_cpus(cpus).into())
///     }
/// }
/// ```
///
/// # What a status does
///
/// A handler that fails, or panics (INTERNAL), fails the request of the pod or container. One that takes longer than
/// [`Runtime::request_timeout`] has the runtime drop the plugin, and go on without it unless the [`FailurePolicy`](crate::FailurePolicy) says
/// otherwise. The handler's [`Context`] has that deadline, and is cancelled when it passes.
pub trait Plugin: Send + Sync + 'static {
    /// The events that have handlers. [`plugin`](macro@crate::plugin) writes this.
    const EVENTS: EventMask;

    /// Receives the plugin's configuration and a handle for calls of the runtime.
    ///
    /// The configuration is empty unless the runtime launched the plugin and has a file for it. Called again after each
    /// reconnection.
    ///
    /// Returns the events to subscribe to: `Self::EVENTS`, or fewer. The runtime gets those of them that it knows.
    fn configure(
        &self,
        runtime: &Runtime,
        config: &str,
    ) -> impl Future<Output = Result<EventMask, Status>> + Send {
        let _ = (runtime, config);
        async { Ok(Self::EVENTS) }
    }

    /// Takes all pods and containers that exist, once after each `configure`. Returns changes to containers.
    fn synchronize(
        &self,
        ctx: &Context,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, Status>> + Send {
        let _ = (ctx, pods, containers);
        async { Ok(Vec::new()) }
    }

    /// The runtime asks the plugin to end. When this returns, the stub does.
    fn shutdown(&self, ctx: &Context) -> impl Future<Output = ()> + Send {
        let _ = ctx;
        async {}
    }

    /// A pod is about to run.
    fn run_pod_sandbox(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod);
        async { Ok(()) }
    }

    /// A pod's resources are about to change.
    fn update_pod_sandbox(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        overhead: &LinuxResources,
        resources: &LinuxResources,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod, overhead, resources);
        async { Ok(()) }
    }

    /// A pod's resources have changed.
    fn post_update_pod_sandbox(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod);
        async { Ok(()) }
    }

    /// A pod is about to stop.
    fn stop_pod_sandbox(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod);
        async { Ok(()) }
    }

    /// A pod is removed.
    fn remove_pod_sandbox(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod);
        async { Ok(()) }
    }

    /// A container is about to be created. Returns how it is to be adjusted, and changes to others.
    fn create_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<Creation, Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(Creation::default()) }
    }

    /// A container was created.
    fn post_create_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(()) }
    }

    /// A container is about to start.
    fn start_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(()) }
    }

    /// A container has started.
    fn post_start_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(()) }
    }

    /// A container's resources are about to change. Returns what is to change besides, in this container or in others.
    fn update_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
        resources: &LinuxResources,
    ) -> impl Future<Output = Result<Updates, Status>> + Send {
        let _ = (ctx, pod, container, resources);
        async { Ok(Updates::default()) }
    }

    /// A container's resources have changed.
    fn post_update_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(()) }
    }

    /// A container has stopped. Returns changes to others.
    fn stop_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(Vec::new()) }
    }

    /// A container is removed.
    fn remove_container(
        &self,
        ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, pod, container);
        async { Ok(()) }
    }

    /// Judges what all plugins together want of a container. The container is not created when this fails; the status's message is
    /// the reason.
    fn validate_container_adjustment(
        &self,
        ctx: &Context,
        request: &proto::ValidateContainerAdjustmentRequest,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        let _ = (ctx, request);
        async { Ok(()) }
    }
}

/// A plugin's answer when a container is created. Made of an adjustment by `into()`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Creation {
    /// How the new container is to be.
    pub adjustment: ContainerAdjustment,
    /// Changes to other containers.
    pub updates: Vec<ContainerUpdate>,
    /// Containers to be ended.
    pub evictions: Vec<ContainerEviction>,
}

impl Creation {
    /// Changes another container too.
    #[must_use]
    pub fn update(mut self, update: ContainerUpdate) -> Self {
        self.updates.push(update);
        self
    }

    /// Ends another container.
    #[must_use]
    pub fn evict(mut self, eviction: ContainerEviction) -> Self {
        self.evictions.push(eviction);
        self
    }
}

impl From<ContainerAdjustment> for Creation {
    fn from(adjustment: ContainerAdjustment) -> Self {
        Creation { adjustment, ..Creation::default() }
    }
}

impl From<(ContainerAdjustment, Vec<ContainerUpdate>)> for Creation {
    fn from((adjustment, updates): (ContainerAdjustment, Vec<ContainerUpdate>)) -> Self {
        Creation { adjustment, updates, ..Creation::default() }
    }
}

/// A plugin's answer when a container is updated. Made of one update or several by `into()`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Updates {
    /// Changes to containers.
    pub updates: Vec<ContainerUpdate>,
    /// Containers to be ended.
    pub evictions: Vec<ContainerEviction>,
}

impl Updates {
    /// Ends a container.
    #[must_use]
    pub fn evict(mut self, eviction: ContainerEviction) -> Self {
        self.evictions.push(eviction);
        self
    }
}

impl From<ContainerUpdate> for Updates {
    fn from(update: ContainerUpdate) -> Self {
        vec![update].into()
    }
}

impl From<Vec<ContainerUpdate>> for Updates {
    fn from(updates: Vec<ContainerUpdate>) -> Self {
        Updates { updates, evictions: Vec::new() }
    }
}
