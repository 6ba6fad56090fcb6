//! The names of all series, with their units and descriptions.

use metrics::{KeyName, Recorder, Unit};

pub(super) const CALLS_BEGUN: &str = "ttrpc_calls_begun_total";
pub(super) const CALLS_ENDED: &str = "ttrpc_calls_ended_total";
pub(super) const CALLS_REPEATED: &str = "ttrpc_calls_repeated_total";
pub(super) const CALLS_IN_FLIGHT: &str = "ttrpc_calls_in_flight";
pub(super) const CALL_DURATION: &str = "ttrpc_call_duration_seconds";
pub(super) const WAITED_FOR_ADMISSION: &str = "ttrpc_call_waited_for_admission_seconds";
pub(super) const WAITED_FOR_CAPACITY: &str = "ttrpc_call_waited_for_capacity_seconds";
pub(super) const MESSAGES_SENT: &str = "ttrpc_messages_sent_total";
pub(super) const MESSAGES_RECEIVED: &str = "ttrpc_messages_received_total";
pub(super) const BYTES_SENT: &str = "ttrpc_bytes_sent_total";
pub(super) const BYTES_RECEIVED: &str = "ttrpc_bytes_received_total";
pub(super) const CONNECTIONS_OPENED: &str = "ttrpc_connections_opened_total";
pub(super) const CONNECTIONS_CLOSED: &str = "ttrpc_connections_closed_total";
pub(super) const CONNECTIONS_REFUSED: &str = "ttrpc_connections_refused_total";
pub(super) const CONNECTIONS_OPEN: &str = "ttrpc_connections_open";
pub(super) const CONNECTION_DURATION: &str = "ttrpc_connection_duration_seconds";
pub(super) const STALLED_RECEIVER: &str = "ttrpc_receiver_stalled_seconds";
pub(super) const PROTOCOL_VIOLATIONS: &str = "ttrpc_protocol_violations_total";
pub(super) const QUEUE_FRAMES: &str = "ttrpc_queue_frames";
pub(super) const QUEUE_BYTES: &str = "ttrpc_queue_bytes";
pub(super) const QUEUE_FILL: &str = "ttrpc_queue_fill_ratio";
pub(super) const SERVER_FILL: &str = "ttrpc_server_fill_ratio";
pub(super) const STALLED: &str = "ttrpc_connections_stalled";
pub(super) const STALL: &str = "ttrpc_stall_seconds";

const COUNTERS: [(&str, Unit, &str); 11] = [
    (CALLS_BEGUN, Unit::Count, "Calls that have begun."),
    (CALLS_ENDED, Unit::Count, "Calls that have ended, by status code and cause."),
    (CALLS_REPEATED, Unit::Count, "Attempts after the first one of calls that have ended."),
    (MESSAGES_SENT, Unit::Count, "Messages sent by calls that have ended."),
    (MESSAGES_RECEIVED, Unit::Count, "Messages received by calls that have ended."),
    (BYTES_SENT, Unit::Bytes, "Bytes sent by calls that have ended, without frame headers."),
    (
        BYTES_RECEIVED,
        Unit::Bytes,
        "Bytes received by calls that have ended, without frame headers.",
    ),
    (CONNECTIONS_OPENED, Unit::Count, "Connections that were opened."),
    (CONNECTIONS_CLOSED, Unit::Count, "Connections that have ended, by cause."),
    (CONNECTIONS_REFUSED, Unit::Count, "Connections that were refused."),
    (PROTOCOL_VIOLATIONS, Unit::Count, "Frames of peers that the protocol does not allow."),
];

const GAUGES: [(&str, Unit, &str); 8] = [
    (CALLS_IN_FLIGHT, Unit::Count, "Calls that have begun and not ended."),
    (CONNECTIONS_OPEN, Unit::Count, "Connections that are open."),
    (QUEUE_FRAMES, Unit::Count, "Frames in the send queues of all sampled connections."),
    (QUEUE_BYTES, Unit::Bytes, "Bytes in the send queues of all sampled connections."),
    (
        QUEUE_FILL,
        Unit::Percent,
        "Fill of the fullest send queue, from 0 to 1; frames longer than 128 KiB count apart.",
    ),
    (SERVER_FILL, Unit::Percent, "Fill of a server's limits, from 0 to 1."),
    (STALLED, Unit::Count, "Connections that are stalled, by the cause."),
    (STALL, Unit::Seconds, "The longest time for which a connection has been stalled."),
];

const HISTOGRAMS: [(&str, Unit, &str); 5] = [
    (CALL_DURATION, Unit::Seconds, "Time from a call's begin to its end."),
    (WAITED_FOR_ADMISSION, Unit::Seconds, "Time that a call has waited to be admitted."),
    (
        WAITED_FOR_CAPACITY,
        Unit::Seconds,
        "Time that a call has waited for capacity of the send queue.",
    ),
    (CONNECTION_DURATION, Unit::Seconds, "Time for which a connection was open."),
    (
        STALLED_RECEIVER,
        Unit::Seconds,
        "Time for which a connection's receiver was stalled, once for each stall.",
    ),
];

/// Tells a recorder what the series are.
pub(super) fn describe(recorder: &dyn Recorder) {
    for (name, unit, text) in COUNTERS {
        recorder.describe_counter(KeyName::from(name), Some(unit), text.into());
    }
    for (name, unit, text) in GAUGES {
        recorder.describe_gauge(KeyName::from(name), Some(unit), text.into());
    }
    for (name, unit, text) in HISTOGRAMS {
        recorder.describe_histogram(KeyName::from(name), Some(unit), text.into());
    }
}
