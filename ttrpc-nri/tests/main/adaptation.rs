//! A runtime with several plugins: launched ones, external ones, and what becomes of their wishes.

use std::sync::{Arc, Mutex};

use tokio::{net::UnixStream, sync::Notify, task::JoinSet};
use ttrpc::{Code, async_trait, server::Listener};
use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Context, Creation, Error,
    Event, EventMask, Plugin, PluginId, PodSandbox, Runtime, Status, Stub, plugin, proto,
    proto::CreateContainerRequest,
    runtime::{Adaptation, Host, UpdateContainers},
};

use crate::{hand::patient, raw::Raw};

/// A runtime with one pod and one container, which counts updates.
#[derive(Clone, Default)]
pub struct Fake {
    updates: Arc<Mutex<Vec<String>>>,
    /// Fails updates.
    refuses: bool,
    /// Cannot list what exists.
    is_broken: bool,
    /// Notified when a plugin is about to be synchronized. From then on requests wait until it takes part.
    synchronizes: Arc<Notify>,
}

#[async_trait]
impl UpdateContainers for Fake {
    async fn update_containers(
        &self,
        plugin: &PluginId,
        updates: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        if self.refuses {
            return Err(Status::unavailable("for the test"));
        }
        let ids = updates.iter().map(|update| format!("{plugin} {}", update.container_id));
        self.updates.lock().expect("no test panics here").extend(ids);
        Ok(Vec::new())
    }
}

#[async_trait]
impl Host for Fake {
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
        self.synchronizes.notify_one();
        if self.is_broken {
            return Err(Status::internal("for the test"));
        }
        Ok((vec![PodSandbox::named("p")], vec![Container::named("c")]))
    }
}

/// Sets the environment variable `key` to what it has seen of it so far and its own name.
struct Appends {
    key: &'static str,
    name: &'static str,
}

#[plugin]
impl Plugin for Appends {
    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        assert_eq!((pods.len(), containers.len()), (1, 1));
        Ok(vec![ContainerUpdate::of("c").cpu_shares(2)])
    }

    async fn create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        let seen = container.env_value(self.key).unwrap_or("");
        let adjustment = ContainerAdjustment::new().remove_env(self.key);
        Ok(adjustment.env(self.key, format!("{seen}{}", self.name)).into())
    }
}

pub fn request() -> CreateContainerRequest {
    CreateContainerRequest {
        pod: Some(PodSandbox::named("p")),
        container: Some(Container::named("new")),
    }
}

/// Connects a plugin. Its stub ends with the set.
pub async fn connect(
    adaptation: &Adaptation,
    stubs: &mut JoinSet<()>,
    index: &str,
    name: &'static str,
    plugin: impl Plugin,
) {
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let stub = Stub::new(plugin).index(index).name(name).connection(there);
    stubs.spawn(async move {
        stub.run().await.expect_err("the runtime ends first").to_string().clear()
    });
    adaptation.add(here).await.expect("it registers");
}

pub fn adaptation() -> (Fake, Adaptation) {
    let fake = Fake::default();
    (fake.clone(), Adaptation::new(patient(), fake))
}

#[tokio::test]
async fn requests_pass_through_plugins_in_the_order_of_their_indexes() {
    let (fake, adaptation) = adaptation();
    let mut stubs = JoinSet::new();
    for (index, name) in [("50", "c"), ("10", "a"), ("20", "b")] {
        connect(&adaptation, &mut stubs, index, name, Appends { key: "X", name }).await;
    }
    let ids: Vec<_> = adaptation.plugins().iter().map(PluginId::to_string).collect();
    assert_eq!(ids, ["10-a", "20-b", "50-c"]);
    let updates = fake.updates.lock().expect("no test panics here").clone();
    assert_eq!(updates, ["50-c c", "10-a c", "20-b c"]);
    let reply = adaptation.create_container(request()).await.expect("nobody is in conflict");
    assert_eq!(reply.adjust.expect("it is adjusted").env_value("X"), Some("abc"));
}

/// Sets one thing without a look at others.
pub struct Pins(pub &'static str);

#[plugin]
impl Plugin for Pins {
    async fn create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        _: &Container,
    ) -> Result<Creation, Status> {
        Ok(ContainerAdjustment::new().cpuset_cpus(self.0).into())
    }
}

/// Rejects containers that the plugin 10-a pins to processor 0.
struct Rejects;

