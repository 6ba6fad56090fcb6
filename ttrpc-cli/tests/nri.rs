//! `ttrpc nri` with a runtime of this process.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::sync::mpsc;
use ttrpc::{Status, async_trait, server::Listener};
use ttrpc_nri::{
    Container, ContainerEviction, ContainerUpdate, Context, Event, EventMask, Plugin, PluginId,
    PodSandbox, Runtime, Stub, plugin,
    runtime::{Adaptation, Host, RuntimeInfo, UpdateContainers},
};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(600);

/// Reports each plugin that is about to be synchronized. From then on events wait until it takes part.
struct Fake {
    synchronizes: mpsc::UnboundedSender<()>,
}

/// It waits for its plugins however long the machine takes.
fn fake() -> (Adaptation, mpsc::UnboundedReceiver<()>) {
    let (synchronizes, synchronized) = mpsc::unbounded_channel();
    let about = RuntimeInfo::new("fake", "1.2");
    let about = about.registration_timeout(PATIENCE).request_timeout(PATIENCE);
    (Adaptation::new(about, Fake { synchronizes }), synchronized)
}

#[async_trait]
impl UpdateContainers for Fake {
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
impl Host for Fake {
    async fn state(&self) -> Result<(Vec<PodSandbox>, Vec<Container>), Status> {
        let _ = self.synchronizes.send(());
        Ok((vec![PodSandbox::named("p")], vec![Container::named("c"), Container::named("d")]))
    }
}

/// Calls its runtime when a container starts.
#[derive(Default)]
struct Caller {
    runtime: OnceLock<Runtime>,
}

#[plugin]
impl Plugin for Caller {
    async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
        let _ = self.runtime.set(runtime.clone());
        Ok(Self::EVENTS)
    }

