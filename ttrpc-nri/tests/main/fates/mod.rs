//! A plugin that is killed or stopped at each step of its life keeps no request and no other plugin from theirs: killed for no time,
//! stopped for no longer than its runtime waits.

mod mortal;
mod wire;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    io::duplex,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use ttrpc::{Code, Connection, async_trait};
use ttrpc_nri::{
    Container, ContainerEviction, ContainerUpdate, Error, Event, EventMask, PluginId, PodSandbox,
    Status, Stub,
    proto::{
        ConfigureRequest, ConfigureResponse, CreateContainerRequest, StopContainerRequest,
        SynchronizeRequest, SynchronizeResponse, UpdateContainerRequest, UpdatePodSandboxRequest,
    },
    runtime::{Adaptation, Host, PluginConnection, RuntimeInfo, UpdateContainers},
};

use crate::hand::{ByHand, registered};
use mortal::{Mortal, Seen};
use wire::{End, Fate, LARGE, Step, Wire};

const REGISTRATION: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_secs(2);

/// A runtime with large containers, while a plugin is to meet its fate in Synchronize.
#[derive(Clone, Default)]
struct Fake {
    wire: Arc<OnceLock<Arc<Wire>>>,
}

#[async_trait]
impl UpdateContainers for Fake {
    async fn update_containers(
        &self,
        _: &PluginId,
        _: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        if let Some(wire) = self.wire.get() {
            wire.reach(Step::Update);
        }
        Ok(Vec::new())
    }
}

#[async_trait]
impl Host for Fake {
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
        let is_large = self.wire.get().is_some_and(|wire| matches!(wire.step, Step::Part(_)));
        let large = Container { args: vec!["x".repeat(LARGE)], ..Container::named("c") };
        Ok((Vec::new(), if is_large { vec![large; 9] } else { Vec::new() }))
    }
}

/// A runtime with a healthy plugin before and after the one that meets its fate.
struct Scene {
    adaptation: Adaptation,
    seen: Seen,
    fake: Fake,
    stubs: JoinSet<Result<(), Error>>,
}

impl Scene {
    async fn new() -> Scene {
        let fake = Fake::default();
        let adaptation = Adaptation::new(about(), fake.clone());
        let mut scene = Scene { adaptation, seen: Seen::default(), fake, stubs: JoinSet::new() };
        for (index, name) in [("10", "first"), ("90", "last")] {
            let (here, there) = duplex(1 << 16);
            scene.stub(index, name, None, Connection::new(there));
            scene.adaptation.add(Connection::new(here)).await.expect("it is healthy");
        }
        scene
    }

    fn stub(
        &mut self,
        index: &str,
        name: &'static str,
        wire: Option<Arc<Wire>>,
        connection: Connection,
    ) {
        let plugin = Mortal { name, wire, seen: self.seen.clone(), runtime: OnceLock::new() };
        self.stubs.spawn(Stub::new(plugin).index(index).name(name).connection(connection).run());
    }

    fn mortal(&mut self, fate: Fate, step: Step) -> Connection {
        let (wire, connection) = Wire::new(fate, step);
        let _ = self.fake.wire.set(wire.clone());
        wire.reach(Step::Launch);
        self.stub("50", "mortal", Some(wire.clone()), Connection::new(End(wire)));
        connection
    }

    /// Passes an event through all plugins. Returns the names of those that were asked for a creation.
    async fn pass(&self, event: Event) -> Result<String, Status> {
        let (pod, container) = (PodSandbox::named("p"), Container::named("c"));
        let mut names = String::new();
        match event {
            Event::CreateContainer => {
                let request = CreateContainerRequest { pod: None, container: Some(container) };
                let created = self.adaptation.create_container(request).await?;
                let adjusted = created.adjust.expect("plugins are there");
                names = adjusted.env_value("NAMES").expect("plugins are there").to_owned();
            }
            Event::UpdateContainer => {
                let request =
                    UpdateContainerRequest { container: Some(container), ..Default::default() };
                self.adaptation.update_container(request).await?;
            }
            Event::StopContainer => {
                let request = StopContainerRequest { pod: None, container: Some(container) };
                self.adaptation.stop_container(request).await?;
            }
            Event::UpdatePodSandbox => {
                self.adaptation.update_pod_sandbox(UpdatePodSandboxRequest::default()).await?;
            }
            _ => self.adaptation.notify(event, &pod, Some(&container)).await?,
        }
        Ok(names)
    }

    /// All events pass at once through the plugins that are left.
    async fn goes_on(&self, of: &str) {
        let before = Instant::now();
        self.seen.lock().expect("no test panics here").clear();
        for event in EventMask::ALL.iter() {
            if event == Event::ValidateContainerAdjustment {
                // It is part of a creation.
                continue;
            }
            let names = self.pass(event).await.unwrap_or_else(|status| panic!("{of}: {status}"));
            assert!(names.is_empty() || names == "first last ", "{of}: {names}");
        }
        assert_eq!(before.elapsed(), Duration::ZERO, "{of}");
        let ids: Vec<_> = self.adaptation.plugins().iter().map(PluginId::to_string).collect();
        assert_eq!(ids, ["10-first", "90-last"], "{of}");
        let seen = self.seen.lock().expect("no test panics here");
        for event in EventMask::ALL.iter() {
            for name in ["first", "last"] {
                assert!(seen.contains(&(name, event)), "{of}: {name} has not seen {event}");
            }
        }
    }
}