#[plugin]
impl Plugin for Rejects {
    async fn validate_container_adjustment(
        &self,
        _: &Context,
        request: &proto::ValidateContainerAdjustmentRequest,
    ) -> Result<(), Status> {
        let owner = request.container_owners().cpuset_cpus_owner();
        let adjust = request.adjust.as_ref().expect("there is always one");
        if adjust.linux_resources().cpuset_cpus() == Some("0") && owner == Some("10-a") {
            return Err(Status::permission_denied("10-a pins to 0"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn two_plugins_that_set_the_same_fail_the_request() {
    let (_fake, adaptation) = adaptation();
    let mut stubs = JoinSet::new();
    connect(&adaptation, &mut stubs, "10", "a", Pins("0")).await;
    adaptation.create_container(request()).await.expect("it is alone");
    connect(&adaptation, &mut stubs, "20", "b", Pins("1")).await;
    let status = adaptation.create_container(request()).await.expect_err("they are in conflict");
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("10-a") && status.message().contains("20-b"), "{status}");
    assert_eq!(adaptation.plugins().len(), 2);
}

#[tokio::test]
async fn a_validator_sees_what_all_want_and_who_wants_it() {
    let (_fake, adaptation) = adaptation();
    let mut stubs = JoinSet::new();
    connect(&adaptation, &mut stubs, "90", "judge", Rejects).await;
    adaptation.create_container(request()).await.expect("nothing is pinned");
    connect(&adaptation, &mut stubs, "10", "b", Pins("0")).await;
    adaptation.create_container(request()).await.expect("that plugin may pin");
    drop(stubs);
    let mut stubs = JoinSet::new();
    let (_fake, adaptation) = self::adaptation();
    connect(&adaptation, &mut stubs, "90", "judge", Rejects).await;
    connect(&adaptation, &mut stubs, "10", "a", Pins("0")).await;
    let status = adaptation.create_container(request()).await.expect_err("it is rejected");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(
        status.message().contains("90-judge") && status.message().contains("10-a pins to 0"),
        "{status}"
    );
}

/// Fails, stalls or dies at an event, as the container's name says.
struct Trouble;

#[plugin]
impl Plugin for Trouble {
    async fn create_container(
        &self,
        ctx: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        match &*container.name {
            "fails" => Err(Status::unavailable("for the test")),
            "stalls" => {
                ctx.cancelled().await;
                Ok(Creation::default())
            }
            _ => Ok(Creation::default()),
        }
    }
}

fn named(name: &str) -> CreateContainerRequest {
    CreateContainerRequest { pod: None, container: Some(Container::named(name)) }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_stalls_is_left_out_and_one_that_fails_fails_the_request() {
    let (_fake, adaptation) = adaptation();
    let mut stubs = JoinSet::new();
    let (here, there) = tokio::io::duplex(1 << 16);
    let stub = Stub::new(Trouble).index("10").name("t").connection(ttrpc::Connection::new(there));
    stubs.spawn(async move { drop(stub.run().await) });
    adaptation.add(ttrpc::Connection::new(here)).await.expect("it registers");
    let status =
        adaptation.create_container(named("fails")).await.expect_err("the plugin fails it");
    assert_eq!(status.message(), "for the test");
    assert_eq!(adaptation.plugins().len(), 1);
    adaptation.create_container(named("stalls")).await.expect("it goes on without the plugin");
    assert_eq!(adaptation.plugins().len(), 0);
    adaptation.create_container(named("fails")).await.expect("nobody fails it");
}

/// Updates a container of others from inside of an event.
#[derive(Default)]
struct Updates {
    runtime: std::sync::OnceLock<Runtime>,
}

#[plugin]
impl Plugin for Updates {
    async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
        let _ = self.runtime.set(runtime.clone());
        Ok(Self::EVENTS)
    }

    async fn start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        _: &Container,
    ) -> Result<(), Status> {
        let runtime = self.runtime.get().expect("it is configured");
        runtime.update_containers(vec![ContainerUpdate::of("o")]).await.map(drop)
    }
}

#[tokio::test]
async fn a_plugin_updates_containers_from_inside_of_an_event() {
    let (fake, adaptation) = adaptation();
    let mut stubs = JoinSet::new();
    connect(&adaptation, &mut stubs, "10", "u", Updates::default()).await;
    let (pod, container) = (PodSandbox::named("p"), Container::named("c"));
    let notified = adaptation.notify(Event::StartContainer, &pod, Some(&container));
    notified.await.expect("the update does not wait for the event");
    assert_eq!(*fake.updates.lock().expect("no test panics here"), ["10-u o"]);
}

#[tokio::test]
async fn external_plugins_are_accepted_and_dropped_when_they_go() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let address = path.to_str().expect("it is text").to_owned();
    let (fake, adaptation) = adaptation();
    let adaptation = Arc::new(adaptation);
    let listener = Listener::bind(&address).expect("the path is free");
    let served = adaptation.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { served.serve(listener).await.expect("it listens") });
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stub = Stub::new(Pins("1")).index("10").name("e").socket(address);
    let plugin = tokio::spawn(stub.run_until(async move { drop(stopped.await) }));
    fake.synchronizes.notified().await;
    adaptation.create_container(request()).await.expect("it answers");
    assert_eq!(adaptation.plugins().len(), 1);
    stop.send(()).expect("it runs");
    plugin.await.expect("it does not panic").expect("it was asked to end");
    while !adaptation.plugins().is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Sets an environment variable of 3 MiB with its own name.
struct Large(&'static str);

#[plugin]
impl Plugin for Large {
    async fn create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        _: &Container,
    ) -> Result<Creation, Status> {
        Ok(ContainerAdjustment::new().env(self.0, "x".repeat(3 << 20)).into())
    }
}

/// A runtime with two plugins whose adjustments together do not fit into a message.
async fn with_two_large() -> (Adaptation, JoinSet<()>) {
    let (_fake, adaptation) = adaptation();
    let mut stubs = JoinSet::new();
    for (index, name) in [("10", "a"), ("20", "b")] {
        connect(&adaptation, &mut stubs, index, name, Large(name)).await;
    }
    (adaptation, stubs)
}

#[tokio::test]
async fn a_request_that_plugins_have_made_too_long_for_the_next_one_fails_and_disconnects_nobody() {
    let (adaptation, mut stubs) = with_two_large().await;
    adaptation.create_container(request()).await.expect("nobody comes after them");
    for (index, name) in [("30", "pins"), ("40", "judge")] {
        match name {
            "pins" => connect(&adaptation, &mut stubs, index, name, Pins("1")).await,
            _ => connect(&adaptation, &mut stubs, index, name, Rejects).await,
        }
        let status =
            adaptation.create_container(request()).await.map(drop).expect_err("it is too long");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("30-pins"), "{status}");
    }
    assert_eq!(adaptation.plugins().len(), 4);
}

#[tokio::test]
async fn a_validation_that_plugins_have_made_too_long_fails_and_disconnects_nobody() {
    let (adaptation, mut stubs) = with_two_large().await;
    connect(&adaptation, &mut stubs, "90", "judge", Rejects).await;
    let status =
        adaptation.create_container(request()).await.map(drop).expect_err("it is too long");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("90-judge"), "{status}");
    assert_eq!(adaptation.plugins().len(), 3);
}

