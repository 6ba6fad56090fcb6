//! One plugin under a runtime that does nothing: with a stub, or with a service of its own.

use std::{sync::Arc, time::Duration};

use tokio::io::duplex;
use ttrpc::{
    Client, ClientConfig, Connection, Server, async_trait,
    server::{Routes, Service},
};
use ttrpc_nri::{
    ContainerEviction, ContainerUpdate, Error, PluginId, Status,
    mux::{ConnId, Mux, MuxConfig},
    proto::{RegisterPluginRequest, RuntimeClient},
    runtime::{PluginConnection, RuntimeInfo, UpdateContainers},
};

/// The service that a runtime calls.
pub const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Refuses every update.
struct NoUpdates;

#[async_trait]
impl UpdateContainers for NoUpdates {
    async fn update_containers(
        &self,
        plugin: &PluginId,
        _: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        Err(Status::unimplemented(format!("nothing for {plugin}")))
    }
}

/// How long a runtime of a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A runtime that waits for its plugins however long the machine takes.
pub fn patient() -> RuntimeInfo {
    RuntimeInfo::new("test", "1").registration_timeout(PATIENCE).request_timeout(PATIENCE)
}

/// Waits for a plugin's registration.
pub async fn accept(stream: impl Into<Connection>) -> Result<PluginConnection, Error> {
    PluginConnection::external(stream, Arc::new(patient()), Arc::new(NoUpdates)).await
}

/// A plugin without a stub.
pub struct ByHand(pub fn(Routes, &Arc<()>) -> Routes);

impl Service for ByHand {
    fn into_routes(self) -> Routes {
        (self.0)(Routes::new(PLUGIN), &Arc::new(()))
    }
}

/// Connects and registers such a plugin, which lives while the multiplexer does. It has the times that a runtime gives by default.
pub async fn registered(plugin: ByHand) -> (PluginConnection, Mux) {
    let (here, there) = duplex(1 << 16);
    let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
    let (mux, [served, called]) = Mux::start(Connection::new(there), MuxConfig::default(), ids);
    let server = Server::builder().add_service(plugin).connection(served);
    tokio::spawn(server.build().expect("it has a connection").serve());
    let about = Arc::new(RuntimeInfo::new("test", "1"));
    let external = PluginConnection::external(Connection::new(here), about, Arc::new(NoUpdates));
    let accepted = tokio::spawn(external);
    let request = RegisterPluginRequest {
        plugin_name: "hand".into(),
        plugin_idx: "10".into(),
        ..Default::default()
    };
    let client = Client::from_connection(called, ClientConfig::default());
    RuntimeClient::new(client).register_plugin(request).await.expect("it is valid");
    (accepted.await.expect("it does not panic").expect("it registers"), mux)
}
