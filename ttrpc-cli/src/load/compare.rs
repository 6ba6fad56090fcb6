//! `ttrpc load compare`: whether a load went as well as another.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, ValueHint};
use serde_json::{Value, json};

use super::measured::nanos;
use crate::{
    failure::Failure,
    output::{self, BAD, BOLD, Cell, GOOD},
};

/// A share of calls that failed may rise by this much.
const FAILED_SHARE: f64 = 0.001;

/// What the two should have in common.
const SETTINGS: [&str; 5] = ["method", "loop", "rate", "concurrency", "connections"];

/// Compare two reports of `ttrpc load --json`
///
/// The exit code is 1 if the second is worse: fewer calls a second, longer latencies, or a larger share of failures.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  ttrpc load compare old.json new.json --tolerance 5")]
pub struct Arguments {
    /// The report to compare with
    #[arg(value_name = "A.json", value_hint = ValueHint::FilePath)]
    before: PathBuf,
    /// The report that is judged
    #[arg(value_name = "B.json", value_hint = ValueHint::FilePath)]
    after: PathBuf,
    /// By how many percent a figure may be worse
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = parse_tolerance)]
    tolerance: f64,
}

fn parse_tolerance(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent >= 0.0 && percent.is_finite() => Ok(percent),
        _ => Err("a number of percent, 0 or more".to_owned()),
    }
}

/// Judges the second report.
///
/// # Errors
/// [`Failure::Found`] if it is worse, [`Failure::Usage`] for what is no report.
pub fn run(arguments: &Arguments, json: bool) -> Result<(), Failure> {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let differ = |name: &&str| before[*name] != after[*name];
    let different: Vec<_> = SETTINGS.into_iter().filter(differ).collect();
    if !different.is_empty() {
        let different = different.join(", ");
        output::note(format_args!(
            "the two loads have another {different}: figures may differ for that"
        ));
    }
    let figures = figures(&before, &after, arguments.tolerance / 100.0);
    let is_worse = figures.iter().any(|figure| figure.verdict == Verdict::Worse);
    if json {
        let figures: Vec<_> = figures.iter().map(Figure::to_json).collect();
        let verdict = if is_worse { "worse" } else { "ok" };
        output::line(output::json(
            &json!({ "verdict": verdict, "different": different, "figures": figures }),
        ))?;
    } else {
        let head = ["", "A", "B", "CHANGE", ""].map(|name| Cell::number(name).style(BOLD));
        let mut rows = vec![head.to_vec()];
        rows.extend(figures.iter().map(Figure::row));
        for line in output::table(&rows, output::columns()) {
            output::line(line)?;
        }
    }
    if is_worse { Err(Failure::Found) } else { Ok(()) }
}

