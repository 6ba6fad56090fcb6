//! A server's snapshot for people.

use std::{fmt::Write, time::Duration};

use ttrpc_reflection::proto::debug::{Call, Connection, Fill, SnapshotResponse};

use crate::output;

/// A snapshot, line by line.
pub fn text(snapshot: &SnapshotResponse) -> String {
    let mut text = format!(
        "pid {}, server: {}, {} connections\n  calls {}/{}, request bytes {}, inbox bytes {}",
        snapshot.pid,
        output::plain_line(&snapshot.state),
        fill(snapshot.all_connections),
        snapshot.calls,
        snapshot.max_calls,
        fill(snapshot.request_bytes),
        fill(snapshot.inbox_bytes),
    );
    for connection in &snapshot.connections {
        write_connection(connection, &mut text);
    }
    let (connections, calls) = (snapshot.omitted_connections, snapshot.omitted_calls);
    if connections > 0 || calls > 0 {
        let connections = output::count(connections, "connection");
        let calls = output::count(calls, "call");
        text.push_str(&format!("\n  not shown: {connections} and {calls}"));
    }
    text
}

fn write_connection(connection: &Connection, text: &mut String) {
    let peer = output::plain_line(&connection.peer);
    // Writing to a text does not fail.
    let _ = write!(
        text,
        "\n  connection {} of {peer}: open for {:.1?}, {} calls",
        connection.id,
        time(connection.age),
        fill(connection.calls_in_flight),
    );
    let _ = write!(
        text,
        "\n    send queue {}/{} frames, {}/{} bytes; ",
        connection.queue_frames,
        connection.max_queue_frames,
        connection.queue_bytes,
        connection.max_queue_bytes,
    );
    let _ = match connection.blocked {
        Some(blocked) => write!(text, "socket full for {:.1?}", time(Some(blocked))),
        None => write!(text, "socket not full"),
    };
    let (blocked, waited) = (time(connection.blocked_total), time(connection.waited_total));
    let _ = write!(text, " ({blocked:.1?} in all); calls waited {waited:.1?} in all");
    if !connection.stalled_by.is_empty() {
        let (stalled, by) = (time(connection.stalled), output::plain_line(&connection.stalled_by));
        let _ = write!(text, "\n    the receiver is stalled for {stalled:.1?} by {by}");
    }
    for call in &connection.calls {
        let _ = write!(text, "\n    {}", line_of(call));
    }
}

fn line_of(call: &Call) -> String {
    let name = output::plain_line(format_args!("{}/{}", call.service, call.method));
    let mut line = format!("#{} {name}: {:.1?}", call.stream_id, time(call.age));
    if let Some(timeout) = call.timeout {
        line += &format!(" of {:?}", time(Some(timeout)));
    }
    line += &format!(", waits for {}", output::plain_line(&call.waits_for));
    if call.inbox_messages > 0 {
        line +=
            &format!(", {} messages ({} bytes) not taken", call.inbox_messages, call.inbox_bytes);
    }
    line
}

fn fill(fill: Option<Fill>) -> String {
    let Fill { used, limit } = fill.unwrap_or_default();
    format!("{used}/{limit}")
}

/// No time for what is no duration: the crate's own conversion adds and negates what a peer has sent without a check.
pub fn time(duration: Option<ttrpc::prost_types::Duration>) -> Duration {
    let duration = duration.and_then(|duration| {
        let (seconds, nanos) = (duration.seconds.try_into().ok()?, duration.nanos.try_into().ok()?);
        Some(Duration::new(seconds, nanos)).filter(|_| nanos < 1_000_000_000)
    });
    duration.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_duration_is_no_time() {
        let of = |seconds, nanos| time(Some(ttrpc::prost_types::Duration { seconds, nanos }));
        assert_eq!(of(1, 5), Duration::new(1, 5));
        assert_eq!(of(i64::MAX, 999_999_999), Duration::new(i64::MAX as u64, 999_999_999));
        for (seconds, nanos) in [(i64::MIN, i32::MIN), (i64::MIN, 5), (1, -1), (i64::MAX, i32::MAX)]
        {
            assert_eq!(of(seconds, nanos), Duration::ZERO, "{seconds} {nanos}");
        }
    }
}