#[tokio::test]
async fn a_plugin_whose_reply_is_longer_than_a_frame_is_disconnected_and_the_request_goes_on() {
    let (_fake, adaptation) = adaptation();
    let (connection, mut plugin) = Raw::new();
    let plugin = async move {
        plugin.register().await;
        while let Some(frame) = plugin.next().await {
            if frame.conn == 1 {
                let bytes = if frame.calls("CreateContainer") { 5 << 20 } else { 0 };
                plugin.answer(&frame, bytes).await;
            }
        }
    };
    let runtime = async move {
        adaptation.add(connection).await.expect("it registers");
        adaptation.create_container(request()).await.expect("it goes on without the plugin");
        assert!(adaptation.plugins().is_empty());
    };
    tokio::join!(plugin, runtime);
}

#[tokio::test]
async fn a_plugin_takes_part_whose_first_updates_fail() {
    let fake = Fake { refuses: true, ..Fake::default() };
    let adaptation = Adaptation::new(patient(), fake);
    let mut stubs = JoinSet::new();
    connect(&adaptation, &mut stubs, "10", "a", Appends { key: "X", name: "a" }).await;
    assert_eq!(adaptation.plugins().len(), 1);
}

#[tokio::test]
async fn a_plugin_is_refused_while_its_runtime_cannot_list_what_exists() {
    let fake = Fake { is_broken: true, ..Fake::default() };
    let adaptation = Adaptation::new(patient(), fake);
    let (here, there) = UnixStream::pair().expect("descriptors are left");
    let stub = tokio::spawn(Stub::new(Pins("1")).index("10").name("a").connection(there).run());
    let error = adaptation.add(here).await.expect_err("it is not synchronized");
    let Error::State(status) = error else { panic!("{error}") };
    assert_eq!(status.message(), "for the test");
    let error = stub.await.expect("it does not panic").expect_err("it is disconnected");
    assert!(matches!(error, Error::Disconnected(_)), "{error}");
    assert!(adaptation.plugins().is_empty());
    adaptation.create_container(request()).await.expect("nobody waits for the plugin");
}

/// A plugin that registers while a container is created learns of it by its creation or by the state.
#[tokio::test(start_paused = true)]
async fn a_plugin_is_not_synchronized_between_a_creation_and_its_effect() {
    let (fake, adaptation) = adaptation();
    let block = adaptation.block_synchronization().await;
    let (here, there) = tokio::io::duplex(1 << 16);
    let stub = Stub::new(Pins("1")).index("10").name("a").connection(ttrpc::Connection::new(there));
    let _stub = tokio::spawn(stub.run());
    let mut added = std::pin::pin!(adaptation.add(ttrpc::Connection::new(here)));
    // It is registered and configured, and then waits.
    let hour = std::time::Duration::from_secs(3600);
    tokio::time::timeout(hour, &mut added).await.expect_err("the state is about to change");
    adaptation.create_container(request()).await.expect("requests pass");
    let synchronizes = tokio::time::timeout(hour, fake.synchronizes.notified());
    synchronizes.await.expect_err("the state is about to change");
    drop(block);
    added.await.expect("the state has changed");
    assert_eq!(adaptation.plugins().len(), 1);
}
