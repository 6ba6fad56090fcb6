//! Whoever sends without end into a queue that never fills lets others run, and meets its deadline.
//!
//! The paused clock stands while there is something to do, so a task of its own moves it. It comes to run
//! only when those who send let it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::duplex,
    task::JoinHandle,
    time::{Instant, advance},
};
use ttrpc::{
    ClientConfig, Server, ServerConfig, Status,
    prost::Message,
    server::{Routes, StreamSender},
};
use ttrpc_tests::{
    conformance::*,
    harness::{code::DEADLINE_EXCEEDED, *},
    wire::{DATA, Frame, Peer, REMOTE_CLOSED, RESPONSE, Request},
};

/// Messages after which a handler gives up on its deadline.
const MANY: u64 = 100_000;

/// A task has at least one turn for so many messages.
const TURN: u64 = 5_000;

/// A queue with room for all of them.
const ROOM: (usize, usize) = (2 * MANY as usize, 1 << 30);

const LIMIT: Duration = Duration::from_millis(20);

/// Moves the clock by a millisecond whenever it comes to run.
fn move_clock() -> JoinHandle<()> {
    tokio::spawn(async {
        loop {
            advance(Duration::from_millis(1)).await;
        }
    })
}

#[derive(Default)]
struct Counts {
    /// Messages that the handler has sent.
    sent: AtomicU64,
    /// Milliseconds by the paused clock that all of them took.
    millis: AtomicU64,
}

/// A server of one method, which counts the messages that it sends.
fn sending(counts: &Arc<Counts>) -> Peer<tokio::io::DuplexStream> {
    let routes = Routes::new(SERVICE).server_streaming(
        "Generate",
        counts,
        |counts: &Counts, _ctx, _: GenerateRequest, mut replies: StreamSender<Chunk>| {
            Box::pin(async move {
                let start = Instant::now();
                for sequence in 0..MANY {
                    replies.send(chunk(sequence)).await?;
                    counts.sent.fetch_add(1, SeqCst);
                }
                counts.millis.store(start.elapsed().as_millis() as u64, SeqCst);
                Ok::<(), Status>(())
            })
        },
    );
    let (send_queue_frames, send_queue_bytes) = ROOM;
    let config = ServerConfig { send_queue_frames, send_queue_bytes, ..ServerConfig::default() };
    let (here, there) = duplex(PIPE_LEN);
    tokio::spawn(Server::builder().config(config).add_service(Handmade(routes)).io(there).serve());
    Peer::new(here)
}

/// A call of this method with `LIMIT`.
fn limited_call() -> Frame {
    let mut frame =
        Frame::request(1, REMOTE_CLOSED, SERVICE, "Generate", &GenerateRequest::default());
    let timeout_nano = LIMIT.as_nanos() as i64;
    frame.data = Request { timeout_nano, ..frame.as_request() }.encode_to_vec();
    frame
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_sends_without_end_meets_its_deadline() {
    let counts = Arc::<Counts>::default();
    let mut peer = sending(&counts);
    let moving = move_clock();
    peer.send(limited_call()).await;
    let last = loop {
        let frame = peer.receive().await;
        if (frame.kind, frame.flags) != (DATA, 0) {
            break frame;
        }
    };
    moving.abort();
    let sent = counts.sent.load(SeqCst);
    assert!(sent < MANY, "{sent} messages were sent before anybody looked at the clock");
    assert_eq!((last.kind, last.code()), (RESPONSE, DEADLINE_EXCEEDED));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_sends_without_end_lets_its_neighbours_run() {
    let counts = Arc::<Counts>::default();
    let mut peer = sending(&counts);
    let moving = move_clock();
    peer.send(Frame::request(1, REMOTE_CLOSED, SERVICE, "Generate", &GenerateRequest::default()))
        .await;
    while peer.receive().await != Frame::end(1) {}
    moving.abort();
    let turns = counts.millis.load(SeqCst);
    assert!(turns >= MANY / TURN, "{turns} turns while {MANY} messages were sent");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_sends_without_end_lets_its_neighbours_run() {
    let (send_queue_frames, send_queue_bytes) = ROOM;
    let config = ClientConfig { send_queue_frames, send_queue_bytes, ..ClientConfig::default() };
    let (_client, conformance, mut peer) = played_server(config);
    let (mut requests, _reply) = conformance.collect().await.unwrap();
    peer.receive().await;
    let start = Instant::now();
    let moving = move_clock();
    // A task of its own, since the test's has no budget to keep to.
    let sending = tokio::spawn(async move {
        for sequence in 0..MANY {
            requests.send(chunk(sequence)).await.unwrap();
        }
        Instant::now()
    });
    let turns = (sending.await.unwrap() - start).as_millis();
    moving.abort();
    assert!(turns >= u128::from(MANY / TURN), "{turns} turns while {MANY} messages were sent");
}
