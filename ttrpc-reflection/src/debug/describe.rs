//! From a snapshot to a message that has room in a frame.

use std::{cmp::Reverse, collections::HashMap, process, time::Duration};

use ttrpc::{
    prost::Message,
    prost_types,
    snapshot::{self, CallSnapshot, CallWait, ConnectionSnapshot, ServerSnapshot},
};

use crate::proto::debug::{Call, Connection, Fill, SnapshotRequest, SnapshotResponse, Sort};

/// What is sent where nothing is asked for, and the most that may be.
const CONNECTIONS: usize = 1000;
const MAX_CONNECTIONS: usize = 2000;
const CALLS: usize = 1000;
const MAX_CALLS: usize = 4000;

/// In bytes of the message. A frame has room for 4 MiB.
const MAX_LEN: usize = 2 << 20;

/// What is sent of a name, in bytes: a proxy's calls have names that clients have chosen.
const MAX_NAME_LEN: usize = 256;

/// Returns the part of a snapshot that was asked for.
pub fn describe(snapshot: &ServerSnapshot, request: &SnapshotRequest) -> SnapshotResponse {
    let all = snapshot.connections.iter();
    let connections: Vec<_> =
        all.filter(|connection| connection.id > request.after_connection).collect();
    let known = connections.len();
    let known_calls: usize = connections.iter().map(|connection| connection.calls.len()).sum();
    let connections = sorted(&connections, request.sort());
    let calls = oldest(&connections, limit(request.max_calls, CALLS, MAX_CALLS));
    let max_connections = limit(request.max_connections, CONNECTIONS, MAX_CONNECTIONS);
    let places: HashMap<_, _> =
        connections.iter().enumerate().map(|(place, connection)| (connection.id, place)).collect();
    let mut described: Vec<Option<Box<Connection>>> = connections.iter().map(|_| None).collect();
    let mut len = 0;
    // Calls before the connections that have none of them: they are what one looks for.
    for (connection, call) in calls {
        let call = describe_call(call);
        let place = &mut described[places[&connection.id]];
        let new = place.is_none().then(|| Box::new(describe_connection(connection)));
        len += call.encoded_len() + new.as_ref().map_or(0, |new| new.encoded_len()) + 2 * FRAMING;
        if len > MAX_LEN {
            break;
        }
        if new.is_some() {
            *place = new;
        }
        if let Some(connection) = place {
            connection.calls.push(call);
        }
    }
    let first = connections.iter().zip(&mut described).take(max_connections);
    for (connection, place) in first.filter(|(_, place)| place.is_none()) {
        let connection = describe_connection(connection);
        len += connection.encoded_len() + FRAMING;
        if len > MAX_LEN {
            break;
        }
        *place = Some(Box::new(connection));
    }
    let sent: Vec<_> = described.into_iter().flatten().map(|connection| *connection).collect();
    let sent_calls: usize = sent.iter().map(|connection| connection.calls.len()).sum();
    let open = snapshot.connections.len() + snapshot.hooked_connections;
    SnapshotResponse {
        pid: process::id(),
        calls: snapshot.calls.used as u64,
        max_calls: snapshot.calls.limit as u64,
        state: snapshot.state.to_string(),
        request_bytes: fill(snapshot.request_bytes),
        inbox_bytes: fill(snapshot.inbox_bytes),
        all_connections: fill(snapshot::Fill { used: open, limit: snapshot.max_connections }),
        omitted_connections: (known - sent.len()) as u64,
        omitted_calls: (known_calls - sent_calls) as u64,
        connections: sent,
    }
}

/// What a message in a message takes beside its content, at most.
const FRAMING: usize = 6;

fn limit(asked: u32, default: usize, most: usize) -> usize {
    match asked {
        0 => default,
        asked => most.min(asked as usize),
    }
}

fn sorted<'a>(connections: &[&'a ConnectionSnapshot], sort: Sort) -> Vec<&'a ConnectionSnapshot> {
    let key = |connection: &&ConnectionSnapshot| {
        let queue = &connection.queue;
        let weight = match sort {
            Sort::Age => 0,
            Sort::Calls => connection.calls_in_flight.used as u128,
            Sort::Queue => (queue.bytes.used + queue.long_bytes.used) as u128,
            Sort::Stalled => stalled(connection).as_nanos(),
        };
        (Reverse(weight), connection.id, None)
    };
    order(connections.iter().map(key)).into_iter().map(|index| connections[index]).collect()
}

