//! What calls allocate, client and server together: a figure that does not depend on the machine.

use allocation_counter::measure;
use tokio::runtime::{Builder, Runtime};
use ttrpc::Client;
use ttrpc_tests::{conformance::*, harness::*};

const TIMES: u64 = 1000;

/// A connection, and the runtime with one thread that both its sides run on.
struct Connection {
    runtime: Runtime,
    conformance: ConformanceClient,
    _client: Client,
    _server: TestServer,
}

fn connection() -> Connection {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let (_server, _client, conformance) = runtime.block_on(async { connected_by_default() });
    Connection { runtime, conformance, _client, _server }
}

async fn echo(conformance: &ConformanceClient) {
    let reply = conformance.echo(echo_request([7; 64])).await.unwrap();
    assert_eq!(reply.payload.len(), 64);
}

/// The request's payload is the caller's. The client allocates the call, the reply and the field
/// that it is decoded into; the server the field, the call, its future, the task in which that begins, and
/// what async_trait boxes; the handler of this test two more.
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
    assert!(per_call <= 10.0, "{per_call} allocations per call");
    assert!(per_call >= 4.0, "{per_call}: they are not counted");
}

/// Calls that come together begin in one task, and share buffers.
#[test]
fn unary_calls_at_the_same_time_allocate_less() {
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
    assert!(per_call <= 8.0, "{per_call} allocations per call");
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

/// Nothing grows: what many calls have allocated is given back when they are over.
#[test]
fn calls_that_are_over_keep_nothing() {
    let Connection { runtime, conformance, .. } = &connection();
    let calls = || {
        runtime.block_on(async {
            for _ in 0..TIMES {
                echo(conformance).await;
            }
        })
    };
    calls();
    let kept = measure(calls).bytes_current;
    assert!(kept.abs() < 4096, "{kept} bytes are kept");
}
