//! Tables of methods, connections and calls, for the view and for lines.

use std::{cmp::Reverse, time::Duration};

use super::model::{Call, Connection, Method, Server};
use crate::output::{self, BAD, BOLD, Cell, WARN};

/// What a table shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Methods,
    Connections,
    Calls,
}

impl Tab {
    pub fn next(self) -> Self {
        match self {
            Tab::Methods => Tab::Connections,
            Tab::Connections => Tab::Calls,
            Tab::Calls => Tab::Methods,
        }
    }

    /// What its rows can be sorted by.
    pub fn orders(self) -> &'static [&'static str] {
        match self {
            Tab::Methods => &["rate", "failed", "p99", "in flight", "bytes", "name"],
            Tab::Connections => &["stalled", "calls", "queue", "age"],
            Tab::Calls => &["age", "deadline", "name"],
        }
    }
}

/// A row: its cells, and all that is known of it, line by line.
#[derive(Debug)]
pub struct Row {
    pub cells: Vec<Cell>,
    /// The same, to be searched in.
    pub text: String,
    pub details: Vec<String>,
    pub is_bad: bool,
}

/// The head of a table and its rows.
pub fn rows(servers: &[Server], tab: Tab, order: usize, filter: &str) -> (Vec<Cell>, Vec<Row>) {
    let order = tab.orders()[order % tab.orders().len()];
    let names: &[&str] = match tab {
        Tab::Methods => &[
            "METHOD",
            "CALLS/S",
            "FAILED/S",
            "50 %",
            "99 %",
            "IN FLIGHT",
            "SENT/S",
            "RECEIVED/S",
            "CODES",
        ],
        Tab::Connections => {
            &["CONNECTION", "UID", "PID", "COMMAND", "CALLS", "QUEUE", "AGE", "STALLED"]
        }
        Tab::Calls => &["CALL", "METHOD", "AGE", "LEFT", "WAITS FOR"],
    };
    let mut head: Vec<_> = names.iter().map(|name| Cell::text(name).style(BOLD)).collect();
    let is_many = servers.len() > 1;
    if is_many {
        head.push(Cell::text("SERVER").style(BOLD));
    }
    let mut rows = Vec::new();
    match tab {
        Tab::Methods => {
            let mut all = all(servers, Server::methods);
            all.sort_by_key(|(_, method)| {
                (Reverse(method_weight(method, order)), method.name.clone())
            });
            rows.extend(all.iter().map(|(server, method)| (*server, method_row(method))));
        }
        Tab::Connections => {
            let mut all = all(servers, Server::connections);
            all.sort_by_key(|(_, connection)| {
                (Reverse(connection_weight(connection, order)), connection.id)
            });
            rows.extend(all.iter().map(|(server, one)| (*server, connection_row(one))));
        }
        Tab::Calls => {
            let mut all = all(servers, Server::calls);
            match order {
                "name" => all.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name)),
                "deadline" => all.sort_by_key(|(_, call)| call.left.unwrap_or(Duration::MAX)),
                _ => all.sort_by_key(|(_, call)| Reverse(call.age)),
            }
            rows.extend(all.iter().map(|(server, call)| (*server, call_row(call))));
        }
    }
    let rows = rows.into_iter().map(|(server, mut row)| {
        if is_many {
            row.cells.push(Cell::name(server));
            row.details.insert(0, format!("server {server}"));
            row.text = format!("{} {server}", row.text);
        }
        row
    });
    let filter = filter.to_lowercase();
    (head, rows.filter(|row| row.text.to_lowercase().contains(&filter)).collect())
}

fn all<T>(servers: &[Server], of: impl Fn(&Server) -> Vec<T>) -> Vec<(&str, T)> {
    let of = |server| of(server).into_iter().map(|one| (&*server.address, one));
    let mut all = Vec::new();
    for server in servers {
        all.extend(of(server));
    }
    all
}

fn method_weight(method: &Method, order: &str) -> u64 {
    match order {
        "failed" => method.failed,
        "p99" => method.p99.map_or(0, nanos),
        "in flight" => method.in_flight,
        "bytes" => method.sent.saturating_add(method.received),
        "name" => 0,
        _ => method.rate(method.ended) as u64,
    }
}

