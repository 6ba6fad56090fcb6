//! A plugin's life, against this crate's runtime in memory and over sockets.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    net::{UnixListener, UnixStream},
    sync::{Notify, oneshot},
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Server, async_trait,
    server::{Routes, Service},
};
use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Context, Creation, Error,
    Event, EventMask, FailurePolicy, LinuxResources, Plugin, PluginId, PodSandbox, Runtime, Status,
    Stub, Updates,
    mux::{ConnId, Mux, MuxConfig},
    plugin, proto,
    runtime::{PluginConnection, RuntimeInfo, UpdateContainers},
    testing::{self, Setup},
};

/// Everything that the plugin has seen, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, text: impl Into<String>) {
        self.0.lock().expect("no test panics here").push(text.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panics here"))
    }
}

/// Implements everything, and behaves as the container's name says.
#[derive(Default)]
struct All {
    log: Log,
    runtime: OnceLock<Runtime>,
}

#[plugin]
impl Plugin for All {
    async fn configure(&self, runtime: &Runtime, config: &str) -> Result<EventMask, Status> {
        self.log.add(format!("configure {config} {} {}", runtime.name(), runtime.nri_version()));
        let _ = self.runtime.set(runtime.clone());
        match config {
            "refuse" => Err(Status::invalid_argument("a bad configuration")),
            "narrow" => Ok(EventMask::NONE.with(Event::StartContainer)),
            "none" => Ok(EventMask::NONE),
            _ => Ok(Self::EVENTS),
        }
    }

    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        self.log.add(format!("synchronize {} {}", pods.len(), containers.len()));
        Ok(vec![ContainerUpdate::of("first").cpu_shares(2)])
    }

    async fn shutdown(&self, _: &Context) {
        self.log.add("shutdown");
    }

    async fn run_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("run_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn update_pod_sandbox(
        &self,
        _: &Context,
        pod: &PodSandbox,
        overhead: &LinuxResources,
        resources: &LinuxResources,
    ) -> Result<(), Status> {
        self.log.add(format!(
            "update_pod_sandbox {} {} {}",
            pod.name,
            overhead.unified.len(),
            resources.unified.len()
        ));
        Ok(())
    }

    async fn post_update_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("post_update_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn stop_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("stop_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn remove_pod_sandbox(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
        self.log.add(format!("remove_pod_sandbox {}", pod.name));
        Ok(())
    }

    async fn create_container(
        &self,
        ctx: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        assert!(ctx.deadline().is_some(), "a request has a deadline");
        match &*container.name {
            "panics" => panic!("as the test wants"),
            "fails" => Err(Status::permission_denied("not this one")),
            "slow" => {
                ctx.cancelled().await;
                Ok(Creation::default())
            }
            "updates others" => {
                let runtime = self.runtime.get().expect("it is configured");
                runtime.update_containers(vec![ContainerUpdate::of("other")]).await?;
                Ok(Creation::default())
            }
            name => {
                let adjustment = ContainerAdjustment::new().env("NAME", name).cpuset_cpus("0");
                let update = ContainerUpdate::of("other").memory_limit(1);
                Ok(Creation::from(adjustment)
                    .update(update)
                    .evict(ContainerEviction::of("third", "full")))
            }
        }
    }

    async fn post_create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("post_create_container {}", container.name));
        Ok(())
    }

    async fn start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("start_container {}", container.name));
        Ok(())
    }

    async fn post_start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("post_start_container {}", container.name));
        Ok(())
    }

    async fn update_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
        resources: &LinuxResources,
    ) -> Result<Updates, Status> {
        self.log.add(format!("update_container {} {}", container.name, resources.unified.len()));
        Ok(ContainerUpdate::of(&container.id).pids_limit(9).into())
    }

    async fn post_update_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("post_update_container {}", container.name));
        Ok(())
    }

    async fn stop_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        self.log.add(format!("stop_container {}", container.name));
        Ok(vec![ContainerUpdate::of("other").ignore_failure()])
    }

    async fn remove_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        self.log.add(format!("remove_container {}", container.name));
        Ok(())
    }

    async fn validate_container_adjustment(
        &self,
        _: &Context,
        request: &proto::ValidateContainerAdjustmentRequest,
    ) -> Result<(), Status> {
        match request.adjust {
            Some(_) => Err(Status::permission_denied("no adjustments here")),
            None => Ok(()),
        }
    }
}

