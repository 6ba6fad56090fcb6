//! Services for operators, unless the feature `debug` is off: what the daemon is waiting for, that it is well,
//! and what it serves. The command line `ttrpc` calls them.

use ttrpc::{Server, server::ServerBuilder};
use ttrpc_reflection::{Debug, Health, Reflection, proto};

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
        let reflection = Reflection::new(ttrpc_containerd::SHIM_FILE_DESCRIPTOR_SET)?
            .and(proto::health::FILE_DESCRIPTOR_SET)?
            .and(proto::debug::FILE_DESCRIPTOR_SET)?
            // The set may have services that the shim calls.
            .list_only(served.into_iter().chain(OWN));
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

/// What is served beside what containerd calls.
const OWN: [&str; 3] =
    ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "ttrpc.debug.v1.Debug"];

const SANDBOX: &str = "containerd.runtime.sandbox.v1.Sandbox";

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use ttrpc::Client;
    use ttrpc_reflection::proto::{
        debug::{DebugClient, SnapshotRequest},
        health::{HealthCheckRequest, HealthClient, health_check_response::ServingStatus},
        reflection::{
            ServerReflectionClient, ServerReflectionRequest,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        },
    };

    use super::*;
    use crate::{
        proto::v2::TaskServer,
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
        assert_eq!(told.unwrap().state, "serving");
        let request = HealthCheckRequest { service: SANDBOX.to_owned() };
        let health = HealthClient::new(client.clone()).check(request).await.unwrap();
        assert_eq!(health.status(), ServingStatus::Serving);

        let reflection = ServerReflectionClient::new(client);
        let (mut requests, mut answers) = reflection.server_reflection_info().await.unwrap();
        let mut ask = async |message_request| {
            let message_request = Some(message_request);
            let request = ServerReflectionRequest { host: String::new(), message_request };
            requests.send(request).await.unwrap();
            answers.recv().await.unwrap().unwrap().message_response.unwrap()
        };
        let MessageResponse::ListServicesResponse(listed) =
            ask(MessageRequest::ListServices("*".to_owned())).await
        else {
            panic!("the services are asked for");
        };
        let names: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
        for served in ["containerd.task.v3.Task", SANDBOX, OWN[0], OWN[1], OWN[2]] {
            assert!(names.iter().any(|name| name == served), "{served} is not in {names:?}");
        }
        for name in names {
            let files = ask(MessageRequest::FileContainingSymbol(name)).await;
            assert!(matches!(files, MessageResponse::FileDescriptorResponse(_)), "{files:?}");
        }
        serving.abort();
    }
}
