//! One connection of a plugin to its runtime, from registration to its end.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::timeout};
use ttrpc::{Client, Connection, Server};

use crate::{
    Error, Plugin, PluginId, Runtime,
    instrument::Monitor,
    mux::{ConnId, Mux},
    proto::{PluginServer, RegisterPluginRequest},
    service::Service,
    state::Session,
    stub::Options,
    version::NRI_VERSION,
};

/// The time for RegisterPlugin, and again for Configure: a runtime gives a plugin as much.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that handlers have to end when the plugin is to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How a connection ended.
pub(crate) enum End {
    /// The program or the runtime asked for it.
    Asked,
    Failed {
        error: Error,
        was_ready: bool,
    },
}

/// Serves the plugin, registers it and waits for the end.
pub(crate) async fn run<P: Plugin>(
    connection: Connection,
    id: &PluginId,
    plugin: &Arc<P>,
    options: &Arc<Options>,
    signal: &mut Pin<&mut impl Future<Output = ()>>,
) -> End {
    let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
    let (mux, [served, called]) = Mux::start(connection, options.mux.clone(), ids);
    let client = options.instruments.client(called, options.client.clone());
    // The runtime measures the time of each request. Late, a plugin is dropped; a status of its own would fail the request.
    let server = Server::builder().config(options.server.clone().answer_late_calls(false));
    let monitor = Monitor { mux: mux.monitor(), server: server.handle() };
    let runtime = Runtime::new(client.clone(), monitor);
    let session = Arc::new(Session::new(runtime.clone()));
    let service =
        Service { plugin: plugin.clone(), options: options.clone(), session: session.clone() };
    let server = options.instruments.server(server).add_service(PluginServer::new(service));
    let server = server.connection(served).build();
    let server = match server {
        Ok(server) => server,
        Err(error) => return End::Failed { error: error.into(), was_ready: false },
    };
    let handle = server.handle();
    let mut tasks = JoinSet::new();
    tasks.spawn(server.serve());

    let life = async {
        // It serves already: Configure may come before the answer.
        register(&runtime, &client, id, &session).await?;
        tracing::info!(plugin = %id, "the plugin is registered");
        std::future::pending().await
    };
    let mut life = std::pin::pin!(life);
    let ended = async {
        tokio::select! {
            _ = tasks.join_next() => {}
            _ = client.closed() => {}
        }
        // What had arrived before the trunk's end is read first, such as the answer to RegisterPlugin.
        match mux.close_reason() {
            Some(why) => {
                client.closed().await;
                Error::Disconnected(why)
            }
            None => Error::LogicalConnection(client.close_reason()),
        }
    };
    let end = tokio::select! {
        biased;
        () = signal => Ok(()),
        () = session.shutdown.cancelled() => Ok(()),
        failed = &mut life => failed,
        error = ended => tokio::select! {
            biased;
            failed = &mut life => failed,
            () = std::future::ready(()) => Err(error),
        },
    };
    if matches!(end, Ok(()) | Err(Error::Configure(_))) {
        // What the runtime waits for is answered first: its Shutdown, or the Configure that has failed.
        handle.shutdown(DRAIN_TIMEOUT).await;
        client.close();
        // A runtime that does not read does not keep the plugin from its end.
        let _ = timeout(DRAIN_TIMEOUT, mux.shutdown()).await;
    }
    match end {
        Ok(()) => End::Asked,
        Err(error) => {
            // A runtime says nothing when it drops a plugin for that.
            let error = match session.synchronized.get() {
                Some(Err(status)) => Error::Synchronize(status.clone()),
                _ => error,
            };
            let was_ready = matches!(session.synchronized.get(), Some(Ok(())));
            End::Failed { error, was_ready }
        }
    }
}