/// Implements one event.
struct Starts;

#[plugin]
impl Plugin for Starts {
    async fn start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        _: &Container,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// Implements none.
struct Nothing;

#[plugin]
impl Plugin for Nothing {}

fn both() -> (PodSandbox, Container) {
    (PodSandbox::named("p"), Container::named("c"))
}

#[tokio::test]
async fn a_plugin_sees_every_event_from_its_registration_to_shutdown() {
    let all = All::default();
    let log = all.log.clone();
    let (pod, container) = both();
    let state = (vec![pod.clone()], vec![container.clone(), container.clone()]);
    let runtime =
        Setup::default().config("c").state(state.0, state.1).start(all).await.expect("it starts");
    assert_eq!(log.take(), ["configure c testing v0.12.5", "synchronize 1 2"]);
    assert_eq!(runtime.synchronized(), [ContainerUpdate::of("first").cpu_shares(2)]);
    assert_eq!(runtime.plugin().events(), EventMask::ALL);

    for event in EventMask::ALL.iter() {
        let name =
            |text: &str| format!("{text} {}", if text.ends_with("sandbox") { "p" } else { "c" });
        let one =
            LinuxResources { unified: [("a".into(), "b".into())].into(), ..Default::default() };
        match event {
            Event::CreateContainer => {
                let created =
                    runtime.create_container(&pod, &container).await.expect("it is created");
                assert_eq!(created.adjustment.env_value("NAME"), Some("c"));
                assert_eq!(created.updates, [ContainerUpdate::of("other").memory_limit(1)]);
                assert_eq!(created.evictions, [ContainerEviction::of("third", "full")]);
            }
            Event::UpdateContainer => {
                let updates =
                    runtime.update_container(&pod, &container, one).await.expect("it is updated");
                assert_eq!(updates.updates, [ContainerUpdate::of("c").pids_limit(9)]);
                assert_eq!(log.take(), ["update_container c 1"]);
            }
            Event::StopContainer => {
                let updates =
                    runtime.stop_container(&pod, &container).await.expect("it is stopped");
                assert_eq!(updates, [ContainerUpdate::of("other").ignore_failure()]);
                assert_eq!(log.take(), ["stop_container c"]);
            }
            Event::UpdatePodSandbox => {
                runtime
                    .update_pod_sandbox(&pod, LinuxResources::default(), one)
                    .await
                    .expect("it is updated");
                assert_eq!(log.take(), ["update_pod_sandbox p 0 1"]);
            }
            Event::ValidateContainerAdjustment => {
                let mut request = proto::ValidateContainerAdjustmentRequest::default();
                runtime.validate(request.clone()).await.expect("nothing is adjusted");
                request.adjust = Some(ContainerAdjustment::new());
                let status = runtime.validate(request).await.expect_err("it is refused");
                assert_eq!(status.code(), Code::PermissionDenied);
                assert!(status.message().contains("no adjustments here"), "{status}");
            }
            _ => {
                runtime.notify(event, &pod, Some(&container)).await.expect("it is handled");
                let mut expected = String::new();
                for letter in event.name().chars() {
                    if letter.is_uppercase() && !expected.is_empty() {
                        expected.push('_');
                    }
                    expected.extend(letter.to_lowercase());
                }
                assert_eq!(log.take(), [name(&expected)]);
                // The same from a runtime of before v0.12.
                let request = proto::StateChangeEvent {
                    event: event.into(),
                    pod: Some(pod.clone()),
                    container: Some(container.clone()),
                };
                runtime.plugin().client().state_change(request).await.expect("it is handled");
                assert_eq!(log.take(), [name(&expected)]);
            }
        }
    }
    runtime.shutdown().await.expect("it was asked to end");
    assert_eq!(log.take(), ["shutdown"]);
}

#[tokio::test]
async fn the_subscription_is_what_is_implemented() {
    let runtime = testing::Runtime::start(Starts).await;
    assert_eq!(runtime.plugin().events(), EventMask::NONE.with(Event::StartContainer));
    // A mask of 0 would mean every event.
    let runtime = testing::Runtime::start(Nothing).await;
    assert_eq!(runtime.plugin().events(), EventMask::NONE.with(Event::RemovePodSandbox));
    let runtime = Setup::default().config("narrow").start(All::default()).await.expect("it starts");
    assert_eq!(runtime.plugin().events(), EventMask::NONE.with(Event::StartContainer));
}

#[tokio::test]
async fn no_handler_is_called_for_the_event_that_stands_for_none() {
    let all = All::default();
    let log = all.log.clone();
    let runtime = Setup::default().config("none").start(all).await.expect("it starts");
    log.take();
    let pod = PodSandbox::named("p");
    runtime.notify(Event::RemovePodSandbox, &pod, None).await.expect("it is answered");
    let request = proto::StateChangeEvent {
        event: Event::RemovePodSandbox.into(),
        pod: Some(pod),
        container: None,
    };
    runtime.plugin().client().state_change(request).await.expect("it is answered");
    assert!(log.take().is_empty());
}

#[tokio::test]
async fn an_old_runtime_is_asked_for_no_new_events() {
    let about = RuntimeInfo::new("containerd", "v1.7.27").nri_version("");
    let runtime = Setup::default().about(about).start(All::default()).await.expect("it starts");
    let new =
        [Event::UpdatePodSandbox, Event::PostUpdatePodSandbox, Event::ValidateContainerAdjustment];
    assert_eq!(runtime.plugin().events(), EventMask::ALL - new.into_iter().collect());
}

#[tokio::test]
async fn what_a_plugin_does_not_implement_has_an_empty_reply() {
    let runtime = testing::Runtime::start(Nothing).await;
    let client = runtime.plugin().client();
    let created = client.create_container(proto::CreateContainerRequest::default()).await;
    assert_eq!(created.expect("it is answered").adjust, Some(ContainerAdjustment::default()));
    client
        .update_container(proto::UpdateContainerRequest::default())
        .await
        .expect("it is answered");
    client.stop_container(proto::StopContainerRequest::default()).await.expect("it is answered");
    client
        .update_pod_sandbox(proto::UpdatePodSandboxRequest::default())
        .await
        .expect("it is answered");
    client.state_change(proto::StateChangeEvent::default()).await.expect("it is answered");
    let verdict = client.validate_container_adjustment(Default::default()).await;
    assert!(!verdict.expect("it is answered").reject);
}

#[tokio::test]
async fn a_panic_answers_internal_and_the_plugin_goes_on() {
    let runtime = testing::Runtime::start(All::default()).await;
    let (pod, mut container) = both();
    container.name = "panics".into();
    let status = runtime.create_container(&pod, &container).await.expect_err("it panicked");
    assert_eq!(status.code(), Code::Internal);
    container.name = "fails".into();
    let status = runtime.create_container(&pod, &container).await.expect_err("it failed");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not this one"));
    container.name = "c".into();
    runtime.create_container(&pod, &container).await.expect("it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_reported_before_the_runtime_drops_the_plugin() {
    let (sender, slow) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let stub = Stub::new(All::default()).on_slow(move |slow| {
        let sender = sender.lock().expect("no test panics here").take();
        sender.expect("one is slow").send(slow.clone()).expect("the test waits");
    });
    let runtime = Setup::default().start_stub(stub).await.expect("it starts");
    let (pod, mut container) = both();
    container.name = "slow".into();
    let (created, slow) = tokio::join!(runtime.create_container(&pod, &container), slow);
    // The request goes on without the plugin, and without the adjustment.
    assert_eq!(created.expect("the policy is the default"), Creation::default());
    let slow = slow.expect("it was reported");
    assert_eq!(
        (slow.event, &*slow.subject, slow.limit),
        ("CreateContainer", "c", Duration::from_secs(2))
    );
    assert_eq!(slow.elapsed, Duration::from_millis(1500));
    assert!(runtime.plugin().is_closed());
}

/// As the last part of Synchronize, which has the time that those before it have left.
#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_reported_by_the_time_that_its_request_has_left() {
    let (sender, slow) = oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let stub = Stub::new(All::default()).on_slow(move |slow| {
        let sender = sender.lock().expect("no test panics here").take();
        sender.expect("one is slow").send(slow.clone()).expect("the test waits");
    });
    let runtime = Setup::default().start_stub(stub).await.expect("it starts");
    let container = Container { name: "slow".into(), ..Container::default() };
    let request = proto::CreateContainerRequest { pod: None, container: Some(container) };
    let began = tokio::time::Instant::now();
    let call = runtime.plugin().client().create_container(request).timeout(Duration::from_secs(1));
    let call = tokio::spawn(call);
    let slow = tokio::time::timeout(Duration::from_secs(3600), slow).await;
    let slow = slow.expect("it is slow").expect("it was reported");
    assert_eq!(began.elapsed(), Duration::from_millis(500));
    assert_eq!(slow.elapsed, Duration::from_millis(1500));
    call.await.expect("it does not panic").expect_err("it is late");
}

/// A field of a protobuf message that has a length.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).expect("it is short");
    [&[number << 3 | 2, len], bytes].concat()
}

