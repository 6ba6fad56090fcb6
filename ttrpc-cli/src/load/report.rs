//! What is printed of a load.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::{
    measured::{Measured, nanos},
    run::Pace,
};
use crate::output::{self, BAD, BOLD, Cell, DIM, paint};

/// What is told of latencies.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];
/// The longest bar of the histogram, in columns.
const BAR_COLUMNS: usize = 40;
/// Lines of the histogram.
const BARS: usize = 12;

/// A report for people.
pub fn lines(measured: &Measured, columns: Option<usize>) -> Vec<String> {
    let plan = &measured.plan;
    let pace = match plan.pace {
        Pace::Closed => format!("closed loop, {} in flight", plan.concurrency),
        Pace::Open { rate } => {
            format!("open loop, {rate} calls a second, at most {} in flight", plan.concurrency)
        }
    };
    let mut lines = vec![
        paint(BOLD, &plan.name),
        format!(
            "{pace}, {}, {}",
            output::count(plan.connections as u64, "connection"),
            output::duration(measured.elapsed)
        ),
        String::new(),
    ];
    let seconds = measured.elapsed.as_secs_f64().max(1e-9);
    let per_second = |count: u64| format!("{:.0}/s", count as f64 / seconds);
    let mut rows = vec![
        vec![
            Cell::text("calls"),
            Cell::number(measured.succeeded()),
            Cell::number(per_second(measured.succeeded())),
        ],
        vec![
            Cell::text("sent"),
            Cell::number(output::bytes(measured.bytes_sent)),
            Cell::number(format!(
                "{}/s",
                output::bytes((measured.bytes_sent as f64 / seconds) as u64)
            )),
        ],
        vec![
            Cell::text("received"),
            Cell::number(output::bytes(measured.bytes_received)),
            Cell::number(format!(
                "{}/s",
                output::bytes((measured.bytes_received as f64 / seconds) as u64)
            )),
        ],
    ];
    if plan.is_client_streaming || plan.is_server_streaming {
        for (name, count) in
            [("messages sent", measured.sent), ("messages received", measured.received)]
        {
            rows.push(vec![Cell::text(name), Cell::number(count), Cell::number(per_second(count))]);
        }
    }
    for (code, count) in &measured.errors {
        rows.push(vec![
            Cell::text(format!("failed, {code}")).style(BAD),
            Cell::number(count),
            Cell::number(per_second(*count)),
        ]);
    }
    if measured.not_ended > 0 {
        rows.push(vec![Cell::text("not ended").style(BAD), Cell::number(measured.not_ended)]);
    }
    if measured.not_begun > 0 {
        rows.push(vec![Cell::text("due, not begun").style(BAD), Cell::number(measured.not_begun)]);
    }
    lines.extend(output::table(&rows, columns));
    if let Some(status) = &measured.last_failure {
        lines.push(paint(DIM, format_args!("the last failure: {}", output::plain(status))));
    }
    if measured.succeeded() == 0 {
        return lines;
    }
    lines.push(String::new());
    lines.extend(output::table(&latency_rows(measured), columns));
    lines.push(String::new());
    lines.extend(bars(&measured.latency, columns));
    lines
}

fn latency_rows(measured: &Measured) -> Vec<Vec<Cell>> {
    let is_open = matches!(measured.plan.pace, Pace::Open { .. });
    let mut head = vec![Cell::text("latency").style(BOLD)];
    if is_open {
        head = vec![
            Cell::text("latency since").style(BOLD),
            Cell::number("due").style(BOLD),
            Cell::number("begun").style(BOLD),
        ];
    }
    let row = |name: String, value: fn(&Histogram<u64>, f64) -> u64, percentile: f64| {
        let mut row =
            vec![Cell::text(name), Cell::number(nanos(value(&measured.latency, percentile)))];
        if is_open {
            row.push(Cell::number(nanos(value(&measured.service_time, percentile))));
        }
        row
    };
    let mut rows = vec![head, row("  min".to_owned(), |times, _| times.min(), 0.0)];
    for percentile in PERCENTILES {
        let name = format!("  {percentile} %");
        rows.push(row(name, |times, at| times.value_at_percentile(at), percentile));
    }
    rows.push(row("  max".to_owned(), |times, _| times.max(), 0.0));
    rows.push(row("  mean".to_owned(), |times, _| times.mean() as u64, 0.0));
    rows
}

/// How many calls took how long, on a logarithmic scale.
fn bars(latency: &Histogram<u64>, columns: Option<usize>) -> Vec<String> {
    let (low, high) = (latency.min().max(1) as f64, latency.max().max(2) as f64);
    let step = (high / low).powf(1.0 / BARS as f64).max(1.000_001);
    let mut counts = [0_u64; BARS];
    for value in latency.iter_recorded() {
        let at = (value.value_iterated_to() as f64 / low).max(1.0).ln() / step.ln();
        counts[(at as usize).min(BARS - 1)] += value.count_since_last_iteration();
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let longest =
        columns.map_or(BAR_COLUMNS, |columns| columns.saturating_sub(26).min(BAR_COLUMNS));
    let rows: Vec<_> = counts
        .iter()
        .enumerate()
        .map(|(index, &count)| {
            let upper = low * step.powi(index as i32 + 1);
            let len = (count as f64 / most as f64 * longest as f64).ceil() as usize;
            vec![
                Cell::number(format!("≤ {}", nanos(upper as u64))),
                Cell::number(count),
                Cell::text("█".repeat(len)),
            ]
        })
        .collect();
    output::table(&rows, columns)
}

/// A report for machines; times are seconds.
pub fn to_json(measured: &Measured) -> Value {
    let plan = &measured.plan;
    let seconds = measured.elapsed.as_secs_f64().max(1e-9);
    let times = |times: &Histogram<u64>| {
        if times.is_empty() {
            return Value::Null;
        }
        let in_seconds = |nanos: u64| nanos as f64 / 1e9;
        let mut object = Map::new();
        object.insert("min".to_owned(), json!(in_seconds(times.min())));
        for percentile in PERCENTILES {
            let value = in_seconds(times.value_at_percentile(percentile));
            object.insert(format!("p{percentile}"), json!(value));
        }
        object.insert("max".to_owned(), json!(in_seconds(times.max())));
        object.insert("mean".to_owned(), json!(times.mean() / 1e9));
        Value::Object(object)
    };
    let rate = match plan.pace {
        Pace::Closed => None,
        Pace::Open { rate } => Some(rate),
    };
    let connection_ended = measured
        .connection_ended
        .as_ref()
        .map(|(at, _)| at.saturating_duration_since(measured.start).as_secs_f64());
    json!({
        "method": plan.name,
        "loop": if rate.is_some() { "open" } else { "closed" },
        "rate": rate,
        "concurrency": plan.concurrency,
        "connections": plan.connections,
        "seconds": seconds,
        "calls": measured.succeeded(),
        "callsPerSecond": measured.succeeded() as f64 / seconds,
        "failed": measured.failed(),
        "errors": measured.errors,
        "notEnded": measured.not_ended,
        "dueNotBegun": measured.not_begun,
        "connectionEndedSeconds": connection_ended,
        "messagesSent": measured.sent,
        "messagesReceived": measured.received,
        "bytesSent": measured.bytes_sent,
        "bytesReceived": measured.bytes_received,
        "latencySeconds": times(&measured.latency),
        "serviceTimeSeconds": times(&measured.service_time),
    })
}
