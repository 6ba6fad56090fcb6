//! What is printed of shims.

use std::{cmp::Reverse, time::Duration};

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::query::{Answer, ContainerReport, Report};
use crate::output::{self, BAD, BOLD, Cell, DIM, GOOD, WARN, paint};

/// The least that is left of a namespace, an id and what containers do where there is little room.
const MIN_NAMESPACE_LEN: usize = 9;
const MIN_ID_LEN: usize = 13;
const MIN_STATES_LEN: usize = 10;

/// Of a row: where the version stands, and how many columns a narrow terminal has room for.
const API: usize = 4;
const NARROW: usize = 6;

/// An id of no more characters than this is written as a whole.
const MAX_ID_LEN: usize = 20;

/// Which stand first: those that hang, then those that nobody serves, then the slow ones.
pub fn rank(report: &Report) -> (u8, Reverse<Duration>, String) {
    let (rank, time) = match &report.answer {
        Answer::TimedOut(_) => (0, Duration::ZERO),
        Answer::Refused(_) => (1, Duration::ZERO),
        Answer::NotAsked(_) => (2, Duration::ZERO),
        Answer::Answered(time) => (3, *time),
    };
    let first = report.shim.containers.first();
    let name = first.map(|container| format!("{}/{}", container.namespace, container.id));
    (rank, Reverse(time), name.unwrap_or_default())
}

/// A shim's line of the table, and what stands below it.
struct Entry {
    line: String,
    below: Vec<String>,
    is_hanging: bool,
}

impl Entry {
    fn len(&self) -> usize {
        1 + self.below.len()
    }
}

/// A table of at least one shim, with lines below each that did not answer or has several containers,
/// and a sum. Where the terminal is too narrow for all columns, some stand below each shim in words. A
/// screen of so many rows has those that hang on it.
pub fn lines(reports: &[Report], columns: Option<usize>, screen: Option<usize>) -> Vec<String> {
    let wide = [
        "ANSWER",
        "PID",
        "NAMESPACE",
        "ID",
        "API",
        "CONTAINERS",
        "UNREAD",
        "PENDING",
        "MEMORY",
        "THREADS",
        "FDS",
    ];
    let mut table = vec![wide.map(|name| Cell::text(name).style(BOLD)).to_vec()];
    table.extend(reports.iter().map(|report| row(report, columns)));
    let is_wide = output::fits(&table, columns);
    if !is_wide {
        for row in &mut table {
            row.truncate(NARROW);
            row.remove(API);
        }
    }
    let mut table = output::table(&table, columns).into_iter();
    let head = table.next().unwrap_or_default();
    let entries: Vec<Entry> = table
        .zip(reports)
        .map(|(line, report)| {
            let figures = (!is_wide).then(|| figures_in_words(report));
            let texts =
                [figures, containers(report, columns), detail(report)].into_iter().flatten();
            let below = texts.flat_map(|text| wrap(&format!("  {text}"), columns));
            Entry {
                line,
                below: below.map(|line| paint(DIM, line)).collect(),
                is_hanging: matches!(report.answer, Answer::TimedOut(_)),
            }
        })
        .collect();
    let mut lines = vec![head];
    // The head, the sum, and the line of the cursor.
    lines.extend(fit(entries, screen.map(|rows| rows.saturating_sub(3))));
    lines.push(sum(reports));
    lines
}

/// The lines of these shims, or as much of them as there is room for. What hangs comes first, and what
/// stands below the others is left out before that.
fn fit(entries: Vec<Entry>, room: Option<usize>) -> Vec<String> {
    let room = room.unwrap_or(usize::MAX);
    let is_whole = entries.iter().map(Entry::len).sum::<usize>() <= room;
    // A line says how many more there are.
    let room = if is_whole { room } else { room.saturating_sub(1) };
    let of_hanging: usize = entries.iter().filter(|entry| entry.is_hanging).map(Entry::len).sum();
    let (mut lines, mut more, mut hanging) = (Vec::new(), 0, 0);
    for entry in entries {
        let has_details = is_whole || (entry.is_hanging && of_hanging <= room);
        let len = if has_details { entry.len() } else { 1 };
        if more > 0 || lines.len() + len > room {
            more += 1;
            hanging += usize::from(entry.is_hanging);
            continue;
        }
        lines.push(entry.line);
        if has_details {
            lines.extend(entry.below);
        }
    }
    if more > 0 {
        lines.push(match hanging {
            0 => format!("and {more} more"),
            _ => paint(BAD, format_args!("and {more} more, of which {hanging} did not answer")),
        });
    }
    lines
}