fn read(path: &Path) -> Result<Value, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::Usage(format!(
            "{} is no report: {error}; `ttrpc load … --json` writes one",
            path.display()
        ))
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    match report["callsPerSecond"].is_number() && report["calls"].is_u64() {
        true => Ok(report),
        false => Err(wrong(&"it has no callsPerSecond and calls")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Same,
    Worse,
    /// One of the two has no such figure.
    Unknown,
}

struct Figure {
    name: &'static str,
    before: Option<f64>,
    after: Option<f64>,
    verdict: Verdict,
    text: fn(f64) -> String,
}

fn figures(before: &Value, after: &Value, tolerance: f64) -> Vec<Figure> {
    let share = |report: &Value| {
        let (failed, calls) = (report["failed"].as_f64()?, report["calls"].as_f64()?);
        Some(failed / (failed + calls).max(1.0))
    };
    let (failed_before, failed_after) = (share(before), share(after));
    let mut figures = vec![
        Figure::new(
            "calls a second",
            before["callsPerSecond"].as_f64(),
            after["callsPerSecond"].as_f64(),
            |rate| format!("{rate:.0}"),
            |before, after| (before - after) / before.max(f64::MIN_POSITIVE),
            tolerance,
        ),
        Figure::new(
            "failed",
            failed_before,
            failed_after,
            |share| format!("{:.2} %", share * 100.0),
            |before, after| after - before,
            FAILED_SHARE,
        ),
    ];
    for (name, key) in [("50 %", "p50"), ("90 %", "p90"), ("99 %", "p99"), ("mean", "mean")] {
        let of = |report: &Value| report["latencySeconds"][key].as_f64();
        let text = |seconds: f64| nanos((seconds * 1e9) as u64);
        let loss = |before: f64, after: f64| (after - before) / before.max(f64::MIN_POSITIVE);
        figures.push(Figure::new(name, of(before), of(after), text, loss, tolerance));
    }
    figures
}

impl Figure {
    /// `loss` says by how much the second is worse.
    fn new(
        name: &'static str,
        before: Option<f64>,
        after: Option<f64>,
        text: fn(f64) -> String,
        loss: fn(f64, f64) -> f64,
        tolerance: f64,
    ) -> Self {
        let verdict = match before.zip(after).map(|(before, after)| loss(before, after)) {
            None if after.is_none() && before.is_some() => Verdict::Worse,
            None => Verdict::Unknown,
            Some(loss) if loss > tolerance => Verdict::Worse,
            Some(loss) if loss < -tolerance => Verdict::Better,
            Some(_) => Verdict::Same,
        };
        Figure { name, before, after, verdict, text }
    }

    /// In percent.
    fn change(&self) -> Option<f64> {
        let (before, after) = self.before.zip(self.after)?;
        (before > 0.0).then(|| (after - before) / before * 100.0)
    }

    fn verdict(&self) -> &'static str {
        match self.verdict {
            Verdict::Better => "better",
            Verdict::Same => "same",
            Verdict::Worse => "worse",
            Verdict::Unknown => "-",
        }
    }

    fn row(&self) -> Vec<Cell> {
        let text = |value: Option<f64>| value.map_or("-".to_owned(), self.text);
        let style = match self.verdict {
            Verdict::Better => GOOD,
            Verdict::Worse => BAD,
            Verdict::Same | Verdict::Unknown => anstyle::Style::new(),
        };
        vec![
            Cell::text(self.name),
            Cell::number(text(self.before)),
            Cell::number(text(self.after)),
            Cell::number(self.change().map_or("-".to_owned(), |change| format!("{change:+.1} %"))),
            Cell::text(self.verdict()).style(style),
        ]
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "a": self.before,
            "b": self.after,
            "changePercent": self.change(),
            "verdict": self.verdict(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rate: f64, failed: u64, p99: Option<f64>) -> Value {
        let latency =
            p99.map(|p99| json!({ "p50": 0.001, "p90": 0.002, "p99": p99, "mean": 0.001 }));
        json!({ "calls": 1000, "callsPerSecond": rate, "failed": failed, "latencySeconds": latency })
    }

    #[test]
    fn a_load_is_worse_if_it_is_slower_or_fails_more() {
        let verdicts = |after: Value| -> Vec<_> {
            let figures = figures(&report(1000.0, 0, Some(0.01)), &after, 0.1);
            figures
                .iter()
                .filter(|figure| figure.verdict != Verdict::Same)
                .map(|figure| (figure.name, figure.verdict()))
                .collect()
        };
        assert_eq!(verdicts(report(950.0, 0, Some(0.0105))), []);
        assert_eq!(verdicts(report(850.0, 0, Some(0.01))), [("calls a second", "worse")]);
        assert_eq!(
            verdicts(report(1200.0, 0, Some(0.005))),
            [("calls a second", "better"), ("99 %", "better")]
        );
        assert_eq!(verdicts(report(1000.0, 2, Some(0.01))), [("failed", "worse")]);
        assert_eq!(verdicts(report(1000.0, 0, Some(0.02))), [("99 %", "worse")]);
        // No call has succeeded.
        assert_eq!(verdicts(report(1000.0, 0, None)).len(), 4);
    }
}
