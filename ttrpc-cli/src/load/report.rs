//! What is printed of a load.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::{
    measured::{Measured, nanos},
    plan::Pace,
    schedule::Schedule,
    timeline::Slot,
};
use crate::output::{self, BAD, BOLD, Cell, DIM, paint};

/// What is told of latencies.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];
/// The longest bar of the histogram, in columns.
const BAR_COLUMNS: usize = 40;
/// Parts of the time that have a line each, unless they are steps.
const TIMES: usize = 12;
/// Lines of the histogram.
const BARS: usize = 12;

/// A report for people.
pub fn lines(measured: &Measured, columns: Option<usize>) -> Vec<String> {
    let plan = &measured.plan;
    let pace = match &plan.pace {
        Pace::Closed => format!("closed loop, {} in flight", plan.concurrency),
        Pace::Open { rate } => {
            format!("open loop, {rate} calls a second, at most {} in flight", plan.concurrency)
        }
    };
    let mut lines = vec![
        paint(BOLD, plan.name()),
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
    if plan.has_streams() {
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
    for rows in [method_rows(measured), timeline_rows(measured)] {
        if rows.len() > 1 {
            lines.push(String::new());
            lines.extend(output::table(&rows, columns));
        }
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

/// The head of a table of slots.
fn slot_head(names: &[&str]) -> Vec<Cell> {
    let names = names.iter().chain(&["CALLS/S", "FAILED", "50 %", "99 %"]);
    names.map(|name| Cell::number(name).style(BOLD)).collect()
}

fn slot_cells(slot: &Slot, seconds: f64) -> [Cell; 4] {
    let failed = Cell::number(slot.failed);
    let time = |percentile| match slot.latency.is_empty() {
        true => Cell::number("-"),
        false => Cell::number(nanos(slot.percentile(percentile))),
    };
    [
        Cell::number(format!("{:.0}", slot.latency.len() as f64 / seconds.max(1e-9))),
        if slot.failed > 0 { failed.style(BAD) } else { failed },
        time(50.0),
        time(99.0),
    ]
}

/// Each method, if there are several.
fn method_rows(measured: &Measured) -> Vec<Vec<Cell>> {
    let seconds = measured.elapsed.as_secs_f64();
    let mut head = slot_head(&["", "WEIGHT"]);
    head[0] = Cell::text("METHOD").style(BOLD);
    let methods = measured.plan.methods.iter().zip(&measured.by_method);
    let rows = methods.map(|(method, slot)| {
        let mut row = vec![Cell::name(&method.name), Cell::number(method.weight)];
        row.extend(slot_cells(slot, seconds));
        row
    });
    std::iter::once(head).chain(rows).collect()
}

/// Each step, or so many parts of the time, if the rate or the concurrency is not the same all the time.
fn timeline_rows(measured: &Measured) -> Vec<Vec<Cell>> {
    let plan = &measured.plan;
    let Some(schedule) = plan.varies() else { return Vec::new() };
    let timeline = measured.timeline.clone().within(TIMES);
    let name = if matches!(plan.pace, Pace::Open { .. }) { "DUE/S" } else { "IN FLIGHT" };
    let mut rows = vec![slot_head(&["FROM", name])];
    for (at, slot) in timeline.slots.iter().enumerate() {
        let begin = timeline.len.saturating_mul(u32::try_from(at).unwrap_or(u32::MAX));
        // In the middle of it.
        let value = schedule.at(begin.saturating_add(timeline.len / 2), plan.duration);
        let value = if name == "DUE/S" { value } else { value.floor() };
        let mut row =
            vec![Cell::number(output::duration(begin)), Cell::number(format!("{value:.0}"))];
        let left = measured.elapsed.saturating_sub(begin).min(timeline.len);
        row.extend(slot_cells(slot, left.as_secs_f64()));
        rows.push(row);
    }
    rows
}

/// Methods, and parts of the time, for machines.
fn slot_json(slot: &Slot) -> Map<String, Value> {
    let time =
        |percentile| (!slot.latency.is_empty()).then(|| slot.percentile(percentile) as f64 / 1e9);
    let entries = [
        ("calls", json!(slot.latency.len())),
        ("failed", json!(slot.failed)),
        ("p50", json!(time(50.0))),
        ("p99", json!(time(99.0))),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
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
    // One number as such, a ramp or steps as they were given.
    let number = |schedule: &Schedule| match schedule {
        Schedule::Constant(value) if value.fract() == 0.0 => json!(*value as u64),
        Schedule::Constant(value) => json!(value),
        schedule => json!(schedule.to_string()),
    };
    let rate = match &plan.pace {
        Pace::Closed => None,
        Pace::Open { rate } => Some(number(rate)),
    };
    let methods: Vec<_> = plan
        .methods
        .iter()
        .zip(&measured.by_method)
        .map(|(method, slot)| {
            let mut object = Map::new();
            object.insert("method".to_owned(), json!(method.name));
            object.insert("weight".to_owned(), json!(method.weight));
            object.extend(slot_json(slot));
            Value::Object(object)
        })
        .collect();
    let timeline: Vec<_> = measured
        .timeline
        .slots
        .iter()
        .enumerate()
        .map(|(at, slot)| {
            let len = measured.timeline.len.as_secs_f64();
            let mut object = Map::new();
            object.insert("from".to_owned(), json!(at as f64 * len));
            object.insert("seconds".to_owned(), json!(len));
            object.extend(slot_json(slot));
            Value::Object(object)
        })
        .collect();
    let connection_ended = measured
        .connection_ended
        .as_ref()
        .map(|(at, _)| at.saturating_duration_since(measured.start).as_secs_f64());
    json!({
        "method": plan.name(),
        "loop": if rate.is_some() { "open" } else { "closed" },
        "rate": rate,
        "concurrency": number(&plan.concurrency),
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
        "methods": methods,
        "timeline": timeline,
    })
}
