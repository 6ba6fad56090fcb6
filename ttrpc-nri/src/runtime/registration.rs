//! What a runtime serves to one plugin.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::oneshot;
use ttrpc::{Context, Status};

use super::UpdateContainers;
use crate::{
    Error, PluginId,
    proto::{
        Empty, RegisterPluginRequest, Runtime, UpdateContainersRequest, UpdateContainersResponse,
    },
};

/// The service that one plugin calls.
pub(super) struct RuntimeService {
    /// Who the plugin is: known from the beginning if it was launched.
    id: OnceLock<PluginId>,
    registered: Mutex<Option<oneshot::Sender<Result<PluginId, Error>>>>,
    updates: Arc<dyn UpdateContainers>,
}

impl RuntimeService {
    /// The service, and what completes when the plugin has registered.
    pub(super) fn new(
        launched: Option<PluginId>,
        updates: Arc<dyn UpdateContainers>,
    ) -> (Self, oneshot::Receiver<Result<PluginId, Error>>) {
        let (sender, registered) = oneshot::channel();
        let id = launched.map_or_else(OnceLock::new, OnceLock::from);
        (RuntimeService { id, registered: Mutex::new(Some(sender)), updates }, registered)
    }
}

impl Runtime for RuntimeService {
    async fn register_plugin(
        &self,
        _ctx: &Context,
        request: RegisterPluginRequest,
    ) -> Result<Empty, Status> {
        let sender = self.registered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sender = sender
            .ok_or_else(|| Status::failed_precondition("the plugin is registered already"))?;
        // A launched plugin has the name of its file, whatever it says.
        let id = match self.id.get() {
            Some(id) => Ok(id.clone()),
            None => PluginId::new(request.plugin_idx, request.plugin_name),
        };
        let answer = match &id {
            Ok(id) => {
                let _ = self.id.set(id.clone());
                Ok(Empty {})
            }
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        };
        // The task that waited may have given up.
        let _ = sender.send(id);
        answer
    }

    async fn update_containers(
        &self,
        _ctx: &Context,
        request: UpdateContainersRequest,
    ) -> Result<UpdateContainersResponse, Status> {
        let id = self.id.get();
        let id = id.ok_or_else(|| Status::failed_precondition("the plugin is not registered"))?;
        let failed = self.updates.update_containers(id, request.update, request.evict).await?;
        Ok(UpdateContainersResponse { failed })
    }
}
