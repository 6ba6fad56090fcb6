//! System calls and allocations per call.

use std::{fs, io, path::Path, process::Command};

use crate::{
    bench::Bench,
    build::Programs,
    plan::{Contender, Cpus},
    process::{Client, Figures, Prefix, Server, move_to},
    report::number,
};

/// Calls of the short and the long run; what they differ by is counted, so that start-up is not.
const CALLS: [&str; 2] = ["2000", "12000"];

/// What one process did for one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) client: Option<f64>,
    pub(crate) server: Option<f64>,
}

impl Costs {
    pub(crate) fn sum(self) -> Option<f64> {
        Some(self.client? + self.server?)
    }
}

/// Adds the table of costs.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    move_to(Cpus::One);
    let tool = Tool::find();
    bench.report.heading(2, "Costs per call of 64 bytes, client + server");
    bench.report.text(&tool.describe());
    let head =
        ["", "system calls, 1 in flight", "64 in flight", "allocations, 64 in flight", "bytes"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for contender in bench.contenders.clone() {
        eprintln!("costs of {}", contender.name);
        let alone = tool.count(contender, &bench.programs, "1")?;
        let together = tool.count(contender, &bench.programs, "64")?;
        let (allocations, bytes) = count_allocations(contender, &bench.programs)?;
        bench.goals.add_costs(contender.name, together, allocations);
        let mut row = vec![contender.name.to_owned()];
        row.extend([alone, together, allocations, bytes].map(show));
        rows.push(row);
    }
    bench.report.table(&rows);
    Ok(())
}

fn show(costs: Costs) -> String {
    format!("{} + {}", number(costs.client), number(costs.server))
}

/// Runs a load of this many calls, with commands that measure before client and server.
pub(crate) fn run(
    contender: &Contender,
    program: &Path,
    is_current_thread: bool,
    load: &[&str],
    calls: &str,
    prefixes: [Prefix<'_>; 2],
) -> io::Result<Option<(Figures, Figures)>> {
    let [client_prefix, server_prefix] = prefixes;
    let server = Server::start(program, contender, is_current_thread, server_prefix)?;
    let options = [load, &["--calls", calls, "--warm-up-millis", "0"]].concat();
    let client =
        Client { program, contender, is_current_thread, prefix: client_prefix, options: &options };
    let figures = client.run(&server)?;
    let server_figures = server.stop();
    Ok(figures.map(|figures| (figures, server_figures)))
}

fn calls_between() -> f64 {
    let [short, long] = CALLS.map(|calls| calls.parse::<f64>().expect("it is a number"));
    long - short
}

/// Allocations and allocated bytes per call.
fn count_allocations(contender: &Contender, programs: &Programs) -> io::Result<(Costs, Costs)> {
    let program = programs.counting_peer(contender);
    let mut runs = Vec::new();
    for calls in CALLS {
        match run(contender, &program, false, &["--in-flight", "64"], calls, [&[], &[]])? {
            Some(figures) => runs.push(figures),
            None => return Ok(Default::default()),
        }
    }
    let cost = |client: &str, server: &str| {
        let difference = Some((&runs[1].1, &runs[0].1));
        let server =
            difference.and_then(|(long, short)| Some(long.get(server)? - short.get(server)?));
        Costs {
            client: runs[1].0.get(client),
            server: server.map(|difference| difference / calls_between()),
        }
    };
    Ok((
        cost("client_allocations", "server_allocations"),
        cost("client_allocated_bytes", "server_allocated_bytes"),
    ))
}

/// What counts system calls.
#[derive(Clone, Copy, Debug)]
enum Tool {
    /// Counts in the kernel and disturbs nobody.
    Perf,
    /// Stops the process at each call, which changes what happens: more threads wait for each other.
    Strace,
    Nothing,
}

impl Tool {
    fn find() -> Self {
        let works = |command: &mut Command| command.output().is_ok_and(|out| out.status.success());
        let mut perf = Command::new("perf");
        if works(perf.args(["stat", "-e", "raw_syscalls:sys_enter", "true"])) {
            Tool::Perf
        } else if works(Command::new("strace").args(["-c", "-f", "true"])) {
            Tool::Strace
        } else {
            Tool::Nothing
        }
    }

    fn describe(self) -> String {
        let text = match self {
            Tool::Perf => "System calls are counted by perf.",
            Tool::Strace => {
                "System calls are counted by strace, which slows the processes down: those that wait \
                 for a thread are too many."
            }
            Tool::Nothing => {
                "System calls are not counted: that takes perf with the right to trace, or strace."
            }
        };
        format!("{text}\n")
    }

    /// System calls per call of both processes.
    fn count(
        self,
        contender: &Contender,
        programs: &Programs,
        in_flight: &str,
    ) -> io::Result<Costs> {
        Ok(Costs {
            client: self.count_side(contender, programs, in_flight, true)?,
            server: self.count_side(contender, programs, in_flight, false)?,
        })
    }

    fn count_side(
        self,
        contender: &Contender,
        programs: &Programs,
        in_flight: &str,
        is_client: bool,
    ) -> io::Result<Option<f64>> {
        let output = std::env::temp_dir().join(format!("bench-{}.count", std::process::id()));
        let path = output.to_string_lossy().into_owned();
        let prefix: &[&str] = match self {
            Tool::Perf => &["perf", "stat", "-x,", "-o", &path, "-e", "raw_syscalls:sys_enter"],
            Tool::Strace => &["strace", "-c", "-f", "-o", &path],
            Tool::Nothing => return Ok(None),
        };
        let prefixes = if is_client { [prefix, &[]] } else { [&[][..], prefix] };
        let (mut counts, load) = (Vec::new(), ["--in-flight", in_flight]);
        for calls in CALLS {
            let program = programs.peer(contender);
            if run(contender, &program, false, &load, calls, prefixes)?.is_none() {
                return Ok(None);
            }
            counts.extend(self.parse(&fs::read_to_string(&output)?));
        }
        fs::remove_file(&output)?;
        Ok((counts.len() == CALLS.len()).then(|| (counts[1] - counts[0]) / calls_between()))
    }

    /// The total in the tool's output.
    fn parse(self, text: &str) -> Option<f64> {
        let line = match self {
            Tool::Perf => text.lines().find(|line| line.contains("sys_enter"))?,
            _ => text.lines().find(|line| line.ends_with("total"))?,
        };
        match self {
            Tool::Perf => line.split(',').next()?.parse().ok(),
            _ => line.split_whitespace().nth(3)?.parse().ok(),
        }
    }
}
