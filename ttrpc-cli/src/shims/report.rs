//! What is printed of shims.

use serde_json::{Value, json};

use super::query::{Answer, ContainerReport, Report};
use crate::output::{self, BAD, BOLD, Cell, DIM, GOOD, WARN, paint};

/// Which stand first: those that hang, then those that nobody serves, then the slow ones.
pub fn rank(report: &Report) -> (u8, std::cmp::Reverse<std::time::Duration>) {
    let (rank, time) = match &report.answer {
        Answer::TimedOut(_) => (0, Default::default()),
        Answer::Refused(_) => (1, Default::default()),
        Answer::NotAsked(_) => (2, Default::default()),
        Answer::Answered(time) => (3, *time),
    };
    (rank, std::cmp::Reverse(time))
}

/// A table of at least one shim, with a line below each that did not answer, and a sum.
pub fn lines(reports: &[Report], columns: Option<usize>) -> Vec<String> {
    let head = [
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
    let mut rows = vec![head.map(|name| Cell::text(name).style(BOLD)).to_vec()];
    rows.extend(reports.iter().map(row));
    let mut table = output::table(&rows, columns).into_iter();
    let mut lines = vec![table.next().unwrap_or_default()];
    for (line, report) in table.zip(reports) {
        lines.push(line.trim_end().to_owned());
        if let Some(detail) = detail(report) {
            let text = format!("  {detail}");
            lines.extend(wrap(&text, columns).into_iter().map(|line| paint(DIM, line)));
        }
    }
    let count = |is_one: fn(&Answer) -> bool| {
        reports.iter().filter(|report| is_one(&report.answer)).count()
    };
    let (answered, hanging) = (
        count(|answer| matches!(answer, Answer::Answered(_))),
        count(|answer| matches!(answer, Answer::TimedOut(_))),
    );
    let others = reports.len() - answered - hanging;
    lines.push(match (hanging, others) {
        (0, 0) => format!("{answered} answered"),
        (0, _) => format!("{answered} answered, {others} could not be asked"),
        (_, 0) => paint(BAD, format_args!("{hanging} did not answer, {answered} did")),
        _ => paint(
            BAD,
            format_args!("{hanging} did not answer, {answered} did, {others} could not be asked"),
        ),
    });
    lines
}

fn row(report: &Report) -> Vec<Cell> {
    let answer = match &report.answer {
        Answer::Answered(time) => Cell::text(output::duration(*time)).style(GOOD),
        Answer::TimedOut(_) => Cell::text("TIMED OUT").style(BAD),
        Answer::Refused(_) => Cell::text("refused").style(WARN),
        Answer::NotAsked(_) => Cell::text("not asked").style(WARN),
    };
    let first = report.shim.containers.first();
    let more = report.shim.containers.len().saturating_sub(1);
    let id = match first {
        // Ids of Kubernetes have 64 digits; the first twelve are what people use.
        Some(container) if more > 0 => format!("{:.12} +{more}", container.id),
        Some(container) => format!("{:.20}", container.id),
        None => String::new(),
    };
    let process = report.process.as_ref();
    let sockets = report.sockets.as_ref();
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        answer,
        Cell::number(or_dash(process.map(|process| process.pid.to_string()))),
        Cell::text(first.map_or(String::new(), |container| container.namespace.clone())),
        Cell::text(id),
        Cell::text(format!("v{}", report.shim.version)),
        Cell::text(containers(&report.containers)),
        Cell::number(or_dash(sockets.map(|sockets| output::bytes(sockets.unread)))),
        Cell::number(or_dash(sockets.map(|sockets| sockets.pending.to_string()))),
        Cell::number(or_dash(process.and_then(|process| process.resident).map(output::bytes))),
        Cell::number(or_dash(process.and_then(|p| p.threads).map(|count| count.to_string()))),
        Cell::number(or_dash(process.and_then(|p| p.descriptors).map(|count| count.to_string()))),
    ]
}

/// `running`, or `2 running, 1 stopped`.
fn containers(containers: &[ContainerReport]) -> String {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for container in containers {
        let status = container.status.as_deref().unwrap_or("-").to_lowercase();
        match counts.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => counts.push((status, 1)),
        }
    }
    match &counts[..] {
        [(status, 1)] => status.clone(),
        counts => {
            let counts: Vec<_> =
                counts.iter().map(|(status, count)| format!("{count} {status}")).collect();
            counts.join(", ")
        }
    }
}

/// What can be seen of a shim that did not answer.
fn detail(report: &Report) -> Option<String> {
    let method = match &report.answer {
        Answer::Answered(_) => return None,
        Answer::Refused(reason) | Answer::NotAsked(reason) => return Some(reason.clone()),
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
        if line.len() > indent.len() && line.chars().count() + 1 + word.chars().count() > columns {
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
    fn long_lines_are_broken_between_words() {
        let lines = wrap("  one two three", Some(9));
        assert_eq!(lines, ["  one two", "  three"]);
        assert_eq!(wrap("  one", None), ["  one"]);
    }
}
