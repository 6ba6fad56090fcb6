//! The sample plugins of containerd/nri, in Go, under this crate's runtime. `tests/nri/samples` builds them and runs this.

use std::{env, fs, os::unix::fs::symlink, path::PathBuf};

use tempfile::TempDir;
use ttrpc::async_trait;
use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Event, LinuxResources,
    PluginId, PodSandbox, Status,
    proto::{
        CreateContainerRequest, StopContainerRequest, UpdateContainerRequest,
        UpdatePodSandboxRequest,
    },
    runtime::{Adaptation, Host, RuntimeInfo, UpdateContainers},
};

struct OnePod;

#[async_trait]
impl UpdateContainers for OnePod {
    async fn update_containers(
        &self,
        _: &PluginId,
        _: Vec<ContainerUpdate>,
        _: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Host for OnePod {
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
        Ok((vec![PodSandbox::named("there-before")], Vec::new()))
    }
}

/// The folder of plugins, with these of the samples. `None` if one has not been built.
struct Plugins {
    folder: TempDir,
}

impl Plugins {
    fn of(names: &[&str]) -> Option<Self> {
        let samples = env::var_os("TTRPC_NRI_SAMPLES").expect("tests/nri/samples sets it");
        let samples = PathBuf::from(samples);
        let folder = tempfile::tempdir().expect("there is a folder for files");
        for (at, name) in names.iter().enumerate() {
            let program = samples.join(name);
            if !program.exists() {
                println!("skipped: {name} is not built");
                return None;
            }
            symlink(program, folder.path().join(format!("{at}0-{name}"))).expect("it is ours");
        }
        Some(Plugins { folder })
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("events.log")
    }

    fn configure(&self, plugin: &str, config: &str) {
        fs::write(self.folder.path().join(format!("{plugin}.conf")), config).expect("it fits");
    }

