//! The greeter as a daemon: what a ttrpc service needs under systemd, and under other supervisors.
//!
//! - It serves the socket that systemd passes under the name `greeter`, or binds `--address`.
//! - It reports READY=1 when a call to itself was answered, and STOPPING=1 when it ends.
//! - It reports WATCHDOG=1 while calls to itself are answered.
//! - On SIGTERM and SIGINT it stops accepting and lets open calls finish within `--stop-timeout`.
//! - On SIGHUP it starts its program anew, hands the socket on, and ends when its own calls have.
//! - It serves metrics to Prometheus over HTTP at `--metrics`.

mod exporter;
mod supervisor;

use std::{
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    process::{ExitCode, Stdio},
    time::Duration,
};

use clap::Parser;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{
    net::UnixStream,
    process::Command,
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};
use ttrpc::{
    Client, ClientConfig, Connection, Context, Server, Status, async_trait,
    interceptors::AccessLog,
    server::{Listener, ServerHandle},
};
use ttrpc_reflection::{
    Health,
    proto::health::{HealthCheckRequest, HealthClient},
};
use ttrpc_telemetry::Metrics;

mod greeter {
    ttrpc::include_proto!("greeter.v1");
}
use greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long the daemon waits for an answer to a call to itself, or to its successor.
const SELF_CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Greets, under a supervisor.
#[derive(Parser)]
struct Arguments {
    /// Where to listen if no socket is passed, for example unix:///run/greeter.sock.
    #[arg(long)]
    address: Option<String>,
    /// Takes the listening socket from standard input.
    #[arg(long, conflicts_with = "address")]
    socket_on_stdin: bool,
    /// Serves metrics over HTTP at this address.
    #[arg(long)]
    metrics: Option<SocketAddr>,
    /// How long open calls may go on after SIGTERM.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    stop_timeout: Duration,
}

struct MyGreeter;

#[async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(&self, _ctx: &Context, request: HelloRequest) -> Result<HelloReply, Status> {
        Ok(HelloReply { message: format!("Hello, {}!", request.name) })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Error> {
    // Signals that come from here on are handled.
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut reload = signal(SignalKind::hangup())?;
    let recorder = PrometheusBuilder::new().install_recorder()?;
    let socket = listening_socket(&arguments)?;
    let (health, metrics) = (Health::new(), Metrics::new());
    let server = Server::builder()
        .observe(AccessLog::default())
        .observe(metrics.clone())
        .add_service(GreeterServer::new(MyGreeter))
        .add_service(health.service())
        .listener(socket.try_clone()?)
        .build()?;
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());

    let itself = connect_to_itself(&handle).await?;
    check(&itself).await?;
    supervisor::ready()?;
    tokio::spawn(keep_watchdog_quiet(itself));
    if let Some(address) = arguments.metrics {
        let sampled = handle.clone();
        let render = move || {
            metrics.sample_server(&sampled.snapshot());
            recorder.render()
        };
        exporter::start(address, arguments.socket_on_stdin, render)?;
    }
    loop {
        tokio::select! {
            _ = terminated.recv() => break supervisor::stopping()?,
            _ = interrupted.recv() => break supervisor::stopping()?,
            _ = reload.recv() => match replace(&socket, &arguments, &handle).await {
                // The service goes on in the successor.
                Ok(()) => break,
                Err(error) => tracing::error!("no successor: {error}"),
            },
        }
    }
    health.shut_down();
    handle.shutdown(arguments.stop_timeout).await;
    serving.await?.map_err(Error::from)
}

/// The socket that the supervisor or a predecessor passes, or a new one.
fn listening_socket(arguments: &Arguments) -> Result<OwnedFd, Error> {
    if arguments.socket_on_stdin {
        return Ok(std::io::stdin().as_fd().try_clone_to_owned()?);
    }
    match (supervisor::socket("greeter")?, &arguments.address) {
        (Some(socket), _) => Ok(socket),
        (None, Some(address)) => Ok(Listener::bind(address)?.into_fd()?),
        (None, None) => Err("no socket was passed under the name greeter: give --address".into()),
    }
}

/// A client of this process's own server, by which it finds out whether that answers.
async fn connect_to_itself(server: &ServerHandle) -> Result<Client, Error> {
    let (here, there) = UnixStream::pair()?;
    server.serve_connection(Connection::from(there)).await?;
    Ok(Client::from_io(here, ClientConfig::default()))
}

async fn check(client: &Client) -> Result<(), Status> {
    let health = HealthClient::new(client.clone());
    let request = HealthCheckRequest::default();
    health.check(request).timeout(SELF_CALL_TIMEOUT).await.map(drop)
}

/// Reports to the watchdog, twice in its time, while this process answers calls.
async fn keep_watchdog_quiet(itself: Client) {
    let Some(limit) = supervisor::watchdog() else { return };
    while check(&itself).await.is_ok() && supervisor::alive().is_ok() {
        sleep(limit / 2).await;
    }
    tracing::error!("this process does not answer its own call: the watchdog may end it");
}

/// Starts this program anew on the same socket. When the new process answers, this one may end.
async fn replace(
    socket: &OwnedFd,
    arguments: &Arguments,
    server: &ServerHandle,
) -> Result<(), Error> {
    supervisor::reloading()?;
    // New clients wait in the socket's backlog until the successor accepts them.
    server.pause_accepting().await;
    let replaced = start_successor(socket, arguments).await;
    if replaced.is_err() {
        server.resume_accepting();
        supervisor::ready()?;
    }
    replaced
}

async fn start_successor(socket: &OwnedFd, arguments: &Arguments) -> Result<(), Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--socket-on-stdin").arg("--stop-timeout");
    command.arg(humantime::format_duration(arguments.stop_timeout).to_string());
    if let Some(address) = arguments.metrics {
        command.arg("--metrics").arg(address.to_string());
    }
    // It names this process.
    command.env_remove("WATCHDOG_PID");
    let mut successor = command.stdin(Stdio::from(socket.try_clone()?)).spawn()?;
    let path = std::os::unix::net::UnixListener::from(socket.try_clone()?).local_addr()?;
    let path = path.as_pathname().ok_or("the socket has no path")?.to_owned();
    let answered = async {
        let client = Client::connect(&format!("unix://{}", path.display())).await?;
        check(&client).await.map_err(Error::from)
    };
    let answered = tokio::select! {
        ended = successor.wait() => Err(format!("it ended: {}", ended?).into()),
        answered = timeout(SELF_CALL_TIMEOUT, answered) => {
            answered.map_err(Error::from).and_then(|answered| answered)
        }
    };
    match answered {
        Ok(()) => supervisor::succeeded_by(successor.id().ok_or("it has ended")?),
        Err(error) => {
            // It may have ended already.
            let _ = successor.kill().await;
            Err(error)
        }
    }
}
