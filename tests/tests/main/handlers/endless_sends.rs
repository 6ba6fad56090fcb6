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
    ClientConfig, Code, Raw, Server, ServerConfig, Status,
    prost::Message,
    proto::frame::MAX_DATA_LEN,
    server::{Routes, StreamSender},
};
use ttrpc_tests::{
    conformance::*,
    harness::{code::DEADLINE_EXCEEDED, *},
    wire::{DATA, Frame, Peer, REMOTE_CLOSED, RESPONSE, Request},
};

/// Messages after which a handler gives up on its deadline.
const MANY: u64 = 200_000;

/// A turn is shorter than this many messages.
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
    let turns = turns_of(async move {
        for sequence in 0..MANY {
            requests.send(chunk(sequence)).await.unwrap();
        }
    })
    .await;
    assert!(turns >= MANY / TURN, "{turns} turns while {MANY} messages were sent");
}

/// How often the clock's task comes to run meanwhile.
async fn turns_of(sending: impl Future<Output = ()> + Send + 'static) -> u64 {
    let start = Instant::now();
    let moving = move_clock();
    // A task of its own, since the test's has no budget to keep to.
    let sending = tokio::spawn(async {
        sending.await;
        Instant::now()
    });
    let turns = (sending.await.unwrap() - start).as_millis() as u64;
    moving.abort();
    turns
}

fn too_long() -> Raw {
    Raw::from(vec![0; MAX_DATA_LEN + 1])
}

#[tokio::test(start_paused = true)]
async fn a_caller_whose_messages_are_all_refused_lets_its_neighbours_run() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, _reply) =
        client.client_streaming::<Raw, Raw>(SERVICE, "Collect").await.unwrap();
    peer.receive().await;
    let turns = turns_of(async move {
        let message = too_long();
        for _ in 0..MANY {
            let refusal = requests.send(message.clone()).await.unwrap_err();
            assert_eq!(refusal.code(), Code::ResourceExhausted);
        }
    })
    .await;
    assert!(turns >= MANY / TURN, "{turns} turns while {MANY} messages were too long");

    let (mut requests, _reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    peer.receive().await;
    advance(LIMIT).await;
    let turns = turns_of(async move {
        for sequence in 0..MANY {
            let refusal = requests.send(chunk(sequence)).await.unwrap_err();
            assert_eq!(refusal.code(), Code::DeadlineExceeded);
        }
    })
    .await;
    assert!(turns >= MANY / TURN, "{turns} turns while {MANY} messages came too late");
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_messages_are_all_refused_meets_its_deadline() {
    let sent = Arc::<AtomicU64>::default();
    let routes = Routes::new(SERVICE).server_streaming(
        "Generate",
        &sent,
        |sent: &AtomicU64, _ctx, _: GenerateRequest, mut replies: StreamSender<Raw>| {
            Box::pin(async move {
                let message = too_long();
                for _ in 0..MANY {
                    let refusal = replies.send(message.clone()).await.unwrap_err();
                    assert_eq!(refusal.code(), Code::ResourceExhausted);
                    sent.fetch_add(1, SeqCst);
                }
                Ok::<(), Status>(())
            })
        },
    );
    let (here, there) = duplex(PIPE_LEN);
    tokio::spawn(Server::builder().add_service(Handmade(routes)).io(there).serve());
    let mut peer = Peer::new(here);
    let moving = move_clock();
    peer.send(limited_call()).await;
    assert_eq!(peer.receive().await.code(), DEADLINE_EXCEEDED);
    moving.abort();
    let sent = sent.load(SeqCst);
    assert!(sent < MANY, "{sent} messages were refused before anybody looked at the clock");
}
