//! `ttrpc nri` with a runtime of this process.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    sync::Arc,
};

use ttrpc::{Status, async_trait, server::Listener};
use ttrpc_nri::{
    Container, ContainerEviction, ContainerUpdate, Event, PluginId, PodSandbox,
    runtime::{Adaptation, Host, RuntimeInfo, UpdateContainers},
};

struct Fake;

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
    async fn state(&self) -> (Vec<PodSandbox>, Vec<Container>) {
        (vec![PodSandbox::named("p")], vec![Container::named("c"), Container::named("d")])
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_names_the_runtime_and_watch_prints_events() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    let path = folder.path().join("nri.sock");
    let socket = path.to_str().expect("it is text").to_owned();

    let (is_on, text) = output(ttrpc(&["nri", "check", &socket])).await;
    assert!(!is_on && text.contains("is NRI enabled there?"), "{text}");

    let adaptation = Arc::new(Adaptation::new(RuntimeInfo::new("fake", "1.2"), Fake));
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
    while !adaptation.plugins().iter().any(|id| id.name() == "ttrpc-watch") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
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
    assert!(said.contains("the connection to the runtime ended"), "{said}");
}
