//! The host of a virtual machine: starts one, and tries ttrpc over its vsock. Exits with 0 if all is as
//! it has to be.

mod command_line;
mod load;
mod machine;

use std::{
    error::Error,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use load::{Load, LoadCall, Timers};
use machine::{Machine, Parts, Pause};
use tokio::time::{sleep, timeout};
use ttrpc::{
    Client, ClientConfig, Code, ConnectionError, Server,
    client::{ConnectOptions, Keepalive},
    server::{Listener, PeerPolicy},
};
use ttrpc_tests::{
    conformance::*,
    conformance_suite::{Report, all_cases, matches, run_case, trial},
    harness::{echo_request, key},
    service::ConformanceService,
};

type Tried<T = ()> = Result<T, Box<dyn Error>>;

/// How long the machine may take to start on a busy computer. It takes 4 s on an idle one.
const START_LIMIT: Duration = Duration::from_secs(600);

/// Cases that fail by the device. The first sends 4 GiB, which takes a minute. The second fills both directions
/// at once, in which the device stands still: it writes nothing to the host's socket as long as there is
/// something to read from it, for which the guest may have no room. The others reset a connection: the
/// device ignores an error of its read, so its guest does not always hear of it. The guest runs all but the first
/// over its kernel's own vsock.
const LEFT_OUT: &str = "wire/length_4_gib_less_1|large_stream_messages|wire/eof_reset*";

/// Cases that wait until the guest has heard of a connection's end. In one of some forty runs it never did, for
/// which nobody knows a reason. The guest runs them over its kernel's own vsock.
const ENDS: &str = "wire/eof_*|wire/length_4_gib_*";

/// Cases with so many calls that they take a minute in a machine that is emulated.
const SLOW: &str = "concurrent_unary|concurrent_streams";

/// How long the guest may take for the suite. It takes seconds.
const SUITE_LIMIT: Duration = Duration::from_secs(1800);

/// How late all calls may end with their connection after the guest was killed. What timers alone are late by
/// comes on top; here it is not enough, since the system has to take QEMU's process apart, and the device has to
/// run and to see that it is gone.
const END_LATENESS: Duration = Duration::from_secs(3);

/// How long something may take that has no deadline and must happen, on whatever computer.
const PATIENCE: Duration = Duration::from_secs(900);

/// Tries ttrpc with a virtual machine.
#[derive(Debug, Parser)]
#[command(name = "ttrpc-vm-host")]
struct Arguments {
    /// The machine's kernel.
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// The machine's files, with `ttrpc-vm-guest` as `/init`.
    #[arg(long, value_name = "FILE")]
    initrd: PathBuf,
    /// The program `vhost-device-vsock`.
    #[arg(long, value_name = "FILE")]
    device: PathBuf,
    /// The program `ttrpc`.
    #[arg(long, value_name = "FILE")]
    command_line: PathBuf,
    /// Where the machine's console goes.
    #[arg(long, value_name = "FILE")]
    console: PathBuf,
    /// The conformance cases to run; a star stands for any text, and a bar means "or".
    #[arg(long, value_name = "GLOB", default_value = "*")]
    case: String,
    /// Also run what the device fails at by itself at times.
    ///
    /// These are the cases with the most calls, those that wait for a connection's end, loads that fill both directions at
    /// once, and a stop by QEMU's monitor.
    #[arg(long)]
    heavy: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new().expect("the runtime starts");
    match runtime.block_on(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Tried {
    let mut machine = Machine::start(Parts {
        kernel: &arguments.kernel,
        initrd: &arguments.initrd,
        device: &arguments.device,
        console: File::create(&arguments.console)?,
    })?;
    let address = format!("hvsock://{}:1024", machine.socket().display());
    listens(&arguments.console).await?;
    starts(&address).await?;
    is_refused_elsewhere(&machine).await?;
    let is_chosen =
        |name: &str| matches(&arguments.case, name) && (arguments.heavy || !matches(SLOW, name));
    let left_out = if arguments.heavy { LEFT_OUT.to_owned() } else { format!("{LEFT_OUT}|{ENDS}") };
    let is_carried = |name: &str| is_chosen(name) && !matches(&left_out, name);
    println!("left out, for what the device cannot do: {left_out}");
    explained(&address, conforms(&address, &is_carried).await).await?;
    explained(&address, conforms_inside(&address, &is_chosen).await).await?;
    in_time(&address, descriptors_are_served(&machine)).await?;
    in_time(&address, streams_push_back(&address)).await?;
    in_time(&address, calls_back(&machine, &address)).await?;
    command_line::calls(&arguments.command_line, &address)?;
    let trace = command_line::is_traced(&arguments.command_line, machine.folder(), &address);
    in_time(&address, trace).await?;
    let mut pauses = vec![(Pause::Process, Load::releases as LoadCall)];
    if arguments.heavy {
        pauses
            .extend([(Pause::Process, Load::echoes as LoadCall), (Pause::Monitor, Load::releases)]);
    }
    for (pause, call) in pauses {
        in_time(&address, goes_on_after_a_pause(&mut machine, &address, pause, call)).await?;
    }
    in_time(&address, ends_while_stopped(&mut machine, &address)).await
}

/// Bounds a step, and says what the guest waits for if it does not end well.
async fn in_time(address: &str, step: impl Future<Output = Tried>) -> Tried {
    let tried = timeout(PATIENCE, step).await;
    let tried = tried.unwrap_or_else(|_| Err(format!("no end within {PATIENCE:?}").into()));
    explained(address, tried).await
}

/// Says what the guest waits for if a step has failed.
async fn explained(address: &str, tried: Tried) -> Tried {
    if tried.is_ok() {
        return tried;
    }
    let guest = async {
        let client = connect(address).await?;
        snapshot(&client).await
    };
    match timeout(PATIENCE / 4, guest).await {
        Ok(Ok(snapshot)) => println!("the guest's {snapshot}"),
        Ok(Err(error)) => println!("the guest says nothing: {error}"),
        Err(_) => println!("the guest says nothing"),
    }
    tried
}

/// What the guest's server waits for.
async fn snapshot(client: &Client) -> Tried<String> {
    Ok(client.unary("ttrpc.vm.Guest", "Snapshot", ()).await?)
}

async fn connect(address: &str) -> Tried<Client> {
    Ok(options().connect(address).await?)
}

/// Patient with the handshake: the device panics if it has to answer a client that has given up.
fn options() -> ConnectOptions {
    ConnectOptions::new().handshake_timeout(PATIENCE)
}

/// Waits until the guest says so on its console. A handshake that the device gets before the guest has a driver
/// for it may have no answer at all.
async fn listens(console: &Path) -> Tried {
    let start = Instant::now();
    while !String::from_utf8_lossy(&fs::read(console)?).contains("listening") {
        check(start.elapsed() < START_LIMIT, || "the guest does not listen".to_owned())?;
        sleep(Duration::from_millis(50)).await;
    }
    println!("start: the guest listens after {:.1?}", start.elapsed());
    Ok(())
}

async fn starts(address: &str) -> Tried {
    let client = options().retry_for(START_LIMIT).connect(address).await?;
    let peer: String = client.unary("ttrpc.vm.Guest", "Peer", ()).await?;
    check(peer.starts_with("cid 2, port "), || format!("the guest's peer is {peer}"))?;
    println!("peer: the guest sees {peer}");
    let echo = ConformanceClient::new(client);
    let start = Instant::now();
    for _ in 0..100 {
        echo.echo(echo_request([0; 64])).await?;
    }
    println!("echo: {:.0?} each, one after the other", start.elapsed() / 100);
    Ok(())
}

/// The guest serves a vsock listener of which it has the descriptor, and connections of which it has them.
async fn descriptors_are_served(machine: &Machine) -> Tried {
    for port in [1026, 1027] {
        let client = connect(&format!("hvsock://{}:{port}", machine.socket().display())).await?;
        let peer: String = client.unary("ttrpc.vm.Guest", "Peer", ()).await?;
        check(peer.starts_with("cid 2, port "), || format!("at port {port}, the peer is {peer}"))?;
        ConformanceClient::new(client).echo(echo_request(*b"descriptor")).await?;
    }
    println!("descriptors: a listener and a connection of the guest's own are served");
    Ok(())
}

async fn is_refused_elsewhere(machine: &Machine) -> Tried {
    let error = connect(&format!("hvsock://{}:1025", machine.socket().display())).await;
    let error = error.err().ok_or("nobody listens on this port")?;
    let is_refused = matches!(error.downcast_ref(), Some(ttrpc::Error::HandshakeRefused { .. }));
    check(is_refused, || format!("{error:?}"))?;
    println!("another port: {error}");
    Ok(())
}

async fn conforms(address: &str, is_carried: &dyn Fn(&str) -> bool) -> Tried {
    let mut report = Report::new(None::<File>);
    for case in all_cases() {
        if is_carried(&case.name) {
            let row = run_case(&case, &trial(address, true), SUITE_LIMIT).await;
            report.add(&row, &mut io::stdout())?;
            // What one case has left behind fails the next ones, each after its patience.
            if row.has_failed() {
                break;
            }
        }
    }
    check(report.finish(&mut io::stdout())?, || "conformance cases failed".to_owned())
}

/// The cases over vsock alone: inside of the guest, whose kernel is on both sides.
async fn conforms_inside(address: &str, is_chosen: &dyn Fn(&str) -> bool) -> Tried {
    let client = connect(address).await?;
    let cases = all_cases().into_iter().map(|case| case.name);
    let cases: Vec<_> =
        cases.filter(|name| is_chosen(name) && name != "wire/length_4_gib_less_1").collect();
    let report = client.unary("ttrpc.vm.Guest", "Conform", cases.join("|"));
    let report: String = report.timeout(SUITE_LIMIT).await.map_err(|status| {
        format!("conformance cases failed inside of the guest: {}", status.message())
    })?;
    println!("inside of the guest:\n{report}");
    Ok(())
}

/// 16 MiB each way through rings of 256 KiB, one way after the other (see [`LEFT_OUT`]): more than all buffers on
/// the way hold, which are a queue and an inbox of 4 MiB and the sockets.
async fn streams_push_back(address: &str) -> Tried {
    const CHUNKS: u64 = 512;
    const PAYLOAD: usize = 32 << 10;
    let config = ClientConfig { stall_timeout: PATIENCE, ..ClientConfig::default() };
    let client = options().config(config).connect(address).await?;
    let conformance = ConformanceClient::new(client.clone());
    let start = Instant::now();
    let (mut sender, reply) = conformance.collect().await?;
    for sequence in 0..CHUNKS {
        sender.send(Chunk { sequence, payload: vec![sequence as u8; PAYLOAD] }).await?;
    }
    sender.finish();
    let reply = timeout(PATIENCE / 2, reply).await;
    let reply = reply.map_err(|_| format!("no reply: {}", summary(&client)))??;
    let is_whole = reply.chunks == CHUNKS && reply.in_order;
    check(is_whole, || format!("{} chunks arrived", reply.chunks))?;
    let full = client.snapshot().queue.blocked_total;
    check(!full.is_zero(), || "the socket was never full".to_owned())?;
    println!("to the guest: 16 MiB in {:.1?}, socket full for {full:.1?}", start.elapsed());

    let request =
        GenerateRequest { count: CHUNKS, size: PAYLOAD as u32, ..GenerateRequest::default() };
    let mut chunks = conformance.generate(request).await?;
    // Nobody takes a chunk until the guest's socket is full, as the guest itself says.
    let other = connect(address).await?;
    let is_full = "socket full for";
    while !snapshot(&other).await?.contains(is_full) {
        sleep(Duration::from_millis(50)).await;
    }
    let start = Instant::now();
    for sequence in 0..CHUNKS {
        let chunk = chunks.recv().await?.ok_or("the stream ends early")?;
        let is_whole = chunk.sequence == sequence && chunk.payload.len() == PAYLOAD;
        check(is_whole, || format!("chunk {sequence} is {}", chunk.sequence))?;
    }
    check(chunks.recv().await?.is_none(), || "the stream goes on".to_owned())?;
    println!(
        "to the host: 16 MiB in {:.1?}, from the moment when the ring was full",
        start.elapsed()
    );
    Ok(())
}

/// The guest calls the host, which listens where the hypervisor looks.
async fn calls_back(machine: &Machine, address: &str) -> Tried {
    const CALLS: u64 = 100;
    let service = Arc::new(ConformanceService::default());
    let listen = format!("hvsock://{}:5000", machine.socket().display());
    let server = Server::builder()
        .add_service(ConformanceServer::from_arc(service.clone()))
        .listener(Listener::bind_with_mode(&listen, 0o600)?)
        // The hypervisor connects for its guest.
        .allow_peers(PeerPolicy::same_user())
        .build()?;
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = connect(address).await?;
    let itself: u64 = client.unary("ttrpc.vm.Guest", "CallItself", CALLS).await?;
    check(itself == 2 * CALLS, || format!("{itself} echoes of the guest's own"))?;
    let echoes: u64 = client.unary("ttrpc.vm.Guest", "CallBack", CALLS).await?;
    let seen = service.calls_total();
    check((echoes, seen) == (CALLS, CALLS), || format!("{echoes} echoes, {seen} calls"))?;
    handle.close().await;
    serving.await??;
    println!(
        "the other way: {CALLS} calls of the guest to the host; to itself, over vsock and over a Unix socket"
    );
    Ok(())
}

/// A guest that stands still answers nothing and takes nothing. Every call ends at its deadline all the
/// same, and the connection goes on with the guest.
async fn goes_on_after_a_pause(
    machine: &mut Machine,
    address: &str,
    pause: Pause,
    call: LoadCall,
) -> Tried {
    let client = connect(address).await?;
    let load = Load::start(&client, call).await?;
    machine.stop(pause)?;
    let stopped = load.end().await;
    machine.resume(pause)?;
    let start = Instant::now();
    println!("paused ({pause:?}): {}", stopped?);
    let again = ConformanceClient::new(client.clone()).echo(echo_request(*b"again"));
    let again = again.timeout(PATIENCE / 2).await;
    again.map_err(|status| format!("after the pause: {status}; {}", summary(&client)))?;
    println!("resumed: the same connection answers after {:.1?}", start.elapsed());
    check(client.close_reason().is_none(), || "the connection has ended".to_owned())
}

/// The monitor stops the guest under load, and every call ends at its deadline; then it is killed, and every pending call
/// ends and says that the connection is gone.
async fn ends_while_stopped(machine: &mut Machine, address: &str) -> Tried {
    const CALLS: usize = 50;
    let client = connect(address).await?;
    let conformance = ConformanceClient::new(client.clone());
    let waits: Vec<_> =
        (0..CALLS).map(|_| tokio::spawn(conformance.wait(key("never")).into_future())).collect();
    // Calls are served in order, so the waits have begun.
    conformance.echo(echo_request([])).await?;
    let load = Load::start(&connect(address).await?, Load::releases).await?;
    let keepalive = Keepalive::new(Duration::from_millis(500), Duration::from_secs(2));
    let watchful = options().keepalive(keepalive).connect(address).await?;
    machine.stop(Pause::Monitor)?;
    println!("stopped (Monitor): {}", load.end().await?);
    let lost = ConformanceClient::new(watchful.clone()).echo(echo_request([])).await;
    let reason = watchful.close_reason();
    check(lost.is_err() && matches!(reason, Some(ConnectionError::KeepaliveTimeout)), || {
        format!("a keepalive has not noticed: {lost:?}, {reason:?}")
    })?;
    println!("stopped (Monitor): a keepalive notices");
    let timers = Timers::start();
    let start = Instant::now();
    machine.kill();
    for wait in waits {
        let status = wait.await?.err().ok_or("the key was never released")?;
        check(status.code() == Code::Unavailable, || status.to_string())?;
    }
    let reason = client.closed().await;
    let (took, late) = (start.elapsed(), timers.latest());
    println!("killed: {CALLS} pending calls ended after {took:.0?}: {reason}");
    check(took <= END_LATENESS + late, || format!("timers were only {late:.0?} late"))
}

/// What a client's connection waits for, without its calls.
fn summary(client: &Client) -> String {
    client.snapshot().to_string().lines().take(3).collect::<Vec<_>>().join("\n")
}

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Tried {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
