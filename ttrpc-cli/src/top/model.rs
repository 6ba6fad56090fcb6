//! From samples to rows. Pure: what a view shows is made of two samples of each server.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    time::Duration,
};

use serde_json::{Value, json};
use ttrpc::Code;
use ttrpc_reflection::proto::debug::{MethodStats, Sample};

use crate::{output, shims::snapshot::time};

/// Rates that are remembered of each server.
const HISTORY: usize = 200;

/// Methods of a server that are shown. Its debug service counts 1,000 by name.
const MAX_METHODS: usize = 10_000;

/// What a server says of how many there are may be any numbers.
pub fn sum<'a>(counts: impl IntoIterator<Item = &'a u64>) -> u64 {
    counts.into_iter().fold(0, |sum, count| sum.saturating_add(*count))
}

/// A server that is looked at.
#[derive(Debug)]
pub struct Server {
    pub address: String,
    /// Why there is nothing new of it.
    pub trouble: Option<String>,
    /// Whether it has counters.
    pub counts: bool,
    last: Option<Sample>,
    before: Option<Sample>,
    /// Calls a second, the newest last.
    pub history: VecDeque<u64>,
}

/// What a server has told meanwhile.
#[derive(Debug)]
pub enum News {
    /// With counters.
    Sample(Sample),
    /// Without.
    Snapshot(Sample),
    /// It does not answer, or has no debug service.
    Trouble(String),
}

impl Server {
    pub fn new(address: String) -> Self {
        let trouble = Some("connecting".to_owned());
        let history = VecDeque::new();
        Server { address, trouble, counts: false, last: None, before: None, history }
    }

    /// Takes what it has told. Of one that has started anew the counters began again.
    pub fn take(&mut self, news: News) {
        let (mut sample, counts) = match news {
            News::Trouble(trouble) => {
                self.trouble = Some(trouble);
                (self.last, self.before) = (None, None);
                return;
            }
            News::Sample(sample) => (sample, true),
            News::Snapshot(sample) => (sample, false),
        };
        sample.methods.truncate(MAX_METHODS);
        (self.trouble, self.counts) = (None, counts);
        self.before = self.last.replace(sample);
        if self.seconds().is_none() {
            self.before = None;
        }
        if let Some(seconds) = self.seconds() {
            let ended = sum(self.methods().iter().map(|method| &method.ended));
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back((ended as f64 / seconds).round() as u64);
        }
    }

    /// Between the two samples; `None` if there are no two.
    fn seconds(&self) -> Option<f64> {
        let (last, before) = (self.last.as_ref()?, self.before.as_ref()?);
        let pid = |sample: &Sample| sample.snapshot.as_ref().map(|snapshot| snapshot.pid);
        let passed = time(last.uptime).checked_sub(time(before.uptime))?.as_secs_f64();
        (pid(last) == pid(before) && passed > 0.0).then_some(passed)
    }

    /// Its methods, with what has happened between the two samples, or since it began if there is one alone.
    pub fn methods(&self) -> Vec<Method> {
        let Some(last) = &self.last else { return Vec::new() };
        let seconds = self.seconds();
        let before = self.before.as_ref().filter(|_| seconds.is_some());
        let before = before.into_iter().flat_map(|before| &before.methods);
        let before: HashMap<_, _> =
            before.map(|stats| ((&*stats.service, &*stats.method), stats)).collect();
        let none = MethodStats::default();
        let method = |stats: &MethodStats| {
            let old = before.get(&(&*stats.service, &*stats.method)).copied();
            Method::new(stats, old.unwrap_or(&none), &last.bounds_nanos, seconds)
        };
        last.methods.iter().map(method).collect()
    }

