//! `ttrpc-stress`: shows on real Unix sockets, between two processes, that calls cannot deadlock.
//!
//! Each shape of load has a verdict of its own. A run in which the buffers never filled is not a
//! pass, and neither is one in which the control, a client of the design that could deadlock, did
//! not.

mod meter;
mod options;
mod process;
mod report;
mod server;
mod shapes;
mod socket;
mod tally;
mod watch;

use std::{fs, process::ExitCode};

use clap::Parser;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};

use options::Options;
use report::{Outcome, Verdict, say};
use watch::Display;

/// Exit codes, as `--help` states them.
const PASSED: u8 = 0;
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const INCONCLUSIVE: u8 = 3;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        // Help and version are not errors: clap prints them to standard output.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return usage(&first_sentence(&error.to_string())),
    };
    if let Err(sentence) = options.check() {
        return usage(&sentence);
    }
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return usage(&format!("the runtime cannot start: {error}.")),
    };
    let code = match &options.listen {
        Some(address) => runtime.block_on(listen(&options, address)),
        None => runtime.block_on(load(&options)),
    };
    // A server's standard input is read by a thread that cannot be interrupted.
    runtime.shutdown_background();
    code
}

fn usage(sentence: &str) -> ExitCode {
    eprintln!("ttrpc-stress: {sentence}");
    ExitCode::from(USAGE)
}

/// What clap has to say, without the usage that it adds.
fn first_sentence(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let first = message.split("\n\n").next().unwrap_or_default();
    format!("{}; see --help.", first.split_whitespace().collect::<Vec<_>>().join(" "))
}

async fn listen(options: &Options, address: &str) -> ExitCode {
    let served = match options.measured {
        true => server::serve_measured(options, address).await,
        false => server::serve(options, address).await,
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => usage(&format!("{error}.")),
    }
}

async fn load(options: &Options) -> ExitCode {
    if let Some(address) = &options.connect
        && let Err(error) = socket::connect(address, options.send_buffer)
    {
        return usage(&format!("cannot connect to `{address}`: {error}."));
    }
    // A path that cannot be written is told before the run and not after it.
    if let Some(path) = &options.json
        && let Err(error) = fs::write(path, "")
    {
        return usage(&format!("cannot write `{}`: {error}.", path.display()));
    }
    let mut outcomes = Vec::new();
    let is_interrupted = tokio::select! {
        () = run_shapes(options, &mut outcomes) => false,
        () = interrupted() => true,
    };
    say(&format!("\n{}\n{}", report::table(&outcomes), report::sockets(&outcomes)));
    let verdict = match report::overall(&outcomes) {
        Verdict::Pass if is_interrupted => Verdict::Inconclusive,
        verdict => verdict,
    };
    if let Some(path) = &options.json {
        let text = format!("{:#}\n", report::to_json(&outcomes, verdict, options));
        if let Err(error) = fs::write(path, text) {
            return usage(&format!("cannot write `{}`: {error}.", path.display()));
        }
    }
    conclude(verdict, is_interrupted, &report::calls(&outcomes))
}

async fn run_shapes(options: &Options, outcomes: &mut Vec<Outcome>) {
    let display = Display::default();
    for shape in &options.shapes {
        let outcome = shapes::run(*shape, options, &display).await;
        say(&outcome.sentence());
        outcomes.push(outcome);
    }
}

/// Waits for SIGINT or SIGTERM.
async fn interrupted() {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate()]
        .map(|kind| signal(kind).expect("a runtime with I/O takes signals"));
    let [interrupt, terminate] = &mut signals;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn conclude(verdict: Verdict, is_interrupted: bool, calls: &str) -> ExitCode {
    let (code, sentence) = match verdict {
        Verdict::Fail => (FAILED, "FAILED: not everything was as it must be"),
        Verdict::Inconclusive if is_interrupted => {
            (INCONCLUSIVE, "INTERRUPTED: the shapes above are those that had ended")
        }
        Verdict::Inconclusive => (INCONCLUSIVE, "INCONCLUSIVE: not everything could be shown"),
        Verdict::Pass | Verdict::Skipped => (PASSED, "PASSED: every verdict is as it must be"),
    };
    say(&format!("{sentence}, with {calls} calls."));
    ExitCode::from(code)
}