/// A runtime in Go takes its own timer or the plugin's status, whichever comes first, and fails the request for the latter.
#[tokio::test(start_paused = true)]
async fn a_handler_that_is_late_is_not_answered_for() {
    let (here, there) = duplex(1 << 16);
    let stub = Stub::new(All::default()).name("late").index("10");
    let _stub = tokio::spawn(stub.connection(Connection::new(here)).run());
    let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
    let (_mux, [mut called, _served]) =
        Mux::start(Connection::new(there), MuxConfig::default(), ids);
    let container = Container { name: "slow".into(), ..Container::default() };
    let request = proto::CreateContainerRequest { pod: None, container: Some(container) };
    let mut data = field(1, b"nri.pkg.api.v1alpha1.Plugin");
    data.extend(field(2, b"CreateContainer"));
    data.extend(field(3, &ttrpc::prost::Message::encode_to_vec(&request)));
    // A timeout of 100 ms.
    data.extend([4 << 3, 0x80, 0xc2, 0xd7, 0x2f]);
    let header = [0, 0, 0, u8::try_from(data.len()).expect("it is short"), 0, 0, 0, 1, 1, 0];
    called.write_all(&[&header[..], &data].concat()).await.expect("the plugin reads");
    let answer = tokio::time::timeout(Duration::from_secs(2), called.read_u8()).await;
    assert!(answer.is_err(), "it is answered");
}

