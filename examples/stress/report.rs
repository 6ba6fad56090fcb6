//! What a run has shown: verdicts, a table, and all of it for machines.

use std::{
    io::{Write, stdout},
    time::Duration,
};

use serde_json::{Map, Value, json};

use crate::{
    meter::Figures,
    options::Options,
    shapes::Shape,
    tally::{Count, Percentiles},
    watch::Scene,
};

/// What a shape has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was as it must be.
    Pass,
    /// Something was not.
    Fail,
    /// The situation that the shape is about did not come about.
    Inconclusive,
    /// The shape cannot be run against this server.
    Skipped,
}

impl Verdict {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Skipped => "skipped",
        }
    }
}

/// What came of a shape.
#[derive(Debug)]
pub struct Outcome {
    shape: Shape,
    verdict: Verdict,
    /// The numbers behind the verdict, in a sentence or two.
    evidence: String,
    wrong: Vec<String>,
    took: Duration,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    count: Count,
    percentiles: Option<Percentiles>,
    client: Figures,
    server: Option<Figures>,
}

impl Outcome {
    /// What came of a shape that ran. Anything that the callers found wrong makes it a failure.
    pub fn new(scene: &Scene, took: Duration, verdict: Verdict, evidence: String) -> Self {
        let wrong = scene.tally.all_wrong();
        let seen = Seen {
            count: scene.tally.so_far(),
            percentiles: scene.tally.percentiles(),
            client: scene.meter.figures(),
            server: scene.server_figures(),
        };
        let verdict = if wrong.is_empty() { verdict } else { Verdict::Fail };
        Outcome { shape: scene.shape, verdict, evidence, wrong, took, seen: Some(seen) }
    }

    /// What is said of a shape that did not run to its end.
    pub fn without_run(shape: Shape, verdict: Verdict, evidence: String) -> Self {
        let took = Duration::ZERO;
        Outcome { shape, verdict, evidence, wrong: Vec::new(), took, seen: None }
    }

    /// With the calls as they were when nothing moved any more, before they were torn down.
    pub fn counted(mut self, count: Count) -> Self {
        if let Some(seen) = &mut self.seen {
            seen.count = count;
        }
        self
    }

    /// The verdict and why, for a person.
    pub fn sentence(&self) -> String {
        let mut text =
            format!("{:<12} {}: {}", self.shape.name(), self.verdict.name(), self.evidence);
        for wrong in &self.wrong {
            text += &format!("\n{:<12}   wrong: {wrong}", "");
        }
        text
    }

    fn row(&self) -> [String; 9] {
        let name = self.shape.name().to_owned();
        let verdict = self.verdict.name().to_owned();
        let none = || "-".to_owned();
        let Some(seen) = &self.seen else {
            return [name, verdict, none(), none(), none(), none(), none(), none(), none()];
        };
        let ended = seen.count.ended;
        let per_second = self.per_second(seen);
        let [p50, p90, p99, p999, max] = match seen.percentiles {
            Some(p) => [p.p50, p.p90, p.p99, p.p999, p.max].map(time),
            None => [none(), none(), none(), none(), none()],
        };
        [name, verdict, count(ended), count(per_second as u64), p50, p90, p99, p999, max]
    }

    fn per_second(&self, seen: &Seen) -> f64 {
        seen.count.ended as f64 / self.took.as_secs_f64().max(1e-3)
    }

    fn to_json(&self) -> Value {
        let mut value = json!({
            "shape": self.shape.name(),
            "verdict": self.verdict.name(),
            "evidence": self.evidence,
            "wrong": self.wrong,
            "seconds": self.took.as_secs_f64(),
        });
        if let Some(seen) = &self.seen {
            value["calls"] = json!(seen.count.ended);
            value["calls_per_second"] = json!(self.per_second(seen));
            value["endings"] = json!(seen.count.codes);
            value["slowest_micros"] = json!(seen.count.slowest.as_micros() as u64);
            value["client"] = figures_to_json(&seen.client);
            value["server"] = seen.server.as_ref().map_or(Value::Null, figures_to_json);
            value["latency_micros"] = seen.percentiles.map_or(Value::Null, |p| {
                let parts = [
                    ("p50", p.p50),
                    ("p90", p.p90),
                    ("p99", p.p99),
                    ("p99.9", p.p999),
                    ("max", p.max),
                ];
                let micros = |(name, time): (&str, Duration)| {
                    (name.to_owned(), json!(time.as_micros() as u64))
                };
                Value::Object(parts.into_iter().map(micros).collect::<Map<_, _>>())
            });
        }
        value
    }
}

