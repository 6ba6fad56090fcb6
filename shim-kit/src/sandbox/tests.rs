//! The Sandbox service with a runtime whose containers are shells.

use std::fs;

use serde_json::{Value, json};
use tokio::time::timeout;
use ttrpc::Code;

use super::*;
use crate::{
    bundle::POD_LABEL,
    proto::{
        self,
        cri::{
            IdMapping, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode,
            NamespaceOption, UserNamespace,
        },
        sandbox::*,
        task::{ShutdownRequest, StartRequest},
    },
    service::tests::{Fixture, LONG},
};

/// A pod with its machine's shared memory, so that nothing is mounted.
fn pod() -> PodSandboxConfig {
    let options = NamespaceOption { ipc: NamespaceMode::Node.into(), ..NamespaceOption::default() };
    let context = LinuxSandboxSecurityContext {
        namespace_options: Some(options),
        ..LinuxSandboxSecurityContext::default()
    };
    let linux = LinuxPodSandboxConfig {
        security_context: Some(context),
        ..LinuxPodSandboxConfig::default()
    };
    PodSandboxConfig { linux: Some(linux), ..PodSandboxConfig::default() }
}

/// A sandbox in a bundle beside that of the fixture's container.
struct PodFixture {
    fixture: Fixture,
    bundle: tempfile::TempDir,
}

fn id() -> String {
    "p1".to_owned()
}

impl PodFixture {
    async fn new() -> PodFixture {
        PodFixture { fixture: Fixture::new().await, bundle: tempfile::tempdir().unwrap() }
    }

    fn request(&self) -> CreateSandboxRequest {
        let spec = json!({"script": "sleep 1000", "process": {}, "root": {"path": "rootfs"},
            "linux": {"namespaces": [{"type": "pid"}]}});
        fs::write(self.bundle.path().join("config.json"), spec.to_string()).unwrap();
        CreateSandboxRequest {
            sandbox_id: id(),
            bundle_path: self.bundle.path().to_str().unwrap().to_owned(),
            options: Some(proto::pack(&pod())),
            ..CreateSandboxRequest::default()
        }
    }

    async fn start(&self) -> StartSandboxResponse {
        let service = &self.fixture.service;
        service.create_sandbox(self.request()).await.unwrap();
        service.start_sandbox(StartSandboxRequest { sandbox_id: id() }).await.unwrap()
    }

    async fn status(&self) -> Result<SandboxStatusResponse, Status> {
        let request = SandboxStatusRequest { sandbox_id: id(), verbose: true };
        self.fixture.service.sandbox_status(request).await
    }

    async fn stop(&self) {
        let request = StopSandboxRequest { sandbox_id: id(), timeout_secs: 60 };
        self.fixture.service.stop_sandbox(request).await.unwrap();
    }