    pub fn connections(&self) -> Vec<Connection> {
        let snapshot = self.last.as_ref().and_then(|sample| sample.snapshot.as_ref());
        let connections = snapshot.into_iter().flat_map(|snapshot| &snapshot.connections);
        connections
            .map(|connection| {
                let stalls = [
                    (connection.blocked, "its client does not read"),
                    (connection.stalled, &*connection.stalled_by),
                ];
                let longest = stalls.into_iter().filter(|(since, _)| since.is_some());
                let longest = longest.max_by_key(|(since, _)| time(*since));
                Connection {
                    id: connection.id,
                    uid: connection.peer_uid,
                    pid: connection.peer_pid,
                    command: connection.peer_pid.and_then(command),
                    age: time(connection.age),
                    calls: connection.calls_in_flight.unwrap_or_default().used,
                    queue: connection.queue_bytes,
                    max_queue: connection.max_queue_bytes,
                    stalled: longest.map(|(since, by)| (time(since), output::plain_line(by))),
                }
            })
            .collect()
    }

    /// Its calls, the oldest first.
    pub fn calls(&self) -> Vec<Call> {
        let snapshot = self.last.as_ref().and_then(|sample| sample.snapshot.as_ref());
        let mut calls = Vec::new();
        for connection in snapshot.into_iter().flat_map(|snapshot| &snapshot.connections) {
            calls.extend(connection.calls.iter().map(|call| {
                let age = time(call.age);
                let timeout = call.timeout.map(|timeout| time(Some(timeout)));
                Call {
                    connection: connection.id,
                    stream: call.stream_id,
                    name: output::plain_line(format_args!("{}/{}", call.service, call.method)),
                    age,
                    left: timeout.map(|timeout| timeout.saturating_sub(age)),
                    waits_for: output::plain_line(&call.waits_for),
                    inbox: call.inbox_bytes,
                }
            }));
        }
        calls.sort_by_key(|call| std::cmp::Reverse(call.age));
        calls
    }

    /// How full its limits are, and what the debug service itself has left out.
    pub fn summary(&self) -> String {
        if let Some(trouble) = &self.trouble {
            return trouble.clone();
        }
        let snapshot = self.last.as_ref().and_then(|sample| sample.snapshot.as_ref());
        let Some(snapshot) = snapshot else { return "no sample yet".to_owned() };
        let connections = snapshot.all_connections.unwrap_or_default();
        let (requests, inboxes) =
            (snapshot.request_bytes.unwrap_or_default(), snapshot.inbox_bytes.unwrap_or_default());
        let stalled =
            self.connections().iter().filter(|connection| connection.stalled.is_some()).count();
        // What is seen from between has no limits, and no process.
        let fill = |used: String, limit: u64, text: String| match limit {
            0 => used,
            _ => format!("{used}/{text}"),
        };
        let numbers = |used: u64, limit: u64| fill(used.to_string(), limit, limit.to_string());
        let bytes = |used, limit| fill(output::bytes(used), limit, output::bytes(limit));
        let pid = (snapshot.pid != 0).then(|| format!("pid {}, ", snapshot.pid));
        // A server of an early version does not say it.
        let state = Some(&snapshot.state).filter(|state| !state.is_empty());
        let state = state.map(|state| format!("{}; ", output::plain_line(state)));
        let mut text = format!(
            "{}{}connections {}, calls {}",
            pid.unwrap_or_default(),
            state.unwrap_or_default(),
            numbers(connections.used, connections.limit),
            numbers(snapshot.calls, snapshot.max_calls),
        );
        if snapshot.pid != 0 {
            text += &format!(
                ", requests {}, inboxes {}; {stalled} stalled",
                bytes(requests.used, requests.limit),
                bytes(inboxes.used, inboxes.limit),
            );
        }
        if snapshot.omitted_connections > 0 || snapshot.omitted_calls > 0 {
            let connections = output::count(snapshot.omitted_connections, "connection");
            let calls = output::count(snapshot.omitted_calls, "call");
            text += &format!("; not shown: {connections}, {calls}");
        }
        if !self.counts {
            text += "; no counters (Debug::with_counters)";
        }
        text
    }

