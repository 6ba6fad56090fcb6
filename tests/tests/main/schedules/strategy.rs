//! How schedules are drawn.

use std::{ops::Range, time::Duration};

use proptest::{collection::vec, option, prelude::*};
use ttrpc_tests::schedules::{CallKind, Consumer, Limits, Messages, PlannedCall, Schedule};

/// The most payload of a message that is not long, a little less than a frame of 64 KiB.
const MAX_PAYLOAD: usize = (64 << 10) - 64;

/// Payloads whose frames are long: they count apart in a queue, and wait in a line of their own.
const LONG_PAYLOAD: Range<usize> = 128 << 10..256 << 10;

/// The most payload in sizes of the pipe, in all but a few messages: every byte through a pipe of one
/// byte costs two switches of tasks.
const PIPEFULS: usize = 64;

/// The most connections.
const MAX_CONNECTIONS: usize = 4;

/// The stall timeout of every schedule, in virtual time. Pauses and sleeps lie on both sides of it.
const STALL_TIMEOUT: Duration = Duration::from_millis(1000);

/// Schedules.
pub fn schedules() -> impl Strategy<Value = Schedule> {
    let connections = prop_oneof![3 => Just(1usize), 1 => 2..=MAX_CONNECTIONS];
    (pipe_bytes(), limits(), connections).prop_flat_map(|(pipe_bytes, limits, connections)| {
        // On one connection, its own limits are those of all.
        let limits = if connections == 1 { limits.of_one_connection() } else { limits };
        let calls = vec(planned_call(pipe_bytes), 1..24);
        (any::<bool>(), calls).prop_map(move |(is_intercepted, calls)| Schedule {
            pipe_bytes,
            connections,
            limits,
            is_intercepted,
            calls,
        })
    })
}

/// From one byte, each power of two as often as the next.
fn pipe_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(1usize), 9 => (0u32..=16).prop_flat_map(|power| 1..=1usize << power)]
}

fn limits() -> impl Strategy<Value = Limits> {
    (
        small(64),
        small(16),
        small(128 << 10),
        small(16),
        small(128 << 10),
        small(16),
        small(128 << 10),
        (small(32), small(256 << 10), small(256 << 10)),
    )
        .prop_map(
            |(
                client_calls,
                handlers,
                request_bytes,
                queue_frames,
                queue_bytes,
                inbox_messages,
                inbox_bytes,
                (all_handlers, all_request_bytes, all_inbox_bytes),
            )| Limits {
                client_calls,
                handlers,
                request_bytes,
                all_handlers,
                all_request_bytes,
                all_inbox_bytes,
                queue_frames,
                queue_bytes,
                inbox_messages,
                inbox_bytes,
                stall_timeout: STALL_TIMEOUT,
            },
        )
}

/// From one to `max`, small numbers far more often than large ones.
fn small(max: usize) -> impl Strategy<Value = usize> {
    let powers = max.ilog2();
    prop_oneof![1 => Just(1usize), 4 => (0..=powers).prop_flat_map(|power| 1..=1usize << power)]
}

fn planned_call(pipe_bytes: usize) -> impl Strategy<Value = PlannedCall> {
    let deadline = option::weighted(0.15, millis(1..3000));
    let dropped_after = option::weighted(0.15, millis(0..2000));
    // Most calls begin together: that is when they are in each other's way.
    let at = prop_oneof![3 => Just(Duration::ZERO), 1 => millis(0..1500)];
    let connection = 0..MAX_CONNECTIONS;
    (connection, at, call_kind(pipe_bytes), deadline, dropped_after).prop_map(
        |(connection, at, kind, deadline, dropped_after)| PlannedCall {
            connection,
            at,
            kind,
            deadline,
            dropped_after,
        },
    )
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn call_kind(pipe_bytes: usize) -> impl Strategy<Value = CallKind> {
    let (echo, stream) = (payload_bytes(pipe_bytes), messages(pipe_bytes));
    prop_oneof![
        6 => (echo.clone(), echo).prop_map(|(request, reply)| CallKind::Echo { request, reply }),
        1 => millis(0..2500).prop_map(CallKind::Sleep),
        3 => (0u8..3).prop_map(CallKind::Wait),
        2 => (0u8..3).prop_map(CallKind::Release),
        3 => (stream.clone(), consumer()).prop_map(|(m, c)| CallKind::Generate(m, c)),
        2 => stream.clone().prop_map(CallKind::Collect),
        3 => (stream.clone(), consumer()).prop_map(|(m, c)| CallKind::Exchange(m, c)),
        1 => stream.prop_map(CallKind::Hold),
    ]
}

fn payload_bytes(pipe_bytes: usize) -> impl Strategy<Value = usize> + Clone {
    let max = MAX_PAYLOAD.min(pipe_bytes * PIPEFULS);
    let long = LONG_PAYLOAD.start..=LONG_PAYLOAD.end.min(pipe_bytes * PIPEFULS);
    prop_oneof![
        200 => 0..=max,
        100 => 0..=16usize.min(max),
        100 => if long.is_empty() { 0..=max } else { long },
        1 => 0..=MAX_PAYLOAD.min(pipe_bytes * PIPEFULS * 16),
    ]
}

fn messages(pipe_bytes: usize) -> impl Strategy<Value = Messages> + Clone {
    let many = (0u64..40, 0..=64usize.min(pipe_bytes * PIPEFULS));
    let few = (0u64..8, payload_bytes(pipe_bytes));
    let pair = prop_oneof![many.boxed(), few.boxed()];
    pair.prop_map(|(count, size)| Messages { count, size })
}

fn consumer() -> impl Strategy<Value = Consumer> {
    prop_oneof![
        3 => Just(Consumer::Eager),
        1 => millis(1..1500).prop_map(Consumer::Slow),
        1 => Just(Consumer::Last),
    ]
}