fn about() -> RuntimeInfo {
    RuntimeInfo::new("fake", "1").registration_timeout(REGISTRATION).request_timeout(REQUEST)
}

/// Nothing here takes an hour, so what does never ends.
async fn within<T>(of: &str, future: impl Future<Output = T>) -> T {
    let ended = timeout(Duration::from_secs(3600), future).await;
    ended.unwrap_or_else(|_| panic!("{of}: it never ends"))
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_dies_before_it_takes_part_is_left_out_and_nothing_waits_for_it() {
    let steps = [
        Step::Launch,
        Step::Register,
        Step::Configure,
        Step::Part(1),
        Step::Part(2),
        Step::Part(3),
        Step::Synchronize,
    ];
    for step in steps {
        for fate in [Fate::Kill, Fate::Stop] {
            let of = format!("{fate:?} at {step:?}");
            let mut scene = Scene::new().await;
            let connection = scene.mortal(fate, step);
            let began = Instant::now();
            let added = within(&of, scene.adaptation.add(connection)).await;
            let error = added.expect_err(&of);
            let waited = match (fate, step) {
                (Fate::Kill, _) => Duration::ZERO,
                (Fate::Stop, Step::Launch) => REGISTRATION,
                (Fate::Stop, _) => REQUEST,
            };
            assert_eq!(began.elapsed(), waited, "{of}: {error}");
            match (fate, &error) {
                (Fate::Kill, Error::Disconnected(_)) => {}
                (Fate::Kill, Error::Configure(status) | Error::Synchronize(status)) => {
                    assert_eq!(status.code(), Code::Unavailable, "{of}");
                }
                (
                    Fate::Stop,
                    Error::Configure(status)
                    | Error::Synchronize(status)
                    | Error::Register { source: status, .. },
                ) => {
                    assert_eq!(status.code(), Code::DeadlineExceeded, "{of}");
                }
                _ => panic!("{of}: {error}"),
            }
            scene.goes_on(&of).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_dies_at_an_event_is_left_out_from_then_on() {
    let steps = EventMask::ALL.iter().map(Step::Handle).chain([Step::Update]);
    for step in steps {
        for fate in [Fate::Kill, Fate::Stop] {
            let of = format!("{fate:?} at {step:?}");
            let mut scene = Scene::new().await;
            let connection = scene.mortal(fate, step);
            within(&of, scene.adaptation.add(connection)).await.expect("it is not its time");
            let event = match step {
                Step::Handle(Event::ValidateContainerAdjustment) => Event::CreateContainer,
                Step::Handle(event) => event,
                _ => Event::StartContainer,
            };
            let began = Instant::now();
            let passed = within(&of, scene.pass(event)).await;
            let waited = if fate == Fate::Kill { Duration::ZERO } else { REQUEST };
            assert_eq!(began.elapsed(), waited, "{of}");
            match step {
                // What a validator does not allow is not created.
                Step::Handle(Event::ValidateContainerAdjustment) => {
                    let code = passed.expect_err(&of).code();
                    let expected = [Code::Unavailable, Code::DeadlineExceeded]
                        [usize::from(fate == Fate::Stop)];
                    assert_eq!(code, expected, "{of}");
                }
                _ => {
                    let names = passed.unwrap_or_else(|status| panic!("{of}: {status}"));
                    assert!(names.is_empty() || names == "first last ", "{of}: {names}");
                }
            }
            scene.goes_on(&of).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_dies_when_it_is_asked_to_end_is_waited_for_no_longer_than_for_a_request() {
    for (fate, waited, code) in [
        (Fate::Kill, Duration::ZERO, Code::Unavailable),
        (Fate::Stop, REQUEST, Code::DeadlineExceeded),
    ] {
        let mut scene = Scene::new().await;
        let connection = scene.mortal(fate, Step::Shutdown);
        let updates = Arc::new(scene.fake.clone());
        let plugin = PluginConnection::external(connection, Arc::new(about()), updates);
        let plugin = plugin.await.expect("it is not its time");
        let began = Instant::now();
        let of = format!("{fate:?}");
        let status = within(&of, plugin.shutdown()).await.expect_err(&of);
        assert_eq!((began.elapsed(), status.code()), (waited, code), "{of}");
    }
}

/// A plugin that takes 0.8 s for each part of Synchronize.
#[tokio::test(start_paused = true)]
async fn a_plugin_has_the_time_of_one_request_for_all_parts_of_synchronize() {
    let takes_parts = ByHand(|routes, service| {
        routes
            .unary("Configure", service, |_, _, _: ConfigureRequest| {
                Box::pin(async { Ok(ConfigureResponse::default()) })
            })
            .unary("Synchronize", service, |_, _, part: SynchronizeRequest| {
                Box::pin(async move {
                    sleep(Duration::from_millis(800)).await;
                    Ok(SynchronizeResponse { update: Vec::new(), more: part.more })
                })
            })
    });
    let (plugin, _mux) = registered(takes_parts).await;
    let large = Container { args: vec!["x".repeat(LARGE)], ..Container::named("c") };
    let began = Instant::now();
    plugin.synchronize(&[], &vec![large.clone(); 6]).await.expect("two parts take 1.6 s");
    assert_eq!(began.elapsed(), Duration::from_millis(1600));
    let began = Instant::now();
    let status = plugin.synchronize(&[], &vec![large; 9]).await.expect_err("three take 2.4 s");
    assert_eq!((began.elapsed(), status.code()), (REQUEST, Code::DeadlineExceeded));
    assert!(plugin.is_closed());
}
