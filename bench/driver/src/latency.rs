//! How long calls take at half of the highest rate, in an open loop.

use std::io;

use crate::{
    bench::Bench,
    plan::{Contender, Cpus, OURS},
    process::move_to,
    report::{median, number},
};

/// What is shown of a contender: the field and its column.
const SHOWN: [(&str, &str); 4] =
    [("p50_us", "p50, µs"), (P99, "p99, µs"), (P999, "p99.9, µs"), ("longest_us", "longest, µs")];

pub(crate) const P99: &str = "p99_us";
pub(crate) const P999: &str = "p999_us";

/// Adds the table of times.
pub(crate) fn measure(bench: &mut Bench) -> io::Result<()> {
    move_to(Cpus::One);
    let contenders = bench.drawn();
    let Some(ours) = contenders.iter().find(|contender| contender.name == OURS) else {
        return Ok(());
    };
    bench.report.heading(2, "Times at half of the highest rate");
    let Some(rate) = highest_rate(bench, ours)?.map(|rate| (rate / 2.0).round()) else {
        return Ok(());
    };
    bench.report.text(&format!(
        "An open loop: a call's time counts from when it was due, at {} calls/s for everybody, half of what \
         `{OURS}` does with 64 calls in flight. At most 64 are in flight, on one connection. Both processes are \
         on one CPU, with two workers each. Contenders that cannot sustain the rate have no latency figures.\n",
        number(Some(rate)),
    ));
    let mut head = vec![String::new()];
    head.extend(SHOWN.map(|(_, title)| title.to_owned()));
    let mut rows = vec![head];
    for contender in contenders {
        eprintln!("times of {}", contender.name);
        let mut runs = Vec::new();
        if highest_rate(bench, contender)?.is_some_and(|highest| highest > rate) {
            let rate = rate.to_string();
            let millis = (3 * bench.pace.millis).to_string();
            let options = [
                "--workload",
                "open-loop",
                "--in-flight",
                "64",
                "--rate",
                &rate,
                "--millis",
                &millis,
            ];
            runs = bench.runs(bench.pace.rounds, contender, &options)?;
        }
        let of = |name| median(runs.iter().filter_map(|run| run.get(name)));
        bench.goals.add_latency(contender.name, of(P99), of(P999));
        let mut row = vec![contender.name.to_owned()];
        row.extend(SHOWN.map(|(name, _)| number(of(name))));
        rows.push(row);
    }
    bench.report.table(&rows);
    Ok(())
}

/// Calls per second in a closed loop with 64 in flight.
fn highest_rate(bench: &Bench, contender: &Contender) -> io::Result<Option<f64>> {
    let options = ["--in-flight", "64", "--millis", &bench.pace.millis.to_string()];
    let runs = bench.runs(bench.pace.rounds, contender, &options)?;
    Ok(median(runs.iter().filter_map(|run| run.get("per_second"))))
}
