//! Metrics of connections and calls, through the facade crate [`metrics`].
//!
//! [`Metrics`] is an [`Observer`]: it counts each call once when it begins and once when it ends, including refused,
//! dropped and aborted ones. So `begun` minus `ended` is the number in flight.
//!
//! | name | kind | labels |
//! |---|---|---|
//! | `ttrpc_calls_begun_total` | counter | side, service, method |
//! | `ttrpc_calls_ended_total` | counter | side, service, method, code, cause |
//! | `ttrpc_calls_repeated_total` | counter of the attempts after the first one of calls that a client has made again | side, service, method |
//! | `ttrpc_calls_in_flight` | gauge | side, service, method |
//! | `ttrpc_call_duration_seconds` | histogram | side, service, method |
//! | `ttrpc_call_waited_for_admission_seconds` | histogram of the calls that have waited to be admitted | side, service, method |
//! | `ttrpc_call_waited_for_capacity_seconds` | histogram of the calls that have waited for capacity in the send queue | side, service, method |
//! | `ttrpc_messages_sent_total`, `ttrpc_messages_received_total` | counter | side, service, method |
//! | `ttrpc_bytes_sent_total`, `ttrpc_bytes_received_total` | counter, bytes of frames without their headers | side, service, method |
//! | `ttrpc_connections_opened_total` | counter | side |
//! | `ttrpc_connections_closed_total` | counter | side, cause |
//! | `ttrpc_connections_refused_total` | counter | side |
//! | `ttrpc_connections_open` | gauge | side |
//! | `ttrpc_connection_duration_seconds` | histogram | side |
//! | `ttrpc_receiver_stalled_seconds` | histogram of the times for which a connection was not read: its `_count` counts stalls | side, by |
//! | `ttrpc_protocol_violations_total` | counter of the peers' frames that the protocol does not allow | side |
//!
//! `side` is `client` or `server`, `code` a status code such as `DEADLINE_EXCEEDED`, and `cause` the name of an
//! [`EndCause`](ttrpc::observer::EndCause) or a
//! [`ConnectionEndCause`](ttrpc::observer::ConnectionEndCause). Messages and bytes of a call are added when it
//! ends.
//!
//! `by` says what blocked the receiver: `send_queue` is a full send queue, `admission` a limit on calls or bytes, `stream` an
//! inbox that nobody empties.
//!
//! How full queues are, and what stands still now, is not an event but a state: [`Metrics::sample_server`] and
//! [`Metrics::sample_clients`] read it from snapshots.
//!
//! # Labels that a peer cannot fill
//!
//! Methods that a server does not have are labelled [`OTHER`]; so are those beyond the first [`MAX_METHODS`] of a side,
//! since a client may take its names from elsewhere.

mod names;
mod sample;
mod series;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use metrics::{Recorder, with_recorder};
use ttrpc::{
    observer::{CallEnd, CallInfo, ConnectionEnd, ConnectionInfo, Observer, Side},
    snapshot::Stall,
};

use sample::stalled_by;
use series::{SideSeries, counter, histogram};

/// The label of services and methods that have none of their own.
pub const OTHER: &str = "_OTHER";

/// So many methods have labels of their own, on each side. Each costs some 2 KiB in a recorder.
pub const MAX_METHODS: usize = 1000;

/// Counts connections and calls; see [the module](self) for what it counts.
///
/// Clones count into the same series.
///
/// ```
/// use ttrpc_telemetry::Metrics;
///
/// let metrics = Metrics::new();
/// let server = ttrpc::Server::builder().observe(metrics.clone());
/// let client = ttrpc::client::ConnectOptions::new().observe(metrics);
/// # drop((server, client));
/// ```
///
/// # Cost
///
/// A series is looked up in the recorder when it is first used, and kept. So the recorder has to be
/// installed before the first connection, and must not throw series away that have been idle.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    recorder: Option<Box<dyn Recorder + Send + Sync>>,
    client: OnceLock<SideSeries>,
    server: OnceLock<SideSeries>,
}

impl Metrics {
    /// Counts with the global recorder, as it is when a series is first used.
    pub fn new() -> Self {
        Metrics::from_recorder(None)
    }

    /// Counts with a recorder of its own.
    pub fn with_recorder(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Metrics::from_recorder(Some(Box::new(recorder)))
    }

    fn from_recorder(recorder: Option<Box<dyn Recorder + Send + Sync>>) -> Self {
        let (client, server) = (OnceLock::new(), OnceLock::new());
        Metrics { shared: Arc::new(Shared { recorder, client, server }) }
    }

    fn record<R>(&self, record: impl FnOnce(&dyn Recorder) -> R) -> R {
        match &self.shared.recorder {
            Some(recorder) => record(recorder),
            None => with_recorder(record),
        }
    }

    fn side(&self, side: Side) -> &SideSeries {
        let series = match side {
            Side::Client => &self.shared.client,
            Side::Server => &self.shared.server,
        };
        series.get_or_init(|| {
            self.record(|recorder| {
                names::describe(recorder);
                SideSeries::new(recorder, side)
            })
        })
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Observer for Metrics {
    fn connection_opened(&self, connection: &ConnectionInfo<'_>) {
        let series = self.side(connection.side);
        series.connections_opened.increment(1);
        series.connections_open.increment(1.0);
    }

    fn connection_closed(&self, connection: &ConnectionInfo<'_>, end: &ConnectionEnd<'_>) {
        let series = self.side(connection.side);
        let labels = [("side", connection.side.name()), ("cause", end.cause.name())];
        self.record(|recorder| counter(recorder, names::CONNECTIONS_CLOSED, &labels).increment(1));
        series.connections_open.decrement(1.0);
        series.connection_duration.record(end.duration);
    }

    fn connection_refused(&self, connection: &ConnectionInfo<'_>, _reason: &str) {
        self.side(connection.side).connections_refused.increment(1);
    }

    fn protocol_violation(&self, connection: &ConnectionInfo<'_>, _rule: &str) {
        self.side(connection.side).protocol_violations.increment(1);
    }

    fn receiver_stalled(&self, connection: &ConnectionInfo<'_>, stall: &Stall) {
        let Some(by) = stalled_by(stall.by) else { return };
        // Also describes what is recorded.
        self.side(connection.side);
        let labels = [("side", connection.side.name()), ("by", by)];
        self.record(|recorder| {
            histogram(recorder, names::STALLED_RECEIVER, &labels).record(stall.duration);
        });
    }

    fn call_begun(&self, call: &CallInfo<'_>) {
        let series = self.method(call);
        series.begun.increment(1);
        series.in_flight.increment(1.0);
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        let series = self.method(call);
        series.in_flight.decrement(1.0);
        series.duration.record(end.duration());
        if end.attempts > 1 {
            self.repeated(&series).increment(u64::from(end.attempts - 1));
        }
        if !end.waited_for_admission.is_zero() {
            series.waited_for_admission.record(end.waited_for_admission);
        }
        if !end.waited_for_capacity.is_zero() {
            series.waited_for_capacity.record(end.waited_for_capacity);
        }
        series.messages_sent.increment(end.traffic.messages_sent);
        series.messages_received.increment(end.traffic.messages_received);
        series.bytes_sent.increment(end.traffic.bytes_sent);
        series.bytes_received.increment(end.traffic.bytes_received);
        // The last: who has counted as many ends as begins finds all of the rest.
        self.ended(&series, end).increment(1);
    }
}