/// A plugin on a stub that answers at a handler's deadline.
struct AnswersLate;

impl Service for AnswersLate {
    fn into_routes(self) -> Routes {
        let service = Arc::new(self);
        Routes::new("nri.pkg.api.v1alpha1.Plugin")
            .unary("Configure", &service, |_, _, _: proto::ConfigureRequest| {
                Box::pin(async { Ok(proto::ConfigureResponse::default()) })
            })
            .unary("CreateContainer", &service, |_, ctx, _: proto::CreateContainerRequest| {
                Box::pin(async move {
                    tokio::time::sleep_until(ctx.deadline().expect("it has one")).await;
                    Err::<proto::CreateContainerResponse, _>(Status::deadline_exceeded("late"))
                })
            })
    }
}

/// Whichever is looked at first, the runtime's timer or the status.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_says_itself_that_it_is_late_is_late() {
    let (here, there) = duplex(1 << 16);
    let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
    let (_mux, [served, called]) = Mux::start(Connection::new(here), MuxConfig::default(), ids);
    let server = Server::builder().add_service(AnswersLate).connection(served);
    tokio::spawn(server.build().expect("it has a connection").serve());
    let plugin = tokio::spawn(accept(Connection::new(there)));
    let request = proto::RegisterPluginRequest {
        plugin_name: "late".into(),
        plugin_idx: "10".into(),
        ..Default::default()
    };
    let client = Client::from_connection(called, ClientConfig::default());
    proto::RuntimeClient::new(client).register_plugin(request).await.expect("it is valid");
    let plugin = plugin.await.expect("it does not panic").expect("it registers");
    let mut call =
        std::pin::pin!(plugin.create_container(proto::CreateContainerRequest::default()));
    tokio::select! {
        biased;
        _ = &mut call => panic!("it is answered at once"),
        () = tokio::task::yield_now() => {}
    }
    // The runtime is busy: when it looks again, both have come.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(call.await.expect("the request goes on"), None);
    assert!(plugin.is_closed());
}

