//! A peer that does not read: what is still done for it, what it costs, and what it finds when it
//! reads again.

use tokio::{io::AsyncWriteExt, time::timeout};
use ttrpc::{ClientConfig, Code, ServerConfig};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Peer, REQUEST},
};

/// More than the pipes of these tests hold.
const LARGE: usize = 100 << 10;

#[tokio::test(start_paused = true)]
async fn a_client_whose_write_is_blocked_still_takes_replies() {
    let (_client, conformance, mut peer) = played_server_over(ClientConfig::default(), 4096);
    let mut answered = Vec::new();
    for _ in 0..10 {
        answered.push(tokio::spawn(conformance.echo(echo_request([])).into_future()));
        assert_eq!(peer.receive().await.kind, REQUEST);
    }
    let blocked = tokio::spawn(conformance.echo(echo_request(vec![0; LARGE])).into_future());
    settle().await;
    for (index, call) in answered.into_iter().enumerate() {
        peer.send(Frame::reply(2 * index as u32 + 1, &EchoResponse::default())).await;
        timeout(PAUSE, call).await.expect("no reply waits for the writer").unwrap().unwrap();
    }
    assert!(!blocked.is_finished());
    answer_echo(&mut peer).await;
    assert_eq!(blocked.await.unwrap().unwrap().payload.len(), LARGE);
}

