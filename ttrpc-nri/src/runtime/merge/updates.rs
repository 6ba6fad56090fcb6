//! Updates of containers, at whichever event plugins want them.

use std::collections::HashMap;

use ttrpc::Status;

use crate::{
    ContainerEviction, ContainerUpdate,
    proto::{OwningPlugins, UpdateContainerRequest, UpdateContainerResponse},
    runtime::owners::{Claims, overlay},
};

/// Updates of containers that plugins want.
#[derive(Default)]
pub(in crate::runtime) struct UpdateMerge {
    pub(in crate::runtime) updates: Vec<ContainerUpdate>,
    /// Where in `updates` those of a container are.
    positions: HashMap<String, usize>,
    /// Whether all plugins that update the container of a request ignore a failure, if some do update it.
    requested_ignores: Option<bool>,
    pub(in crate::runtime) evictions: Vec<ContainerEviction>,
    pub(in crate::runtime) owners: OwningPlugins,
}

impl UpdateMerge {
    /// Merges updates that a plugin wants. Those of the container of `request` change what is requested.
    ///
    /// # Errors
    /// If one sets what another plugin has set, unless its failure is ignored.
    pub(in crate::runtime) fn apply(
        &mut self,
        plugin: &str,
        updates: Vec<ContainerUpdate>,
        mut request: Option<&mut UpdateContainerRequest>,
    ) -> Result<(), Status> {
        for update in updates {
            let resources = update.linux.and_then(|linux| linux.resources).unwrap_or_default();
            let id = update.container_id;
            let claimed = self.owners.owners.get(&id).cloned();
            let mut claims = Claims { owners: &mut self.owners, container: &id, plugin };
            if let Err(conflict) = claims.claim_resources(&resources) {
                if !update.ignore_failure {
                    return Err(conflict);
                }
                // Nothing of it is set, so it owns nothing.
                match claimed {
                    Some(before) => self.owners.owners.insert(id, before),
                    None => self.owners.owners.remove(&id),
                };
                continue;
            }
            if let Some(request) = &mut request
                && request.container.as_ref().is_some_and(|container| container.id == id)
            {
                overlay(&resources, request.linux_resources.get_or_insert_default());
                let ignores = self.requested_ignores.unwrap_or(true) && update.ignore_failure;
                self.requested_ignores = Some(ignores);
                continue;
            }
            let at = *self.positions.entry(id).or_insert_with_key(|id| {
                let ignore_failure = update.ignore_failure;
                self.updates.push(ContainerUpdate { ignore_failure, ..ContainerUpdate::of(id) });
                self.updates.len() - 1
            });
            let merged = &mut self.updates[at];
            merged.ignore_failure &= update.ignore_failure;
            let target = merged.linux.get_or_insert_default().resources.get_or_insert_default();
            overlay(&resources, target);
        }
        Ok(())
    }

    /// The answer for an updated container: the others, then what is to be set in this one.
    pub(in crate::runtime) fn finish(
        self,
        request: UpdateContainerRequest,
    ) -> UpdateContainerResponse {
        let mut update = self.updates;
        let mut requested = ContainerUpdate::of(request.container.unwrap_or_default().id);
        requested.ignore_failure = self.requested_ignores.unwrap_or(false);
        requested.linux.get_or_insert_default().resources =
            Some(request.linux_resources.unwrap_or_default());
        update.push(requested);
        UpdateContainerResponse { update, evict: self.evictions }
    }
}
