//! Calls that are ready begin, whatever the other handlers of their connection do.

use std::{sync::Arc, time::Duration};

use tokio::{net::UnixStream, task::block_in_place};
use ttrpc::{Client, ClientConfig, Server, ServerConfig, server::Routes};
use ttrpc_tests::{conformance::*, gate::Gate, harness::*, wire::*};

const SERVICE: &str = "ready.Test";

/// Handlers that always wait for room to send keep the outgoing queue full at every moment.
#[tokio::test(start_paused = true)]
async fn calls_begin_beside_streams_that_keep_the_outgoing_queue_full() {
    for streams in [1, 2, 16] {
        let config = ServerConfig { send_queue_frames: 1, ..ServerConfig::default() };
        // All Requests have room in the pipe: the server reads none while its queue is full.
        let (_server, mut peer) = played_client_over(config, 4096);
        let endless = GenerateRequest { count: u64::MAX, size: 64, ..GenerateRequest::default() };
        let mut requests = Vec::new();
        for nth in 0..streams {
            let id = 2 * nth + 1;
            let service = "ttrpc.conformance.v1.Conformance";
            let generate = Frame::request(id, REMOTE_CLOSED, service, "Generate", &endless);
            requests.extend(generate.to_bytes());
        }
        let echo = 2 * streams + 1;
        requests.extend(call(echo, "Echo", &echo_request(*b"x")).to_bytes());
        peer.send_bytes(&requests).await;
        let mut frames = 0;
        while peer.receive().await.id != echo {
            frames += 1;
            assert!(frames < 10_000, "{streams} streams, and the call does not begin");
        }
    }
}

/// Opens the gate when a test ends, in whatever way: a runtime waits for its blocked threads.
struct OpenedAtTheEnd(Arc<Gate>);

impl Drop for OpenedAtTheEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A handler that blocks in a way that the runtime knows of holds up nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_begin_beside_any_number_of_handlers_that_block_in_place() {
    const BLOCKED: usize = 40;
    let gate = Arc::new(Gate::default());
    let _opened = OpenedAtTheEnd(gate.clone());
    let routes = Routes::new(SERVICE)
        .unary("Wait", &gate, |gate, _, Empty {}| {
            Box::pin(async {
                block_in_place(|| gate.wait());
                Ok(Empty {})
            })
        })
        .unary("Kill", &gate, |gate, _, Empty {}| {
            Box::pin(async {
                gate.open();
                Ok(Empty {})
            })
        });
    let (here, there) = UnixStream::pair().unwrap();
    let server = Server::builder().add_service(Handmade(routes)).config(patient_server());
    let serving = tokio::spawn(server.unix_stream(there).serve());
    let client = Client::from_unix_stream(here, ClientConfig::default());
    let call = |method: &'static str| {
        let call = client.unary::<Empty, Empty>(SERVICE, method, Empty {});
        tokio::spawn(call)
    };
    let waits: Vec<_> = (0..BLOCKED).map(|_| call("Wait")).collect();
    gate.has_come(BLOCKED).await;
    call("Kill").await.unwrap().unwrap();
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
    serving.abort();
}

/// A handler that takes nothing is told so in time, though another one keeps the queue full: its client
/// reads all the time.
#[tokio::test(start_paused = true)]
async fn a_stream_that_stands_still_fails_beside_one_that_is_read_steadily() {
    let config =
        ServerConfig { send_queue_frames: 1, stream_inbox_messages: 1, ..ServerConfig::default() };
    let (_server, mut peer) = played_client_over(config, 4096);
    let endless = GenerateRequest { count: u64::MAX, size: 64, ..GenerateRequest::default() };
    let service = "ttrpc.conformance.v1.Conformance";
    let generate = Frame::request(1, REMOTE_CLOSED, service, "Generate", &endless);
    let mut frames = [generate.to_bytes(), open_stream(3, "Hold").to_bytes()].concat();
    frames.extend((0..2).flat_map(|nth| Frame::message(3, &chunk(nth)).to_bytes()));
    peer.send_bytes(&frames).await;
    let start = tokio::time::Instant::now();
    while peer.receive().await.id != 3 {
        assert!(start.elapsed() < Duration::from_secs(3), "the receiver is stalled");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