    async fn shut_down(&self) {
        let request = ShutdownSandboxRequest { sandbox_id: id() };
        let shut_down = self.fixture.service.shutdown_sandbox(request);
        timeout(LONG, shut_down).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_sandbox_lives_and_ends_the_shim_with_it() {
    let pod = PodFixture::new().await;
    let service = &pod.fixture.service;
    let started = pod.start().await;
    let status = pod.status().await.unwrap();
    assert_eq!((status.pid, status.state.as_str()), (started.pid, "SANDBOX_READY"));
    let info: Value = serde_json::from_str(&status.info["info"]).unwrap();
    assert_eq!(info["processStatus"], "running");
    service.ping_sandbox(PingRequest { sandbox_id: id() }).await.unwrap();
    let platform = service.platform(PlatformRequest::default()).await.unwrap().platform.unwrap();
    assert_eq!(platform.os, "linux");

    // A task's client that is done with the shim does not end the pod.
    service.shutdown(ShutdownRequest::default()).await.unwrap();
    assert!(!service.shutdown.is_cancelled());
    assert!(service.to_string().contains("sandbox p1: RUNNING"));

    let wait = service.wait_sandbox(WaitSandboxRequest { sandbox_id: id() });
    let (ended, ()) = timeout(LONG, async { tokio::join!(wait, pod.stop()) }).await.unwrap();
    assert_eq!(ended.unwrap().exit_status, 128 + 9);
    assert_eq!(pod.status().await.unwrap().state, "SANDBOX_NOTREADY");
    pod.stop().await;
    pod.shut_down().await;
    assert!(service.shutdown.is_cancelled());
    assert_eq!(pod.status().await.unwrap_err().code(), Code::NotFound);
    assert!(!pod.bundle.path().join("pod").exists());
    assert_eq!(service.shim.outbox.topics(), [""; 0], "containerd knows of no task behind it");
}

#[tokio::test(flavor = "current_thread")]
async fn a_pods_containers_share_its_files_and_end_with_it() {
    let pod = PodFixture::new().await;
    let service = &pod.fixture.service;
    pod.start().await;
    let request = pod.fixture.request("sleep 1000");
    let config = pod.fixture.folder.path().join("config.json");
    let mut spec: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    spec["annotations"] = json!({ POD_LABEL: id() });
    fs::write(&config, spec.to_string()).unwrap();
    service.create(request).await.unwrap();
    let spec: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    let has = |name: &str| {
        spec["mounts"].as_array().unwrap().iter().any(|mount| mount["destination"] == name)
    };
    assert!(has("/etc/hostname") && has("/etc/hosts") && has("/etc/resolv.conf"));
    let start = StartRequest { id: "c1".to_owned(), ..StartRequest::default() };
    service.start(start).await.unwrap();

    pod.stop().await;
    assert_eq!(pod.fixture.wait().await.exit_status, 128 + 9);
    pod.fixture.delete().await.unwrap();
    pod.shut_down().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_shim_has_one_sandbox_and_none_that_failed() {
    let pod = PodFixture::new().await;
    let service = &pod.fixture.service;
    let unknown = Some(Any { type_url: "a.v1.Pod".to_owned(), value: Vec::new() });
    let request = CreateSandboxRequest { options: unknown, ..pod.request() };
    let refused = service.create_sandbox(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("a.v1.Pod"), "{refused}");

    let request = pod.request();
    fs::write(
        pod.bundle.path().join("config.json"),
        r#"{"script": "fails", "process": {}, "root": {"path": "rootfs"}}"#,
    )
    .unwrap();
    assert_eq!(service.create_sandbox(request).await.unwrap_err().message(), "as it should");
    assert!(!pod.bundle.path().join("pod").exists());

    pod.start().await;
    let again = service.create_sandbox(pod.request()).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    let other = PingRequest { sandbox_id: "p2".to_owned() };
    assert_eq!(service.ping_sandbox(other).await.unwrap_err().code(), Code::NotFound);
    pod.shut_down().await;
}

/// A runtime that knows no user namespaces would run the pod's root as the machine's.
#[tokio::test(flavor = "current_thread")]
async fn a_pod_with_a_user_namespace_is_refused_where_the_runtime_makes_none() {
    let pod = PodFixture::new().await;
    let service = &pod.fixture.service;
    let mut config = self::pod();
    let mut linux = config.linux.unwrap_or_default();
    let mut context = linux.security_context.unwrap_or_default();
    let mut options = context.namespace_options.unwrap_or_default();
    let ids = vec![IdMapping { host_id: 70_000, container_id: 0, length: 65536 }];
    let mode = NamespaceMode::Pod.into();
    options.userns_options = Some(UserNamespace { mode, uids: ids.clone(), gids: ids });
    context.namespace_options = Some(options);
    linux.security_context = Some(context);
    config.linux = Some(linux);
    let request = CreateSandboxRequest { options: Some(proto::pack(&config)), ..pod.request() };
    let refused = service.create_sandbox(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(!pod.bundle.path().join("pod").exists());
}

#[tokio::test(flavor = "current_thread")]
async fn a_shim_whose_sandbox_could_not_be_made_ends() {
    let pod = PodFixture::new().await;
    pod.shut_down().await;
    assert!(pod.fixture.service.shutdown.is_cancelled());
}

#[tokio::test(flavor = "current_thread")]
async fn a_sandbox_that_never_ran_is_removed() {
    let pod = PodFixture::new().await;
    let service = &pod.fixture.service;
    service.create_sandbox(pod.request()).await.unwrap();
    assert_eq!(pod.status().await.unwrap().state, "SANDBOX_NOTREADY");
    pod.shut_down().await;
    assert_eq!(pod.status().await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(flavor = "current_thread")]
async fn a_sandboxs_resources_are_the_runtimes_affair_and_labels_are_not() {
    let pod = PodFixture::new().await;
    let service = &pod.fixture.service;
    pod.start().await;
    let spec = Any {
        type_url: String::new(),
        value: json!({"linux": {"resources": {"cpu": {"shares": 3}}}}).to_string().into_bytes(),
    };
    let sandbox =
        types::Sandbox { sandbox_id: id(), spec: Some(spec), ..types::Sandbox::default() };
    let update = |fields: &[&str]| {
        service.update_sandbox(UpdateSandboxRequest {
            sandbox_id: id(),
            sandbox: Some(sandbox.clone()),
            fields: fields.iter().map(|field| (*field).to_owned()).collect(),
            ..UpdateSandboxRequest::default()
        })
    };
    update(&["labels", "extensions"]).await.unwrap();
    // This runtime cannot.
    assert_eq!(update(&["spec"]).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(update(&[]).await.unwrap_err().code(), Code::Unimplemented);
    pod.shut_down().await;
}

/// The place of a sandbox whose making had panicked stayed taken.
#[tokio::test(flavor = "current_thread")]
async fn a_sandbox_whose_runtime_panics_leaves_its_place() {
    let pod = PodFixture::new().await;
    let request = pod.request();
    let spec = r#"{"script": "panics", "process": {}, "root": {"path": "rootfs"}}"#;
    fs::write(pod.bundle.path().join("config.json"), spec).unwrap();
    let failed = pod.fixture.service.create_sandbox(request).await.unwrap_err();
    assert!(failed.message().contains("as it should"), "{failed}");
    pod.start().await;
    pod.shut_down().await;
}

/// A sandbox of which something was in use could never be removed.
#[tokio::test(flavor = "current_thread")]
async fn a_sandboxs_removal_goes_on_where_it_failed() {
    let pod = PodFixture::new().await;
    pod.start().await;
    let busy = pod.bundle.path().join("pod/busy");
    fs::create_dir(&busy).unwrap();
    if let Err(error) =
        rustix::mount::mount("t", &busy, "tmpfs", rustix::mount::MountFlags::empty(), None)
    {
        println!("skipped: {error}");
        return pod.shut_down().await;
    }
    let request = || ShutdownSandboxRequest { sandbox_id: id() };
    let failed = pod.fixture.service.shutdown_sandbox(request()).await.unwrap_err();
    assert!(failed.message().contains("pod"), "{failed}");
    rustix::mount::unmount(&busy, rustix::mount::UnmountFlags::empty()).unwrap();
    pod.shut_down().await;
    assert!(!pod.bundle.path().join("pod").exists());
}
