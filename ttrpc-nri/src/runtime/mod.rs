//! The runtime's side of NRI, for container runtimes that want plugins.
//!
//! An [`Adaptation`] has all plugins of a runtime. A runtime calls it at each event, and applies what it returns:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use ttrpc::{Status, async_trait, server::Listener};
//! # use ttrpc_nri::{Container, ContainerEviction, ContainerUpdate, PluginId, PodSandbox, proto::CreateContainerRequest};
//! # use ttrpc_nri::runtime::{Adaptation, Host, RuntimeInfo, UpdateContainers};
//! struct MyRuntime;
//!
//! #[async_trait]
//! impl UpdateContainers for MyRuntime {
//!     async fn update_containers(
//!         &self,
//!         _: &PluginId,
//!         updates: Vec<ContainerUpdate>,
//!         _: Vec<ContainerEviction>,
//!     ) -> Result<Vec<ContainerUpdate>, Status> {
//!         Ok(Vec::new()) // … the updates that failed
//!     }
//! }
//!
//! #[async_trait]
//! impl Host for MyRuntime {
//!     async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
//!         Ok((Vec::new(), Vec::new())) // … all that exist
//!     }
//! }
//!
//! # async fn example(request: CreateContainerRequest) -> Result<(), Box<dyn std::error::Error>> {
//! let nri = Arc::new(Adaptation::new(RuntimeInfo::new("my-runtime", "1.0"), MyRuntime));
//! nri.launch("/opt/nri/plugins", "/etc/nri/conf.d").await?;
//! let (external, listener) = (nri.clone(), Listener::bind("/var/run/nri/nri.sock")?);
//! let served = tokio::spawn(async move { external.serve(listener).await });
//! // … at each creation of a container, until `Host::state` has it:
//! let block = nri.block_synchronization().await;
//! let wanted = nri.create_container(request).await?;
//! drop(block);
//! # Ok(()) }
//! ```
//!
//! [`PluginConnection`] is one plugin alone: registered, configured, synchronized, and called for the events that it has subscribed to.

mod adaptation;
mod connection;
mod launch;
mod merge;
mod owners;
mod registration;
mod requests;
mod synchronize;

use std::{sync::Arc, time::Duration};

use ttrpc::{Status, async_trait};

pub use adaptation::{Adaptation, SynchronizationBlock};
pub use connection::PluginConnection;
pub use launch::{Installed, config, installed};

use crate::{
    Container, ContainerEviction, ContainerUpdate, Instruments, NRI_VERSION, PluginId, PodSandbox,
};

/// Bytes of a message to a plugin: the 4 MiB of a ttrpc frame, without those of names, time and metadata.
const MESSAGE_BYTES: usize = (4 << 20) - 4096;

/// A runtime's description of itself for plugins, and their time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    /// The runtime's name.
    pub name: String,
    /// The runtime's version.
    pub version: String,
    /// The version of NRI that plugins learn: this crate's. Empty stands for a runtime of before v0.12.
    pub nri_version: String,
    /// The time from a plugin's connection to its registration: 5 s.
    pub registration_timeout: Duration,
    /// The time of each request: 2 s.
    pub request_timeout: Duration,
}

impl RuntimeInfo {
    /// Names a runtime.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        RuntimeInfo {
            name: name.into(),
            version: version.into(),
            nri_version: NRI_VERSION.to_owned(),
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
        }
    }

    /// Sets [`RuntimeInfo::nri_version`].
    #[must_use]
    pub fn nri_version(mut self, version: impl Into<String>) -> Self {
        self.nri_version = version.into();
        self
    }

    /// Sets [`RuntimeInfo::registration_timeout`].
    #[must_use]
    pub fn registration_timeout(mut self, limit: Duration) -> Self {
        self.registration_timeout = limit;
        self
    }

    /// Sets [`RuntimeInfo::request_timeout`].
    #[must_use]
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.request_timeout = limit;
        self
    }
}

/// Changes containers when a plugin asks without an event.
#[async_trait]
pub trait UpdateContainers: Send + Sync + 'static {
    /// Returns the updates that failed, without those that ignore failures.
    async fn update_containers(
        &self,
        plugin: &PluginId,
        updates: Vec<ContainerUpdate>,
        evictions: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status>;

    /// Returns the observers and interceptors of a plugin's connection, which is about to be made. By default none.
    fn instruments(&self) -> Instruments {
        Instruments::new()
    }
}

/// A container runtime, as its plugins need it.
#[async_trait]
pub trait Host: UpdateContainers {
    /// Returns all pods and containers that exist. No request passes through the plugins until it returns, so it must not wait for one.
    ///
    /// # Errors
    /// If they cannot be listed. The plugin that was to learn of them is disconnected, with [`Error::State`](crate::Error::State).
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status>;
}

impl dyn Host {
    fn updates(self: Arc<Self>) -> Arc<dyn UpdateContainers> {
        self
    }
}
