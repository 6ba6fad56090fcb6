//! The host of a virtual machine: starts one, and tries ttrpc over its vsock. Exits with 0 if all is as
//! it has to be.

mod machine;

use std::{
    error::Error,
    fs::File,
    io,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use machine::{Machine, Parts};
use tokio::time::timeout;
use ttrpc::{
    Client, Code, Server, Status,
    client::ConnectOptions,
    server::{Listener, PeerPolicy},
};
use ttrpc_tests::{
    conformance::*,
    conformance_suite::{Report, Trial, all_cases, matches, run_case},
    harness::{echo_request, key},
    service::ConformanceService,
};

type Tried<T = ()> = Result<T, Box<dyn Error>>;

/// How long the machine may take to start on a busy computer. It takes 4 s on an idle one.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How late a deadline may be noticed on a busy computer.
const SLACK: Duration = Duration::from_secs(1);

/// How long something may take that has no deadline and must happen.
const PATIENCE: Duration = Duration::from_secs(60);

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
    /// Where the machine's console goes.
    #[arg(long, value_name = "FILE")]
    console: PathBuf,
    /// The conformance cases to run; a star stands for any text, and a bar means "or".
    #[arg(long, value_name = "GLOB", default_value = "*")]
    case: String,
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
    starts(&address).await?;
    is_refused_elsewhere(&machine).await?;
    conforms(&address, &arguments.case).await?;
    streams_push_back(&address).await?;
    calls_back(&machine, &address).await?;
    keeps_deadlines_while_stopped(&mut machine, &address).await?;
    is_killed(&mut machine, &address).await
}

async fn connect(address: &str) -> Tried<Client> {
    Ok(Client::connect(address).await?)
}