#[tokio::test(start_paused = true)]
async fn the_failure_policy_keeps_the_plugin_and_fails_the_request() {
    let policy = FailurePolicy { fail_request: true, keep_connected: true };
    let stub = Stub::new(All::default()).failure_policy(policy);
    let runtime = Setup::default().start_stub(stub).await.expect("it starts");
    let (pod, mut container) = both();
    container.name = "slow".into();
    let status = runtime.create_container(&pod, &container).await.expect_err("the policy says so");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("00-plugin"), "{status}");
    container.name = "c".into();
    let created = runtime.create_container(&pod, &container).await.expect("it is connected");
    assert_eq!(created.adjustment.env_value("NAME"), Some("c"));
}

#[tokio::test]
async fn containers_may_be_updated_from_inside_of_a_handler() {
    let mut runtime = testing::Runtime::start(All::default()).await;
    let (pod, mut container) = both();
    container.name = "updates others".into();
    runtime.create_container(&pod, &container).await.expect("it is created");
    let (updates, evictions) = runtime.next_update().await.expect("the plugin runs");
    assert_eq!((updates, evictions), (vec![ContainerUpdate::of("other")], vec![]));
}

#[tokio::test]
async fn synchronize_in_parts_reaches_the_plugin_whole() {
    let all = All::default();
    let log = all.log.clone();
    let container = Container { args: vec!["x".repeat(1000)], ..Container::named("c") };
    let setup = Setup::default().state(vec![PodSandbox::named("p"); 100], vec![container; 10_000]);
    let runtime = setup.start(all).await.expect("it starts");
    assert_eq!(log.take()[1..], ["synchronize 100 10000"]);
    assert_eq!(runtime.synchronized().len(), 1);
}

#[tokio::test]
async fn a_plugin_that_refuses_its_configuration_ends_with_the_reason() {
    let error =
        Setup::default().config("refuse").start(All::default()).await.expect_err("it refuses");
    let Error::Configure(status) = error else { panic!("{error}") };
    assert_eq!(status.message(), "a bad configuration");
}

#[tokio::test]
async fn the_reason_of_the_end_is_kept() {
    let runtime = testing::Runtime::start(Starts).await;
    let error = runtime.disconnect().await.expect_err("nobody asked it to end");
    assert!(matches!(error, Error::Disconnected(_)), "{error}");
}

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

async fn accept(stream: impl Into<Connection>) -> Result<PluginConnection, Error> {
    let about = Arc::new(RuntimeInfo::new("test", "1"));
    PluginConnection::external(stream, about, Arc::new(NoUpdates)).await
}

