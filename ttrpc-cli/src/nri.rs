//! `ttrpc nri`: what a runtime tells its NRI plugins. It is a plugin itself, which changes nothing.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::{Args, Subcommand, ValueHint};
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinError,
};
use ttrpc_nri::{
    Container, ContainerUpdate, Context, Creation, DEFAULT_SOCKET, Error, EventMask,
    LinuxResources, Plugin, PluginId, PodSandbox, Runtime, Status, Stub, Updates, plugin, runtime,
};

use crate::{failure::Failure, output};

/// Events that wait to be printed. More are counted and left out: containers do not wait for a slow terminal.
const LINES: usize = 16_384;
/// How long the lines that are left when `watch` ends wait to be read.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How long `check` waits for the runtime.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watch what happens to pods and containers, as an NRI plugin sees it
///
/// NRI is how containerd and CRI-O let plugins change containers. Its socket speaks through a multiplexer, so other commands
/// cannot call it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc nri check
  ttrpc nri watch --events container")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print each event, as a plugin that changes nothing
    Watch {
        /// The runtime's socket for plugins
        #[arg(default_value = DEFAULT_SOCKET)]
        socket: String,
        /// Events to print, such as CreateContainer,StopContainer, or `pod`, `container`, `all`
        #[arg(long, default_value = "all")]
        events: EventMask,
    },
    /// Say whether NRI is on, in which runtime, and which plugins are installed
    Check {
        /// The runtime's socket for plugins
        #[arg(default_value = DEFAULT_SOCKET)]
        socket: String,
        /// Where the runtime looks for plugins
        #[arg(long, value_name = "DIR", default_value = "/opt/nri/plugins", value_hint = ValueHint::DirPath)]
        plugins: PathBuf,
    },
}

/// Runs the command.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    match arguments.command {
        Command::Watch { socket, events } => watch(&socket, events, json).await,
        Command::Check { socket, plugins } => check(&socket, &plugins, json).await,
    }
}

/// A plugin that reports and changes nothing.
struct Watcher {
    events: EventMask,
    seen: mpsc::Sender<Seen>,
    left_out: Arc<AtomicU64>,
    runtime: Arc<OnceLock<Runtime>>,
    synchronized: Arc<OnceLock<(usize, usize)>>,
    is_synchronized: Arc<Notify>,
}

/// One event.
struct Seen {
    event: &'static str,
    pod: PodSandbox,
    container: Option<Container>,
}

impl Seen {
    fn json(&self) -> serde_json::Value {
        let container = self.container.as_ref();
        json!({
            "event": self.event,
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "podId": self.pod.id,
            "container": container.map(|container| &container.name),
            "containerId": container.map(|container| &container.id),
        })
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<28} {}/{}", self.event, self.pod.namespace, self.pod.name)?;
        match &self.container {
            Some(container) => write!(f, " {} {}", container.name, container.id),
            None => write!(f, " {}", self.pod.id),
        }
    }
}

