//! One request through several plugins: what each wants is merged, and the next one sees it.

mod adjustment;
mod entries;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;
mod updates;

use ttrpc::Status;

pub(super) use updates::UpdateMerge;

use super::owners::Claims;
use crate::{
    ContainerAdjustment,
    proto::{CreateContainerRequest, CreateContainerResponse},
};

/// The creation of a container on its way through the plugins.
pub(super) struct CreateMerge {
    /// With what the plugins before have changed.
    pub(super) request: CreateContainerRequest,
    pub(super) adjust: ContainerAdjustment,
    pub(super) others: UpdateMerge,
}

impl CreateMerge {
    pub(super) fn new(request: CreateContainerRequest) -> Self {
        CreateMerge {
            request,
            adjust: ContainerAdjustment::default(),
            others: UpdateMerge::default(),
        }
    }

    /// Merges a plugin's answer.
    ///
    /// # Errors
    /// If it sets what another plugin has set, or updates the container that is being created.
    pub(super) fn apply(
        &mut self,
        plugin: &str,
        reply: CreateContainerResponse,
    ) -> Result<(), Status> {
        let container = self.request.container.get_or_insert_default();
        let id = container.id.clone();
        if let Some(adjust) = reply.adjust {
            let claims = Claims { owners: &mut self.others.owners, container: &id, plugin };
            adjustment::merge(claims, adjust, &mut self.adjust, container)?;
        }
        if reply.update.iter().any(|update| update.container_id == id) {
            let message = format!(
                "the plugin {plugin} updates container `{id}` while it is created: an adjustment does that"
            );
            return Err(Status::invalid_argument(message));
        }
        self.others.evictions.extend(reply.evict);
        self.others.apply(plugin, reply.update, None)
    }
}
