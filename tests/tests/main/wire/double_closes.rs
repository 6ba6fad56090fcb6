//! A close that says again what is known is ignored, as containerd's implementation does; and what a
//! refusal names.

use ttrpc::ServerConfig;
use ttrpc_tests::{
    conformance::*,
    harness::{
        code::{INVALID_ARGUMENT, RESOURCE_EXHAUSTED},
        *,
    },
    wire::{DATA, Frame, NO_DATA, Peer, REMOTE_CLOSED, RESPONSE},
};

fn bytes_of(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(Frame::to_bytes).collect()
}

#[tokio::test(start_paused = true)]
async fn a_second_close_is_ignored_and_the_stream_answered() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let message = Frame::message(1, &chunk(0));
    let frames = [open_stream(1, "Collect"), message, Frame::end(1), Frame::end(1)];
    peer.send_bytes(&bytes_of(&frames)).await;
    let reply = peer.receive().await;
    assert_eq!((reply.id, reply.code()), (1, 0), "{:?}", reply.as_response().status);
    let reply: CollectResponse = payload_of(&reply);
    assert_eq!(reply.chunks, 1);
    expect_echo(&mut peer, 3).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_close_leaves_a_stream_of_replies_open() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let frames = [
        open_stream(1, "Exchange"),
        Frame::message(1, &chunk(0)),
        Frame::message(1, &chunk(1)),
        Frame::end(1),
        Frame::end(1),
        Frame::end(1),
    ];
    peer.send_bytes(&bytes_of(&frames)).await;
    for sequence in 0..2 {
        assert_eq!(peer.receive().await, Frame::message(1, &chunk(sequence)));
    }
    assert_eq!(peer.receive().await, Frame::end(1));
    expect_echo(&mut peer, 3).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_close_after_a_request_that_said_remote_closed_is_ignored() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let request = GenerateRequest { count: 2, interval_micros: 1000, ..Default::default() };
    let frames = [Frame::request(1, REMOTE_CLOSED, SERVICE, "Generate", &request), Frame::end(1)];
    peer.send_bytes(&bytes_of(&frames)).await;
    for sequence in 0..2 {
        let frame = peer.receive().await;
        assert_eq!((frame.kind, frame.flags), (DATA, 0), "{frame:?}");
        assert_eq!(Chunk::decode_from(&frame.data).sequence, sequence);
        // While its handler runs, too.
        if sequence == 0 {
            peer.send(Frame::end(1)).await;
        }
    }
    assert_eq!(peer.receive().await, Frame::end(1));
    expect_echo(&mut peer, 3).await;
    server.is_idle().await;
}

/// Only what says nothing new is ignored.
#[tokio::test(start_paused = true)]
async fn a_message_behind_a_close_still_ends_its_stream() {
    for flags in [0, REMOTE_CLOSED] {
        let (server, mut peer) = played_client(ServerConfig::default());
        let message = Frame { flags, ..Frame::message(1, &chunk(0)) };
        let frames = [open_stream(1, "Hold"), Frame::end(1), message];
        peer.send_bytes(&bytes_of(&frames)).await;
        let failure = peer.receive().await;
        assert_eq!((failure.id, failure.kind, failure.code()), (1, RESPONSE, INVALID_ARGUMENT));
        server.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_ignores_a_second_close_of_the_server() {
    let (client, conformance, mut peer) = played_server(Default::default());
    let (requests, mut replies) = conformance.exchange().await.unwrap();
    let id = peer.receive().await.id;
    let end = || Frame::new(id, DATA, REMOTE_CLOSED | NO_DATA, []);
    peer.send_bytes(&bytes_of(&[Frame::message(id, &chunk(0)), end(), end()])).await;
    settle().await;
    assert_eq!(replies.recv().await, Ok(Some(chunk(0))));
    assert_eq!(replies.recv().await, Ok(None));
    drop(requests);
    assert_eq!(peer.receive().await, Frame::end(id));
    settle().await;
    assert_eq!(client.calls_in_flight(), 0);
}

/// The message of the first call's refusal on a connection that has reached this limit.
async fn refusal(config: ServerConfig) -> String {
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = TestServer::start(config, [there]);
    let mut peer = Peer::new(here);
    peer.send(call(1, "Wait", &key(&"k".repeat(6000)))).await;
    server.has_begun(1).await;
    peer.send(call(3, "Wait", &key(&"k".repeat(6000)))).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (3, RESOURCE_EXHAUSTED));
    refusal.as_response().status.expect("a refusal has a status").message
}

#[tokio::test(start_paused = true)]
async fn refusals_for_bytes_name_bytes_and_not_calls() {
    let own = ServerConfig { request_bytes_per_connection: 5000, ..ServerConfig::default() };
    let all = ServerConfig { request_bytes: 5000, ..ServerConfig::default() };
    for config in [own, all] {
        let message = refusal(config).await;
        assert!(message.contains("bytes"), "{message}");
        assert!(!message.contains("too many calls"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_for_calls_name_calls_and_not_bytes() {
    let own = ServerConfig { max_calls_per_connection: 1, ..ServerConfig::default() };
    let all = ServerConfig { max_calls: 1, ..ServerConfig::default() };
    for config in [own, all] {
        let message = refusal(config).await;
        assert!(message.contains("calls"), "{message}");
        assert!(!message.contains("bytes"), "{message}");
    }
}
