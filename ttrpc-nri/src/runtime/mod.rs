//! The runtime's side of NRI, for container runtimes that want plugins.
//!
//! [`PluginConnection`] is one plugin: registered, configured, synchronized, and called for the events that it has subscribed to.

mod connection;
mod registration;
mod synchronize;

use std::time::Duration;

use ttrpc::{Status, async_trait};

pub use connection::PluginConnection;

use crate::{ContainerEviction, ContainerUpdate, NRI_VERSION, PluginId};

/// What a runtime says of itself to plugins, and the times that they have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    /// The runtime's name.
    pub name: String,
    /// The runtime's version.
    pub version: String,
    /// The version of NRI that plugins are told: this crate's. Empty stands for a runtime of before v0.12.
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
}
