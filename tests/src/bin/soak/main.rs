//! Mixes all that clients may do to a server, for as long as it is told: good calls of every kind,
//! calls given up, deadlines, connections made and broken, client processes that are killed or
//! stopped, hostile peers, and a second server that is killed under its clients. Checks everything as
//! it goes, and at the end that nothing has grown and nothing is left.

mod hostile;
mod load;
mod samples;

use std::{
    env, io,
    path::PathBuf,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use tokio::{
    runtime::Runtime,
    task::{JoinError, JoinSet},
    time::{interval, sleep, timeout},
};
use ttrpc::{Client, Code};
use ttrpc_tests::{
    conformance::*,
    conformance_suite::{ServerArguments, run_server},
    harness::{key, patient_client},
    process::{Process, raise_descriptor_limit},
};

use load::{GENEROUS, Tally, unexpected, work};
use samples::{Sample, Samples};

/// In less time the load is too uneven to tell whether anything grows.
const FEWEST_MINUTES: f64 = 20.0;
/// Clients of this process that behave.
const WORKERS: usize = 4;
/// Client processes.
const CHILDREN: usize = 2;
/// Attackers.
const ATTACKERS: usize = 2;
/// Calls that are pending when the second server is killed.
const PENDING: usize = 50;

/// Loads a server in every way, hostile ones included, and checks that nothing grows and nothing is left.
#[derive(Parser)]
#[command(name = "ttrpc-soak", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How long to run.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Draw memory, descriptors, tasks and calls over time into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What this program's child processes are.
#[derive(Subcommand)]
enum Part {
    /// A server of the conformance service.
    #[command(hide = true)]
    Server(ServerArguments),
    /// A client that behaves.
    #[command(hide = true)]
    Client { address: String, seconds: f64 },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    raise_descriptor_limit();
    let result = match &arguments.part {
        Some(Part::Server(server)) => return run_server(server),
        Some(Part::Client { address, seconds }) => run(async {
            let until = Instant::now() + Duration::from_secs_f64(*seconds);
            work(address, until, &Tally::default()).await
        }),
        None => run(soak(&arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(part: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    Runtime::new().map_err(|error| error.to_string())?.block_on(part)
}

/// This program, as one of its parts.
fn part() -> Command {
    Command::new(env::current_exe().expect("a running program has a path"))
}

/// The start blocks until the server listens, so it has a thread to itself.
async fn start_server(address: &str) -> Result<Process, String> {
    let address = address.to_owned();
    let start = move || {
        let arguments = ["server", "--stall-timeout", "600", "--listen", &address];
        Process::start_server(part().args(arguments))
    };
    let started = tokio::task::spawn_blocking(start).await.map_err(|error| error.to_string())?;
    started.map_err(|error| error.to_string())
}

fn address(name: &str) -> String {
    let file = format!("ttrpc-soak-{}-{name}.sock", std::process::id());
    env::temp_dir().join(file).to_string_lossy().into_owned()
}

async fn soak(arguments: &Arguments) -> Result<(), String> {
    let address = Arc::new(address("server"));
    let server = start_server(&address).await?;
    let client = Client::connect_with(&address, patient_client())
        .await
        .map_err(|error| error.to_string())?;
    let conformance = ConformanceClient::new(client);
    let mut samples = Samples::default();
    let at_rest = samples.take(&server, &conformance).await?;

    let start = Instant::now();
    let until = start + Duration::from_secs_f64(arguments.minutes * 60.0);
    let tally = Arc::new(Tally::default());
    let mut tasks = start_everything(&address, until, &tally);
    let mut clock = interval(sampling_interval(arguments.minutes));
    let watching = async {
        loop {
            tokio::select! {
                ended = tasks.join_next() => match ended {
                    Some(ended) => flatten(ended)?,
                    None => return Ok(()),
                },
                _ = clock.tick() => drop(samples.take(&server, &conformance).await?),
            }
        }
    };
    let outcome: Result<(), String> = watching.await;
    if let Some(file) = &arguments.plot {
        samples.plot(file, start.elapsed()).map_err(|error| error.to_string())?;
    }
    println!("{}", tally.summary());
    let rising = samples.judge();
    outcome?;
    if arguments.minutes < FEWEST_MINUTES {
        println!("shorter than {FEWEST_MINUTES} minutes: chance alone may make a median rise");
    }
    rests_again(&server, &conformance, at_rest).await?;
    server.terminate();
    match rising[..] {
        [] => Ok(()),
        _ if arguments.minutes < FEWEST_MINUTES => Ok(()),
        _ => Err(format!("not flat: {}", rising.join("; "))),
    }
}

/// Some hundreds of samples, at most four a second and at least one every five seconds.
fn sampling_interval(minutes: f64) -> Duration {
    Duration::from_secs_f64((minutes * 60.0 / 1000.0).clamp(0.25, 5.0))
}

fn flatten(ended: Result<Result<(), String>, JoinError>) -> Result<(), String> {
    ended.map_err(|error| error.to_string())?
}

fn start_everything(
    address: &Arc<String>,
    until: Instant,
    tally: &Arc<Tally>,
) -> JoinSet<Result<(), String>> {
    let mut tasks = JoinSet::new();
    for _ in 0..WORKERS {
        let (address, tally) = (address.clone(), tally.clone());
        tasks.spawn(async move { work(&address, until, &tally).await });
    }
    for _ in 0..CHILDREN {
        let address = address.clone();
        tasks.spawn(async move { mistreat_children(&address, until).await });
    }
    for _ in 0..ATTACKERS {
        let address = address.clone();
        tasks.spawn(async move {
            while Instant::now() < until {
                let attack = timeout(GENEROUS, hostile::attack(&address)).await;
                attack.map_err(|_| "an attack did not end".to_owned())??;
            }
            Ok(())
        });
    }
    tasks.spawn(kill_servers(until));
    tasks
}

/// Client processes, one after the other: killed, stopped for a while, or left to end.
async fn mistreat_children(address: &str, until: Instant) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    while Instant::now() < until {
        let mut child = Process::start(part().args(["client", address, "5"])).map_err(text)?;
        sleep(Duration::from_millis(fastrand::u64(0..2000))).await;
        match fastrand::u8(0..3) {
            0 => {
                child.kill();
                continue;
            }
            1 => {
                child.stop();
                sleep(Duration::from_millis(fastrand::u64(0..3000))).await;
                child.resume();
            }
            _ => {}
        }
        let ended = async {
            loop {
                match child.try_wait() {
                    Ok(None) => sleep(Duration::from_millis(50)).await,
                    ended => return ended,
                }
            }
        };
        let ended = timeout(GENEROUS * 2, ended).await;
        let status = ended.map_err(|_| "a client does not end".to_owned())?.map_err(text)?;
        if !status.is_some_and(|status| status.success()) {
            return Err(format!("a client that was not killed has failed: {status:?}"));
        }
    }
    Ok(())
}

/// A second server, killed at random moments: its clients' pending calls end with the cause, and
/// the next server serves them anew.
async fn kill_servers(until: Instant) -> Result<(), String> {
    let address = address("victim");
    while Instant::now() < until {
        let mut server = start_server(&address).await?;
        let client = Client::connect_with(&address, patient_client())
            .await
            .map_err(|error| error.to_string())?;
        let conformance = ConformanceClient::new(client.clone());
        let alive = conformance.echo(EchoRequest::default()).timeout(GENEROUS).await;
        alive.map_err(unexpected("a call on a new server"))?;
        let mut pending = JoinSet::new();
        for _ in 0..PENDING {
            pending.spawn(conformance.wait(key("never")).timeout(GENEROUS).into_future());
        }
        sleep(Duration::from_millis(fastrand::u64(0..1000))).await;
        tokio::task::spawn_blocking(move || server.kill()).await.map_err(|e| e.to_string())?;
        while let Some(ended) = pending.join_next().await {
            let ended = ended.map_err(|error| error.to_string())?;
            let code = ended.err().map(|status| status.code());
            if code != Some(Code::Unavailable) {
                return Err(format!("a call whose server was killed ended with {code:?}"));
            }
        }
        if client.close_reason().is_none() || client.calls_in_flight() > 0 {
            return Err("a connection outlives its server".to_owned());
        }
    }
    let _ = std::fs::remove_file(&address);
    Ok(())
}

/// Waits until the server has as many connections, calls, tasks and descriptors as before.
async fn rests_again(
    server: &Process,
    conformance: &ConformanceClient,
    before: Sample,
) -> Result<(), String> {
    let start = Instant::now();
    loop {
        let now = Samples::default().take(server, conformance).await?;
        let is_at_rest = now.stats.connections == before.stats.connections
            && now.stats.calls_in_flight == before.stats.calls_in_flight
            && now.stats.tasks_alive <= before.stats.tasks_alive
            && now.server.descriptors <= before.server.descriptors;
        if is_at_rest {
            println!("at rest again: {:?}", now.stats);
            return Ok(());
        }
        if start.elapsed() > GENEROUS {
            return Err(format!("something is left: {now:?}, before: {before:?}"));
        }
        sleep(Duration::from_millis(100)).await;
    }
}