    /// All of it for machines. Times are seconds.
    pub fn to_json(&self) -> Value {
        let seconds = |time: Duration| time.as_secs_f64();
        let snapshot = self.last.as_ref().and_then(|sample| sample.snapshot.as_ref());
        let fill = |fill: Option<ttrpc_reflection::proto::debug::Fill>| {
            fill.map(|fill| json!({ "used": fill.used, "limit": fill.limit }))
        };
        let methods: Vec<_> = self.methods().iter().map(Method::to_json).collect();
        let connections: Vec<_> = self
            .connections()
            .into_iter()
            .map(|connection| {
                json!({
                    "id": connection.id,
                    "uid": connection.uid,
                    "pid": connection.pid,
                    "command": connection.command,
                    "age": seconds(connection.age),
                    "calls": connection.calls,
                    "queueBytes": connection.queue,
                    "maxQueueBytes": connection.max_queue,
                    "stalledSeconds": connection.stalled.as_ref().map(|(since, _)| seconds(*since)),
                    "stalledBy": connection.stalled.map(|(_, by)| by),
                })
            })
            .collect();
        let calls: Vec<_> = self
            .calls()
            .into_iter()
            .map(|call| {
                json!({
                    "connection": call.connection,
                    "stream": call.stream,
                    "method": call.name,
                    "age": seconds(call.age),
                    "left": call.left.map(seconds),
                    "waitsFor": call.waits_for,
                    "inboxBytes": call.inbox,
                })
            })
            .collect();
        json!({
            "address": self.address,
            "trouble": self.trouble,
            "counters": self.counts,
            "pid": snapshot.map(|snapshot| snapshot.pid),
            "state": snapshot.map(|snapshot| &snapshot.state),
            "connectionsOpen": fill(snapshot.and_then(|snapshot| snapshot.all_connections)),
            "callsInFlight": snapshot.map(|snapshot| snapshot.calls),
            "maxCalls": snapshot.map(|snapshot| snapshot.max_calls),
            "requestBytes": fill(snapshot.and_then(|snapshot| snapshot.request_bytes)),
            "inboxBytes": fill(snapshot.and_then(|snapshot| snapshot.inbox_bytes)),
            "omittedConnections": snapshot.map(|snapshot| snapshot.omitted_connections),
            "omittedCalls": snapshot.map(|snapshot| snapshot.omitted_calls),
            "methods": methods,
            "connections": connections,
            "calls": calls,
        })
    }
}

/// What a process is called, if it is one of this machine.
fn command(pid: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(output::plain_line(name.trim_end()))
}

/// What a method has done between two samples, or since its server began.
#[derive(Clone, Debug)]
pub struct Method {
    pub name: String,
    /// `None` if there is one sample alone.
    pub seconds: Option<f64>,
    pub ended: u64,
    pub failed: u64,
    /// The codes of the failures, the most frequent first.
    pub codes: Vec<(&'static str, u64)>,
    pub p50: Option<Duration>,
    pub p99: Option<Duration>,
    pub in_flight: u64,
    pub sent: u64,
    pub received: u64,
}

impl Method {
    fn new(stats: &MethodStats, old: &MethodStats, bounds: &[u64], seconds: Option<f64>) -> Self {
        let since = |code: &i32, count: u64| {
            count.saturating_sub(old.ended.get(code).copied().unwrap_or_default())
        };
        let ended: Vec<_> = stats.ended.iter().map(|(code, count)| since(code, *count)).collect();
        let failures = stats.ended.iter().filter(|(code, _)| **code != Code::Ok as i32);
        let mut codes: Vec<_> = failures
            .map(|(code, count)| (Code::from_i32(*code).name(), since(code, *count)))
            .filter(|(_, count)| *count > 0)
            .collect();
        codes.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let all_ended = sum(stats.ended.values());
        let durations: Vec<_> = stats
            .durations
            .iter()
            .enumerate()
            .map(|(at, count)| count.saturating_sub(old.durations.get(at).copied().unwrap_or(0)))
            .collect();
        let slash = if stats.method.is_empty() { "" } else { "/" };
        Method {
            name: output::plain_line(format_args!("{}{slash}{}", stats.service, stats.method)),
            seconds,
            ended: sum(&ended),
            failed: sum(codes.iter().map(|(_, count)| count)),
            codes,
            p50: percentile(&durations, bounds, 0.5),
            p99: percentile(&durations, bounds, 0.99),
            in_flight: stats.begun.saturating_sub(all_ended),
            sent: stats.bytes_sent.saturating_sub(old.bytes_sent),
            received: stats.bytes_received.saturating_sub(old.bytes_received),
        }
    }