fn sum(reports: &[Report]) -> String {
    let count = |is_one: fn(&Answer) -> bool| {
        reports.iter().filter(|report| is_one(&report.answer)).count()
    };
    let (answered, hanging) = (
        count(|answer| matches!(answer, Answer::Answered(_))),
        count(|answer| matches!(answer, Answer::TimedOut(_))),
    );
    let others = reports.len() - answered - hanging;
    match (hanging, others) {
        (0, 0) => format!("{answered} answered"),
        (0, _) => format!("{answered} answered, {others} could not be asked"),
        (_, 0) => paint(BAD, format_args!("{hanging} did not answer, {answered} did")),
        _ => paint(
            BAD,
            format_args!("{hanging} did not answer, {answered} did, {others} could not be asked"),
        ),
    }
}

fn row(report: &Report, columns: Option<usize>) -> Vec<Cell> {
    let answer = match &report.answer {
        Answer::Answered(time) => Cell::text(output::duration(*time)).style(GOOD),
        Answer::TimedOut(_) => Cell::text("TIMED OUT").style(BAD),
        Answer::Refused(_) => Cell::text("refused").style(WARN),
        Answer::NotAsked(_) => Cell::text("not asked").style(WARN),
    };
    let first = report.shim.containers.first();
    let namespace = first.map_or(String::new(), |container| container.namespace.clone());
    let id = first.map_or(String::new(), |container| short_id(&container.id, columns));
    let process = report.process.as_ref();
    let sockets = report.sockets.as_ref();
    vec![
        answer,
        Cell::number(or_dash(process.map(|process| process.pid))),
        Cell::beginning(namespace, MIN_NAMESPACE_LEN),
        Cell::beginning(id, MIN_ID_LEN),
        Cell::text(format!("v{}", report.shim.version)),
        Cell::beginning(states(&report.containers), MIN_STATES_LEN),
        Cell::number(or_dash(sockets.map(|sockets| output::bytes(sockets.unread)))),
        Cell::number(or_dash(sockets.map(|sockets| sockets.pending))),
        Cell::number(or_dash(process.and_then(|process| process.resident).map(output::bytes))),
        Cell::number(or_dash(process.and_then(|process| process.threads))),
        Cell::number(or_dash(process.and_then(|process| process.descriptors))),
    ]
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// What a narrow terminal has no columns for.
fn figures_in_words(report: &Report) -> String {
    let mut words = vec![format!("v{}", report.shim.version)];
    if let Some(sockets) = &report.sockets {
        words.push(format!("{} unread", output::bytes(sockets.unread)));
        words.push(format!("{} pending", sockets.pending));
    }
    if let Some(process) = &report.process {
        words.extend(process.resident.map(output::bytes));
        words.extend(process.threads.map(|count| output::count(count.unsigned_abs(), "thread")));
        words.extend(process.descriptors.map(|count| output::count(count as u64, "FD")));
    }
    words.join(", ")
}

/// The ids of Kubernetes have 64 digits; the first twelve are what people use. Where no terminal limits
/// it, an id is written as a whole, so that it can be searched for.
fn short_id(id: &str, columns: Option<usize>) -> String {
    let id = output::plain_line(id);
    let is_long = id.width() > MAX_ID_LEN;
    let is_hex = id.chars().all(|character| character.is_ascii_hexdigit());
    match columns {
        Some(_) if is_long && is_hex => output::beginning(&id, MIN_ID_LEN),
        Some(_) => output::beginning(&id, MAX_ID_LEN),
        None => id,
    }
}

/// `running`, or `2 running, 1 stopped`.
fn states(containers: &[ContainerReport]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for container in containers {
        let status = container.status.as_deref().unwrap_or("-").to_lowercase();
        match counts.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => counts.push((status, 1)),
        }
    }
    match &counts[..] {
        [(status, count)] if *count == 1 || status == "-" => status.clone(),
        counts => {
            let counts: Vec<_> =
                counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
            counts.join(", ")
        }
    }
}

/// Each container and its state, if there are several.
fn containers(report: &Report, columns: Option<usize>) -> Option<String> {
    let of_one = |known: &ContainerReport| {
        let id = short_id(&known.container.id, columns);
        match &known.status {
            Some(status) => format!("{id} {}", status.to_lowercase()),
            None => id,
        }
    };
    let all: Vec<_> = report.containers.iter().map(of_one).collect();
    (all.len() > 1).then(|| all.join(", "))
}