    async fn start_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<(), Status> {
        let runtime = self.runtime.get().ok_or_else(|| Status::internal("not configured"))?;
        let update = ContainerUpdate::of(&container.id).cpu_shares(7);
        runtime.update_containers(vec![update]).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_shows_the_calls_of_a_runtime_and_of_its_plugin() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = |name: &str| folder.path().join(name).to_str().expect("it is text").to_owned();
    let (upstream, listen) = (path("nri.sock"), path("t.sock"));
    let (adaptation, _synchronized) = fake();
    let adaptation = Arc::new(adaptation);
    let listener = Listener::bind(&upstream).expect("the path is free");
    let served = adaptation.clone();
    let served = tokio::spawn(async move { served.serve(listener).await });
    let arguments = ["trace", "--listen", &listen, "--upstream", &upstream, "--schema", "builtin"];
    let mut trace = ttrpc(&arguments).spawn().expect("it was built");
    let mut notes = BufReader::new(trace.stderr.take().expect("it is piped"));
    let mut line = String::new();
    notes.read_line(&mut line).expect("it says that it listens");
    let stub = Stub::new(Caller::default()).name("caller").index("10").socket(&listen);
    let plugin = tokio::spawn(stub.run());
    let mut lines = BufReader::new(trace.stdout.take().expect("it is piped")).lines();
    let mut seen = String::new();
    let mut wait_for = |method: &str| {
        while !seen.contains(method) {
            seen += &lines.next().expect("the call is shown").expect("it is text");
            seen += "\n";
        }
    };
    wait_for("Plugin/Synchronize");
    let (pod, container) = (PodSandbox::named("p"), Container::named("c"));
    adaptation
        .notify(Event::StartContainer, &pod, Some(&container))
        .await
        .expect("it changes nothing");
    wait_for("Plugin/StartContainer");
    for method in ["Runtime/RegisterPlugin", "Plugin/Configure", "Runtime/UpdateContainers"] {
        let line = seen.lines().find(|line| line.contains(method));
        let connection = if method.starts_with("Runtime") { "c2" } else { "c1" };
        assert!(
            line.is_some_and(|line| line.contains(connection) && line.contains("OK")),
            "{method}: {seen}"
        );
    }
    line.clear();
    notes.read_line(&mut line).expect("it says what it is");
    assert!(line.contains("c1 is of NRI"), "{line}");
    plugin.abort();
    served.abort();
    trace.kill().expect("it runs");
    trace.wait().expect("it is a child");
}

fn ttrpc(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttrpc"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn output(mut command: Command) -> (bool, String) {
    let output = tokio::task::spawn_blocking(move || command.output().expect("it was built")).await;
    let output = output.expect("it does not panic");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
}

/// The output for a server that accepts and never answers. Connecting has the same timeout as the answer: where the machine was
/// too slow for that, the next one is twice as long.
async fn unanswered(arguments: &[&str]) -> (bool, String) {
    let mut limit = Duration::from_millis(200);
    loop {
        assert!(limit < PATIENCE, "less than {limit:?} was not enough");
        let mut command = ttrpc(arguments);
        command.args(["--timeout", &format!("{}ms", limit.as_millis())]);
        let (is_called, text) = output(command).await;
        if !text.contains("not accepted within") {
            return (is_called, text);
        }
        limit *= 2;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_names_the_runtime_and_watch_prints_events() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let socket = path.to_str().expect("it is text").to_owned();

    let (is_on, text) = output(ttrpc(&["nri", "check", &socket])).await;
    assert!(!is_on && text.contains("is NRI enabled there?"), "{text}");

    let (adaptation, mut synchronized) = fake();
    let adaptation = Arc::new(adaptation);
    let listener = Listener::bind(&socket).expect("the path is free");
    let served = adaptation.clone();
    let served = tokio::spawn(async move { served.serve(listener).await });

    let plugins = folder.path().to_str().expect("it is text");
    let (is_on, text) = output(ttrpc(&["nri", "check", &socket, "--plugins", plugins])).await;
    assert!(is_on, "{text}");
    assert!(text.contains("NRI is on: fake 1.2, NRI version v0.12.5"), "{text}");
    assert!(text.contains("1 pods, 2 containers"), "{text}");
    let (is_on, text) =
        output(ttrpc(&["nri", "check", &socket, "--plugins", plugins, "--json"])).await;
    assert!(is_on && text.contains(r#""runtime":"fake""#), "{text}");

    let mut child = ttrpc(&["nri", "watch", &socket, "--events", "StartContainer"])
        .spawn()
        .expect("it was built");
    // Both checks, too, were plugins.
    for _ in 0..3 {
        synchronized.recv().await.expect("the runtime lives");
    }
    let (pod, container) = (PodSandbox::named("p"), Container::named("c\u{1b}[2J"));
    for event in [Event::RunPodSandbox, Event::StartContainer] {
        adaptation.notify(event, &pod, Some(&container)).await.expect("it changes nothing");
    }
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("it prints");
    assert!(line.starts_with("StartContainer ") && line.contains("/p c"), "{line}");
    assert!(!line.contains('\u{1b}'), "what a runtime says cannot control the terminal");
    // The runtime ends.
    served.abort();
    drop(served.await);
    drop(adaptation);
    let status = child.wait().expect("it is a child");
    assert_eq!(status.code(), Some(1));
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
    assert!(said.contains("the connection between plugin and runtime ended"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_do_not_wait_for_a_reader_of_watch_that_has_stopped() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let socket = path.to_str().expect("it is text").to_owned();
    let (adaptation, mut synchronized) = fake();
    let adaptation = Arc::new(adaptation);
    let listener = Listener::bind(&socket).expect("the path is free");
    let served = adaptation.clone();
    let served = tokio::spawn(async move { served.serve(listener).await });
    let mut child = ttrpc(&["nri", "watch", &socket]).spawn().expect("it was built");
    synchronized.recv().await.expect("the runtime lives");
    // Several times what a pipe takes.
    let (pod, container) = (PodSandbox::named("p".repeat(500)), Container::named("c"));
    for _ in 0..1000 {
        let started = adaptation.notify(Event::StartContainer, &pod, Some(&container));
        started.await.expect("it changes nothing");
    }
    assert_eq!(adaptation.plugins().len(), 1, "it was too slow for the runtime");
    // Nor does its end wait.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it is a child").success());
    served.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_of_nri_and_one_that_is_none_are_told_apart() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = |name: &str| folder.path().join(name).to_str().expect("it is text").to_owned();
    let (nri, plain, file) = (path("nri.sock"), path("plain.sock"), path("file"));
    let (adaptation, _synchronized) = fake();
    let listener = Listener::bind(&nri).expect("the path is free");
    let served = tokio::spawn(async move { Arc::new(adaptation).serve(listener).await });
    let method = "nri.pkg.api.v1alpha1.Runtime/UpdateContainers";
    let list: &[&str] = &["list", &nri];
    let call: &[&str] = &["call", &nri, method, "{}", "--schema", "builtin"];
    for arguments in [list, call] {
        let (is_called, text) = unanswered(arguments).await;
        assert!(!is_called && text.contains("NRI's socket"), "{text}");
    }
    served.abort();

    // It closes each connection.
    let listener = std::os::unix::net::UnixListener::bind(&plain).expect("the path is free");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    std::fs::write(&file, "").expect("there is room");
    for (socket, expected) in [(&plain, "is it a socket of NRI?"), (&file, "Connection refused")] {
        let (is_on, text) = output(ttrpc(&["nri", "check", socket])).await;
        assert!(!is_on && text.matches(expected).count() == 1, "{text}");
        let connects = text.matches("cannot connect to").count();
        assert_eq!(connects, usize::from(socket == &file), "{text}");
    }
}
