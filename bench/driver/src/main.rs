//! Builds the contenders, runs them against each other, and writes the results down.
//!
//! `cargo run --release -p bench-driver -- all` does everything; README.md tells of the parts.

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
mod plot;
mod process;
mod report;
mod speed;

use std::{env, error::Error, fs, path::PathBuf};

use build::Programs;
use plan::{BASE, Contender, Pace, Setting, contenders};
use report::Report;

const USAGE: &str = "bench-driver all|speed|costs|instructions|memory|growth|latency|fairness \
    [--quick] [--only CONTENDER,…] [--base PROGRAM] [--output FILE.md]";

/// What can be measured by itself.
const PARTS: [&str; 7] =
    ["speed", "costs", "instructions", "memory", "growth", "latency", "fairness"];

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
        if part != "all" && !PARTS.contains(&part.as_str()) {
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

    fn includes(&self, part: &str) -> bool {
        self.part == part || self.part == "all"
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut task = Task::from_command_line()?;
    let programs = Programs::build(&mut task.contenders, &task.part, task.base.clone())?;
    let mut report = Report::new(task.output.clone());
    report.heading(1, "Benchmarks");
    report.text(&machine::describe(&task.contenders));
    let mut goals = goals::Figures::default();
    if task.includes("speed") {
        measure_speed(&task, &programs, &mut report, &mut goals)?;
    }
    if task.includes("costs") {
        costs::measure(&task.contenders, &programs, &mut report, &mut goals)?;
    }
    if task.includes("instructions") {
        instructions::measure(&task.contenders, &programs, &mut report, &mut goals)?;
    }
    if task.includes("memory") {
        memory::measure(&task.contenders, &programs, &mut report, &mut goals)?;
    }
    if task.includes("growth") {
        growth::measure(&task.contenders, &task.pace, &programs, &mut report, &mut goals)?;
    }
    if task.includes("latency") {
        latency::measure(&task.contenders, &task.pace, &programs, &mut report, &mut goals)?;
    }
    if task.includes("fairness") {
        fairness::measure(&task.contenders, &task.pace, &programs, &mut report, &mut goals)?;
    }
    goals.report(&mut report);
    match &task.output {
        Some(path) => fs::write(path, report.into_text())?,
        None => println!("{}", report.into_text()),
    }
    Ok(())
}

fn measure_speed(
    task: &Task,
    programs: &Programs,
    report: &mut Report,
    goals: &mut goals::Figures,
) -> Result<(), Box<dyn Error>> {
    for setting in Setting::ALL {
        let runs = speed::measure(&task.contenders, setting, &task.pace, programs)?;
        speed::report(&runs, setting, report);
        goals.add_speed(&runs, setting);
    }
    Ok(())
}
