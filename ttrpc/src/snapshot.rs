//! The present state of a client or a server, as a value that prints well.
//!
//! [`Client::snapshot`](crate::Client::snapshot) and [`ServerHandle::snapshot`](crate::server::ServerHandle::snapshot)
//! make one. It says of a process that seems to hang who waits for whom, and since when. Print it on a signal, in a
//! debug endpoint, or when a watchdog fires:
//!
//! ```text
//! server: serving, 1/16384 connections
//!   calls 2/16384, request bytes 174/268435456, inbox bytes 0/268435456
//!   connection 1 of uid 0, pid 4711: open for 12.0s, 2/1024 calls
//!     send queue 4096/4096 frames, 327680/4194304 bytes; socket full for 3.1s (3.1s in all); calls waited 6.0s in all
//!     the receiver is stalled for 3.0s by the full send queue or replies that wait for it
//!     #5 tasks.v1.Tasks/Wait: 11.9s, its handler runs
//!     #7 tasks.v1.Tasks/Logs: 3.2s of 5s, waits for capacity of the send queue
//! ```
//!
//! Making one locks each connection's parts one at a time and briefly: it may be made under load.
//! Since they are not locked together, a call that moves meanwhile may be missing or be shown where it
//! was.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::Instant;

use crate::{
    ClientConfig, ConnectionError, Name,
    client::ClientState,
    transport::{blocked::Blocked, limiter::Load, peer::Peer, queue::Queue, registry::CallInfo},
};

pub use crate::transport::registry::{CallWait, ReceiverWait, Stall};

/// How full something is, and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The part that is used.
    pub used: usize,
    /// The limit from the configuration.
    pub limit: usize,
}

/// A connection's outgoing queue, and the socket that it empties into.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueSnapshot {
    /// Frames of up to 128 KiB that are not yet written. Longer ones count apart.
    pub frames: Fill,
    /// Their bytes.
    pub bytes: Fill,
    /// Frames longer than 128 KiB that are not yet written.
    pub long_frames: Fill,
    /// Their bytes.
    pub long_bytes: Fill,
    /// How long the socket has refused to take more, if it does now: the peer does not read.
    pub blocked: Option<Duration>,
    /// How long it has in all.
    pub blocked_total: Duration,
    /// How long calls have waited to be queued or admitted, in sum.
    pub waited_total: Duration,
}

/// One call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallSnapshot {
    /// The full name of the service.
    pub service: Name,
    /// The method.
    pub method: Name,
    /// `None` while the Request is not written.
    pub stream_id: Option<u32>,
    /// Time since the call began.
    ///
    /// The start of a client's call without a deadline or observer is taken once for all calls that are written
    /// together. It may seem older by the time for which these have waited.
    pub age: Duration,
    /// The time that the call has in all, if it has a deadline.
    pub timeout: Option<Duration>,
    /// The event for which it waits.
    pub wait: CallWait,
    /// Messages that have arrived on its stream and are not taken.
    pub inbox_messages: usize,
    /// Their bytes.
    pub inbox_bytes: usize,
}

/// A client's connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientSnapshot {
    /// The state of the connection, and of the attempts to make one.
    pub state: ClientState,
    /// Why the connection ended, if it has and there will be no other one.
    pub close_reason: Option<ConnectionError>,
    /// The outgoing queue.
    pub queue: QueueSnapshot,
    /// The cause that blocks the receiver; usually none.
    pub receiver: Option<Stall>,
    /// The calls in flight: those with a stream id by their ids, then those without.
    pub calls: Vec<CallSnapshot>,
}

/// Where a server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerState {
    /// Not served yet.
    Idle,
    /// Accepts connections and calls.
    Serving,
    /// Accepts nothing and lets calls finish for this long at most.
    Draining(Duration),
    /// Ended.
    Ended,
}

