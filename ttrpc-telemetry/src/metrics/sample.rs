//! What is a state and not an event, read from snapshots.

use std::time::Duration;

use metrics::Recorder;
use ttrpc::{
    observer::Side,
    snapshot::{
        ClientSnapshot, ConnectionSnapshot, Fill, QueueSnapshot, ReceiverWait, ServerSnapshot,
        Stall,
    },
};

use super::{Metrics, names, series::gauge};

impl Metrics {
    /// Sets the gauges of a server from a [snapshot](ttrpc::server::ServerHandle::snapshot): to be
    /// called before they are read, or every few seconds. A program with several servers passes one of them.
    ///
    /// | name | labels | |
    /// |---|---|---|
    /// | `ttrpc_server_fill_ratio` | of: `calls`, `request_bytes`, `inbox_bytes`, `connections` | used part of the limit, 0 to 1 |
    /// | `ttrpc_queue_frames`, `ttrpc_queue_bytes` | side | in the send queues of all connections |
    /// | `ttrpc_queue_fill_ratio` | side | of the fullest send queue, 0 to 1; frames longer than 128 KiB are as a queue of their own |
    /// | `ttrpc_connections_stalled` | side, by | connections that are blocked |
    /// | `ttrpc_stall_seconds` | side, by | the longest time for which one is |
    ///
    /// `by` says what blocks: `socket` is a peer that does not read. For a receiver, `send_queue` is a full send queue,
    /// `admission` a limit on calls or bytes, `stream` an inbox that nobody empties.
    ///
    /// ```no_run
    /// # use std::time::Duration; use ttrpc_telemetry::Metrics;
    /// # async fn example(metrics: Metrics, server: ttrpc::server::ServerHandle) {
    /// loop {
    ///     metrics.sample_server(&server.snapshot());
    ///     tokio::time::sleep(Duration::from_secs(10)).await;
    /// }
    /// # }
    /// ```
    pub fn sample_server(&self, server: &ServerSnapshot) {
        // Those at which the hook looks have their place already.
        let used = server.connections.len() + server.hooked_connections;
        let fills = [
            ("calls", server.calls),
            ("request_bytes", server.request_bytes),
            ("inbox_bytes", server.inbox_bytes),
            ("connections", Fill { used, limit: server.max_connections }),
        ];
        self.record(|recorder| {
            for (of, fill) in fills {
                gauge(recorder, names::SERVER_FILL, &[("of", of)]).set(ratio(fill));
            }
        });
        let parts =
            |connection: &ConnectionSnapshot| (connection.queue.clone(), connection.receiver);
        self.sample(Side::Server, server.connections.iter().map(parts));
    }

    /// Sets the gauges with the label `side` from the snapshots of all clients of a program.
    pub fn sample_clients<'a>(&self, clients: impl IntoIterator<Item = &'a ClientSnapshot>) {
        let parts = |client: &ClientSnapshot| (client.queue.clone(), client.receiver);
        self.sample(Side::Client, clients.into_iter().map(parts));
    }

    fn sample(
        &self,
        side: Side,
        connections: impl Iterator<Item = (QueueSnapshot, Option<Stall>)>,
    ) {
        let mut sums = Sums::default();
        for (queue, receiver) in connections {
            sums.add(&queue, receiver);
        }
        // Also describes what is set.
        self.side(side);
        self.record(|recorder| sums.set(recorder, side.name()));
    }
}

/// All connections of a side.
#[derive(Default)]
struct Sums {
    frames: usize,
    bytes: usize,
    fill: f64,
    stalls: [Stalls; 4],
}

/// The connections that are stalled by one cause.
#[derive(Clone, Copy, Default)]
struct Stalls {
    connections: u32,
    longest: Duration,
}

const STALLED_BY: [&str; 4] = ["socket", "send_queue", "admission", "stream"];

impl Sums {
    fn add(&mut self, queue: &QueueSnapshot, receiver: Option<Stall>) {
        let QueueSnapshot { frames, bytes, long_frames, long_bytes, .. } = queue;
        self.frames += frames.used + long_frames.used;
        self.bytes += bytes.used + long_bytes.used;
        let fills = [frames, bytes, long_frames, long_bytes].map(|fill| ratio(*fill));
        self.fill = fills.into_iter().fold(self.fill, f64::max);
        if let Some(blocked) = queue.blocked {
            self.stall("socket", blocked);
        }
        if let Some(Stall { by, duration, .. }) = receiver
            && let Some(by) = stalled_by(by)
        {
            self.stall(by, duration);
        }
    }

    fn stall(&mut self, by: &str, duration: Duration) {
        for (stalls, name) in self.stalls.iter_mut().zip(STALLED_BY) {
            if name == by {
                stalls.connections += 1;
                stalls.longest = stalls.longest.max(duration);
            }
        }
    }

    fn set(&self, recorder: &dyn Recorder, side: &str) {
        let labels = [("side", side)];
        gauge(recorder, names::QUEUE_FRAMES, &labels).set(self.frames as f64);
        gauge(recorder, names::QUEUE_BYTES, &labels).set(self.bytes as f64);
        gauge(recorder, names::QUEUE_FILL, &labels).set(self.fill);
        for (stalls, by) in self.stalls.iter().zip(STALLED_BY) {
            let labels = [("side", side), ("by", by)];
            gauge(recorder, names::STALLED, &labels).set(stalls.connections);
            gauge(recorder, names::STALL, &labels).set(stalls.longest);
        }
    }
}

/// The label for what stalls a receiver.
pub(super) fn stalled_by(by: ReceiverWait) -> Option<&'static str> {
    Some(match by {
        ReceiverWait::SendQueue => "send_queue",
        ReceiverWait::Admission => "admission",
        ReceiverWait::Stream(_) => "stream",
        _ => return None,
    })
}

/// Used part of a limit. A frame longer than a limit is admitted alone, so it may be more than 1.
fn ratio(fill: Fill) -> f64 {
    fill.used as f64 / fill.limit.max(1) as f64
}