impl Watcher {
    fn report(&self, event: &'static str, pod: &PodSandbox, container: Option<&Container>) {
        let seen = Seen { event, pod: pod.clone(), container: container.cloned() };
        if self.seen.try_send(seen).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Handlers that only report.
macro_rules! watcher {
    (pods: $($pod:ident $pod_event:literal)*; containers: $($container:ident $event:literal)*) => {
        #[plugin]
        impl Plugin for Watcher {
            async fn configure(&self, runtime: &Runtime, _config: &str) -> Result<EventMask, Status> {
                let _ = self.runtime.set(runtime.clone());
                Ok(self.events & Self::EVENTS)
            }

            async fn synchronize(&self, _: &Context, pods: Vec<PodSandbox>, containers: Vec<Container>) -> Result<Vec<ContainerUpdate>, Status> {
                let _ = self.synchronized.set((pods.len(), containers.len()));
                self.is_synchronized.notify_one();
                Ok(Vec::new())
            }

            async fn update_pod_sandbox(&self, _: &Context, pod: &PodSandbox, _: &LinuxResources, _: &LinuxResources) -> Result<(), Status> {
                self.report("UpdatePodSandbox", pod, None);
                Ok(())
            }

            async fn create_container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<Creation, Status> {
                self.report("CreateContainer", pod, Some(container));
                Ok(Creation::default())
            }

            async fn update_container(&self, _: &Context, pod: &PodSandbox, container: &Container, _: &LinuxResources) -> Result<Updates, Status> {
                self.report("UpdateContainer", pod, Some(container));
                Ok(Updates::default())
            }

            async fn stop_container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<Vec<ContainerUpdate>, Status> {
                self.report("StopContainer", pod, Some(container));
                Ok(Vec::new())
            }

            $(async fn $pod(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
                self.report($pod_event, pod, None);
                Ok(())
            })*

            $(async fn $container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<(), Status> {
                self.report($event, pod, Some(container));
                Ok(())
            })*
        }
    };
}

watcher! {
    pods: run_pod_sandbox "RunPodSandbox" post_update_pod_sandbox "PostUpdatePodSandbox"
        stop_pod_sandbox "StopPodSandbox" remove_pod_sandbox "RemovePodSandbox";
    containers: post_create_container "PostCreateContainer" start_container "StartContainer"
        post_start_container "PostStartContainer" post_update_container "PostUpdateContainer"
        remove_container "RemoveContainer"
}

/// A watcher, what it sees, and its stub.
fn start(events: EventMask, name: &str, socket: &str) -> (Stub<Watcher>, Watched) {
    let (seen, events_seen) = mpsc::channel(LINES);
    let watched = Watched {
        seen: events_seen,
        left_out: Arc::default(),
        runtime: Arc::default(),
        synchronized: Arc::default(),
        is_synchronized: Arc::default(),
    };
    let watcher = Watcher {
        events,
        seen,
        left_out: watched.left_out.clone(),
        runtime: watched.runtime.clone(),
        synchronized: watched.synchronized.clone(),
        is_synchronized: watched.is_synchronized.clone(),
    };
    // After all others: it sees what they have changed.
    (Stub::new(watcher).name(name).index("99").socket(socket), watched)
}

struct Watched {
    seen: mpsc::Receiver<Seen>,
    left_out: Arc<AtomicU64>,
    runtime: Arc<OnceLock<Runtime>>,
    synchronized: Arc<OnceLock<(usize, usize)>>,
    is_synchronized: Arc<Notify>,
}

async fn watch(socket: &str, events: EventMask, json: bool) -> Result<(), Failure> {
    let (stub, mut watched) = start(events, "ttrpc-watch", socket);
    // A thread of its own prints: a reader that has stopped delays neither containers nor signals.
    let mut printing = tokio::task::spawn_blocking(move || {
        while let Some(seen) = watched.seen.blocking_recv() {
            print(&seen, json)?;
            let left_out = watched.left_out.swap(0, Ordering::Relaxed);
            if left_out > 0 {
                output::note(format_args!(
                    "{left_out} events were left out: they come faster than they are printed"
                ));
            }
        }
        Ok(())
    });
    tokio::select! {
        ended = stub.run_until(ttrpc_nri::terminated()) => {
            // What is left, unless the reader has stopped.
            let printed = tokio::time::timeout(LAST_LINES, printing).await;
            printed.map_or(Ok(()), finished)?;
            ended.map_err(failure)
        }
        printed = &mut printing => finished(printed),
    }
}

fn finished(printed: Result<Result<(), Failure>, JoinError>) -> Result<(), Failure> {
    printed.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

fn print(seen: &Seen, json: bool) -> Result<(), Failure> {
    let text = if json { output::json(&seen.json()) } else { output::plain_line(seen) };
    Ok(output::line(text)?)
}

async fn check(socket: &str, plugins: &std::path::Path, json: bool) -> Result<(), Failure> {
    let installed = runtime::installed(plugins);
    let (stub, watched) = start(EventMask::NONE, "ttrpc-check", socket);
    let ready = watched.is_synchronized.clone();
    let patience = tokio::time::timeout(PATIENCE, ready.notified());
    stub.run_until(async { drop(patience.await) }).await.map_err(failure)?;
    let (Some(runtime), Some((pods, containers))) =
        (watched.runtime.get(), watched.synchronized.get())
    else {
        let text = format!(
            "the runtime at {socket} has not sent its state within {} s",
            PATIENCE.as_secs()
        );
        return Err(Failure::Other(text));
    };
    let nri = match runtime.nri_version() {
        "" => "unknown",
        version => version,
    };
    if json {
        let ids = installed
            .as_ref()
            .map(|found| found.iter().map(|plugin| plugin.id.to_string()).collect::<Vec<_>>());
        let object = json!({
            "runtime": runtime.name(),
            "version": runtime.version(),
            "nriVersion": nri,
            "requestTimeoutMs": u64::try_from(runtime.request_timeout().as_millis()).unwrap_or(u64::MAX),
            "pods": pods,
            "containers": containers,
            "installed": ids.as_ref().ok(),
            "installedError": ids.as_ref().err().map(ToString::to_string),
        });
        return Ok(output::line(output::json(&object))?);
    }
    let (name, version) =
        (output::plain_line(runtime.name()), output::plain_line(runtime.version()));
    output::line(format_args!(
        "NRI is on: {name} {version}, NRI version {}",
        output::plain_line(nri)
    ))?;
    output::line(format_args!(
        "state: {pods} pods, {containers} containers; a plugin has {:?} for each event",
        runtime.request_timeout()
    ))?;
    match installed {
        Ok(found) if found.is_empty() => {
            output::line(format_args!("installed: none in {}", plugins.display()))?
        }
        Ok(found) => {
            for plugin in found {
                output::line(format_args!("installed: {}", id(&plugin.id)))?;
            }
        }
        // With such a file containerd does not start.
        Err(error) => output::line(format_args!("installed: {}", output::plain_line(&error)))?,
    }
    Ok(())
}

fn id(id: &PluginId) -> String {
    output::plain_line(id)
}

fn failure(error: Error) -> Failure {
    match &error {
        Error::Connect { .. } => Failure::Connect(error.to_string()),
        Error::Register { source, .. } if !source.is_from_peer() => {
            Failure::Other(format!("{error}; is it a socket of NRI?"))
        }
        _ => Failure::Other(error.to_string()),
    }
}