    /// A second, or in all if there is one sample alone.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds.unwrap_or(1.0)
    }

    fn to_json(&self) -> Value {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let codes: serde_json::Map<_, _> =
            self.codes.iter().map(|(code, count)| ((*code).to_owned(), json!(count))).collect();
        json!({
            "method": self.name,
            "seconds": self.seconds,
            "ended": self.ended,
            "failed": self.failed,
            "codes": codes,
            "p50": seconds(self.p50),
            "p99": seconds(self.p99),
            "inFlight": self.in_flight,
            "bytesSent": self.sent,
            "bytesReceived": self.received,
        })
    }
}

/// The bound below which this part of the calls is; `None` if there were none.
fn percentile(counts: &[u64], bounds: &[u64], part: f64) -> Option<Duration> {
    let all = sum(counts);
    let wanted = ((all as f64 * part).ceil() as u64).max(1);
    let mut seen = 0_u64;
    let at = counts.iter().position(|count| {
        seen = seen.saturating_add(*count);
        seen >= wanted
    })?;
    let bound = bounds.get(at).or(bounds.last()).copied();
    bound.filter(|_| all > 0).map(Duration::from_nanos)
}

#[derive(Clone, Debug)]
pub struct Connection {
    pub id: u64,
    pub uid: Option<u32>,
    pub pid: Option<i32>,
    pub command: Option<String>,
    pub age: Duration,
    pub calls: u64,
    pub queue: u64,
    pub max_queue: u64,
    /// For how long, and by what.
    pub stalled: Option<(Duration, String)>,
}

#[derive(Clone, Debug)]
pub struct Call {
    pub connection: u64,
    pub stream: u32,
    pub name: String,
    pub age: Duration,
    /// Of its deadline, if it has one.
    pub left: Option<Duration>,
    pub waits_for: String,
    pub inbox: u64,
}

#[cfg(test)]
mod tests {
    use ttrpc_reflection::proto::debug::{Fill, SnapshotResponse};

    use super::*;
    use crate::top::table::{Tab, rows};

    /// Numbers, times and bounds that no server has.
    fn absurd(uptime: i64) -> Sample {
        let method = MethodStats {
            service: "a.B".to_owned(),
            begun: u64::MAX,
            ended: [(0, u64::MAX), (5, u64::MAX), (-7, u64::MAX), (i32::MAX, 1)].into(),
            durations: vec![u64::MAX; 500],
            bytes_sent: u64::MAX,
            bytes_received: u64::MAX,
            ..MethodStats::default()
        };
        let fill = Some(Fill { used: u64::MAX, limit: 1 });
        Sample {
            uptime: Some(ttrpc::prost_types::Duration { seconds: uptime, nanos: -5 }),
            methods: vec![method; 20_000],
            bounds_nanos: vec![u64::MAX, 0, 5],
            snapshot: Some(SnapshotResponse {
                pid: 1,
                all_connections: fill,
                calls: u64::MAX,
                omitted_connections: u64::MAX,
                omitted_calls: u64::MAX,
                ..SnapshotResponse::default()
            }),
        }
    }

    #[test]
    fn whatever_numbers_a_server_tells_are_shown() {
        let mut server = Server::new("a.sock".to_owned());
        for uptime in [i64::MIN, 1, 2, 3, 1, i64::MAX] {
            server.take(News::Sample(absurd(uptime)));
            let methods = server.methods();
            assert_eq!(methods.len(), MAX_METHODS);
            assert_eq!(methods[0].in_flight, 0);
            let summary = server.summary();
            assert!(summary.contains("not shown") && summary.contains("pid 1, conn"), "{summary}");
            let servers = std::slice::from_ref(&server);
            for order in 0..6 {
                for tab in [Tab::Methods, Tab::Connections, Tab::Calls] {
                    rows(servers, tab, order, "");
                }
            }
            assert!(server.to_json()["methods"].is_array());
        }
    }
}
