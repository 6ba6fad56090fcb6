//! The command line of a conformance client, and the watchdog around each case.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ttrpc_conformance::{CASES, Connector, Outcome, Trial, Verdict, fail};

/// Which cases, and in which order: those that the peers in other languages play, too.
const PLAYED: &str = include_str!("../../../cases.json");

#[derive(Deserialize)]
struct Case {
    name: String,
    expected: String,
}

#[derive(Serialize)]
struct Line<'a> {
    case: &'a str,
    result: &'a str,
    millis: u64,
    expected: &'a str,
    observed: &'a str,
}

struct Arguments {
    connect: String,
    case: String,
    list: bool,
    json: Option<String>,
    case_timeout: Duration,
}

const USAGE: &str =
    "usage: --connect unix:///path [--case GLOB] [--list] [--json FILE] [--case-timeout SECONDS]";

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments {
        connect: String::new(),
        case: "*".to_owned(),
        list: false,
        json: None,
        case_timeout: Duration::from_secs(20),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{flag} needs a value; {USAGE}"));
        match flag.as_str() {
            "--connect" => parsed.connect = value()?,
            "--case" => parsed.case = value()?,
            "--list" => parsed.list = true,
            "--json" => parsed.json = Some(value()?),
            "--case-timeout" => {
                let seconds: f64 =
                    value()?.parse().map_err(|_| format!("{flag} needs a number; {USAGE}"))?;
                parsed.case_timeout = Duration::from_secs_f64(seconds);
            }
            _ => return Err(format!("{flag} is unknown; {USAGE}")),
        }
    }
    Ok(parsed)
}

/// Runs the cases that the command line chooses, and returns the exit code.
pub fn run_client(connector: impl Connector) -> ExitCode {
    match run(connector) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(connector: impl Connector) -> Result<bool, String> {
    let arguments = arguments()?;
    let cases: Vec<Case> = serde_json::from_str(PLAYED).map_err(|error| error.to_string())?;
    let chosen: Vec<&Case> =
        cases.iter().filter(|case| matches(&arguments.case, &case.name)).collect();
    if arguments.list {
        chosen.iter().for_each(|case| println!("{}", case.name));
        return Ok(true);
    }
    if chosen.is_empty() {
        return Err(format!("no case matches {:?}", arguments.case));
    }
    let mut json = match &arguments.json {
        Some(path) => Some(File::create(path).map_err(|error| format!("{path}: {error}"))?),
        None => None,
    };
    // A blocking library needs a thread for each call in flight, and some cases have a thousand of them.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4096)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let connector: Arc<dyn Connector> = Arc::new(connector);
    let mut passed = true;
    for case in chosen {
        let trial = Trial::new(Arc::clone(&connector), &arguments.connect, false);
        let began = Instant::now();
        let verdict = runtime.block_on(judge(&case.name, &trial, arguments.case_timeout));
        let millis = began.elapsed().as_millis() as u64;
        let (result, observed) = match &verdict {
            Ok(observed) => ("pass", observed),
            Err(Verdict::Unsupported(reason)) => ("unsupported", reason),
            Err(Verdict::Fail(observed)) => ("fail", observed),
        };
        passed &= result != "fail";
        println!("{:30} {result:12} {millis:7} ms  {observed}", case.name);
        if let Some(file) = &mut json {
            let line =
                Line { case: &case.name, result, millis, expected: &case.expected, observed };
            let text = serde_json::to_string(&line).map_err(|error| error.to_string())?;
            writeln!(file, "{text}").map_err(|error| error.to_string())?;
        }
    }
    // Tasks that hang inside a library must not keep the process from ending.
    runtime.shutdown_background();
    Ok(passed)
}

/// Runs a case in a task of its own, so that a library that blocks or panics there can't take the watchdog along.
async fn judge(name: &str, trial: &Trial, bound: Duration) -> Outcome {
    let Some(case) = CASES.iter().find(|case| case.name == name) else {
        return fail("this client lacks the case");
    };
    let task = tokio::spawn((case.play)(trial.clone()));
    match tokio::time::timeout(bound, task).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => Err(Verdict::Fail(format!("the case panicked: {error}"))),
        Err(_) => {
            Err(Verdict::Fail(format!("hung: no end after {bound:?}, at: {}", trial.last_step())))
        }
    }
}

/// Whether a name matches a pattern in which a star stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            left.char_indices()
                .map(|(at, _)| at)
                .chain([left.len()])
                .any(|at| matches(rest, &left[at..]))
        }),
    }
}
