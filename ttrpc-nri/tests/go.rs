//! Against containerd's implementation in Go: its multiplexer over a socketpair, its runtime package, its stub. `tests/nri/run` builds the
//! peers and runs this.

use std::{
    env,
    os::{fd::OwnedFd, unix::fs::symlink},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    process::{Child, Command},
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use ttrpc::{
    Client, ClientConfig, Connection, Server, Status, async_trait,
    server::{Routes, Service},
};
use ttrpc_nri::{
    Backoff, Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, Context, Creation,
    Plugin, PluginId, PodSandbox, Stub,
    mux::{ConnId, Mux, MuxConfig},
    plugin,
    proto::CreateContainerRequest,
    runtime::{Adaptation, Host, RuntimeInfo, UpdateContainers},
};

const LENGTHS: [usize; 9] = [0, 1, 10, 4095, 4096, 4097, 65_536, (4 << 20) - 1, 4 << 20];
const BOTH: [ConnId; 2] = [ConnId::PLUGIN, ConnId::RUNTIME];

/// A program that `tests/nri/run` has built.
fn program(name: &str) -> PathBuf {
    let folder = env::var_os("TTRPC_NRI_PEERS").expect("tests/nri/run sets where the peers are");
    PathBuf::from(folder).join(name)
}

fn peer(mode: &[&str], processors: &str) -> (Child, UnixStream) {
    let (here, there) = std::os::unix::net::UnixStream::pair().expect("descriptors are left");
    here.set_nonblocking(true).expect("it is a socket");
    let mut command = Command::new(program("mux"));
    command
        .kill_on_drop(true)
        .args(mode)
        .env("GOMAXPROCS", processors)
        .stdin(Stdio::from(OwnedFd::from(there)));
    let child = command.spawn().expect("tests/nri/run has built it");
    (child, UnixStream::from_std(here).expect("it is a socket"))
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.expect("somebody can go on")
}

async fn succeeds(mut child: Child) {
    assert!(child.wait().await.expect("it is a child").success());
}

/// A ttrpc frame with this much data.
fn message(len: usize) -> Vec<u8> {
    let mut frame = u32::try_from(len).expect("it is short").to_be_bytes().to_vec();
    frame.extend([0, 0, 0, 1, 1, 0]);
    frame.extend((0..len).map(|at| (at % 251) as u8));
    frame
}

/// Sends every length at once and reads what comes back, while the other connection does the same.
async fn echo_frames(connection: Connection) {
    let (mut reader, mut writer) = tokio::io::split(connection);
    let write = async {
        for len in LENGTHS {
            writer.write_all(&message(len)).await.expect("the peer reads");
        }
        writer.flush().await.expect("the peer reads");
    };
    let read = async {
        for len in LENGTHS {
            let mut frame = vec![0; 10 + len];
            reader.read_exact(&mut frame).await.expect("the peer answers");
            assert!(
                frame == message(len),
                "{len} bytes come back as {:?}",
                &frame[..frame.len().min(30)]
            );
        }
    };
    tokio::join!(write, read);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the peers in Go, see tests/nri/run"]
async fn frames_of_all_lengths_pass_gos_multiplexer_both_ways_on_both_connections() {
    for processors in ["1", "4"] {
        for _ in 0..10 {
            let (child, trunk) = peer(&["frames"], processors);
            let (mux, [one, two]) = Mux::start(trunk, MuxConfig::default(), BOTH);
            within(async { tokio::join!(echo_frames(one), echo_frames(two)) }).await;
            within(mux.shutdown()).await;
            within(succeeds(child)).await;
        }
    }
}

#[tokio::test]
#[ignore = "needs the peers in Go, see tests/nri/run"]
async fn three_hundred_unread_messages_either_way_are_no_harm() {
    for processors in ["1", "4"] {
        let (child, trunk) = peer(&["unread"], processors);
        let (mux, [mut one, mut two]) = Mux::start(trunk, MuxConfig::default(), BOTH);
        // All of the peer's on connection 1 come before this one, and are not read.
        within(two.read_exact(&mut [0; 13])).await.expect("the peer sends");
        assert_eq!(mux.snapshot()[0].unread_bytes, 300 * 1010);
        // The peer reads none of these before it has the one on connection 2.
        let many: Vec<u8> = (0..300).flat_map(|_| message(1000)).collect();
        within(one.write_all(&many)).await.expect("the peer's queue has room");
        within(two.write_all(&message(3))).await.expect("the peer reads");
        within(two.read_exact(&mut [0; 14])).await.expect("the peer has read all");
        let mut unread = vec![0; 300 * 1010];
        within(one.read_exact(&mut unread)).await.expect("it is all there");
        within(mux.shutdown()).await;
        within(succeeds(child)).await;
    }
}

/// Answers with the request; `Done` when this side's calls are done.
struct Echo {
    is_done: watch::Receiver<bool>,
}

impl Service for Echo {
    fn into_routes(self) -> Routes {
        let echo = Arc::new(self);
        Routes::new("echo")
            .unary("Echo", &echo, |_, _ctx, bytes: Vec<u8>| Box::pin(async move { Ok(bytes) }))
            .unary("Done", &echo, |echo, _ctx, bytes: Vec<u8>| {
                let mut is_done = echo.is_done.clone();
                Box::pin(async move {
                    is_done
                        .wait_for(|done| *done)
                        .await
                        .map_err(|_| Status::internal("it failed"))?;
                    Ok(bytes)
                })
            })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the peers in Go, see tests/nri/run"]
async fn calls_of_all_lengths_both_ways_at_once_are_answered_by_gos_ttrpc() {
    // A Request also names service and method.
    let lengths = LENGTHS.map(|len| len.min((4 << 20) - 100));
    let mut mode = vec!["calls".to_owned()];
    mode.extend(lengths.map(|len| len.to_string()));
    let mode: Vec<_> = mode.iter().map(String::as_str).collect();
    for processors in ["1", "4"] {
        for _ in 0..10 {
            let (child, trunk) = peer(&mode, processors);
            let (mux, [one, two]) = Mux::start(trunk, MuxConfig::default(), BOTH);
            let (done, is_done) = watch::channel(false);
            let server = Server::builder().add_service(Echo { is_done }).connection(two);
            let server = server.build().expect("it has a connection");
            let served = tokio::spawn(server.serve());
            let client = Client::from_connection(one, ClientConfig::default());
            let mut calls = JoinSet::new();
            for len in lengths {
                let client = client.clone();
                calls.spawn(async move {
                    let reply: Vec<u8> = client
                        .unary("echo", "Echo", vec![7_u8; len])
                        .await
                        .expect("it is answered");
                    assert!(reply == vec![7; len]);
                });
            }
            within(async {
                while let Some(call) = calls.join_next().await {
                    call.expect("no call fails")
                }
            })
            .await;
            done.send_replace(true);
            within(succeeds(child)).await;
            within(served).await.expect("it does not panic").expect("it has no listener");
            within(mux.closed()).await;
        }
    }
}

/// Lengths of an argument with which a request, a reply, or a frame of either ends next to a reader's buffer, or fills a message.
fn arguments() -> impl Iterator<Item = usize> {
    let at_buffers = (1..=2).flat_map(|buffers| (buffers * 4096 - 130)..(buffers * 4096 + 5));
    at_buffers.chain([0, 1, 65_536, 1 << 20, (4 << 20) - 8192, (4 << 20) - 4200])
}

/// Returns a container's argument in a variable.
#[derive(Clone, Default)]
struct Echoes {
    synchronized: Arc<Mutex<Vec<(usize, usize)>>>,
}

#[plugin]
impl Plugin for Echoes {
    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        let counts = (pods.len(), containers.len());
        self.synchronized.lock().expect("no test panics here").push(counts);
        Ok(Vec::new())
    }

    async fn create_container(
        &self,
        _: &Context,
        _: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        Ok(ContainerAdjustment::new().env("ECHO", &container.args[0]).into())
    }
}

#[tokio::test]
#[ignore = "needs the peers in Go, see tests/nri/run"]
async fn gos_runtime_synchronizes_ten_thousand_containers_and_takes_replies_of_any_length() {
    for processors in ["1", "4"] {
        let folder = tempfile::tempdir().expect("there is a folder for files");
        let mut command = Command::new(program("runtime"));
        command.kill_on_drop(true).env("GOMAXPROCS", processors);
        command.arg("serve").arg(folder.path()).arg("10000");
        command.args(arguments().map(|len| len.to_string()));
        let runtime = command.spawn().expect("tests/nri/run has built it");
        let echoes = Echoes::default();
        let socket = folder.path().join("nri.sock");
        let stub = Stub::new(echoes.clone())
            .name("echoes")
            .index("10")
            .socket(socket.to_str().expect("it is text"))
            .reconnect(Backoff::new());
        let stub = tokio::spawn(stub.run());
        within(succeeds(runtime)).await;
        stub.abort();
        let synchronized = echoes.synchronized.lock().expect("no test panics here");
        assert_eq!(*synchronized, [(10_000, 10_000)]);
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
        let large = Container { args: vec!["x".repeat(1000)], ..Container::named("c") };
        Ok((vec![PodSandbox::named("p"); 10_000], vec![large; 10_000]))
    }
}

#[tokio::test]
#[ignore = "needs the peers in Go, see tests/nri/run"]
async fn gos_stub_takes_ten_thousand_containers_and_requests_of_any_length() {
    let folder = tempfile::tempdir().expect("there is a folder for files");
    symlink(program("plugin"), folder.path().join("10-plugin")).expect("it is ours");
    let about = RuntimeInfo::new("test", "1").request_timeout(Duration::from_secs(60));
    let adaptation = Adaptation::new(about, Nothing);
    let failed = adaptation.launch(folder.path(), folder.path()).await.expect("it has a name");
    assert!(failed.is_empty(), "{failed:?}");
    let pod = PodSandbox::named("p").with_annotation("echo", "");
    for len in arguments() {
        let argument = "y".repeat(len);
        let container = Container { args: vec![argument.clone()], ..Container::named("c") };
        let request = CreateContainerRequest { pod: Some(pod.clone()), container: Some(container) };
        let created = adaptation.create_container(request).await;
        let created = created.unwrap_or_else(|status| panic!("{len} bytes: {status}"));
        let adjusted = created.adjust.expect("the plugin takes part");
        assert!(adjusted.env_value("ECHO") == Some(&argument), "{len} bytes do not come back");
    }
    assert_eq!(adaptation.plugins().len(), 1);
}