async fn register(
    runtime: &Runtime,
    client: &Client,
    id: &PluginId,
    session: &Session,
) -> Result<(), Error> {
    let request = RegisterPluginRequest {
        plugin_name: id.name().to_owned(),
        plugin_idx: id.index().to_owned(),
        nri_version: NRI_VERSION.to_owned(),
    };
    let call = runtime.client().register_plugin(request).timeout(REGISTRATION_TIMEOUT);
    if let Err(source) = call.await {
        // A runtime that has configured the plugin had registered it, though it went before its answer arrived: that
        // is the end of the connection, if the plugin was configured.
        let configured = session.configured.borrow().clone();
        return match configured {
            Some(Err(status)) => Err(Error::Configure(status)),
            Some(Ok(())) if client.close_reason().is_some() => std::future::pending().await,
            _ => Err(Error::Register { plugin: id.to_string(), source }),
        };
    }
    let mut configured = session.configured.subscribe();
    let configured = timeout(REGISTRATION_TIMEOUT, configured.wait_for(Option::is_some)).await;
    let seconds = REGISTRATION_TIMEOUT.as_secs();
    let configured = configured.map_err(|_| Error::NotConfigured { seconds })?;
    // The sender is in the session.
    match configured.ok().and_then(|outcome| outcome.clone()) {
        Some(Err(status)) => Err(Error::Configure(status)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::duplex;
    use ttrpc::{
        Context, RawEnd, async_trait,
        client::ConnectOptions,
        server::{Fallback, FallbackCall},
    };

    use super::*;
    use crate::{
        Container, ContainerEviction, ContainerUpdate, EventMask, PodSandbox, Status,
        mux::MuxConfig,
        proto::{ConfigureRequest, PluginClient, SynchronizeRequest},
        runtime::{PluginConnection, RuntimeInfo, UpdateContainers},
    };

    struct NoUpdates;

    #[async_trait]
    impl UpdateContainers for NoUpdates {
        async fn update_containers(
            &self,
            _: &PluginId,
            _: Vec<ContainerUpdate>,
            _: Vec<ContainerEviction>,
        ) -> Result<Vec<ContainerUpdate>, Status> {
            Ok(Vec::new())
        }
    }

    /// Fails where no container exists.
    struct NeedsOne;

    impl Plugin for NeedsOne {
        const EVENTS: EventMask = EventMask::NONE;

        async fn synchronize(
            &self,
            _: &Context,
            _: Vec<PodSandbox>,
            containers: Vec<Container>,
        ) -> Result<Vec<ContainerUpdate>, Status> {
            match containers.is_empty() {
                true => Err(Status::internal("no container")),
                false => Ok(Vec::new()),
            }
        }
    }

    /// Panics when it is configured, or when it is synchronized.
    enum Panics {
        Configured,
        Synchronized,
    }

    impl Plugin for Panics {
        const EVENTS: EventMask = EventMask::NONE;

        async fn configure(&self, _: &Runtime, _: &str) -> Result<EventMask, Status> {
            match self {
                Panics::Configured => panic!("as the test wants"),
                Panics::Synchronized => Ok(Self::EVENTS),
            }
        }

        async fn synchronize(
            &self,
            _: &Context,
            _: Vec<PodSandbox>,
            _: Vec<Container>,
        ) -> Result<Vec<ContainerUpdate>, Status> {
            panic!("as the test wants")
        }
    }

    #[tokio::test]
    async fn a_plugin_whose_configure_panics_ends_as_one_whose_configure_fails() {
        let End::Failed { error, was_ready } = ended(Panics::Configured, &[]).await else {
            panic!("nobody asked")
        };
        let Error::Configure(status) = error else { panic!("{error}") };
        assert!(status.message().contains("panicked") && !was_ready, "{status}");
    }

    #[tokio::test]
    async fn a_plugin_whose_synchronize_panics_ends_as_one_whose_synchronize_fails() {
        let End::Failed { error, was_ready } = ended(Panics::Synchronized, &[]).await else {
            panic!("nobody asked")
        };
        let Error::Synchronize(status) = error else { panic!("{error}") };
        assert!(status.message().contains("panicked") && !was_ready, "{status}");
    }

    /// Answers no RegisterPlugin.
    struct NeverAnswers;

    #[async_trait]
    impl Fallback for NeverAnswers {
        async fn call(&self, _: &Context, _: FallbackCall) -> Result<RawEnd, Status> {
            pending().await
        }
    }

    #[tokio::test]
    async fn a_runtime_that_goes_before_its_answer_had_registered_the_plugin_that_it_configured() {
        let (error, was_ready) = ended_before_the_answer(NeedsOne).await;
        assert!(matches!(error, Error::Disconnected(_)) && was_ready, "{error}");
        let (error, was_ready) = ended_before_the_answer(Panics::Configured).await;
        assert!(matches!(error, Error::Configure(_)) && !was_ready, "{error}");
    }

    /// A session with a runtime that configures the plugin, tells it of a container, and ends without having answered.
    async fn ended_before_the_answer(plugin: impl Plugin) -> (Error, bool) {
        let (here, there) = duplex(1 << 16);
        let id = PluginId::new("10", "p").expect("it is one");
        let mut never = std::pin::pin!(pending());
        let (plugin, options) = (Arc::new(plugin), Arc::default());
        let session = run(Connection::new(here), &id, &plugin, &options, &mut never);
        let runtime = async {
            let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
            let (_mux, [called, served]) =
                Mux::start(Connection::new(there), MuxConfig::default(), ids);
            let server = Server::builder().fallback(NeverAnswers).connection(served);
            let server = server.build().expect("it has a connection");
            let _served = tokio::spawn(server.serve());
            let client = PluginClient::new(ConnectOptions::new().from_connection(called));
            if client.configure(ConfigureRequest::default()).await.is_ok() {
                let containers = vec![Container::named("c")];
                let request = SynchronizeRequest { containers, ..Default::default() };
                client.synchronize(request).await.expect("there is one");
            }
        };
        match tokio::join!(session, runtime).0 {
            End::Failed { error, was_ready } => (error, was_ready),
            End::Asked => panic!("nobody asked"),
        }
    }

    /// A session with a runtime that reports these containers, then ends.
    async fn ended(plugin: impl Plugin, containers: &[Container]) -> End {
        let (here, there) = duplex(1 << 16);
        let id = PluginId::new("10", "p").expect("it is one");
        let mut never = std::pin::pin!(std::future::pending());
        let (plugin, options) = (Arc::new(plugin), Arc::default());
        let session = run(Connection::new(here), &id, &plugin, &options, &mut never);
        let about = Arc::new(RuntimeInfo::new("test", "1"));
        let runtime = async {
            let connection = Connection::new(there);
            let plugin = PluginConnection::external(connection, about, Arc::new(NoUpdates)).await;
            if let Ok(plugin) = plugin {
                drop(plugin.synchronize(&[], containers).await);
            }
        };
        tokio::join!(session, runtime).0
    }

    #[tokio::test]
    async fn a_plugin_whose_synchronize_fails_was_never_ready_and_ends_with_its_status() {
        let End::Failed { error, was_ready } = ended(NeedsOne, &[]).await else {
            panic!("nobody asked")
        };
        let Error::Synchronize(status) = error else { panic!("{error}") };
        assert_eq!((status.message(), was_ready), ("no container", false));
        let End::Failed { error, was_ready } = ended(NeedsOne, &[Container::named("c")]).await
        else {
            panic!("nobody asked")
        };
        assert!(matches!(error, Error::Disconnected(_)) && was_ready, "{error}");
    }
}
