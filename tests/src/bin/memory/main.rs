//! What a peer can make a server or a client hold, measured from outside, against the bound that
//! follows from the configuration.
//!
//! Each attack has a victim of its own: a process with default limits, whose resident memory is read
//! at rest and at its peak. Prints a line an attack, and fails if one is over its bound.

mod attacks;
mod victim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rustix::thread::disable_transparent_huge_pages;
use tokio::{runtime::Builder, task::JoinSet};
use ttrpc_tests::process::raise_descriptor_limit;

use attacks::{ATTACKS, Attack};

/// Attacks servers and clients and measures what they hold.
#[derive(Parser)]
#[command(name = "ttrpc-memory", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Attack on a smaller scale, in half a minute.
    #[arg(long)]
    short: bool,
    /// Only the attacks whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What this program's child processes are.
#[derive(Subcommand)]
enum Part {
    /// A server of the conformance service, and of one that replies late.
    #[command(hide = true)]
    Server { address: String },
    /// A client that opens streams of replies and takes nothing of them.
    #[command(hide = true)]
    Client { address: String, streams: usize },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    raise_descriptor_limit();
    match arguments.part {
        Some(Part::Server { address }) => block_on(of_victim(), victim::serve(&address)),
        Some(Part::Client { address, streams }) => {
            block_on(of_victim(), victim::take_nothing(&address, streams))
        }
        None => block_on(Builder::new_multi_thread(), attack(&arguments)),
    }
}

/// With so many threads on every machine, since what a process holds grows with them, and without huge pages, of which
/// all is resident as soon as a byte is used.
fn of_victim() -> Builder {
    let _ = disable_transparent_huge_pages(true);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(victim::THREADS);
    builder
}

fn block_on(mut builder: Builder, part: impl Future<Output = Result<(), String>>) -> ExitCode {
    let runtime = builder.enable_all().build().expect("a runtime can be made");
    match runtime.block_on(part) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn attack(arguments: &Arguments) -> Result<(), String> {
    println!("{:56} {:>8} {:>8} {:>8} {:>8}", "resident MiB", "at rest", "peak", "bound", "after");
    let mut failures = Vec::new();
    let mut running = JoinSet::new();
    for (name, attack) in ATTACKS.into_iter().filter(|(name, _)| name.contains(&arguments.only)) {
        running.spawn(measure(name, attack, arguments.short));
        // On a large scale one after the other: descriptors and memory are limited here, too.
        while running.len() > if arguments.short { ATTACKS.len() } else { 0 } {
            failures.extend(next_failure(&mut running).await?);
        }
    }
    while !running.is_empty() {
        failures.extend(next_failure(&mut running).await?);
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// Runs one attack and prints what was measured.
async fn measure(name: &str, attack: Attack, is_short: bool) -> Result<(), String> {
    let figures = attack(is_short).await.map_err(|error| format!("{name}: {error}"))?;
    println!("{name:56} {figures}");
    match figures.is_within_bound() {
        true => Ok(()),
        false => Err(format!("{name}: more than the bound")),
    }
}

/// Why the next attack to end has failed, if it has.
async fn next_failure(running: &mut JoinSet<Result<(), String>>) -> Result<Option<String>, String> {
    match running.join_next().await {
        Some(ended) => Ok(ended.map_err(|error| error.to_string())?.err()),
        None => Ok(None),
    }
}