/// A server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerSnapshot {
    /// Where it is in its life.
    pub state: ServerState,
    /// Calls in flight on all connections. A call is counted until its handler has ended, which may
    /// be later than its answer: then it is not among the calls of its connection any more.
    pub calls: Fill,
    /// Bytes of their Requests.
    pub request_bytes: Fill,
    /// Bytes of stream messages that handlers have not taken.
    pub inbox_bytes: Fill,
    /// The limit on connections.
    pub max_connections: usize,
    /// Those at which the server's [`ConnectionHook`](crate::server::ConnectionHook) looks. They count for the limit,
    /// and are not among the `connections` yet.
    pub hooked_connections: usize,
    /// The connections, oldest first.
    pub connections: Vec<ConnectionSnapshot>,
}

/// One connection of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionSnapshot {
    /// Counts the server's connections, from 1; the same in traces.
    pub id: u64,
    /// The other side, as far as it is known.
    pub peer: Peer,
    /// Time since the connection was accepted.
    pub age: Duration,
    /// Calls in flight. A call is counted until its handler has ended.
    pub calls_in_flight: Fill,
    /// The outgoing queue.
    pub queue: QueueSnapshot,
    /// The cause that blocks the receiver; usually none.
    pub receiver: Option<Stall>,
    /// The calls that are not answered, or whose answer waits to be queued, by their stream ids.
    pub calls: Vec<CallSnapshot>,
}

impl QueueSnapshot {
    /// `waited_total` is the time that calls have waited, in sum.
    pub(crate) fn new<T>(queue: &Queue<T>, waited_total: Duration) -> Self {
        let (short, long, limit, blocked) = queue.fill();
        QueueSnapshot::of(short, long, limit, blocked, waited_total)
    }

    /// Returns the snapshot of the queue that a connection with this configuration would have.
    pub(crate) fn of_no_connection(config: &ClientConfig) -> Self {
        let nothing = Load::default();
        let limit = Load { count: config.send_queue_frames, cost: config.send_queue_bytes };
        QueueSnapshot::of(nothing, nothing, limit, Blocked::default(), Duration::ZERO)
    }

    fn of(short: Load, long: Load, limit: Load, blocked: Blocked, waited_total: Duration) -> Self {
        QueueSnapshot {
            frames: Fill { used: short.count, limit: limit.count },
            bytes: Fill { used: short.cost, limit: limit.cost },
            long_frames: Fill { used: long.count, limit: limit.count },
            long_bytes: Fill { used: long.cost, limit: limit.cost },
            blocked: blocked.now(),
            blocked_total: blocked.total(),
            waited_total,
        }
    }
}

impl ServerSnapshot {
    /// Returns the snapshot of a server that is not there.
    pub(crate) fn of_no_server(state: ServerState) -> Self {
        let nothing = Fill { used: 0, limit: 0 };
        ServerSnapshot {
            state,
            calls: nothing,
            request_bytes: nothing,
            inbox_bytes: nothing,
            max_connections: 0,
            hooked_connections: 0,
            connections: Vec::new(),
        }
    }
}

impl CallSnapshot {
    pub(crate) fn new(call: CallInfo, wait: CallWait, inbox: Load) -> Self {
        CallSnapshot {
            service: call.service,
            method: call.method,
            stream_id: call.stream_id,
            age: call.started.elapsed(),
            timeout: call.deadline.map(|deadline| deadline - call.started),
            wait,
            inbox_messages: inbox.count,
            inbox_bytes: inbox.cost,
        }
    }
}

/// Puts together what the table knows of a connection's calls and who waits inside of the library,
/// which is the more exact of the two.
pub(crate) fn merge_calls(
    calls: impl IntoIterator<Item = CallSnapshot>,
    waiting: impl IntoIterator<Item = (CallInfo, CallWait)>,
) -> Vec<CallSnapshot> {
    let mut sent = BTreeMap::new();
    let mut not_sent = Vec::new();
    for call in calls {
        match call.stream_id {
            Some(id) => drop(sent.insert(id, call)),
            None => not_sent.push(call),
        }
    }
    for (info, wait) in waiting {
        let stream_id = info.stream_id;
        let new = || CallSnapshot::new(info, wait, Load::default());
        match stream_id {
            Some(id) => sent.entry(id).or_insert_with(new).wait = wait,
            None => not_sent.push(new()),
        }
    }
    sent.into_values().chain(not_sent).collect()
}

