//! A send that comes after its call's deadline fails, and changes nothing about what arrived in time.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use ttrpc::{ClientConfig, Code};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, REQUEST},
};

const LIMIT: Duration = Duration::from_millis(300);

/// How exactly a deadline is met.
const BIT: Duration = Duration::from_millis(20);

#[tokio::test(start_paused = true)]
async fn a_late_send_leaves_the_reply_that_came_in_time() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    let in_time = CollectResponse { chunks: 7, ..CollectResponse::default() };
    peer.send(Frame::reply(id, &in_time)).await;
    sleep(2 * LIMIT).await;
    requests.send(chunk(0)).await.expect_err("the call is over");
    assert_eq!(reply.await, Ok(in_time));
    drop(requests);
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_send_leaves_the_failure_that_came_in_time() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::failure(id, code::INVALID_ARGUMENT, "no")).await;
    sleep(2 * LIMIT).await;
    requests.send(chunk(0)).await.expect_err("the call is over");
    assert_eq!(reply.await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn a_late_send_leaves_the_replies_and_the_good_end_that_came_in_time() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, mut replies) = conformance.exchange().timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    for sequence in 0..3 {
        peer.send(Frame::message(id, &chunk(sequence))).await;
    }
    peer.send(Frame::end(id)).await;
    settle().await;
    assert_eq!(replies.recv().await, Ok(Some(chunk(0))));
    sleep(2 * LIMIT).await;
    let late = requests.send(chunk(0)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    for sequence in 1..3 {
        assert_eq!(replies.recv().await, Ok(Some(chunk(sequence))));
    }
    assert_eq!(replies.recv().await, Ok(None));
    drop(requests);
    assert!(peer.is_quiet().await, "a call whose deadline has passed sends nothing more");
    assert_eq!(client.calls_in_flight(), 0);
}

/// The deadline passes while the send waits for room, and not before it.
#[tokio::test(start_paused = true)]
async fn a_send_that_waits_past_the_deadline_leaves_the_good_end_that_came_in_time() {
    let config = ClientConfig { send_queue_frames: 1, ..ClientConfig::default() };
    let (_client, conformance, mut peer) = played_server_over(config, 256);
    let start = Instant::now();
    let (mut requests, mut replies) = conformance.exchange().timeout(LIMIT).await.unwrap();
    let request = peer.receive().await;
    assert_eq!(request.kind, REQUEST);
    for frame in [Frame::message(request.id, &chunk(1)), Frame::end(request.id)] {
        peer.send(frame).await;
    }
    // The first fills the pipe and the queue.
    let large = || Chunk { sequence: 0, payload: vec![0; 1000] };
    requests.send(large()).await.unwrap();
    let late = requests.send(large()).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!((LIMIT..LIMIT + BIT).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(replies.recv().await, Ok(Some(chunk(1))));
    assert_eq!(replies.recv().await, Ok(None));
}

/// What has not ended by its deadline still fails, whatever has arrived.
#[tokio::test(start_paused = true)]
async fn a_late_send_leaves_no_stream_open_that_has_not_ended_in_time() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, mut replies) = conformance.exchange().timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::message(id, &chunk(0))).await;
    sleep(2 * LIMIT).await;
    let late = requests.send(chunk(0)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::DeadlineExceeded);
    peer.send(Frame::end(id)).await;
    settle().await;
    assert_eq!(replies.recv().await, Ok(None), "a stream that has failed gives nothing more");
    assert_eq!(client.calls_in_flight(), 0);
}
