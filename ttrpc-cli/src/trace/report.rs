//! What a trace tells: a line per call, and a table at the end.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    Slowest,
    call::{Call, End, Ended, Frame, Kept, Side},
    filter::Filter,
    lines::Lines,
    messages::Messages,
    observe::Connection,
    stats::Stats,
};
use crate::{
    output::{self, BAD, BOLD, Cell, DIM, paint},
    sync::lock,
};

/// So many calls, those that took longest first.
#[derive(Debug)]
struct Longest {
    count: usize,
    calls: Vec<Ended>,
}

impl Longest {
    fn add(&mut self, ended: &Ended) {
        let is_longer = |known: &Ended| known.duration() >= ended.duration();
        let at = self.calls.partition_point(is_longer);
        if at < self.count {
            self.calls.truncate(self.count - 1);
            self.calls.insert(at, ended.clone());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Tells of calls, without making anybody wait.
#[derive(Debug)]
pub struct Reporter {
    messages: Arc<Messages>,
    format: Format,
    tells_messages: bool,
    filter: Filter,
    /// Calls have no lines of their own.
    counts_only: bool,
    /// The slowest calls so far, where they alone are shown.
    slowest: Option<Mutex<Longest>>,
    pub(super) stats: Mutex<Stats>,
    kept: Arc<Kept>,
    lines: Lines,
    /// Connections that speak something else.
    foreign: AtomicU64,
}

impl Reporter {
    /// Starts the thread that writes.
    pub fn start(messages: Arc<Messages>, format: Format) -> Self {
        Reporter {
            messages,
            format,
            tells_messages: false,
            filter: Filter::default(),
            counts_only: false,
            slowest: None,
            stats: Mutex::default(),
            kept: Arc::default(),
            lines: Lines::start(),
            foreign: AtomicU64::new(0),
        }
    }

    /// Whether messages of streams have a line each.
    pub fn tell_messages(self, tells_messages: bool) -> Self {
        Reporter { tells_messages, ..self }
    }

    /// Tells and counts no other calls.
    pub fn filter(self, filter: Filter) -> Self {
        Reporter { filter, ..self }
    }

    /// Shows the slowest calls at the end, and no others.
    pub fn slowest(self, slowest: Slowest) -> Self {
        let longest = |count| Mutex::new(Longest { count: count as usize, calls: Vec::new() });
        Reporter { slowest: slowest.slowest.map(longest), ..self }
    }

    /// Shows no calls.
    pub fn counts_only(self, counts_only: bool) -> Self {
        Reporter { counts_only, ..self }
    }

    /// A connection of which this tells.
    pub fn connection(&self, id: u32) -> Connection {
        Connection::new(id, self.kept.clone())
    }

    /// Tells what a frame means for a connection, and lets the connection know.
    pub fn observe(
        &self,
        connection: &mut Connection,
        frame: &Frame,
        now: Duration,
    ) -> Option<Ended> {
        if connection.is_foreign(frame)
            && self.foreign.fetch_add(1, Relaxed) == 0
            && !self.counts_only
        {
            let id = connection.id;
            output::note(format_args!(
                "c{id} does not speak ttrpc: its bytes pass, and its calls are not shown"
            ));
        }
        if self.tells_messages
            && let Some(call) = connection.call_of_message(frame)
            && self.filter.takes(call)
        {
            self.message(call, frame, now);
        }
        connection.observe(frame, now)
    }

    fn message(&self, call: &Call, frame: &Frame, now: Duration) {
        if self.lines.is_closed() {
            return;
        }
        let value = self.messages.to_json(&call.service, &call.method, frame.side, &frame.data);
        let from = match frame.side {
            Side::Client => "client",
            Side::Server => "server",
        };
        self.lines.write(match self.format {
            Format::Text => format!(
                "{:>9.3}s c{} #{} {} from the {from}, {}{}",
                now.as_secs_f64(),
                call.connection,
                call.stream,
                paint(BOLD, output::plain_line(call.name())),
                output::bytes(frame.data.len() as u64),
                value.map_or(String::new(), |value| paint(
                    DIM,
                    format_args!("  {}", output::json(&value))
                )),
            ),
            Format::Json => json!({
                "time": now.as_secs_f64(),
                "connection": call.connection,
                "stream": call.stream,
                "service": call.service,
                "method": call.method,
                "from": from,
                "bytes": frame.data.len(),
                "content": value,
            })
            .to_string(),
        });
    }

    /// Counts and tells a call that has ended.
    pub fn ended(&self, ended: &Ended) {
        if self.lines.is_closed() || !self.filter.takes_ended(ended) {
            return;
        }
        lock(&self.stats).add(ended);
        if let Some(slowest) = &self.slowest {
            return lock(slowest).add(ended);
        }
        if self.counts_only {
            return;
        }
        self.lines.write(match self.format {
            Format::Text => self.text(ended),
            Format::Json => self.json(ended).to_string(),
        });
    }

    /// Both sides' first messages.
    fn bodies(&self, call: &Call) -> [Option<Value>; 2] {
        [(Side::Client, &call.client), (Side::Server, &call.server)].map(|(side, said)| {
            let first = said.first.as_ref()?;
            self.messages.to_json(&call.service, &call.method, side, first)
        })
    }

    fn text(&self, ended: &Ended) -> String {
        let call = &ended.call;
        let end = match &ended.end {
            End::Answered(None) => "OK".to_owned(),
            End::Answered(Some(status)) => paint(BAD, output::plain_line(status)),
            End::Closed => paint(BAD, "connection closed"),
            End::Replaced => paint(BAD, "its stream was used for another call"),
        };
        let [request, reply] = self.bodies(call);
        let count = |messages: u64| match messages {
            1 => String::new(),
            _ => format!(" in {messages} messages"),
        };
        let mut line = format!(
            "{:>9.3}s c{} #{} {} {end}, {}, {}{} → {}{}",
            call.begun.as_secs_f64(),
            call.connection,
            call.stream,
            paint(BOLD, output::plain_line(call.name())),
            output::duration(ended.duration()),
            output::bytes(call.client.bytes),
            count(call.client.messages),
            output::bytes(call.server.bytes),
            count(call.server.messages),
        );
        for (key, value) in &call.metadata {
            let value = self.messages.metadata(key, value);
            line.push_str(&output::plain_line(format_args!(", {key}: {value}")));
        }
        if request.is_some() || reply.is_some() {
            let text =
                |value: Option<Value>| value.map_or("-".to_owned(), |value| output::json(&value));
            let bodies = format!("  {} → {}", text(request), text(reply));
            line.push_str(&paint(DIM, bodies));
        }
        line
    }

    fn json(&self, ended: &Ended) -> Value {
        let call = &ended.call;
        let [request, reply] = self.bodies(call);
        let metadata: Vec<_> = call
            .metadata
            .iter()
            .map(|(key, value)| json!([key, self.messages.metadata(key, value)]))
            .collect();
        json!({
            "begun": call.begun.as_secs_f64(),
            "seconds": ended.duration().as_secs_f64(),
            "connection": call.connection,
            "stream": call.stream,
            "service": call.service,
            "method": call.method,
            "end": ended.end.name(),
            "message": match &ended.end {
                End::Answered(Some(status)) => Some(status.message()),
                _ => None,
            },
            "timeoutSeconds": call.timeout.map(|timeout| timeout.as_secs_f64()),
            "metadata": metadata,
            "messagesSent": call.client.messages,
            "messagesReceived": call.server.messages,
            "bytesSent": call.client.bytes,
            "bytesReceived": call.server.bytes,
            "request": request,
            "reply": reply,
        })
    }

    /// A call that is under way for long.
    pub fn pending(call: &Call, now: Duration) -> String {
        let age = output::duration(now.saturating_sub(call.begun));
        let name = output::plain_line(call.name());
        format!("pending for {age}: c{} #{} {name}", call.connection, call.stream)
    }

    /// Tells of no more calls.
    pub fn close(&self) {
        let longest = self.slowest.as_ref().map(|slowest| mem::take(&mut lock(slowest).calls));
        for ended in longest.into_iter().flatten() {
            self.lines.write(match self.format {
                Format::Text => self.text(&ended),
                Format::Json => self.json(&ended).to_string(),
            });
        }
        self.lines.close();
    }

    /// Closes it, writes what is left, and returns the table. `pending` are the calls that have not ended.
    pub fn finish(&self, pending: &[Call], now: Duration, columns: Option<usize>) -> Vec<String> {
        self.close();
        self.lines.finish();
        let mut lines: Vec<String> =
            self.told(pending).map(|call| paint(BAD, Reporter::pending(call, now))).collect();
        lines.extend(self.table(columns));
        let dropped = self.lines.dropped();
        if dropped > 0 {
            lines.push(format!(
                "{} {} no line above: the output was read too slowly",
                output::count(dropped, "call"),
                if dropped == 1 { "has" } else { "have" }
            ));
        }
        let not_followed = self.kept.not_followed();
        if not_followed > 0 {
            lines.push(format!(
                "{} {} left out: too many others were not answered",
                output::count(not_followed, "call"),
                if not_followed == 1 { "is" } else { "are" }
            ));
        }
        lines
    }

    /// What was counted so far, by method.
    pub fn table(&self, columns: Option<usize>) -> Vec<String> {
        let head = ["METHOD", "CALLS", "FAILED", "50 %", "90 %", "99 %", "MAX", "SENT", "RECEIVED"];
        let mut rows = vec![vec![Cell::text(head[0]).style(BOLD)]];
        rows[0].extend(head[1..].iter().map(|name| Cell::number(name).style(BOLD)));
        for (name, stats) in lock(&self.stats).iter() {
            let at = |percentile| Cell::number(output::duration(stats.percentile(percentile)));
            rows.push(vec![
                Cell::name(name),
                Cell::number(stats.calls),
                Cell::number(stats.failed() + stats.closed),
                at(50.0),
                at(90.0),
                at(99.0),
                at(100.0),
                Cell::number(output::bytes(stats.sent)),
                Cell::number(output::bytes(stats.received)),
            ]);
        }
        output::table(&rows, columns)
    }

    /// Whether a call that is under way is told.
    pub fn tells(&self, call: &Call) -> bool {
        self.filter.takes(call)
    }

    fn told<'a>(&'a self, pending: &'a [Call]) -> impl Iterator<Item = &'a Call> {
        pending.iter().filter(|call| self.tells(call))
    }

    /// The table for machines.
    pub fn summary(&self, pending: &[Call], now: Duration) -> Value {
        let methods: Vec<_> = lock(&self.stats)
            .iter()
            .map(|(name, stats)| {
                let at = |percentile| stats.percentile(percentile).as_secs_f64();
                json!({
                    "method": name,
                    "calls": stats.calls,
                    "failed": stats.failed(),
                    "closed": stats.closed,
                    "p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "max": at(100.0),
                    "bytesSent": stats.sent,
                    "bytesReceived": stats.received,
                })
            })
            .collect();
        let pending: Vec<_> = self
            .told(pending)
            .map(|call| {
                json!({
                    "connection": call.connection,
                    "stream": call.stream,
                    "method": call.name(),
                    "seconds": now.saturating_sub(call.begun).as_secs_f64(),
                })
            })
            .collect();
        json!({
            "methods": methods,
            "pending": pending,
            "linesDropped": self.lines.dropped(),
            "callsLeftOut": self.kept.not_followed(),
            "otherProtocols": self.foreign.load(Relaxed),
        })
    }
}
