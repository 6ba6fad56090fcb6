//! Installed plugins are launched with their connection, their names and nothing else. The plugin is this program.

use std::{
    env, error::Error as _, fs, os::unix::fs::symlink, path::Path, sync::Arc, time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::sync::Notify;
use ttrpc::async_trait;
use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Context, Creation, Error,
    EventMask, Plugin, PluginId, PodSandbox, Runtime, Status, Stub, plugin,
    proto::CreateContainerRequest,
    runtime::{Adaptation, Host, RuntimeInfo, UpdateContainers},
};

/// Says what it was launched with. For a container that is called `break` it closes its connection, and lives on.
#[derive(Default)]
struct Launched {
    config: std::sync::OnceLock<String>,
    breaks: Arc<Notify>,
}

#[plugin]
impl Plugin for Launched {
    async fn configure(&self, _: &Runtime, config: &str) -> Result<EventMask, Status> {
        let _ = self.config.set(config.to_owned());
        Ok(Self::EVENTS)
    }

    async fn create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        if container.name == "break" {
            self.breaks.notify_one();
            std::future::pending::<()>().await;
        }
        // The descriptor has an owner.
        let second = Stub::new(Launched::default()).run().await.expect_err("it is taken");
        // What a child of this plugin has in place of the socket.
        let child = std::process::Command::new("/bin/readlink").arg("/proc/self/fd/3").output();
        let child = child.map_err(|error| Status::internal(error.to_string()))?;
        let child = String::from_utf8_lossy(&child.stdout);
        let environment: Vec<_> =
            env::vars().map(|(key, value)| format!("{key}={value}")).collect();
        let adjustment = ContainerAdjustment::new()
            .env("CONFIG", self.config.get().map_or("", String::as_str))
            .env("ENVIRONMENT", environment.join(" "))
            .env("CHILD", child)
            .env("SECOND", second.source().map_or_else(String::new, ToString::to_string))
            .env("PID", std::process::id().to_string())
            .env("ARGS", env::args().skip(1).collect::<Vec<_>>().join(" "));
        Ok(adjustment.into())
    }
}

struct Nothing;

#[async_trait]
impl UpdateContainers for Nothing {
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
impl Host for Nothing {
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
        Ok((Vec::new(), Vec::new()))
    }
}

async fn installed_plugins_are_launched_and_those_that_fail_are_left_out() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let this = env::current_exe().expect("it runs");
    symlink(this, folder.path().join("10-this")).expect("it is ours");
    symlink(Path::new("/bin/true"), folder.path().join("20-ends")).expect("it is ours");
    fs::write(folder.path().join("this.conf"), "of a file").expect("there is room");
    symlink(Path::new("/bin/true"), folder.path().join("30-config")).expect("it is ours");
    fs::create_dir(folder.path().join("config.conf")).expect("it is ours");
    // Time for programs that a busy machine starts.
    let patience = Duration::from_secs(600);
    let about = RuntimeInfo::new("test", "1");
    let about = about.registration_timeout(patience).request_timeout(patience);
    let adaptation = Adaptation::new(about, Nothing);
    let failed =
        adaptation.launch(folder.path(), folder.path()).await.expect("the names are valid");
    assert_eq!(failed.len(), 2);
    assert_eq!(failed[0].0.to_string(), "20-ends");
    assert!(matches!(failed[0].1, Error::Disconnected(_)), "{}", failed[0].1);
    assert_eq!(failed[1].0.to_string(), "30-config");
    assert!(matches!(failed[1].1, Error::Launch { .. }), "{}", failed[1].1);
    let ids: Vec<_> = adaptation.plugins().iter().map(PluginId::to_string).collect();
    assert_eq!(ids, ["10-this"]);
    let request = CreateContainerRequest { pod: None, container: Some(Container::named("c")) };
    let reply = adaptation.create_container(request).await.expect("it answers");
    let seen = reply.adjust.expect("it is adjusted");
    assert_eq!(seen.env_value("CONFIG"), Some("of a file"));
    let environment = seen.env_value("ENVIRONMENT").expect("the plugin says it");
    let mut environment: Vec<_> = environment.split(' ').collect();
    environment.sort_unstable();
    assert_eq!(environment, ["NRI_PLUGIN_IDX=10", "NRI_PLUGIN_NAME=this", "NRI_PLUGIN_SOCKET=3"]);
    assert_eq!(seen.env_value("ARGS"), Some(""));
    // The socket is close-on-exec.
    assert_eq!(seen.env_value("CHILD"), Some(""));
    let second = seen.env_value("SECOND").expect("the plugin says it");
    assert!(second.contains("another stub"), "{second}");
    // A plugin that is dropped is killed when the request ends, not at the next one.
    let pid = seen.env_value("PID").and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let pid = pidfd_open(pid.expect("the plugin says it"), PidfdFlags::empty()).expect("it runs");
    let request = CreateContainerRequest { pod: None, container: Some(Container::named("break")) };
    adaptation.create_container(request).await.expect("it goes on without the plugin");
    let limit = Timespec { tv_sec: 600, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&pid, PollFlags::IN)], Some(&limit));
    assert_eq!(ended.expect("it is waited for"), 1, "the plugin still runs");
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    if env::var_os("NRI_PLUGIN_SOCKET").is_some() {
        let plugin = Launched::default();
        let breaks = plugin.breaks.clone();
        tokio::select! {
            ended = Stub::new(plugin).run() => return ended,
            () = breaks.notified() => {}
        }
        return std::future::pending().await;
    }
    installed_plugins_are_launched_and_those_that_fail_are_left_out().await;
    println!("test installed_plugins_are_launched_and_those_that_fail_are_left_out ... ok");
    Ok(())
}
