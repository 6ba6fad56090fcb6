//! Frames and messages at the limit of 4 MiB and beyond, in both directions.

use tokio::io::AsyncWriteExt;
use ttrpc::{ClientConfig, Code, ServerConfig, Status};
use ttrpc_tests::{
    conformance::*,
    harness::{code::*, *},
    wire::{DATA, Frame, NO_DATA, REMOTE_CLOSED, REQUEST, RESPONSE, header},
};

/// Sends a frame that announces this much data, and that data.
async fn send_oversized(peer: &mut Played, len: usize, id: u32, kind: u8) {
    peer.send_bytes(&header(len as u32, id, kind, 0)).await;
    let block = vec![0xff; 64 << 10];
    let mut left = len;
    while left > 0 {
        let part = left.min(block.len());
        peer.io().write_all(&block[..part]).await.expect("the other side goes on reading");
        left -= part;
    }
}

/// An echo whose Request has exactly this many bytes of data.
fn echo_of_data_len(id: u32, data_len: usize) -> Frame {
    let overhead = call(id, "Echo", &echo_request(vec![0; data_len])).data.len() - data_len;
    let frame = call(id, "Echo", &echo_request(vec![0; data_len - overhead]));
    assert_eq!(frame.data.len(), data_len);
    frame
}

fn code_of<T>(result: Result<T, Status>) -> Code {
    result.map(drop).expect_err("the call fails").code()
}

#[tokio::test(start_paused = true)]
async fn a_request_of_four_mebibytes_is_served() {
    let (_server, mut peer) = played_client_over(ServerConfig::default(), MAX_DATA_LEN);
    let frame = echo_of_data_len(1, MAX_DATA_LEN);
    peer.send(frame).await;
    assert_eq!(peer.receive().await.code(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_longer_request_is_skipped_and_refused_and_the_connection_lives() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let mut id = 1;
    for len in [MAX_DATA_LEN + 1, 16 << 20] {
        send_oversized(&mut peer, len, id, REQUEST).await;
        let refusal = peer.receive().await;
        assert_eq!((refusal.id, refusal.code()), (id, RESOURCE_EXHAUSTED), "for {len} bytes");
        expect_echo(&mut peer, id + 2).await;
        id += 4;
    }
    // The id counts as used.
    peer.send(call(id - 4, "Echo", &echo_request([]))).await;
    assert_eq!(peer.receive().await.code(), INVALID_ARGUMENT);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn oversized_data_ends_the_stream_whose_request_came_with_it() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let mut bytes = open_stream(1, "Collect").to_bytes();
    bytes.extend(header(MAX_DATA_LEN as u32 + 1, 1, DATA, 0));
    peer.send_bytes(&bytes).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (1, RESOURCE_EXHAUSTED));
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_announcement_of_four_gibibytes_costs_nothing_and_is_refused_at_once() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    peer.send_bytes(&header(u32::MAX, 1, REQUEST, 0)).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (1, RESOURCE_EXHAUSTED), "before the data has come");
}