#[tokio::test(start_paused = true)]
async fn both_sides_send_more_than_the_pipe_holds_at_the_same_time() {
    for pipe_len in [1, 7, 64, 4096] {
        let client_config = ClientConfig::default().send_queue_bytes(100);
        let server_config = ServerConfig::default()
            .send_queue_bytes(100)
            .send_queue_frames(2)
            .max_calls_per_connection(3);
        let (server, _client, conformance) = connected(client_config, server_config, pipe_len);
        let echo = |_| tokio::spawn(conformance.echo(echo_request(vec![1; 2000])).into_future());
        for call in (0..20).map(echo).collect::<Vec<_>>() {
            let reply = call.await.unwrap().expect("nothing is lost");
            assert_eq!(reply.payload.len(), 2000, "over a pipe of {pipe_len} bytes");
        }
        server.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_read_no_more_and_costs_a_bounded_amount() {
    const CALLS: u32 = 4000;
    const PAYLOAD: usize = 1000;
    const QUEUE_BYTES: usize = 20 << 10;
    let config = ServerConfig::default().send_queue_bytes(QUEUE_BYTES).max_calls_per_connection(8);
    let (server, peer) = played_client_over(config, 4096);
    let calls: Vec<u8> = (0..CALLS)
        .flat_map(|index| call(2 * index + 1, "Echo", &echo_request(vec![7; PAYLOAD])).to_bytes())
        .collect();
    let mut io = peer.into_inner();
    let taken = write_until_blocked(&mut io, &calls).await;
    // One read of requests, the calls in flight, the queue, and what is in the pipe both ways.
    let bound = (64 << 10) + 8 * 2 * PAYLOAD + QUEUE_BYTES + 2 * 4096 + (8 << 10);
    assert!(taken < bound, "{taken} bytes were taken, the bound is {bound}");
    assert!(server.handle.calls_in_flight() <= 8);

    // After the pause everything is answered, in spite of the limit on calls, and nothing is lost.
    let (mut reader, mut writer) = tokio::io::split(io);
    let rest = calls[taken..].to_vec();
    let writing = tokio::spawn(async move {
        writer.write_all(&rest).await.expect("the server reads on");
        writer
    });
    let mut answers = vec![false; CALLS as usize];
    for _ in 0..CALLS {
        let (id, data) = read_frame(&mut reader).await;
        let answer = Frame::new(id, 2, 0, data);
        assert_eq!(answer.code(), 0, "call {id} is refused");
        assert!(!std::mem::replace(&mut answers[id as usize / 2], true), "{id} is answered twice");
    }
    writing.await.unwrap();
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn no_handler_is_started_while_replies_wait_for_a_client_that_does_not_read() {
    let config = ServerConfig::default().send_queue_frames(4);
    let (server, peer) = played_client_over(config, 4096);
    let payload = vec![7; 10_000];
    let calls: Vec<u8> = (0..500)
        .flat_map(|index| call(2 * index + 1, "Echo", &echo_request(&payload[..])).to_bytes())
        .collect();
    let mut io = peer.into_inner();
    assert!(write_until_blocked(&mut io, &calls).await < calls.len());
    // What one read brought may be started before the first of them has filled the queue.
    let begun = server.service.calls_total();
    assert!(begun < 4 + 2 * 7, "{begun} handlers were started");
}

#[tokio::test(start_paused = true)]
async fn refusals_wait_for_a_client_that_does_not_read() {
    let config = ServerConfig::default().send_queue_frames(4);
    let (_server, peer) = played_client_over(config, 1024);
    let refused: Vec<u8> =
        (0..5000).flat_map(|_| call(2, "Echo", &echo_request([])).to_bytes()).collect();
    let mut io = peer.into_inner();
    let taken = write_until_blocked(&mut io, &refused).await;
    assert!(taken < (64 << 10) + 4 * 1024, "{taken} bytes were taken");
    let (mut reader, mut writer) = tokio::io::split(io);
    let rest = refused[taken..].to_vec();
    let writing = tokio::spawn(async move {
        writer.write_all(&rest).await.expect("the server reads on");
        writer
    });
    for _ in 0..5000 {
        assert_eq!(read_frame(&mut reader).await.0, 2);
    }
    writing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_it_is_queued_never_reaches_the_wire() {
    let (client, conformance, mut peer) = played_server_over(ClientConfig::default(), 100);
    let blocked = tokio::spawn(conformance.echo(echo_request(vec![0; LARGE])).into_future());
    // Half of these are in the sender's hands, behind the frame that is blocked; when they have come
    // that far, the other half is queued.
    let mut cancelled = Vec::new();
    let mut kept = Vec::new();
    for number in 0..20u8 {
        cancelled.push(tokio::spawn(conformance.echo(echo_request(*b"cancelled")).into_future()));
        kept.push(tokio::spawn(conformance.echo(echo_request([number])).into_future()));
        if number == 9 {
            settle().await;
        }
    }
    assert_eq!(client.calls_in_flight(), 21, "those have been given their ids");
    let upload = conformance.collect().await.unwrap();
    let mut exchange = conformance.exchange().await.unwrap();
    exchange.0.send(chunk(1)).await.unwrap();
    let replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    settle().await;
    cancelled.iter().for_each(|call| call.abort());
    drop((upload, exchange, replies));
    settle().await;
    let first = answer_echo(&mut peer).await;
    assert_eq!(first, 1, "the half-written one is finished");
    let mut last_id = first;
    for number in 0..20u8 {
        let frame = peer.receive().await;
        let request = EchoRequest::decode_from(&frame.as_request().payload);
        assert_eq!(request.payload, [number], "the others are there, in order");
        assert!(frame.id > last_id, "ids rise");
        last_id = frame.id;
        peer.send(Frame::reply(frame.id, &EchoResponse { payload: request.payload })).await;
    }
    assert!(peer.is_quiet().await, "nothing of a cancelled call is on the wire");
    blocked.await.unwrap().unwrap();
    for (number, call) in kept.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap().payload, [number as u8]);
    }
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_half_written_frame_is_finished_though_its_caller_is_gone() {
    for pipe_len in [1, 9, 10, 11, 1000] {
        let (client, conformance, mut peer) = played_server_over(ClientConfig::default(), pipe_len);
        let dropped = tokio::spawn(conformance.echo(echo_request(vec![5; LARGE])).into_future());
        settle().await;
        dropped.abort();
        settle().await;
        assert_eq!(client.calls_in_flight(), 0);
        let frame = peer.receive().await;
        assert_eq!(EchoRequest::decode_from(&frame.as_request().payload).payload, vec![5; LARGE]);
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        assert_eq!(answer_echo(&mut peer).await, frame.id + 2);
        echo.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_that_is_dropped_while_it_waits_for_room_sends_nothing() {
    let config = ClientConfig::default().send_queue_frames(1);
    let (_client, conformance, mut peer) = played_server_over(config, 100);
    let (mut requests, _reply) = conformance.collect().await.unwrap();
    let id = peer.receive().await.id;
    requests.send(Chunk { sequence: 0, payload: vec![0; LARGE] }).await.unwrap();
    assert!(timeout(PAUSE, requests.send(chunk(1))).await.is_err());
    peer.receive().await;
    requests.send(chunk(2)).await.unwrap();
    assert_eq!(peer.receive().await, Frame::message(id, &chunk(2)));
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_room_are_told_when_the_connection_ends() {
    let config = ClientConfig::default().send_queue_frames(1).max_calls(3);
    let (client, conformance, peer) = played_server_over(config, 100);
    let (mut requests, _reply) = conformance.collect().await.unwrap();
    let mut peer: Peer<_> = peer;
    peer.receive().await;
    let calls: Vec<_> = (0..5)
        .map(|_| tokio::spawn(conformance.echo(echo_request(vec![0; LARGE])).into_future()))
        .collect();
    settle().await;
    let (sent, ()) = tokio::join!(requests.send(chunk(0)), async {
        settle().await;
        drop(peer);
    });
    assert_eq!(sent.unwrap_err().code(), Code::Unavailable);
    for call in calls {
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(std::error::Error::source(&status).is_some());
    }
    assert_eq!(client.calls_in_flight(), 0);
}
