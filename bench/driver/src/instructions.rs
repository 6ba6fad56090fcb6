//! Instructions per call, counted by callgrind: a figure that the machine does not change.

use std::{fs, io, path::PathBuf, process::Command};

use crate::{
    bench::Bench,
    build::Programs,
    costs::{Costs, run},
    plan::Contender,
    report::number,
};

/// Calls or messages of the short and the long run; what they differ by is counted, so that start-up is not.
const CALLS: [u32; 2] = [2_000, 10_000];

/// What is counted.
struct Load {
    title: &'static str,
    options: &'static [&'static str],
}

pub(crate) const ALONE: &str = "1 call in flight";
pub(crate) const TOGETHER: &str = "64 in flight";

static LOADS: [Load; 4] = [
    Load { title: ALONE, options: &["--in-flight", "1"] },
    Load { title: TOGETHER, options: &["--in-flight", "64"] },
    Load { title: "a message of a stream of replies", options: &["--workload", "stream"] },
    Load { title: "one message there and one back", options: &["--workload", "ping-pong"] },
];

/// Adds the table of instructions.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    bench.report.heading(2, "Instructions per call of 64 bytes, client + server");
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()) {
        bench.report.text("Instructions are not counted: that takes valgrind.\n");
        return Ok(());
    }
    bench.report.text(
        "User instructions by callgrind, current-thread runtimes. The kernel's are not counted, and programs \
         in Go do not run under it.\n",
    );
    let mut head = vec![String::new()];
    head.extend(LOADS.iter().map(|load| load.title.to_owned()));
    let mut rows = vec![head];
    let contenders = bench.contenders.clone();
    for contender in contenders.iter().filter(|contender| !contender.is_go) {
        let mut row = vec![contender.name.to_owned()];
        for load in &LOADS {
            eprintln!("instructions of {}: {}", contender.name, load.title);
            let costs = count(contender, &bench.programs, load)?;
            bench.goals.add_instructions(contender.name, load.title, costs);
            row.push(format!("{} + {}", number(costs.client), number(costs.server)));
        }
        rows.push(row);
    }
    bench.report.table(&rows);
    Ok(())
}

fn count(contender: &Contender, programs: &Programs, load: &Load) -> io::Result<Costs> {
    let [client, server] = ["client", "server"].map(Output::new);
    let mut counts = Vec::new();
    for calls in CALLS {
        let program = programs.peer(contender);
        let prefixes = [&client.prefix()[..], &server.prefix()];
        if run(contender, &program, true, load.options, &calls.to_string(), prefixes)?.is_none() {
            return Ok(Costs::default());
        }
        counts.push([client.total()?, server.total()?]);
    }
    let per_call =
        |side: usize| Some((counts[1][side]? - counts[0][side]?) / f64::from(CALLS[1] - CALLS[0]));
    Ok(Costs { client: per_call(0), server: per_call(1) })
}

/// A file of callgrind's. Dropped, it is deleted.
struct Output {
    path: PathBuf,
    argument: String,
}

impl Output {
    fn new(side: &str) -> Self {
        let name = format!("bench-{}.{side}.callgrind", std::process::id());
        let path = std::env::temp_dir().join(name);
        let argument = format!("--callgrind-out-file={}", path.display());
        Output { path, argument }
    }

    fn prefix(&self) -> [&str; 4] {
        ["valgrind", "-q", "--tool=callgrind", &self.argument]
    }

    /// All instructions of the process.
    fn total(&self) -> io::Result<Option<f64>> {
        let text = fs::read_to_string(&self.path)?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.and_then(|total| total.trim().parse().ok()))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = fs::remove_file(&self.path);
    }
}