fn connection_weight(connection: &Connection, order: &str) -> u64 {
    match order {
        "calls" => connection.calls,
        "queue" => connection.queue,
        "age" => nanos(connection.age),
        _ => connection.stalled.as_ref().map_or(0, |(since, _)| nanos(*since).saturating_add(1)),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn method_row(method: &Method) -> Row {
    let rate = |count| format!("{:.0}", method.rate(count));
    let time = |time: Option<Duration>| time.map_or("-".to_owned(), output::duration);
    let codes: Vec<_> =
        method.codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
    let is_bad = method.failed > 0;
    let failed = Cell::number(rate(method.failed));
    Row {
        cells: vec![
            Cell::name(&method.name),
            Cell::number(rate(method.ended)),
            if is_bad { failed.style(BAD) } else { failed },
            Cell::number(time(method.p50)),
            Cell::number(time(method.p99)),
            Cell::number(method.in_flight),
            Cell::number(output::bytes(method.rate(method.sent) as u64)),
            Cell::number(output::bytes(method.rate(method.received) as u64)),
            Cell::text(codes.join(", ")),
        ],
        text: format!("{} {}", method.name, codes.join(" ")),
        details: vec![
            method.name.clone(),
            format!("{} calls ended, {} failed: {}", method.ended, method.failed, codes.join(", ")),
            format!("half took up to {}, 99 % up to {}", time(method.p50), time(method.p99)),
            format!("{} in flight", method.in_flight),
        ],
        is_bad,
    }
}

fn connection_row(connection: &Connection) -> Row {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let (uid, pid) = (
        or_dash(connection.uid.map(|uid| uid.to_string())),
        or_dash(connection.pid.map(|pid| pid.to_string())),
    );
    let command = or_dash(connection.command.clone());
    let stalled = connection.stalled.as_ref();
    let stalled = stalled
        .map(|(since, by)| format!("{} by {by}", output::duration(*since)))
        .unwrap_or_default();
    let queue = match connection.max_queue {
        // It is not known.
        0 => "-".to_owned(),
        max => format!("{} of {}", output::bytes(connection.queue), output::bytes(max)),
    };
    let age = output::duration(connection.age);
    Row {
        text: format!("{} {uid} {pid} {command} {stalled}", connection.id),
        details: vec![
            format!("connection {} of {command}, pid {pid}, uid {uid}", connection.id),
            format!("open for {age}, {} in flight", output::count(connection.calls, "call")),
            format!("queue {queue}"),
            format!("stalled: {}", if stalled.is_empty() { "no" } else { &*stalled }),
        ],
        is_bad: !stalled.is_empty(),
        cells: vec![
            Cell::number(connection.id),
            Cell::number(uid),
            Cell::number(pid),
            Cell::beginning(command, 8),
            Cell::number(connection.calls),
            Cell::number(queue),
            Cell::number(age),
            Cell::text(stalled).style(BAD),
        ],
    }
}

fn call_row(call: &Call) -> Row {
    let left = call.left.map_or("-".to_owned(), output::duration);
    let age = output::duration(call.age);
    let id = format!("{}#{}", call.connection, call.stream);
    Row {
        text: format!("{id} {} {}", call.name, call.waits_for),
        details: vec![
            call.name.clone(),
            format!("call {} of connection {}, begun {age} ago", call.stream, call.connection),
            format!("left of its deadline: {left}"),
            format!("waits for {}", call.waits_for),
            format!("{} not taken by its handler", output::bytes(call.inbox)),
        ],
        is_bad: call.left == Some(Duration::ZERO),
        cells: vec![
            Cell::text(id),
            Cell::name(&call.name),
            Cell::number(age).style(WARN),
            Cell::number(left),
            Cell::beginning(&call.waits_for, 12),
        ],
    }
}

/// Everything as lines, for what is no terminal.
pub fn lines(servers: &[Server], columns: Option<usize>) -> Vec<String> {
    let mut lines = Vec::new();
    for server in servers {
        lines.push(format!("{}: {}", output::plain_line(&server.address), server.summary()));
    }
    for tab in [Tab::Methods, Tab::Connections, Tab::Calls] {
        let (head, rows) = rows(servers, tab, 0, "");
        if rows.is_empty() {
            continue;
        }
        let mut table = vec![head];
        table.extend(rows.into_iter().map(|row| row.cells));
        lines.push(String::new());
        lines.extend(output::table(&table, columns));
    }
    lines
}
