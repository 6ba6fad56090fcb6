//! Clients that reconnect, under load, while their server is killed, restarted, replaced, stopped and hidden behind a full
//! backlog. Checks that every call ends in time with a status that is right, that nothing is executed twice, and that nothing
//! is left at the end.
//!
//! Each call has an id of its own, which the server appends to a file when it executes it, before it answers. Another
//! implementation's server does so too: `tests/interop/go/peer` with `--executed FILE`.

mod chaos;
mod load;
mod server;

use std::{
    env,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinSet,
    time::{sleep, timeout},
};
use ttrpc_tests::process::{Usage, raise_descriptor_limit};

use chaos::Victim;
use load::{CLIENTS, Tally, Worker};

/// What this process may have more of at the end than after a quarter of the time.
const MORE_MEMORY: u64 = 16 << 20;

/// In less time, in seconds, a quarter is not enough to warm up.
const LONG: u64 = 60;

/// How long the tasks and descriptors of what was dropped may take to go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls a server that is killed, stopped and replaced meanwhile, and checks that no call is lost or repeated.
#[derive(Parser)]
#[command(name = "ttrpc-storm", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How long to run.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Seed of what happens to the server. It is printed, and random if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// How late a call may end beyond its timeout, in seconds: as much as the machine needs.
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    lateness: u64,
    /// The server of another implementation, which takes `--listen ADDRESS --executed FILE`.
    #[arg(long, value_name = "COMMAND", num_args = 1.., value_terminator = ";")]
    server: Vec<String>,
    /// How often this library's server executes a call. With any number but 1 the storm has to fail.
    #[arg(long, default_value_t = 1)]
    times: usize,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// This library's server.
    #[command(hide = true)]
    Server {
        #[arg(long)]
        listen: String,
        #[arg(long)]
        executed: PathBuf,
        #[arg(long)]
        times: usize,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    raise_descriptor_limit();
    let runtime = Runtime::new().expect("descriptors are left");
    let result = match &arguments.part {
        Some(Part::Server { listen, executed, times }) => {
            runtime.block_on(server::run(listen, executed, *times))
        }
        None => runtime.block_on(storm(&arguments)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The program and arguments of the server.
fn command_of(arguments: &Arguments) -> Vec<String> {
    if arguments.server.is_empty() {
        let program = env::current_exe().expect("a running program has a path");
        let program = program.to_string_lossy().into_owned();
        return vec![program, "server".into(), "--times".into(), arguments.times.to_string()];
    }
    arguments.server.clone()
}

async fn storm(arguments: &Arguments) -> Result<(), String> {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}");
    let mut victim = Victim::start(command_of(arguments), fastrand::Rng::with_seed(seed)).await?;
    let tally = Arc::new(Tally::new(Duration::from_secs(arguments.lateness)));
    let (tasks, usage) = (alive_tasks(), usage()?);
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut workers = JoinSet::new();
    for nth in 0..CLIENTS {
        workers.spawn(Worker::new(nth, victim.address(), tally.clone()).work(until));
    }
    let warm = Instant::now() + Duration::from_secs(arguments.seconds) / 4;
    let mut memory = None;
    while Instant::now() < until {
        if memory.is_none() && Instant::now() > warm {
            memory = Some(self::usage()?.memory);
        }
        victim.mistreat().await?;
        if let Some(fault) = tally.fault() {
            return Err(format!("{fault}\n{tally}\n{}", victim.report()));
        }
    }
    let ended =
        async { while workers.join_next().await.transpose().is_ok_and(|left| left.is_some()) {} };
    timeout(PATIENCE, ended).await.map_err(|_| format!("calls do not end\n{tally}"))?;
    println!("{tally}\n{}", victim.report());
    let left = || (alive_tasks(), self::usage().map(|usage| usage.descriptors));
    let is_left = || alive_tasks() > tasks || left().1.is_ok_and(|now| now > usage.descriptors);
    let gone = async {
        while is_left() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let is_gone = timeout(PATIENCE, gone).await.is_ok();
    let before = (tasks, usage.descriptors);
    let (memory, now) = (memory.unwrap_or(usage.memory), self::usage()?.memory);
    println!(
        "left: tasks and descriptors {:?}, before {before:?}; memory {} MiB, {} MiB after a quarter",
        left(),
        now >> 20,
        memory >> 20
    );
    let executed = victim.executed().map_err(|error| format!("what was executed: {error}"))?;
    println!("{} calls were executed", executed.len());
    let has_grown = arguments.seconds >= LONG && now > memory + MORE_MEMORY;
    match tally.fault().or_else(|| tally.wrong(&executed)) {
        Some(fault) => Err(fault),
        None if !is_gone => Err("tasks or descriptors are left".to_owned()),
        None if has_grown => Err("memory has grown".to_owned()),
        None => Ok(()),
    }
}

fn alive_tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

fn usage() -> Result<Usage, String> {
    Usage::of_this_process().map_err(|error| error.to_string())
}