/// The client waits for the guest from before it has a kernel.
async fn starts(address: &str) -> Tried {
    let start = Instant::now();
    let options =
        ConnectOptions::new().retry_for(START_LIMIT).handshake_timeout(Duration::from_secs(1));
    let client = options.connect(address).await?;
    println!("start: connected after {:.1?}", start.elapsed());
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

async fn is_refused_elsewhere(machine: &Machine) -> Tried {
    let error = connect(&format!("hvsock://{}:1025", machine.socket().display())).await;
    let error = error.err().ok_or("nobody listens on this port")?;
    let is_refused = matches!(
        error.downcast_ref(),
        Some(ttrpc::Error::HandshakeRefused { .. } | ttrpc::Error::HandshakeTimeout { .. })
    );
    check(is_refused, || format!("{error:?}"))?;
    println!("another port: {error}");
    Ok(())
}

async fn conforms(address: &str, chosen: &str) -> Tried {
    let cases = all_cases();
    let mut report = Report::new(None::<File>);
    for case in cases.iter().filter(|case| matches(chosen, &case.name)) {
        let row = run_case(case, &Trial::new(address, true), PATIENCE).await;
        report.add(&row, &mut io::stdout())?;
    }
    check(report.finish(&mut io::stdout())?, || "conformance cases failed".to_owned())
}

/// 64 MiB there and back through rings of 256 KiB.
async fn streams_push_back(address: &str) -> Tried {
    const CHUNKS: u64 = 2000;
    const PAYLOAD: usize = 32 << 10;
    let client = connect(address).await?;
    let (mut sender, mut receiver) = ConformanceClient::new(client.clone()).exchange().await?;
    let start = Instant::now();
    let sending = tokio::spawn(async move {
        for sequence in 0..CHUNKS {
            sender.send(Chunk { sequence, payload: vec![sequence as u8; PAYLOAD] }).await?;
        }
        sender.finish();
        Ok::<(), Status>(())
    });
    for sequence in 0..CHUNKS {
        let chunk = receiver.recv().await?.ok_or("the stream ends early")?;
        let expected = Chunk { sequence, payload: vec![sequence as u8; PAYLOAD] };
        check(chunk == expected, || format!("chunk {sequence} is {}", chunk.sequence))?;
    }
    check(receiver.recv().await?.is_none(), || "the stream goes on".to_owned())?;
    sending.await??;
    let full = client.snapshot().queue.blocked_total;
    check(!full.is_zero(), || "the socket was never full".to_owned())?;
    println!(
        "backpressure: 64 MiB there and back in {:.1?}, socket full for {full:.1?}",
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
    let echoes: u64 = client.unary("ttrpc.vm.Guest", "CallBack", CALLS).timeout(PATIENCE).await?;
    let seen = service.calls_total();
    check((echoes, seen) == (CALLS, CALLS), || format!("{echoes} echoes, {seen} calls"))?;
    handle.close().await;
    serving.await??;
    println!("the other way: {CALLS} calls of the guest to the host");
    Ok(())
}

/// A stopped guest answers nothing and takes nothing. Every call ends at its deadline all the same,
/// and the connection goes on with the guest.
async fn keeps_deadlines_while_stopped(machine: &mut Machine, address: &str) -> Tried {
    const CALLERS: usize = 64;
    const DEADLINE: Duration = Duration::from_millis(500);
    let client = connect(address).await?;
    let conformance = ConformanceClient::new(client.clone());
    conformance.echo(echo_request([])).await?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| tokio::spawn(load(conformance.clone(), DEADLINE, stopped.clone())))
        .collect();
    tokio::time::sleep(DEADLINE).await;
    machine.stop()?;
    // Long enough for each caller to meet its deadline several times, and for the socket to fill.
    tokio::time::sleep(DEADLINE * 6).await;
    let full = client.snapshot().queue.blocked;
    stop.send(true)?;
    let (mut answered, mut late, mut latest) = (0, 0, Duration::ZERO);
    for caller in callers {
        let result = timeout(PATIENCE, caller).await???;
        answered += result.answered;
        late += result.expired;
        latest = latest.max(result.latest);
    }
    let full = full.ok_or("the socket is not full")?;
    check(answered > 0 && late >= 3 * CALLERS, || format!("{answered} answered, {late} expired"))?;
    check(latest < DEADLINE + SLACK, || format!("a call ended {latest:?} after its begin"))?;
    println!(
        "stopped: {answered} calls answered before, {late} ended at their deadline of {DEADLINE:?}, \
         the last {latest:.0?} after its begin; socket full for {full:.1?}"
    );
    machine.resume()?;
    let start = Instant::now();
    conformance.echo(echo_request(*b"again")).timeout(PATIENCE).await?;
    println!("resumed: the same connection answers after {:.1?}", start.elapsed());
    check(client.close_reason().is_none(), || "the connection has ended".to_owned())
}

struct Load {
    answered: usize,
    expired: usize,
    latest: Duration,
}

/// Calls again and again until it is told to stop.
async fn load(
    conformance: ConformanceClient,
    deadline: Duration,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> Result<Load, Status> {
    let mut load = Load { answered: 0, expired: 0, latest: Duration::ZERO };
    while !*stopped.borrow() {
        let start = Instant::now();
        let call = conformance.echo(echo_request(vec![0; 16 << 10])).timeout(deadline);
        match call.await {
            Ok(_) => load.answered += 1,
            Err(status) if status.code() == Code::DeadlineExceeded => load.expired += 1,
            Err(status) => return Err(status),
        }
        load.latest = load.latest.max(start.elapsed());
    }
    Ok(load)
}

/// Every pending call ends, and says that the connection is gone.
async fn is_killed(machine: &mut Machine, address: &str) -> Tried {
    const CALLS: usize = 50;
    let client = connect(address).await?;
    let conformance = ConformanceClient::new(client.clone());
    let waits: Vec<_> =
        (0..CALLS).map(|_| tokio::spawn(conformance.wait(key("never")).into_future())).collect();
    // Calls are served in order, so the waits have begun.
    conformance.echo(echo_request([])).await?;
    let start = Instant::now();
    machine.kill();
    for wait in waits {
        let status = timeout(PATIENCE, wait).await??.err().ok_or("the key was never released")?;
        check(status.code() == Code::Unavailable, || status.to_string())?;
    }
    let reason = client.closed().await;
    println!("killed: {CALLS} pending calls ended after {:.0?}: {reason}", start.elapsed());
    Ok(())
}

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Tried {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}
