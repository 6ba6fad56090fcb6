//! What calls allocate, and what peers can have kept: counts that no machine and no load can change.
//!
//! Both sides run on one thread, with a pipe in memory between them and with a clock that stands. So
//! each run polls the same tasks in the same order. How much calls allocate on several threads and on
//! the clock of the machine is statistical: `bench/` measures it.

mod interception;

use std::time::Duration;

use allocation_counter::measure;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use ttrpc::{Client, Code};
use ttrpc_tests::{conformance::*, harness::*};

const TIMES: u64 = 1000;

/// A time that is over as soon as nothing else is left to do.
const MOMENT: Duration = Duration::from_millis(10);

/// A connection, and the runtime with one thread that both its sides run on.
struct Connection {
    runtime: Runtime,
    conformance: ConformanceClient,
    _client: Client,
    _server: TestServer,
}

fn connection() -> Connection {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (_server, _client, conformance) = runtime.block_on(async { connected_by_default() });
    Connection { runtime, conformance, _client, _server }
}

async fn echo(conformance: &ConformanceClient) {
    let reply = conformance.echo(echo_request([7; 64])).await.unwrap();
    assert_eq!(reply.payload.len(), 64);
}

/// The request's payload is the caller's. The client allocates the call, the reply and the field
/// that it is decoded into; the server the field, the call, its task, and what async_trait boxes.
#[test]
fn a_unary_call_allocates_little() {
    let Connection { runtime, conformance, .. } = &connection();
    let calls = |count| {
        runtime.block_on(async {
            for _ in 0..count {
                echo(conformance).await;
            }
        })
    };
    calls(100);
    let allocations = measure(|| calls(TIMES)).count_total;
    let per_call = allocations as f64 / TIMES as f64;
    assert!(per_call <= 7.5, "{per_call} allocations per call");
    assert!(per_call >= 4.0, "{per_call}: they are not counted");
}

/// Calls that come together share buffers.
#[test]
fn unary_calls_at_the_same_time_allocate_as_little() {
    const CALLERS: u64 = 64;
    let Connection { runtime, conformance, .. } = &connection();
    let calls = |count| {
        runtime.block_on(async {
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    let conformance = conformance.clone();
                    tokio::spawn(async move {
                        for _ in 0..count {
                            echo(&conformance).await;
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.await.unwrap();
            }
        })
    };
    calls(100);
    let allocations = measure(|| calls(TIMES)).count_total;
    let per_call = allocations as f64 / (TIMES * CALLERS) as f64;
    println!("{per_call} allocations per call, {CALLERS} at the same time");
    assert!(per_call <= 7.5, "{per_call} allocations per call");
    assert!(per_call >= 4.0, "{per_call}: they are not counted");
}

#[test]
fn a_message_of_a_stream_allocates_no_more_than_its_fields() {
    let Connection { runtime, conformance, .. } = &connection();
    let messages = |count| {
        runtime.block_on(async {
            let request = GenerateRequest { count, size: 64, ..GenerateRequest::default() };
            let mut replies = conformance.generate(request).await.unwrap();
            let mut received = 0;
            while replies.recv().await.unwrap().is_some() {
                received += 1;
            }
            assert_eq!(received, count);
        })
    };
    messages(100);
    let allocations = measure(|| messages(TIMES)).count_total;
    // One on each side is the payload.
    let per_message = allocations as f64 / TIMES as f64;
    assert!((2.0..=2.5).contains(&per_message), "{per_message} allocations per message");
}

/// Makes calls that end in one way, many times. What they have allocated is freed when they are over: an entry that
/// stays in a table is an allocation for each call. Bytes say less: tests on other threads use the same pool of buffers,
/// of which this one may free some, or get others.
fn calls_keep_nothing(call: impl AsyncFn(&ConformanceClient)) {
    let Connection { runtime, conformance, .. } = &connection();
    let calls = |count| {
        runtime.block_on(async {
            for _ in 0..count {
                call(conformance).await;
            }
        })
    };
    // The server remembers the last streams that it has ended before their clients.
    calls(2 * TIMES);
    let kept = measure(|| calls(10 * TIMES)).count_current;
    assert!(kept.unsigned_abs() < TIMES, "{kept} allocations are kept");
}

#[test]
fn calls_that_are_over_keep_nothing() {
    calls_keep_nothing(echo);
}

#[test]
fn calls_that_time_out_keep_nothing() {
    calls_keep_nothing(async |conformance| {
        let call = conformance.wait(key("never")).timeout(MOMENT);
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    });
}

#[test]
fn streams_that_time_out_keep_nothing() {
    calls_keep_nothing(async |conformance| {
        let (mut requests, mut replies) = conformance.exchange().timeout(MOMENT).await.unwrap();
        requests.send(chunk(1)).await.unwrap();
        assert_eq!(replies.recv().await.unwrap(), Some(chunk(1)));
        assert_eq!(replies.recv().await.unwrap_err().code(), Code::DeadlineExceeded);
    });
}

#[test]
fn calls_that_are_dropped_keep_nothing() {
    calls_keep_nothing(async |conformance| {
        let unsent = conformance.echo(echo_request([7; 64])).into_future();
        assert!(timeout(Duration::ZERO, unsent).await.is_err());
        let (mut requests, mut replies) = conformance.exchange().await.unwrap();
        requests.send(chunk(1)).await.unwrap();
        assert_eq!(replies.recv().await.unwrap(), Some(chunk(1)));
    });
}
