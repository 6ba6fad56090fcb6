//! Kills servers under their clients and clients under their server, at random moments and under
//! load, as often as it is told, and checks that the others go on and that nothing is left.

use std::{
    env,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use tokio::{
    runtime::Runtime,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use ttrpc::{Client, Code, Status};
use ttrpc_tests::{
    conformance::*,
    conformance_suite::{ServerArguments, run_server},
    harness::{PATIENCE, alive_tasks, chunk, echo_request, key, patient_client},
    process::{Process, Usage},
};

/// Calls of each kind that are pending when the other side is killed.
const PENDING: usize = 8;

/// With fewer looks at memory than this, nothing is said about whether it grows.
const FEWEST_LOOKS: usize = 50;

/// Processes live for up to this long.
const LIFE_MILLIS: u64 = 30;

/// Kills servers, then clients, and checks that the others go on and nothing is left.
#[derive(Parser)]
#[command(name = "ttrpc-kill", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How many processes to kill.
    #[arg(long, default_value_t = 100)]
    times: usize,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What this program's child processes are.
#[derive(Subcommand)]
enum Part {
    /// A server of the conformance service.
    #[command(hide = true)]
    Server(ServerArguments),
    /// A client that calls all it can until it is killed.
    #[command(hide = true)]
    Client { address: String },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = Runtime::new().expect("a runtime can be made");
    let result = match arguments.part {
        Some(Part::Server(server)) => return run_server(&server),
        Some(Part::Client { address }) => runtime.block_on(call_for_ever(&address)),
        None => runtime.block_on(async {
            kill_servers(arguments.times / 2).await?;
            kill_clients(arguments.times - arguments.times / 2).await
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// This program, as one of its parts.
fn part() -> Command {
    Command::new(env::current_exe().expect("a running program has a path"))
}

fn address(name: &str) -> String {
    let file = format!("ttrpc-kill-{}-{name}.sock", std::process::id());
    env::temp_dir().join(file).to_string_lossy().into_owned()
}

async fn start_server(address: &str) -> Result<Process, String> {
    let address = address.to_owned();
    let start = move || {
        Process::start_server(part().args([
            "server",
            "--stall-timeout",
            "600",
            "--listen",
            &address,
        ]))
    };
    spawn_blocking(start).await.map_err(text)?.map_err(text)
}

async fn kill(mut process: Process) -> Result<Instant, String> {
    let kill = move || {
        let moment = Instant::now();
        process.kill();
        moment
    };
    spawn_blocking(kill).await.map_err(text)
}

/// A call that ends only with its connection, and how it ended.
type Pending = JoinSet<Result<(), Status>>;

/// Begins calls of all kinds, which the server answers for as long as it lives.
fn begin(conformance: &ConformanceClient, pending: &mut Pending) {
    for _ in 0..PENDING {
        let client = conformance.clone();
        pending.spawn(async move { client.wait(key("never")).await.map(drop) });
        let client = conformance.clone();
        pending.spawn(async move {
            loop {
                client.echo(echo_request(vec![0; 5000])).await?;
            }
        });
        let client = conformance.clone();
        pending.spawn(async move {
            let request = GenerateRequest { count: u64::MAX, size: 1000, ..Default::default() };
            let mut replies = client.generate(request).await?;
            while replies.recv().await?.is_some() {}
            Ok(())
        });
        let client = conformance.clone();
        pending.spawn(async move {
            let (mut requests, reply) = client.collect().await?;
            while requests.send(chunk(0)).await.is_ok() {}
            reply.await.map(drop)
        });
        let client = conformance.clone();
        pending.spawn(async move {
            let (mut requests, mut replies) = client.exchange().await?;
            loop {
                requests.send(chunk(0)).await?;
                replies.recv().await?;
            }
        });
    }
}

async fn call_for_ever(address: &str) -> Result<(), String> {
    let client = Client::connect_with(address, patient_client()).await.map_err(text)?;
    let mut pending = Pending::new();
    begin(&ConformanceClient::new(client), &mut pending);
    while pending.join_next().await.is_some() {}
    Ok(())
}

/// Every pending call ends with the cause, and nothing of the connection is left; the next server on
/// the same path serves.
async fn kill_servers(times: usize) -> Result<(), String> {
    let address = address("servers");
    let mut ended_after = Vec::new();
    let mut usage = Vec::new();
    for _ in 0..times {
        let server = start_server(&address).await?;
        let client = Client::connect_with(&address, patient_client()).await.map_err(text)?;
        let conformance = ConformanceClient::new(client.clone());
        let served = conformance.echo(echo_request([])).timeout(PATIENCE).await;
        served.map_err(|status| format!("a new server does not serve: {status}"))?;
        let mut pending = Pending::new();
        begin(&conformance, &mut pending);
        sleep(Duration::from_millis(fastrand::u64(0..LIFE_MILLIS))).await;
        let killed = kill(server).await?;
        let end = async {
            while let Some(ended) = pending.join_next().await {
                expect_cause(ended.map_err(text)?)?;
            }
            Ok::<_, String>(())
        };
        timeout(PATIENCE, end).await.map_err(|_| "a call outlives its server".to_owned())??;
        ended_after.push(killed.elapsed());
        if client.calls_in_flight() > 0 {
            return Err("an ended call is still in the table".to_owned());
        }
        drop((client, conformance));
        wait_until("the connection's tasks end", || alive_tasks() == 0).await?;
        usage.push(Usage::of_this_process().map_err(text)?);
    }
    let _ = std::fs::remove_file(&address);
    ended_after.sort();
    let quantile = |part: f64| ended_after.get((ended_after.len() as f64 * part) as usize);
    let [half, most, all] = [0.5, 0.99, 1.0].map(|part| quantile(part).or(ended_after.last()));
    println!(
        "{times} servers killed: the last of {} pending calls had ended {:.1?} after the signal in \
         half of the times, {:.1?} in 99 of 100, {:.1?} at most",
        5 * PENDING,
        half.copied().unwrap_or_default(),
        most.copied().unwrap_or_default(),
        all.copied().unwrap_or_default()
    );
    stays_level("this process", &usage)
}

fn expect_cause(ended: Result<(), Status>) -> Result<(), String> {
    match ended.as_ref().map_err(Status::code) {
        Err(Code::Unavailable) => Ok(()),
        _ => Err(format!("a call whose server was killed ended so: {ended:?}")),
    }
}

/// Handlers are cancelled, and connections, tasks and descriptors go.
async fn kill_clients(times: usize) -> Result<(), String> {
    let address = address("clients");
    let server = start_server(&address).await?;
    let client = Client::connect_with(&address, patient_client()).await.map_err(text)?;
    let conformance = ConformanceClient::new(client);
    let look = async || {
        let stats = conformance.stats(Empty {}).timeout(PATIENCE).await;
        stats.map_err(|status| format!("somebody else is not served: {status}"))
    };
    let before = look().await?;
    let at_rest = server.usage().map_err(text)?.descriptors;
    let mut usage = Vec::new();
    for _ in 0..times {
        let address = address.clone();
        let start = move || Process::start(part().args(["client", &address]));
        let killed = spawn_blocking(start).await.map_err(text)?.map_err(text)?;
        // From before it has connected to the middle of everything.
        sleep(Duration::from_millis(fastrand::u64(0..2 * LIFE_MILLIS))).await;
        kill(killed).await?;
        look().await?;
        usage.push(server.usage().map_err(text)?);
    }
    let start = Instant::now();
    loop {
        let now = look().await?;
        let descriptors = server.usage().map_err(text)?.descriptors;
        let is_at_rest = now.connections == before.connections
            && now.calls_in_flight == before.calls_in_flight
            && now.tasks_alive <= before.tasks_alive
            && descriptors <= at_rest;
        if is_at_rest {
            println!("{times} clients killed: {now:?}, {descriptors} descriptors");
            break;
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("something is left: {now:?}, {descriptors} descriptors"));
        }
        sleep(Duration::from_millis(10)).await;
    }
    server.terminate();
    stays_level("the server", &usage)
}

async fn wait_until(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let polling = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, polling).await.map_err(|_| format!("not in time: {what}"))
}

/// The most memory of the last quarter is no more than that of the second, with room for chance.
fn stays_level(who: &str, usage: &[Usage]) -> Result<(), String> {
    let quarter = usage.len() / 4;
    let most = |part: &[Usage]| part.iter().map(|usage| usage.memory).max().unwrap_or(0);
    let early = most(&usage[quarter..2 * quarter]);
    let late = most(&usage[usage.len() - quarter..]);
    let kib = |bytes: u64| bytes >> 10;
    println!("{who}: {} KiB resident in the second quarter, {} in the last", kib(early), kib(late));
    if usage.len() < FEWEST_LOOKS {
        println!("fewer than {FEWEST_LOOKS} looks: chance alone may make it rise");
        return Ok(());
    }
    match late <= early + early / 4 + (4 << 20) {
        true => Ok(()),
        false => Err(format!("{who} has grown")),
    }
}