/// How long until this moment; zero if it has passed.
pub(crate) fn time_until(moment: Instant) -> Duration {
    moment.saturating_duration_since(Instant::now())
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.used, self.limit)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the receiver is stalled for {:.1?} by {}", self.duration, self.by)
    }
}

impl fmt::Display for QueueSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "send queue {} frames, {} bytes; ", self.frames, self.bytes)?;
        if self.long_frames.used > 0 {
            write!(f, "{} long frames, {} bytes; ", self.long_frames, self.long_bytes)?;
        }
        match self.blocked {
            Some(now) => write!(f, "socket full for {now:.1?}")?,
            None => f.write_str("socket not full")?,
        }
        let (blocked, waited) = (self.blocked_total, self.waited_total);
        write!(f, " ({blocked:.1?} in all); calls waited {waited:.1?} in all")
    }
}

impl fmt::Display for CallSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream_id {
            Some(id) => write!(f, "#{id} ")?,
            None => f.write_str("(not sent) ")?,
        }
        write!(f, "{}/{}: {:.1?}", self.service, self.method, self.age)?;
        if let Some(timeout) = self.timeout {
            write!(f, " of {timeout:?}")?;
        }
        match self.wait {
            CallWait::Handler => f.write_str(", its handler runs")?,
            wait => write!(f, ", waits for {wait}")?,
        }
        if self.inbox_messages > 0 {
            write!(f, ", {} messages ({} bytes) not taken", self.inbox_messages, self.inbox_bytes)?;
        }
        Ok(())
    }
}

impl fmt::Display for ClientSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client: {}", self.state)?;
        write!(f, ", {} calls in flight\n  {}", self.calls.len(), self.queue)?;
        fmt_rest(f, "  ", self.receiver, &self.calls)
    }
}

impl fmt::Display for ServerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerState::Idle => f.write_str("not served yet"),
            ServerState::Serving => f.write_str("serving"),
            ServerState::Draining(left) => write!(f, "shutting down, {left:.1?} left"),
            ServerState::Ended => f.write_str("ended"),
        }
    }
}

impl fmt::Display for ServerSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.connections.len() + self.hooked_connections;
        let connections = Fill { used, limit: self.max_connections };
        write!(f, "server: {}, {connections} connections", self.state)?;
        if self.hooked_connections > 0 {
            write!(f, ", {} at the hook", self.hooked_connections)?;
        }
        write!(f, "\n  calls {}", self.calls)?;
        write!(f, ", request bytes {}, inbox bytes {}", self.request_bytes, self.inbox_bytes)?;
        for connection in &self.connections {
            write!(f, "\n  {connection}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ConnectionSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} of {}", self.id, self.peer)?;
        write!(f, ": open for {:.1?}, {} calls", self.age, self.calls_in_flight)?;
        write!(f, "\n    {}", self.queue)?;
        fmt_rest(f, "    ", self.receiver, &self.calls)
    }
}

fn fmt_rest(
    f: &mut fmt::Formatter<'_>,
    indent: &str,
    receiver: Option<Stall>,
    calls: &[CallSnapshot],
) -> fmt::Result {
    if let Some(stall) = receiver {
        write!(f, "\n{indent}{stall}")?;
    }
    for call in calls {
        write!(f, "\n{indent}{call}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_until_a_moment_is_none_behind_it() {
        let second = Duration::from_secs(1);
        assert_eq!(time_until(Instant::now() + second), second);
        assert_eq!(time_until(Instant::now() - second), Duration::ZERO);
    }

    #[test]
    fn a_call_prints_with_the_messages_that_are_not_taken_if_there_are_any() {
        let mut call = CallSnapshot {
            service: "a.B".into(),
            method: "C".into(),
            stream_id: Some(3),
            age: Duration::from_secs(2),
            timeout: Some(Duration::from_secs(5)),
            wait: CallWait::Handler,
            inbox_messages: 0,
            inbox_bytes: 0,
        };
        assert_eq!(call.to_string(), "#3 a.B/C: 2.0s of 5s, its handler runs");
        (call.inbox_messages, call.inbox_bytes) = (1, 10);
        let text = "#3 a.B/C: 2.0s of 5s, its handler runs, 1 messages (10 bytes) not taken";
        assert_eq!(call.to_string(), text);
    }
}
