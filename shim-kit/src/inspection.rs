//! Services for operators, with the feature `debug`: what the daemon is waiting for, that it is well,
//! and what it serves. The command line `ttrpc` calls them.

use ttrpc::{Server, server::ServerBuilder};
use ttrpc_reflection::{Debug, Health, Reflection, include_descriptor_set, proto};

/// What has to live as long as the server.
#[derive(Debug)]
pub struct Inspection {
    debug: Debug,
    _health: Health,
}

impl Inspection {
    /// Adds the services to a server that is not built yet.
    ///
    /// # Errors
    /// If the descriptors that were built in are none.
    pub fn add_to(
        builder: ServerBuilder,
    ) -> Result<(ServerBuilder, Inspection), Box<dyn std::error::Error>> {
        let (debug, health) = (Debug::new(), Health::new());
        let served = ["containerd.task.v2.Task", "containerd.task.v3.Task", SANDBOX];
        for service in served {
            health.set_serving(service, true);
        }
        let reflection = Reflection::new(include_descriptor_set!("shim"))?
            .and(proto::health::FILE_DESCRIPTOR_SET)?
            .and(proto::debug::FILE_DESCRIPTOR_SET)?
            .list_only(served);
        let builder = builder
            .add_service(reflection)
            .add_service(health.service())
            .add_service(debug.service());
        Ok((builder, Inspection { debug, _health: health }))
    }

    /// Shows the server that was built.
    pub fn show(&self, server: &Server) {
        self.debug.show(server.handle());
    }
}

const SANDBOX: &str = "containerd.runtime.sandbox.v1.Sandbox";

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use ttrpc::Client;
    use ttrpc_reflection::proto::{
        debug::{DebugClient, SnapshotRequest},
        health::{HealthCheckRequest, HealthClient, health_check_response::ServingStatus},
    };

    use super::*;
    use crate::{
        proto::v3::TaskServer,
        service::{TaskService, tests::Shell},
        shim::Shim,
    };

    #[tokio::test(flavor = "current_thread")]
    async fn a_daemon_says_what_it_serves_and_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("s").to_str().unwrap().to_owned();
        let shim = Shim::new("default", std::time::Duration::ZERO);
        let service = TaskService::<Shell>::new(shim, CancellationToken::new());
        let builder = Server::builder().add_service(TaskServer::new(service));
        let (builder, inspection) = Inspection::add_to(builder).unwrap();
        let server = builder.bind(&address).unwrap().build().unwrap();
        inspection.show(&server);
        let serving = tokio::spawn(server.serve());

        let client = Client::connect(&address).await.unwrap();
        let told = DebugClient::new(client.clone()).snapshot(SnapshotRequest::default()).await;
        assert!(told.unwrap().text.contains("serving"));
        let request = HealthCheckRequest { service: SANDBOX.to_owned() };
        let health = HealthClient::new(client).check(request).await.unwrap();
        assert_eq!(health.status(), ServingStatus::Serving);
        serving.abort();
    }
}