fn figures_to_json(figures: &Figures) -> Value {
    json!({
        "written_bytes": figures.written_bytes,
        "read_bytes": figures.read_bytes,
        "refused_writes": figures.refused_writes,
        "blocked_seconds": figures.blocked.as_secs_f64(),
        "most_unsent_bytes": figures.most_unsent_bytes,
        "most_queued_frames": figures.most_queued_frames,
        "most_queued_bytes": figures.most_queued_bytes,
    })
}

/// Prints a line. Whoever has closed standard output still wants the exit code.
pub fn say(line: &str) {
    let _ = writeln!(stdout(), "{line}");
}

/// The verdict on the whole run: a failure outweighs what is inconclusive, and where everything was
/// skipped nothing was shown.
pub fn overall(outcomes: &[Outcome]) -> Verdict {
    let has = |verdict| outcomes.iter().any(|outcome| outcome.verdict == verdict);
    if has(Verdict::Fail) {
        Verdict::Fail
    } else if has(Verdict::Inconclusive) || !has(Verdict::Pass) {
        Verdict::Inconclusive
    } else {
        Verdict::Pass
    }
}

/// All calls that ended, of all shapes.
pub fn calls(outcomes: &[Outcome]) -> String {
    count(
        outcomes
            .iter()
            .filter_map(|outcome| outcome.seen.as_ref())
            .map(|seen| seen.count.ended)
            .sum(),
    )
}

/// The table of all shapes, with latencies of the calls that ended well.
pub fn table(outcomes: &[Outcome]) -> String {
    let head = ["shape", "verdict", "calls", "calls/s", "p50", "p90", "p99", "p99.9", "slowest"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(outcomes.iter().map(Outcome::row));
    align(&rows)
}

/// The table of what the sockets of both sides did: whether the buffers were full.
pub fn sockets(outcomes: &[Outcome]) -> String {
    let head = ["shape", "side", "refused writes", "unsent", "queued", "frames", "blocked"];
    let mut rows = vec![head.map(str::to_owned)];
    for Outcome { shape, seen, .. } in outcomes {
        let Some(seen) = seen else { continue };
        rows.push(socket_row(*shape, "client", seen.client));
        rows.extend(seen.server.map(|server| socket_row(*shape, "server", server)));
    }
    align(&rows)
}

fn socket_row(shape: Shape, side: &str, figures: Figures) -> [String; 7] {
    [
        shape.name().to_owned(),
        side.to_owned(),
        count(figures.refused_writes),
        bytes(figures.most_unsent_bytes),
        bytes(figures.most_queued_bytes),
        count(figures.most_queued_frames),
        time(figures.blocked),
    ]
}

/// Two columns of names to the left, the others, numbers, to the right.
fn align<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            text +=
                &if column < 2 { format!("{cell:<width$}  ") } else { format!("{cell:>width$}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// All of it, for machines.
pub fn to_json(outcomes: &[Outcome], verdict: Verdict, options: &Options) -> Value {
    json!({
        "verdict": verdict.name(),
        "options": {
            "duration_seconds": options.calls.is_none().then_some(options.duration),
            "calls": options.calls,
            "callers": options.callers,
            "connections": options.connections,
            "in_flight": options.in_flight,
            "request_bytes": options.request_size,
            "reply_bytes": options.reply_size,
            "send_buffer_bytes": options.send_buffer,
            "queue_frames": options.queue_frames,
            "queue_bytes": options.queue_bytes,
            "handlers": options.handlers,
            "stall_timeout_millis": options.stall_timeout,
            "seed": options.seed,
            "connect": options.connect,
        },
        "shapes": outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
    })
}

/// A number with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of bytes, for a person.
pub fn bytes(number: u64) -> String {
    match number {
        0..10_000 => format!("{number} B"),
        10_000..10_000_000 => format!("{} kB", number / 1000),
        _ => format!("{} MB", number / 1_000_000),
    }
}

/// A time, for a person.
pub fn time(time: Duration) -> String {
    match time.as_micros() {
        0..1000 => format!("{} µs", time.as_micros()),
        1000..10_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        10_000..10_000_000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}
