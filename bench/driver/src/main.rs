//! Builds the contenders, runs them against each other, and writes the results down.
//!
//! `cargo run --release -p bench-driver -- all` does everything; README.md tells of the parts.

mod bench;
mod build;
mod costs;
mod fairness;
mod goals;
mod growth;
mod instructions;
mod latency;
mod machine;
mod memory;
mod plan;
mod process;
mod report;
mod speed;

use std::{env, error::Error, fs, io, path::PathBuf};

use bench::Bench;
use build::Programs;
use plan::{BASE, Contender, Pace, contenders};
use report::Report;

const USAGE: &str = "bench-driver all|speed|costs|instructions|memory|growth|latency|fairness \
    [--quick] [--only CONTENDER,…] [--base PROGRAM] [--output FILE.md]";

type Measure = fn(&mut Bench) -> io::Result<()>;

/// What can be measured by itself.
const PARTS: [(&str, Measure); 7] = [
    ("speed", speed::measure),
    ("costs", costs::measure),
    ("instructions", instructions::measure),
    ("memory", memory::measure),
    ("growth", growth::measure),
    ("latency", latency::measure),
    ("fairness", fairness::measure),
];

/// What the command line asks for.
struct Task {
    part: String,
    pace: Pace,
    contenders: Vec<&'static Contender>,
    base: Option<PathBuf>,
    output: Option<PathBuf>,
}

impl Task {
    fn from_command_line() -> Result<Self, String> {
        let mut words = env::args().skip(1);
        let part = words.next().ok_or(USAGE)?;
        if part != "all" && PARTS.iter().all(|(name, _)| *name != part) {
            return Err(USAGE.into());
        }
        let (mut pace, mut only, mut base, mut output) = (Pace::FULL, None, None, None);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => pace = Pace::QUICK,
                "--only" => only = Some(words.next().ok_or(USAGE)?),
                "--base" => base = Some(PathBuf::from(words.next().ok_or(USAGE)?)),
                "--output" => output = Some(words.next().ok_or(USAGE)?.into()),
                _ => return Err(USAGE.into()),
            }
        }
        let mut contenders = contenders(only.as_deref())?;
        if base.is_some() {
            contenders.push(&BASE);
        }
        Ok(Task { part, pace, contenders, base, output })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let Task { part, pace, mut contenders, base, output } = Task::from_command_line()?;
    let programs = Programs::build(&mut contenders, &part, base)?;
    let mut report = Report::new(output.clone());
    report.heading(1, "Benchmarks");
    report.text(&machine::describe(&contenders));
    let mut bench = Bench { contenders, pace, programs, report, goals: goals::Figures::default() };
    for (_, measure) in PARTS.iter().filter(|(name, _)| [name, "all"].contains(&part.as_str())) {
        measure(&mut bench)?;
    }
    let Bench { goals, mut report, .. } = bench;
    goals.report(&mut report);
    match output {
        Some(path) => fs::write(path, report.into_text())?,
        None => println!("{}", report.into_text()),
    }
    Ok(())
}