/// What can be seen of a shim that did not answer.
fn detail(report: &Report) -> Option<String> {
    let method = match &report.answer {
        Answer::Answered(_) => return None,
        Answer::Refused(reason) | Answer::NotAsked(reason) => {
            return Some(output::plain_line(reason));
        }
        Answer::TimedOut(method) => method,
    };
    let mut parts = vec![format!("no answer to {method}")];
    match &report.process {
        None => parts.push("no process has its socket open that may be seen".to_owned()),
        Some(process) => {
            parts.push(format!("process {} is {}", process.pid, process.state_in_words()));
            if !report.waits.is_empty() {
                let waits: Vec<_> = report
                    .waits
                    .iter()
                    .map(|(place, count)| format!("{count} in {place}"))
                    .collect();
                parts.push(format!("threads: {}", waits.join(", ")));
            }
        }
    }
    if let Some(sockets) = &report.sockets {
        parts.push(format!(
            "{} and {} more that are not accepted, {} unread",
            output::count(sockets.connections, "connection"),
            sockets.pending,
            output::bytes(sockets.unread)
        ));
    }
    Some(parts.join("; "))
}

/// Lines of no more than this many columns, broken between words.
pub fn wrap(text: &str, columns: Option<usize>) -> Vec<String> {
    let Some(columns) = columns else { return vec![text.to_owned()] };
    let indent: String = text.chars().take_while(|c| *c == ' ').collect();
    let mut lines = vec![indent.clone()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always one");
        if line.len() > indent.len() && line.width() + 1 + word.width() > columns {
            lines.push(format!("{indent}{word}"));
        } else {
            if line.len() > indent.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// All that is known of a shim.
pub fn to_json(report: &Report) -> Value {
    let (answer, answered_in, reason) = match &report.answer {
        Answer::Answered(time) => ("answered", Some(time.as_secs_f64()), None),
        Answer::TimedOut(method) => ("timed out", None, Some(format!("no answer to {method}"))),
        Answer::Refused(reason) => ("refused", None, Some(reason.clone())),
        Answer::NotAsked(reason) => ("not asked", None, Some(reason.clone())),
    };
    let process = report.process.as_ref();
    let sockets = report.sockets.as_ref();
    let containers: Vec<_> = report
        .containers
        .iter()
        .map(|known| {
            json!({
                "namespace": known.container.namespace,
                "id": known.container.id,
                "bundle": known.container.bundle,
                "status": known.status,
                "pid": known.pid,
            })
        })
        .collect();
    json!({
        "answer": answer,
        "seconds": answered_in,
        "reason": reason,
        "address": report.shim.address,
        "version": report.shim.version,
        "protocol": report.shim.protocol,
        "pid": process.map(|process| process.pid),
        "processState": process.map(|process| process.state_in_words()),
        "threads": process.and_then(|process| process.threads),
        "descriptors": process.and_then(|process| process.descriptors),
        "residentBytes": process.and_then(|process| process.resident),
        "waits": report.waits.iter().map(|(place, threads)| json!({ "place": place, "threads": threads })).collect::<Vec<_>>(),
        "connections": sockets.map(|sockets| sockets.connections),
        "pendingConnections": sockets.map(|sockets| sockets.pending),
        "unreadBytes": sockets.map(|sockets| sockets.unread),
        "containers": containers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_on_the_screen_and_the_rest_is_counted() {
        let entries = |hanging: usize| -> Vec<Entry> {
            let of_one = |index: usize| Entry {
                line: index.to_string(),
                below: vec!["below".to_owned(); 2],
                is_hanging: index < hanging,
            };
            (0..9).map(of_one).collect()
        };
        assert_eq!(fit(entries(1), None).len(), 27);
        assert_eq!(fit(entries(1), Some(27)).len(), 27);
        let lines = fit(entries(1), Some(6));
        assert_eq!(lines, ["0", "below", "below", "1", "2", "and 6 more"]);
        let lines = fit(entries(4), Some(4));
        let last = paint(BAD, "and 6 more, of which 1 did not answer");
        assert_eq!(lines, ["0", "1", "2", &*last]);
        assert_eq!(fit(entries(9), Some(0)).len(), 1);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let lines = wrap("  one two three", Some(9));
        assert_eq!(lines, ["  one two", "  three"]);
        assert_eq!(wrap("  one", None), ["  one"]);
    }
}