#[tokio::test]
async fn a_runtime_refuses_an_invalid_identity_and_the_plugin_says_so() {
    let error = Stub::new(Starts).name("a b").index("10").run().await.expect_err("it is invalid");
    assert!(matches!(error, Error::Identity { .. }), "{error}");
    // One that a plugin of another kind could send.
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let ids = [ConnId::PLUGIN, ConnId::RUNTIME];
    let (_mux, [_served, called]) = Mux::start(here, MuxConfig::default(), ids);
    let client = ttrpc::Client::from_connection(called, ttrpc::ClientConfig::default());
    let client = proto::RuntimeClient::new(client);
    let request = proto::RegisterPluginRequest {
        plugin_name: "a b".into(),
        plugin_idx: "10".into(),
        ..Default::default()
    };
    let (accepted, refused) = tokio::join!(accept(there), client.register_plugin(request));
    assert!(matches!(accepted.expect_err("it is invalid"), Error::Identity { .. }));
    // The reply may be lost with the connection.
    assert!(matches!(
        refused.expect_err("it is invalid").code(),
        Code::InvalidArgument | Code::Unavailable
    ));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_register_in_time_is_given_up() {
    let (here, _there) = duplex(100);
    let error = accept(Connection::new(here)).await.expect_err("nobody registers");
    let Error::Register { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn an_external_plugin_connects_again_and_is_told_the_state_anew() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let all = All::default();
    let log = all.log.clone();
    let ends = Arc::new(AtomicUsize::new(0));
    let (counted, stop) = (ends.clone(), Arc::new(Notify::new()));
    let stub = Stub::new(all)
        .name("external")
        .index("42")
        .socket(path.to_str().expect("it is text"))
        .reconnect(Duration::from_millis(1), Duration::from_millis(20))
        .on_close(move |why| {
            assert!(matches!(why, Error::Connect { .. } | Error::Disconnected(_)), "{why}");
            counted.fetch_add(1, Ordering::SeqCst);
        });
    let stopped = stop.clone();
    let plugin = tokio::spawn(stub.run_until(async move { stopped.notified().await }));
    for _ in 0..3 {
        let listener = UnixListener::bind(&path).expect("nobody listens there");
        let (stream, _) = listener.accept().await.expect("the plugin connects");
        let connection = accept(stream).await.expect("it registers");
        assert_eq!(connection.id().to_string(), "42-external");
        connection.synchronize(&[PodSandbox::named("p")], &[]).await.expect("it is synchronized");
        assert_eq!(log.take(), ["configure  test v0.12.5", "synchronize 1 0"]);
        // The runtime ends.
        std::fs::remove_file(&path).expect("it is there");
    }
    let listener = UnixListener::bind(&path).expect("nobody listens there");
    let (stream, _) = listener.accept().await.expect("the plugin connects");
    let _connection = accept(stream).await.expect("it registers");
    stop.notify_one();
    plugin.await.expect("it does not panic").expect("it was asked to end");
    assert!(ends.load(Ordering::SeqCst) >= 3);
}

#[tokio::test]
async fn without_reconnection_a_plugin_ends_with_the_reason() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let stub =
        || Stub::new(Starts).name("a").index("10").socket(path.to_str().expect("it is text"));
    let error = stub().run().await.expect_err("nobody listens");
    assert!(error.to_string().contains("is NRI enabled there?"), "{error}");
    let listener = UnixListener::bind(&path).expect("nobody listens there");
    let plugin = tokio::spawn(stub().run());
    let (stream, _) = listener.accept().await.expect("the plugin connects");
    accept(stream).await.expect("it registers").close();
    let error = plugin.await.expect("it does not panic").expect_err("nobody asked it to end");
    assert!(matches!(error, Error::Disconnected(_)), "{error}");
}

#[tokio::test]
async fn a_call_to_the_runtime_has_the_answer_of_the_runtime() {
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let (sender, runtime) = oneshot::channel();
    let plugin = Caller { sender: Mutex::new(Some(sender)) };
    let stub = tokio::spawn(Stub::new(plugin).name("caller").index("05").connection(here).run());
    let connection = accept(there).await.expect("it registers");
    let runtime = runtime.await.expect("it is configured");
    let status = runtime.update_containers(vec![]).await.expect_err("the runtime refuses");
    assert_eq!(status.message(), "nothing for 05-caller");
    connection.close();
    let status = runtime.evict(vec![]).await.expect_err("the connection has ended");
    assert_eq!(status.code(), Code::Unavailable);
    stub.await.expect("it does not panic").expect_err("nobody asked it to end");
}

/// Hands its runtime to the test.
struct Caller {
    sender: Mutex<Option<oneshot::Sender<Runtime>>>,
}

#[plugin]
impl Plugin for Caller {
    async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
        let sender = self.sender.lock().expect("no test panics here").take();
        sender.expect("it is configured once").send(runtime.clone()).expect("the test waits");
        Ok(Self::EVENTS)
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_the_runtime_does_not_answer_has_a_deadline() {
    let (here, there) = duplex(1 << 16);
    let (sender, runtime) = oneshot::channel();
    let plugin = Caller { sender: Mutex::new(Some(sender)) };
    let _stub = tokio::spawn(
        Stub::new(plugin).name("caller").index("05").connection(Connection::new(here)).run(),
    );
    let about = Arc::new(RuntimeInfo::new("test", "1"));
    let _connection =
        PluginConnection::external(Connection::new(there), about, Arc::new(NeverUpdates))
            .await
            .expect("it registers");
    let runtime = runtime.await.expect("it is configured");
    // More calls than may be in flight: those that wait for a permit have the same deadline.
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let runtime = runtime.clone();
            tokio::spawn(async move { runtime.update_containers(vec![]).await })
        })
        .collect();
    for call in calls {
        let status = call.await.expect("it does not panic").expect_err("nobody answers");
        assert_eq!(status.code(), Code::DeadlineExceeded);
    }
}

/// Never answers.
struct NeverUpdates;

#[async_trait]
impl UpdateContainers for NeverUpdates {
    async fn update_containers(
        &self,
        _: &PluginId,
        _: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        std::future::pending().await
    }
}