#[tokio::test(start_paused = true)]
async fn oversized_data_ends_its_stream_and_no_other() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(call(1, "Wait", &key("a"))).await;
    peer.send(open_stream(3, "Collect")).await;
    server.has_begun(2).await;
    send_oversized(&mut peer, MAX_DATA_LEN + 1, 3, DATA).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (3, RESOURCE_EXHAUSTED));
    peer.send(Frame::message(3, &chunk(1))).await;
    peer.send(Frame::end(3)).await;
    assert!(peer.is_quiet().await, "what follows on the stream is dropped");
    eventually("only its handler ends", || server.handle.calls_in_flight() == 1).await;
    peer.send(call(5, "Release", &key("a"))).await;
    for _ in 0..2 {
        assert_eq!(peer.receive().await.code(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_frames_that_mean_nothing_are_skipped_in_silence() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    for kind in [0, RESPONSE, 77] {
        send_oversized(&mut peer, MAX_DATA_LEN + 1, 1, kind).await;
    }
    assert!(peer.is_quiet().await);
    expect_echo(&mut peer, 1).await;
    for (id, kind) in [(2, REQUEST), (99, DATA), (0, DATA)] {
        send_oversized(&mut peer, MAX_DATA_LEN + 1, id, kind).await;
        let refusal = peer.receive().await;
        assert_eq!((refusal.id, refusal.kind), (id, RESPONSE));
        assert_ne!(refusal.code(), 0);
    }
    expect_echo(&mut peer, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_four_mebibytes_arrives_and_a_longer_one_fails_its_call() {
    let (_server, _client, conformance) = connected_by_default();
    // The reply's payload is a field of a field: two keys of one byte, two lengths of four.
    let fits = MAX_DATA_LEN - 2 * (1 + 4);
    let request = |len| EchoRequest { payload: Vec::new(), response_size: len as u32 };
    assert_eq!(conformance.echo(request(fits)).await.unwrap().payload.len(), fits);
    assert_eq!(code_of(conformance.echo(request(fits + 1)).await), Code::ResourceExhausted);
    conformance.echo(echo_request([])).await.expect("the connection lives");
    let request = GenerateRequest { count: 1, size: 5 << 20, ..GenerateRequest::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    assert_eq!(code_of(replies.recv().await), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn an_oversized_answer_fails_its_call_and_the_connection_lives() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    for len in [MAX_DATA_LEN + 1, 16 << 20] {
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let id = peer.receive().await.id;
        send_oversized(&mut peer, len, id, RESPONSE).await;
        assert_eq!(code_of(echo.await.unwrap()), Code::ResourceExhausted);
        send_oversized(&mut peer, len, id, RESPONSE).await;
        send_oversized(&mut peer, len, 77, DATA).await;
    }
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let id = peer.receive().await.id;
    send_oversized(&mut peer, MAX_DATA_LEN + 1, id, DATA).await;
    assert_eq!(code_of(replies.recv().await), Code::ResourceExhausted);
    peer.send(Frame::end(id)).await;
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    answer_echo(&mut peer).await;
    echo.await.unwrap().unwrap();
    assert_eq!(client.calls_in_flight(), 0);
    // Nobody waits for the rest of a frame that would never end.
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let id = peer.receive().await.id;
    peer.send_bytes(&header(u32::MAX, id, RESPONSE, 0)).await;
    assert_eq!(code_of(echo.await.unwrap()), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_failed_on_this_side_alone_is_still_closed_towards_the_server() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (requests, mut replies) = conformance.exchange().await.unwrap();
    let id = peer.receive().await.id;
    send_oversized(&mut peer, MAX_DATA_LEN + 1, id, DATA).await;
    assert_eq!(code_of(replies.recv().await), Code::ResourceExhausted);
    drop((requests, replies));
    // The server does not know that the stream has failed: its handler waits for messages.
    assert_eq!(client.calls_in_flight(), 0);
    let end = Frame::new(id, DATA, REMOTE_CLOSED | NO_DATA, []);
    assert_eq!(peer.receive().await, end);
}

#[tokio::test(start_paused = true)]
async fn an_oversized_message_is_refused_before_anything_is_written() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let too_long = || echo_request(vec![0; MAX_DATA_LEN]);
    assert_eq!(code_of(conformance.echo(too_long()).await), Code::ResourceExhausted);
    let metadata = "x".repeat(MAX_DATA_LEN);
    let generate = conformance.generate(GenerateRequest::default()).metadata("k", metadata);
    assert_eq!(code_of(generate.await), Code::ResourceExhausted);
    assert!(peer.is_quiet().await);
    assert_eq!(client.calls_in_flight(), 0);

    let (mut requests, _reply) = conformance.collect().await.unwrap();
    assert_eq!(peer.receive().await.id, 1, "no id was taken");
    let too_long = Chunk { sequence: 0, payload: vec![0; MAX_DATA_LEN] };
    assert_eq!(code_of(requests.send(too_long).await), Code::ResourceExhausted);
    requests.send(chunk(3)).await.expect("the stream goes on");
    assert_eq!(peer.receive().await, Frame::message(1, &chunk(3)));
}

#[tokio::test(start_paused = true)]
async fn a_server_stream_goes_on_after_a_message_that_was_too_long() {
    let routes = ttrpc::server::Routes::new("test.Long").server_streaming(
        "Generate",
        &std::sync::Arc::new(()),
        |_, _ctx, (), mut replies: ttrpc::server::StreamSender<Chunk>| {
            Box::pin(async move {
                let too_long = Chunk { sequence: 0, payload: vec![0; MAX_DATA_LEN] };
                let refused = replies.send(too_long).await.unwrap_err();
                assert_eq!(refused.code(), Code::ResourceExhausted);
                replies.send(chunk(4)).await
            })
        },
    );
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = ttrpc::Server::builder().add_service(Handmade(routes)).io(there);
    let serving = tokio::spawn(server.serve());
    let client = ttrpc::Client::from_io(here, ClientConfig::default());
    let mut replies =
        client.server_streaming::<(), Chunk>("test.Long", "Generate", ()).await.unwrap();
    assert_eq!(replies.recv().await, Ok(Some(chunk(4))));
    assert_eq!(replies.recv().await, Ok(None));
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_longer_than_a_frame_is_replaced_by_a_short_one() {
    let routes = ttrpc::server::Routes::new("test.Long").unary(
        "Fail",
        &std::sync::Arc::new(()),
        |_, _ctx, len: u32| {
            Box::pin(async move { Err::<(), _>(Status::not_found("x".repeat(len as usize))) })
        },
    );
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = ttrpc::Server::builder().add_service(Handmade(routes)).io(there);
    let serving = tokio::spawn(server.serve());
    let client = ttrpc::Client::from_io(here, ClientConfig::default());
    let fail = |len: usize| client.unary::<u32, ()>("test.Long", "Fail", len as u32);
    // The Response's key and length, the code's key and value, the message's key and length.
    let fits = MAX_DATA_LEN - (1 + 4) - 2 - (1 + 4);
    let status = fail(fits).await.unwrap_err();
    assert_eq!((status.code(), status.message().len()), (Code::NotFound, fits));
    assert_eq!(code_of(fail(fits + 1).await), Code::ResourceExhausted);
    serving.abort();
}
