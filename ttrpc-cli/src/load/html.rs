//! A report as one page with pictures.

use super::{measured::Measured, plot, report};
use crate::{failure::Failure, output};

const STYLE: &str = "body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em } \
    pre { background: #f4f4f4; padding: 1em; overflow-x: auto } svg { max-width: 100%; height: auto }";

/// The page. It needs no other file.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn page(measured: &Measured) -> Result<String, Failure> {
    let title = escape(&measured.plan.name());
    let lines = report::lines(measured, None);
    let lines: Vec<_> =
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect();
    let table = escape(&lines.join("\n"));
    let json = escape(&output::pretty_json(&report::to_json(measured)));
    let (percentiles, rates, latencies) =
        (plot::percentiles(measured)?, plot::rates(measured)?, plot::latencies(measured)?);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<pre>{table}</pre>\n\
         <h2>Latency by percentile</h2>\n{percentiles}\n<h2>Calls over time</h2>\n{rates}\n\
         <h2>Latency over time</h2>\n{latencies}\n\
         <details><summary>JSON, for ttrpc load compare</summary><pre>{json}</pre></details>\n</body></html>\n"
    ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