/// What is largest comes first.
type Key = (Reverse<u128>, u64, Option<u32>);

/// The indices of what has these keys, in their order.
fn order(keys: impl Iterator<Item = Key>) -> Vec<usize> {
    let mut keys: Vec<_> = keys.enumerate().map(|(index, key)| (key, index)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, index)| index).collect()
}

/// How long a connection has made no progress.
fn stalled(connection: &ConnectionSnapshot) -> Duration {
    let stalled = connection.receiver.map(|stall| stall.duration);
    connection.queue.blocked.max(stalled).unwrap_or_default()
}

/// The oldest calls, the oldest first.
fn oldest<'a>(
    connections: &[&'a ConnectionSnapshot],
    most: usize,
) -> Vec<(&'a ConnectionSnapshot, &'a CallSnapshot)> {
    let of = |connection: &&'a ConnectionSnapshot| {
        let connection = *connection;
        connection.calls.iter().map(move |call| (connection, call))
    };
    let calls: Vec<_> = connections.iter().flat_map(of).collect();
    let keys = calls
        .iter()
        .map(|(connection, call)| (Reverse(call.age.as_nanos()), connection.id, call.stream_id));
    order(keys).into_iter().take(most).map(|index| calls[index]).collect()
}

fn describe_connection(connection: &ConnectionSnapshot) -> Connection {
    let queue = &connection.queue;
    let credentials = connection.peer.credentials();
    Connection {
        id: connection.id,
        age: to_proto(connection.age),
        peer_pid: credentials.and_then(|credentials| credentials.pid),
        peer_uid: credentials.map(|credentials| credentials.uid),
        peer: beginning(&connection.peer.to_string()),
        queue_frames: (queue.frames.used + queue.long_frames.used) as u64,
        queue_bytes: (queue.bytes.used + queue.long_bytes.used) as u64,
        max_queue_frames: (queue.frames.limit + queue.long_frames.limit) as u64,
        max_queue_bytes: (queue.bytes.limit + queue.long_bytes.limit) as u64,
        blocked: queue.blocked.and_then(to_proto),
        blocked_total: to_proto(queue.blocked_total),
        waited_total: to_proto(queue.waited_total),
        stalled_by: connection.receiver.map_or(String::new(), |stall| stall.by.to_string()),
        stalled: connection.receiver.and_then(|stall| to_proto(stall.duration)),
        calls_in_flight: fill(connection.calls_in_flight),
        calls: Vec::new(),
    }
}

fn describe_call(call: &CallSnapshot) -> Call {
    Call {
        stream_id: call.stream_id.unwrap_or_default(),
        service: beginning(&call.service),
        method: beginning(&call.method),
        age: to_proto(call.age),
        timeout: call.timeout.and_then(to_proto),
        waits_for: match call.wait {
            CallWait::Handler => "its handler, which runs".to_owned(),
            wait => wait.to_string(),
        },
        inbox_messages: call.inbox_messages as u64,
        inbox_bytes: call.inbox_bytes as u64,
    }
}

fn fill(fill: snapshot::Fill) -> Option<Fill> {
    Some(Fill { used: fill.used as u64, limit: fill.limit as u64 })
}

fn beginning(name: &str) -> String {
    let ends = (0..=name.len().min(MAX_NAME_LEN)).rev();
    let end = ends.into_iter().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name[..end].to_owned()
}

/// Returns `None` for what protobuf's durations cannot hold.
pub fn to_proto(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

/// `None` for what is no duration: the crate's own conversion adds and negates what a client has sent without a check.
pub fn from_proto(duration: prost_types::Duration) -> Option<Duration> {
    let (seconds, nanos) = (duration.seconds.try_into().ok()?, duration.nanos.try_into().ok()?);
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_duration_is_none() {
        let of = |seconds, nanos| from_proto(prost_types::Duration { seconds, nanos });
        assert_eq!(of(1, 5), Some(Duration::new(1, 5)));
        for (seconds, nanos) in [(i64::MIN, i32::MIN), (i64::MIN, 5), (1, -1), (1, i32::MAX)] {
            assert_eq!(of(seconds, nanos), None, "{seconds} {nanos}");
        }
    }
}
