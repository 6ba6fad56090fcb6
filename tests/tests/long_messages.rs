//! What calls with long messages allocate. The process keeps long buffers for all its threads, so what is counted here is
//! counted in a process of its own, by one test after the other, and with a clock that stands.

use std::{sync::Arc, time::Duration};

use allocation_counter::measure;
use tokio::{
    io::duplex,
    runtime::{Builder, Runtime},
    time::advance,
};
use ttrpc::{
    Client, ClientConfig, Raw, Server,
    server::{Routes, Service},
};
use ttrpc_tests::harness::PIPE_LEN;

const LEN: usize = 1 << 20;

struct Echo;

impl Service for Echo {
    fn into_routes(self) -> Routes {
        let echo = Arc::new(self);
        Routes::new("Echo")
            .unary("Raw", &echo, |_, _, request: Raw| Box::pin(async { Ok(request) }))
            .unary("Decoded", &echo, |_, _, request: Vec<u8>| Box::pin(async { Ok(request) }))
    }
}

fn connection() -> (Runtime, Client) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let client = runtime.block_on(async {
        let (here, there) = duplex(PIPE_LEN);
        tokio::spawn(Server::builder().add_service(Echo).io(there).serve());
        Client::from_io(here, ClientConfig::default())
    });
    (runtime, client)
}

async fn echo_raw(client: &Client, len: usize) {
    let reply: Raw = client.unary("Echo", "Raw", Raw::from(vec![7; len])).await.unwrap();
    assert_eq!(reply.0.len(), len);
}

async fn echo_decoded(client: &Client, len: usize) {
    let reply: Vec<u8> = client.unary("Echo", "Decoded", vec![7; len]).await.unwrap();
    assert_eq!(reply.len(), len);
}

/// One after the other: they share the process's buffers.
#[test]
fn long_messages() {
    raw_messages_are_copied_once_less_on_each_side_than_decoded_ones();
    calls_with_long_messages_allocate_no_buffers();
    buffers_that_nobody_has_used_for_a_while_are_given_up();
}

fn raw_messages_are_copied_once_less_on_each_side_than_decoded_ones() {
    let (runtime, client) = connection();
    let raw = || runtime.block_on(echo_raw(&client, LEN));
    let decoded = || runtime.block_on(echo_decoded(&client, LEN));
    raw();
    decoded();
    let (raw, decoded) = (measure(raw).bytes_total, measure(decoded).bytes_total);
    // The encoded message is a few bytes longer than its only field, and a call's future as large as its types.
    assert!(raw + 2 * LEN as u64 <= decoded + 100, "{raw} bytes raw, {decoded} decoded");
}

/// The buffers of their frames are those of the call before; the fields are allocated.
fn calls_with_long_messages_allocate_no_buffers() {
    let (runtime, client) = connection();
    let call = || runtime.block_on(echo_decoded(&client, LEN));
    call();
    let allocated = measure(call).bytes_total as usize;
    // The request's payload is the caller's; a field each for the server and the client.
    assert!((3 * LEN..4 * LEN).contains(&allocated), "{allocated} bytes are allocated");
}

fn buffers_that_nobody_has_used_for_a_while_are_given_up() {
    let (runtime, client) = connection();
    runtime.block_on(echo_decoded(&client, LEN));
    let kept = |pause| {
        let calls = measure(|| {
            runtime.block_on(async {
                advance(pause).await;
                echo_decoded(&client, 1).await;
            });
        });
        calls.bytes_current
    };
    let soon = kept(Duration::from_millis(900));
    assert!(soon.unsigned_abs() < LEN as u64 / 2, "{soon} bytes changed hands too soon");
    // Of each kind at least one.
    let late = kept(Duration::from_millis(100));
    assert!(late < -2 * LEN as i64, "{late} bytes are given up");
}
