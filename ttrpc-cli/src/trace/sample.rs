//! What a trace or a recording has seen, as the debug service of a server would send it.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use ttrpc::Code;
use ttrpc_reflection::proto::debug::{
    Call as CallSample, Connection as ConnectionSample, Fill, MethodStats, Sample, SnapshotResponse,
};

use super::{call::Call, observe::Connection, report::Reporter};
use crate::sync::lock;

/// Bounds of durations: four for each power of two, from 1 µs to more than an hour, in nanoseconds.
const POWERS: std::ops::Range<u32> = 10..42;

/// A connection that is open.
#[derive(Debug)]
pub struct Open {
    id: u32,
    opened: Duration,
    calls: Vec<Call>,
}

impl Open {
    pub fn of(connection: &Connection, opened: Duration) -> Self {
        let calls = connection.pending().into_iter().map(Call::without_messages).collect();
        Open { id: connection.id, opened, calls }
    }
}

impl Reporter {
    /// What was counted until now, and so many of the oldest calls and of the connections.
    pub fn sample(&self, mut connections: Vec<Open>, now: Duration, limit: usize) -> Sample {
        for connection in &mut connections {
            connection.calls.retain(|call| self.tells(call));
        }
        let mut in_flight: BTreeMap<String, u64> = BTreeMap::new();
        for call in connections.iter().flat_map(|connection| &connection.calls) {
            *in_flight.entry(call.name()).or_default() += 1;
        }
        let bounds = bounds();
        let mut methods: Vec<_> = lock(&self.stats)
            .iter()
            .map(|(name, stats)| {
                let pending = in_flight.remove(name).unwrap_or_default();
                let (service, method) = name.split_once('/').unwrap_or((name, ""));
                let mut ended: std::collections::HashMap<_, _> =
                    stats.codes.iter().map(|(code, count)| (*code, *count)).collect();
                // A connection that ended is what its client sees as UNAVAILABLE.
                *ended.entry(Code::Unavailable as i32).or_default() += stats.closed;
                ended.insert(Code::Ok as i32, stats.calls - stats.failed() - stats.closed);
                ended.retain(|_, count| *count > 0);
                MethodStats {
                    service: service.to_owned(),
                    method: method.to_owned(),
                    begun: stats.calls + pending,
                    ended: ended.into_iter().collect(),
                    bytes_sent: stats.received,
                    bytes_received: stats.sent,
                    durations: durations(&stats.latency, &bounds),
                    ..MethodStats::default()
                }
            })
            .collect();
        // Methods of which no call has ended.
        methods.extend(in_flight.into_iter().take(limit).map(|(name, begun)| {
            let (service, method) = name.split_once('/').unwrap_or((&name, ""));
            let (service, method) = (service.to_owned(), method.to_owned());
            MethodStats { service, method, begun, ..MethodStats::default() }
        }));
        Sample {
            uptime: now.try_into().ok(),
            methods,
            snapshot: Some(snapshot(connections, now, limit)),
            bounds_nanos: bounds,
        }
    }
}

fn snapshot(mut connections: Vec<Open>, now: Duration, limit: usize) -> SnapshotResponse {
    let all_calls: usize = connections.iter().map(|connection| connection.calls.len()).sum();
    let mut begun: Vec<_> = connections
        .iter()
        .flat_map(|connection| &connection.calls)
        .map(|call| call.begun)
        .collect();
    begun.sort_unstable();
    // The youngest that is sent.
    let last = begun.get(limit.saturating_sub(1)).copied().unwrap_or(Duration::MAX);
    let omitted = connections.len().saturating_sub(limit);
    let open = connections.len();
    // Those with the oldest calls first.
    connections.sort_by_key(|connection| {
        connection.calls.first().map_or(Duration::MAX, |call| call.begun)
    });
    connections.truncate(limit);
    let age = |since: Duration| now.saturating_sub(since).try_into().ok();
    let mut shown = 0;
    let connections: Vec<_> = connections
        .into_iter()
        .map(|connection| {
            let used = connection.calls.len() as u64;
            let calls = connection.calls.iter().filter(|call| call.begun <= last);
            let calls: Vec<_> = calls
                .take(limit - shown)
                .map(|call| CallSample {
                    stream_id: call.stream,
                    service: call.service.clone(),
                    method: call.method.clone(),
                    age: age(call.begun),
                    timeout: call.timeout.and_then(|timeout| timeout.try_into().ok()),
                    waits_for: "the server's answer".to_owned(),
                    ..CallSample::default()
                })
                .collect();
            shown += calls.len();
            ConnectionSample {
                id: connection.id.into(),
                age: age(connection.opened),
                calls,
                calls_in_flight: Some(Fill { used, limit: 0 }),
                ..ConnectionSample::default()
            }
        })
        .collect();
    SnapshotResponse {
        state: "seen from between".to_owned(),
        calls: all_calls as u64,
        all_connections: Some(Fill { used: open as u64, limit: 0 }),
        omitted_connections: omitted as u64,
        omitted_calls: (all_calls - shown) as u64,
        connections,
        ..SnapshotResponse::default()
    }
}

fn bounds() -> Vec<u64> {
    let step = |power: u32| (0..4).map(move |quarter: u64| (4 + quarter) << (power - 2));
    POWERS.flat_map(step).collect()
}

/// How many are within each bound and above the one before.
fn durations(latency: &Histogram<u32>, bounds: &[u64]) -> Vec<u64> {
    let mut counts = vec![0; bounds.len() + 1];
    for value in latency.iter_recorded() {
        let at = bounds.partition_point(|bound| *bound < value.value_iterated_to());
        counts[at] += value.count_since_last_iteration();
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(connection: u32, stream: u32, begun: u64) -> Call {
        Call {
            connection,
            stream,
            service: "a.B".to_owned(),
            method: "C".to_owned(),
            metadata: Vec::new(),
            timeout: None,
            begun: Duration::from_secs(begun),
            client: Default::default(),
            server: Default::default(),
            kept: 0,
        }
    }

    #[test]
    fn the_oldest_calls_are_sent_and_the_others_are_counted() {
        let open = |id, calls: &[u64]| Open {
            id,
            opened: Duration::ZERO,
            calls: calls.iter().map(|begun| call(id, *begun as u32, *begun)).collect(),
        };
        let connections = vec![open(1, &[5, 6, 7]), open(2, &[1, 8]), open(3, &[])];
        let snapshot = snapshot(connections, Duration::from_secs(10), 2);
        assert_eq!(
            (snapshot.calls, snapshot.omitted_calls, snapshot.omitted_connections),
            (5, 3, 1)
        );
        let calls: Vec<_> = snapshot.connections.iter().flat_map(|one| &one.calls).collect();
        assert_eq!(calls.iter().map(|call| call.stream_id).collect::<Vec<_>>(), [1, 5]);
    }

    #[test]
    fn durations_keep_their_order_of_size() {
        let mut latency = Histogram::new(2).unwrap();
        latency.auto(true);
        for nanos in [500, 3_000_000, u64::from(u32::MAX) * 10_000] {
            latency.record(nanos).unwrap();
        }
        let bounds = bounds();
        assert!(bounds.is_sorted());
        let counts = durations(&latency, &bounds);
        assert_eq!((counts[0], counts[bounds.len()]), (1, 1));
        let at = counts[1..].iter().position(|count| *count == 1).unwrap() + 1;
        assert!(bounds[at - 1] < 3_020_000 && bounds[at] >= 3_000_000);
    }
}
