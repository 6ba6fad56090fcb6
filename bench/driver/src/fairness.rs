//! What one client's load costs another, and large calls a small one.

use std::{io, thread, time::Duration};

use crate::{
    bench::Bench,
    plan::{Contender, Cpus, FLOOR},
    process::{Client, Server, move_to},
    report::{median, number},
};

/// Greedy connections.
pub(crate) const GREEDY: [u32; 4] = [1, 4, 16, 64];
/// Calls in flight on each of them: few, and as many as a connection may have.
pub(crate) const IN_FLIGHT: [u32; 2] = [16, 1024];

/// How long the greedy client runs before the polite one starts.
const HEAD_START: Duration = Duration::from_millis(700);

/// Bytes of a large call, each way: with its header it is just below the protocol's limit.
const LARGE: &str = "4194048";

/// What a polite client saw, and what a greedy one reached meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) longest_us: Option<f64>,
    pub(crate) greedy_rate: Option<f64>,
}

/// Adds the tables.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    move_to(Cpus::All);
    bench.report.heading(2, "A polite client beside greedy connections");
    bench.report.text(
        "The polite client makes one call of 64 bytes after the other, on a connection of its own. Another process \
         keeps calls of 64 bytes in flight on the greedy connections. All CPUs, two workers for each process.\n",
    );
    let mut head = vec!["".to_owned(), "greedy connections".to_owned()];
    for calls in IN_FLIGHT {
        head.push(format!("{calls} in flight on each: p50, ms"));
        head.extend(["p99, ms", "longest, ms", "greedy calls/s"].map(str::to_owned));
    }
    let mut rows = vec![head];
    let contenders = bench.contenders.clone();
    for contender in contenders.iter().filter(|contender| contender.is_drawn || contender.is_go) {
        for connections in GREEDY {
            eprintln!("{} beside {connections} greedy connections", contender.name);
            let mut row = vec![contender.name.to_owned(), connections.to_string()];
            for calls in IN_FLIGHT {
                let seen = beside_greedy(bench, contender, connections, calls)?;
                bench.goals.add_fairness(contender.name, connections, calls, seen);
                let millis = |micros: Option<f64>| number(micros.map(|micros| micros / 1e3));
                row.extend([seen.p50_us, seen.p99_us, seen.longest_us].map(millis));
                row.push(number(seen.greedy_rate));
            }
            rows.push(row);
        }
    }
    bench.report.table(&rows);
    beside_large(bench)
}

fn beside_greedy(
    bench: &Bench,
    contender: &Contender,
    connections: u32,
    calls: u32,
) -> io::Result<Seen> {
    let mut runs = Vec::new();
    for _ in 0..bench.pace.rounds.div_ceil(2) {
        let program = bench.programs.peer(contender);
        let server = Server::start(&program, contender, false, &[])?;
        let client = |options| Client::new(&program, contender, options);
        let polite_millis = 2 * bench.pace.millis;
        // It goes on until the polite client has ended.
        let greedy_millis = polite_millis + 2 * HEAD_START.as_millis() as u32;
        let [connections, in_flight, polite_millis, greedy_millis] =
            [connections, connections * calls, polite_millis, greedy_millis].map(|n| n.to_string());
        let greedy =
            ["--in-flight", &in_flight, "--connections", &connections, "--millis", &greedy_millis];
        let greedy = client(&greedy).start(&server)?;
        thread::sleep(HEAD_START);
        let polite = ["--in-flight", "1", "--warm-up-millis", "0", "--millis", &polite_millis];
        let polite = client(&polite).run(&server)?;
        if let (Some(polite), Some(greedy)) = (polite, greedy.end()?) {
            runs.push((polite, greedy));
        }
    }
    let polite = |name| median(runs.iter().filter_map(|(polite, _)| polite.get(name)));
    Ok(Seen {
        p50_us: polite("p50_us"),
        p99_us: polite("p99_us"),
        longest_us: polite("longest_us"),
        greedy_rate: median(runs.iter().filter_map(|(_, greedy)| greedy.get("per_second"))),
    })
}

/// A call of 64 bytes beside calls of 4 MiB, on the same connection.
fn beside_large(bench: &mut Bench) -> io::Result<()> {
    bench.report.heading(2, "A call of 64 bytes beside calls of 4 MiB");
    bench.report.text(&format!(
        "One caller makes calls of 64 bytes, one after the other, and four make calls of 4 MiB each way, on the same \
         connection. All CPUs, two workers each. The first row is a call of 4 MiB of `{FLOOR}` with nothing beside \
         it: two such messages on the wire.\n",
    ));
    let head = ["", "p50, ms", "p99, ms", "longest, ms"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut contenders = bench.contenders.clone();
    contenders.retain(|contender| contender.name == FLOOR);
    contenders.extend(bench.drawn());
    for contender in contenders {
        eprintln!("{} beside large calls", contender.name);
        let load: &[&str] = match contender.name {
            FLOOR => &["--in-flight", "1"],
            _ => &["--in-flight", "4", "--workload", "beside-large"],
        };
        let millis = (2 * bench.pace.millis).to_string();
        let options = [load, &["--size", LARGE, "--millis", &millis]].concat();
        let runs = bench.runs(bench.pace.rounds, contender, &options)?;
        let of = |name| median(runs.iter().filter_map(|run| run.get(name)));
        bench.goals.add_beside_large(contender.name, of("p50_us"), of("p99_us"));
        let mut row = vec![contender.name.to_owned()];
        row.extend(
            ["p50_us", "p99_us", "longest_us"]
                .map(|name| number(of(name).map(|micros| micros / 1e3))),
        );
        rows.push(row);
    }
    bench.report.table(&rows);
    Ok(())
}