    async fn launch(&self) -> Adaptation {
        let adaptation = Adaptation::new(RuntimeInfo::new("test", "1"), OnePod);
        let path = self.folder.path();
        let failed = adaptation.launch(path, path).await.expect("the names are valid");
        assert!(failed.is_empty(), "{failed:?}");
        adaptation
    }
}

async fn create(adaptation: &Adaptation, pod: &PodSandbox) -> Result<ContainerAdjustment, Status> {
    let (pod, container) = (Some(pod.clone()), Some(Container::named("c0")));
    let reply = adaptation.create_container(CreateContainerRequest { pod, container }).await?;
    Ok(reply.adjust.expect("it is adjusted"))
}

fn limits(adjustment: &ContainerAdjustment) -> Vec<(&str, u64, u64)> {
    adjustment.rlimits.iter().map(|limit| (&*limit.r#type, limit.hard, limit.soft)).collect()
}

const LIMITS: &str =
    "[{type: nofile, hard: 4096, soft: 1024}, {type: RLIMIT_MEMLOCK, hard: 99, soft: 98}]";
const ADJUSTED: [(&str, u64, u64); 2] = [("RLIMIT_NOFILE", 4096, 1024), ("RLIMIT_MEMLOCK", 99, 98)];

#[tokio::test]
#[ignore = "needs the samples in Go, see tests/nri/samples"]
async fn an_ulimit_adjuster_of_before_versions_were_exchanged_adjusts_limits() {
    let Some(plugins) = Plugins::of(&["ulimit-adjuster-v0.4.0"]) else { return };
    let adaptation = plugins.launch().await;
    let key = "ulimits.nri.containerd.io/container.c0";
    let pod = PodSandbox::named("p").with_annotation(key, LIMITS);
    adaptation.notify(Event::RunPodSandbox, &pod, None).await.expect("it has no handler for it");
    assert_eq!(limits(&create(&adaptation, &pod).await.expect("it is valid")), ADJUSTED);
    let pod = PodSandbox::named("p").with_annotation(key, "[{type: none}]");
    create(&adaptation, &pod).await.expect_err("there is no such limit");
    assert_eq!(adaptation.plugins().len(), 1);
}

#[tokio::test]
#[ignore = "needs the samples in Go, see tests/nri/samples"]
async fn what_the_samples_want_is_merged_and_the_logger_sees_every_event() {
    let names = ["logger", "device-injector", "hook-injector", "ulimit-adjuster"];
    let Some(plugins) = Plugins::of(&names) else { return };
    let log = plugins.log();
    let config = format!(
        "logFile: {}\nevents: [all]\naddEnv: LOGGER\nsetAnnotation: logged\n",
        log.display()
    );
    plugins.configure("logger", &config);
    let adaptation = plugins.launch().await;
    let ids: Vec<_> = adaptation.plugins().iter().map(PluginId::to_string).collect();
    assert_eq!(ids, ["00-logger", "10-device-injector", "20-hook-injector", "30-ulimit-adjuster"]);

    let pod = PodSandbox::named("p")
        .with_annotation(
            "devices.noderesource.dev/container.c0",
            "[{path: /dev/x, type: c, major: 1, minor: 3}]",
        )
        .with_annotation(
            "mounts.noderesource.dev/container.c0",
            "[{source: /a, destination: /b, type: bind, options: [ro]}]",
        )
        .with_annotation("cdi-devices.noderesource.dev/container.c0", "[vendor.com/class=name]")
        .with_annotation("ulimits.noderesource.dev/container.c0", LIMITS);
    let (container, resources) = (Container::named("c0"), LinuxResources::default());
    let notify = async |event: Event, container: Option<&Container>| {
        adaptation.notify(event, &pod, container).await.expect("it is logged");
    };
    notify(Event::RunPodSandbox, None).await;
    let adjustment = create(&adaptation, &pod).await.expect("the annotations are valid");
    for event in [Event::PostCreateContainer, Event::StartContainer, Event::PostStartContainer] {
        notify(event, Some(&container)).await;
    }
    let (some_pod, some_container) = (Some(pod.clone()), Some(container.clone()));
    let update = UpdateContainerRequest {
        pod: some_pod.clone(),
        container: some_container.clone(),
        linux_resources: Some(resources.clone()),
    };
    adaptation.update_container(update).await.expect("it is logged");
    notify(Event::PostUpdateContainer, Some(&container)).await;
    let update = UpdatePodSandboxRequest {
        pod: some_pod.clone(),
        overhead_linux_resources: Some(resources.clone()),
        linux_resources: Some(resources),
    };
    adaptation.update_pod_sandbox(update).await.expect("it is logged");
    notify(Event::PostUpdatePodSandbox, None).await;
    let stop = StopContainerRequest { pod: some_pod, container: some_container };
    adaptation.stop_container(stop).await.expect("it is logged");
    notify(Event::RemoveContainer, Some(&container)).await;
    notify(Event::StopPodSandbox, None).await;
    notify(Event::RemovePodSandbox, None).await;

    assert!(adjustment.env_value("LOGGER").is_some_and(|value| value.starts_with("logger-pid-")));
    assert!(adjustment.annotations.contains_key("logged"));
    let linux = adjustment.linux.as_ref().expect("it has a device");
    assert_eq!(linux.devices.iter().map(|device| &*device.path).collect::<Vec<_>>(), ["/dev/x"]);
    assert_eq!(
        adjustment.mounts.iter().map(|mount| &*mount.destination).collect::<Vec<_>>(),
        ["/b"]
    );
    assert_eq!(adjustment.cdi_devices[0].name, "vendor.com/class=name");
    let hooks = adjustment.hooks.as_ref().expect("a hook is always injected");
    assert_eq!([hooks.create_runtime.len(), hooks.poststop.len()], [1, 1]);
    assert_eq!(hooks.create_runtime[0].path, "/bin/true");
    assert_eq!(limits(&adjustment), ADJUSTED);

    let logged = fs::read_to_string(&log).expect("the logger writes it");
    assert!(logged.contains("there-before"), "{logged}");
    let events = [
        "Synchronize",
        "RunPodSandbox",
        "CreateContainer",
        "PostCreateContainer",
        "StartContainer",
        "PostStartContainer",
        "UpdateContainer",
        "PostUpdateContainer",
        "UpdatePodSandbox",
        "PostUpdatePodSandbox",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
        "ValidateContainerAdjustment",
    ];
    for event in events {
        assert!(
            logged.contains(&format!("{event}: ")) || logged.contains(&format!("{event}:")),
            "{event} is not in {logged}"
        );
    }
}
