//! Observers, interceptors and snapshots of the connection between a runtime and a plugin, on both sides.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::net::{UnixListener, UnixStream};
use ttrpc::{
    async_trait, client,
    observer::{CallInfo, Observer},
    server,
};
use ttrpc_nri::{
    Container, ContainerEviction, ContainerUpdate, Context, Instruments, PluginId, PodSandbox,
    Status, Stub,
    proto::CreateContainerRequest,
    runtime::{Adaptation, Host, UpdateContainers},
    testing::Setup,
};

use crate::{hand::patient, plugins::Caller};

/// What was seen, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, kind: &str, method: &str) {
        self.0.lock().expect("no test panics here").push(format!("{kind} {method}"));
    }

    fn has(&self, line: &str) -> bool {
        self.0.lock().expect("no test panics here").iter().any(|seen| seen == line)
    }

    fn instruments(&self) -> Instruments {
        let log = self.clone();
        Instruments::new().observe(log.clone()).intercept(log.clone()).intercept_calls(log)
    }
}

impl Observer for Log {
    fn call_begun(&self, call: &CallInfo<'_>) {
        self.add("observed", call.method);
    }
}

#[async_trait]
impl server::Interceptor for Log {
    async fn intercept(&self, ctx: &mut Context, next: server::Next<'_>) -> Result<(), Status> {
        self.add("served", ctx.method());
        next.run(ctx).await
    }
}

#[async_trait]
impl client::Interceptor for Log {
    async fn intercept(
        &self,
        call: &mut client::OutgoingCall,
        next: client::Next<'_>,
    ) -> Result<client::Answer, Status> {
        self.add("called", call.method());
        next.run(call).await
    }
}

/// A runtime without containers, whose connections have instruments.
struct Observed(Log);

#[async_trait]
impl UpdateContainers for Observed {
    async fn update_containers(
        &self,
        _: &PluginId,
        _: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        Ok(Vec::new())
    }

    fn instruments(&self) -> Instruments {
        self.0.instruments()
    }
}

#[async_trait]
impl Host for Observed {
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
        Ok((Vec::new(), Vec::new()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_observes_and_intercepts_calls_both_ways_and_sees_its_connection() {
    let log = Log::default();
    let (plugin, runtime) = Caller::new();
    let stub = Stub::new(plugin).instruments(log.instruments());
    let testing = Setup::default().start_stub(stub).await.expect("it starts");
    let runtime = runtime.await.expect("it is configured");
    let (pod, container) = (PodSandbox::named("p"), Container::named("c"));
    testing.create_container(&pod, &container).await.expect("it is created");
    runtime.update_containers(Vec::new()).await.expect("it is answered");
    for line in [
        "observed CreateContainer",
        "served CreateContainer",
        "observed UpdateContainers",
        "called UpdateContainers",
    ] {
        assert!(log.has(line), "{line}");
    }
    let seen = runtime.snapshot();
    assert_eq!((seen.logical.len(), seen.server.connections.len()), (2, 1));
    assert!(seen.logical.iter().all(|logical| logical.is_open && logical.received_bytes > 0));
    testing.shutdown().await.expect("it was asked to end");
    assert!(runtime.snapshot().server.connections.is_empty());
}

#[tokio::test]
async fn a_runtime_observes_and_intercepts_calls_both_ways_and_sees_its_connections() {
    let log = Log::default();
    let adaptation = Adaptation::new(patient(), Observed(log.clone()));
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let (plugin, runtime) = Caller::new();
    let stub = Stub::new(plugin).name("a").index("10").connection(there);
    let stub = tokio::spawn(stub.run());
    adaptation.add(here).await.expect("it registers");
    let request = CreateContainerRequest { pod: None, container: Some(Container::named("c")) };
    adaptation.create_container(request).await.expect("it is created");
    let runtime = runtime.await.expect("it is configured");
    runtime.update_containers(Vec::new()).await.expect("it is answered");
    for line in [
        "observed CreateContainer",
        "called CreateContainer",
        "observed UpdateContainers",
        "served UpdateContainers",
    ] {
        assert!(log.has(line), "{line}");
    }
    let seen = adaptation.snapshot();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].0.to_string(), "10-a");
    assert_eq!((seen[0].1.logical.len(), seen[0].1.server.connections.len()), (2, 1));
    drop(adaptation);
    stub.await.expect("it does not panic").expect_err("nobody asked it to end");
}

#[tokio::test(start_paused = true)]
async fn a_test_decides_which_updates_fail() {
    let (plugin, runtime) = Caller::new();
    let setup = Setup::default().answer_updates(|updates| match updates {
        [] => Err(Status::unavailable("no updates")),
        all => Ok(all.iter().filter(|update| update.container_id == "bad").cloned().collect()),
    });
    let mut testing = setup.start(plugin).await.expect("it starts");
    let runtime = runtime.await.expect("it is configured");
    let updates = vec![ContainerUpdate::of("good"), ContainerUpdate::of("bad")];
    let failed = runtime.update_containers(updates.clone()).await.expect("it is answered");
    assert_eq!(failed, [ContainerUpdate::of("bad")]);
    assert_eq!(testing.next_update().await, Some((updates, Vec::new())));
    let status = runtime.update_containers(Vec::new()).await.expect_err("the test fails it");
    assert_eq!(status.message(), "no updates");
    assert!(testing.next_update().await.is_some());
}

/// Without paused time: a paused clock would end the retries while a thread connects.
#[tokio::test]
async fn a_plugin_waits_for_a_socket_that_is_not_there_yet() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    // It refuses: it was bound, and nobody listens any more.
    drop(UnixListener::bind(&path).expect("it is ours"));
    let (plugin, _runtime) = Caller::new();
    let stub =
        || Stub::new(plugin).name("a").index("10").socket(path.to_str().expect("it is text"));
    let mut stub = tokio::spawn(stub().retry_for(Duration::from_secs(600)).run());
    // The first attempt comes when this task gives way.
    tokio::task::yield_now().await;
    std::fs::remove_file(&path).expect("it is there");
    let listener = UnixListener::bind(&path).expect("nobody listens there");
    let (stream, _) = tokio::select! {
        accepted = listener.accept() => accepted.expect("the plugin connects"),
        ended = &mut stub => panic!("the plugin has given up: {ended:?}"),
    };
    let adaptation = Adaptation::new(patient(), Observed(Log::default()));
    adaptation.add(stream).await.expect("it registers");
    drop(adaptation);
    stub.await.expect("it does not panic").expect_err("nobody asked it to end");
}
