//! A client's streams whose consumers do not take their messages: while they move nothing is lost;
//! when they stand still for `stall_timeout` their stream fails, and every other call goes on.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use ttrpc::{ClientConfig, Code, ServerConfig};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame},
};

const STALL: Duration = Duration::from_secs(1);

/// How exactly a stall is timed.
const BIT: Duration = Duration::from_millis(20);

/// Gives the client's stream `count` messages from the played server.
async fn feed(peer: &mut Played, id: u32, sequences: std::ops::Range<u64>) {
    for sequence in sequences {
        peer.send(Frame::message(id, &chunk(sequence))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_clients_stream_that_is_not_read_fails_and_calls_beside_it_go_on() {
    let config = ClientConfig::default().stream_inbox_messages(4);
    let (client, conformance, mut peer) = played_server(config);
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let stream_id = peer.receive().await.id;
    let start = Instant::now();
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let echo_frame = peer.receive().await;
    feed(&mut peer, stream_id, 0..5).await;
    peer.send(Frame::reply(echo_frame.id, &EchoResponse::default())).await;
    echo.await.unwrap().expect("the call behind it is answered");
    assert!((STALL..STALL + BIT).contains(&start.elapsed()));
    let error = replies.recv().await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert_eq!(client.calls_in_flight(), 0);
    feed(&mut peer, stream_id, 5..100).await;
    peer.send(Frame::new(stream_id, DATA, 5, [])).await;
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    answer_echo(&mut peer).await;
    echo.await.unwrap().expect("late frames of the failed stream are dropped");
}

/// Else its handler would wait for the rest of the requests for ever.
#[tokio::test(start_paused = true)]
async fn a_stream_that_failed_since_it_was_not_read_still_closes_its_side() {
    let config = ClientConfig::default().stream_inbox_messages(1);
    let (client, conformance, mut peer) = played_server(config);
    let (requests, mut replies) = conformance.exchange().await.unwrap();
    let stream_id = peer.receive().await.id;
    feed(&mut peer, stream_id, 0..2).await;
    sleep(STALL + BIT).await;
    let error = replies.recv().await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    drop(requests);
    assert_eq!(peer.receive().await, Frame::end(stream_id));
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_messages_came_after_anothers_stall_is_given_its_own_time() {
    let config = ClientConfig::default().stream_inbox_messages(1);
    let (_client, conformance, mut peer) = played_server(config);
    let mut unread = conformance.generate(GenerateRequest::default()).await.unwrap();
    let unread_id = peer.receive().await.id;
    feed(&mut peer, unread_id, 0..2).await;
    sleep(STALL + BIT).await;
    assert_eq!(unread.recv().await.unwrap_err().code(), Code::ResourceExhausted);
    let mut read = conformance.generate(GenerateRequest::default()).await.unwrap();
    let read_id = peer.receive().await.id;
    feed(&mut peer, read_id, 0..2).await;
    sleep(STALL / 2).await;
    for sequence in 0..2 {
        assert_eq!(read.recv().await.unwrap().unwrap().sequence, sequence);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clients_streams_that_stand_still_hold_up_the_connection_once_not_once_each() {
    let config = ClientConfig::default().stream_inbox_messages(4);
    let (_client, conformance, mut peer) = played_server(config);
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(conformance.generate(GenerateRequest::default()).await.unwrap());
        let id = peer.receive().await.id;
        feed(&mut peer, id, 0..4).await;
    }
    let start = Instant::now();
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let echo_frame = peer.receive().await;
    for id in [1, 3, 5, 7] {
        feed(&mut peer, id, 4..5).await;
    }
    peer.send(Frame::reply(echo_frame.id, &EchoResponse::default())).await;
    echo.await.unwrap().unwrap();
    assert!((STALL..STALL + BIT).contains(&start.elapsed()), "{:?}", start.elapsed());
    for mut stream in streams {
        assert_eq!(stream.recv().await.unwrap_err().code(), Code::ResourceExhausted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_reads_slowly_loses_nothing() {
    let config = ClientConfig::default().stream_inbox_messages(4);
    let (_server, _client, conformance) = connected(config, ServerConfig::default(), 100);
    let request = GenerateRequest { count: 40, ..GenerateRequest::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    for sequence in 0..40 {
        sleep(STALL - BIT).await;
        assert_eq!(replies.recv().await.unwrap().unwrap().sequence, sequence);
    }
    assert_eq!(replies.recv().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_messages_nobody_wants_any_more_holds_up_nobody() {
    let config = ClientConfig::default().stream_inbox_messages(4);
    let (_server, client, conformance) = connected(config, ServerConfig::default(), PIPE_LEN);
    let request = GenerateRequest { count: 1000, ..GenerateRequest::default() };
    let replies = conformance.generate(request).await.unwrap();
    let (requests, other_replies) = conformance.exchange().await.unwrap();
    drop((replies, other_replies));
    let start = Instant::now();
    conformance.echo(echo_request([])).await.unwrap();
    assert!(start.elapsed() < BIT);
    drop(requests);
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn replies_that_nobody_wants_any_more_hold_up_nobody_while_requests_go_on() {
    let config = ClientConfig::default().stream_inbox_messages(4);
    let (_client, conformance, mut peer) = played_server(config);
    let (mut requests, replies) = conformance.exchange().await.unwrap();
    let stream_id = peer.receive().await.id;
    feed(&mut peer, stream_id, 0..2).await;
    settle().await;
    drop(replies);
    let start = Instant::now();
    feed(&mut peer, stream_id, 2..100).await;
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    answer_echo(&mut peer).await;
    echo.await.unwrap().unwrap();
    assert!(start.elapsed() < BIT);
    requests.send(chunk(0)).await.unwrap();
    assert_eq!(peer.receive().await.id, stream_id);
}
