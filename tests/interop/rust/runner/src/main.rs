//! Runs every client against every server and every case, frames against every server, or load clients against some, and
//! writes what it saw.
//!
//! The peers are data: a peer is a command line for its server and one for its client, and both speak the conventions of
//! the README beside the script that starts this program.

mod deadlock;
mod document;
mod known;
mod matrix;
mod peers;
mod process;
mod report;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: interop-runner matrix|wire|played|deadlock|document --data DIR --out DIR [--set NAME=VALUE]... \
    [--client GLOB] [--server GLOB] [--with GLOB] [--case GLOB] [--load GLOB] [--jobs N] [--require GLOB] [--known run|skip] [--to FILE]";

pub struct Arguments {
    /// Where peers.json, cases.json and known.json are.
    data: PathBuf,
    out: PathBuf,
    /// What `{NAME}` stands for in the command lines of the peers.
    variables: HashMap<String, String>,
    client: String,
    server: String,
    /// What one side of each pair must match.
    with: String,
    case: String,
    load: String,
    jobs: usize,
    /// Peers that must not be left out when their programs are missing.
    required: String,
    /// Whether cells in which another implementation is known to deviate are left out.
    skip_known: bool,
    /// The page that the documentation step writes.
    page: PathBuf,
}

impl Arguments {
    /// Whether not all of the peers and cases are chosen.
    fn is_part(&self) -> bool {
        [&self.client, &self.server, &self.with, &self.case].into_iter().any(|glob| glob != "*")
    }
}

fn arguments() -> Result<(String, Arguments), String> {
    let mut given = std::env::args().skip(1);
    let step = given.next().ok_or(USAGE)?;
    let mut parsed = Arguments {
        data: PathBuf::new(),
        out: PathBuf::new(),
        variables: HashMap::new(),
        client: "*".to_owned(),
        server: "*".to_owned(),
        with: "*".to_owned(),
        case: "*".to_owned(),
        load: "*".to_owned(),
        // Most of the time is spent waiting for deadlines, so two pairs run at once.
        jobs: 2,
        required: String::new(),
        skip_known: false,
        page: PathBuf::new(),
    };
    while let Some(flag) = given.next() {
        let value = given.next().ok_or_else(|| format!("{flag} needs a value; {USAGE}"))?;
        match flag.as_str() {
            "--data" => parsed.data = value.into(),
            "--out" => parsed.out = value.into(),
            "--client" => parsed.client = value,
            "--server" => parsed.server = value,
            "--with" => parsed.with = value,
            "--case" => parsed.case = value,
            "--load" => parsed.load = value,
            "--jobs" => {
                parsed.jobs =
                    value.parse().map_err(|_| format!("{flag} needs a number; {USAGE}"))?
            }
            "--require" => parsed.required = value,
            "--known" => parsed.skip_known = value == "skip",
            "--to" => parsed.page = value.into(),
            "--set" => {
                let (name, value) = value.split_once('=').ok_or(USAGE)?;
                parsed.variables.insert(name.to_owned(), value.to_owned());
            }
            _ => return Err(format!("{flag} is unknown; {USAGE}")),
        }
    }
    Ok((step, parsed))
}

fn run() -> Result<bool, String> {
    let (step, arguments) = arguments()?;
    std::fs::create_dir_all(&arguments.out)
        .map_err(|error| format!("{}: {error}", arguments.out.display()))?;
    match step.as_str() {
        "matrix" => matrix::run(&arguments),
        "wire" => matrix::run_wire(&arguments),
        "played" => matrix::run_played(&arguments),
        "deadlock" => deadlock::run(&arguments),
        "document" => document::run(&arguments),
        _ => Err(USAGE.to_owned()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
