//! Streams that nobody reads, many of them one after the other: how long all together hold their
//! connection up, and that its end is noticed meanwhile.

use std::time::Duration;

use tokio::{net::UnixStream, time::Instant};
use ttrpc::{Client, ClientConfig, Code, ServerConfig};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Peer},
};

const STALL: Duration = Duration::from_secs(1);

/// How exactly a stall is timed.
const BIT: Duration = Duration::from_millis(20);

/// Within this time the end of a connection is noticed, whatever holds its receiver up.
const NOTICED: Duration = Duration::from_millis(100);

/// Messages for which an inbox has room.
const ROOM: u64 = 4;

/// Full of messages of one stream, with one too many.
fn too_many(id: u32) -> Vec<u8> {
    (0..=ROOM).flat_map(|sequence| Frame::message(id, &chunk(sequence)).to_bytes()).collect()
}

fn client_config() -> ClientConfig {
    ClientConfig { stream_inbox_messages: ROOM as usize, ..ClientConfig::default() }
}

fn server_config() -> ServerConfig {
    ServerConfig { stream_inbox_messages: ROOM as usize, ..ServerConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn a_clients_unread_streams_hold_its_calls_up_for_a_bounded_time_in_all() {
    for streams in [2, 4, 16, 64] {
        let (_client, conformance, mut peer) = played_server(client_config());
        let mut unread = Vec::new();
        let mut frames = Vec::new();
        for _ in 0..streams {
            unread.push(conformance.generate(GenerateRequest::default()).await.unwrap());
            frames.extend(too_many(peer.receive().await.id));
        }
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let echo_id = peer.receive().await.id;
        frames.extend(Frame::reply(echo_id, &EchoResponse::default()).to_bytes());
        let start = Instant::now();
        peer.send_bytes(&frames).await;
        echo.await.unwrap().expect("it is answered behind the streams");
        let held_up = start.elapsed();
        assert!(held_up < 2 * STALL + BIT, "{streams} unread streams held it up for {held_up:?}");
        for mut stream in unread {
            assert_eq!(stream.recv().await.unwrap_err().code(), Code::ResourceExhausted);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_servers_unread_streams_hold_calls_up_for_a_bounded_time_in_all() {
    for streams in [2, 4, 8, 64] {
        let (server, mut peer) = played_client(server_config());
        let ids = (0..streams).map(|nth| 2 * nth + 1);
        let opening: Vec<_> =
            ids.clone().flat_map(|id| open_stream(id, "Hold").to_bytes()).collect();
        peer.send_bytes(&opening).await;
        server.has_begun(u64::from(streams)).await;
        let messages: Vec<_> = ids.flat_map(too_many).collect();
        let echo = call(2 * streams + 1, "Echo", &echo_request([]));
        let start = Instant::now();
        peer.send_bytes(&[messages, echo.to_bytes()].concat()).await;
        for _ in 0..streams {
            assert_eq!(peer.receive().await.code(), code::RESOURCE_EXHAUSTED);
        }
        assert_eq!(peer.receive().await.id, 2 * streams + 1);
        let held_up = start.elapsed();
        assert!(held_up < 2 * STALL + BIT, "{streams} unread streams held it up for {held_up:?}");
        server.is_idle().await;
    }
}

/// Streams that are read go on beside those that are not, however many fail.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_loses_nothing_behind_unread_ones() {
    const COUNT: u64 = 40;
    let (_client, conformance, mut peer) = played_server(client_config());
    let mut unread = Vec::new();
    let mut frames = Vec::new();
    for _ in 0..8 {
        unread.push(conformance.generate(GenerateRequest::default()).await.unwrap());
        frames.extend(too_many(peer.receive().await.id));
    }
    let mut read = conformance.generate(GenerateRequest::default()).await.unwrap();
    let read_id = peer.receive().await.id;
    frames.extend((0..COUNT).flat_map(|nth| Frame::message(read_id, &chunk(nth)).to_bytes()));
    frames.extend(Frame::end(read_id).to_bytes());
    peer.send_bytes(&frames).await;
    for sequence in 0..COUNT {
        assert_eq!(read.recv().await, Ok(Some(chunk(sequence))));
        tokio::time::sleep(STALL / 10).await;
    }
    assert_eq!(read.recv().await, Ok(None));
}

/// On a real socket: a pipe in memory tells of its end only when it is empty.
#[tokio::test(start_paused = true)]
async fn a_client_whose_receiver_is_held_up_notices_within_100_ms_that_the_server_has_gone() {
    let config = ClientConfig { stall_timeout: 10 * STALL, ..client_config() };
    for streams in [1, 16] {
        let (here, there) = UnixStream::pair().unwrap();
        let client = Client::from_unix_stream(here, config.clone());
        let conformance = ConformanceClient::new(client.clone());
        let mut peer = Peer::new(there);
        let mut unread = Vec::new();
        let mut frames = Vec::new();
        for _ in 0..streams {
            unread.push(conformance.generate(GenerateRequest::default()).await.unwrap());
            frames.extend(too_many(peer.receive().await.id));
        }
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        peer.receive().await;
        peer.send_bytes(&frames).await;
        settle().await;
        assert!(client.snapshot().receiver.is_some(), "the receiver is held up");
        let start = Instant::now();
        drop(peer);
        assert_eq!(echo.await.unwrap().unwrap_err().code(), Code::Unavailable);
        assert!(start.elapsed() < NOTICED, "it took {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_receiver_is_held_up_notices_within_100_ms_that_the_client_has_gone() {
    let config = ServerConfig { stall_timeout: 10 * STALL, ..server_config() };
    let (here, there) = UnixStream::pair().unwrap();
    let server = TestServer::start_with(config, |builder| builder.unix_stream(there));
    let mut peer = Peer::new(here);
    peer.send(open_stream(1, "Hold")).await;
    peer.send(call(3, "Wait", &key("a"))).await;
    server.has_begun(2).await;
    peer.send_bytes(&too_many(1)).await;
    settle().await;
    let receiver = server.handle.snapshot().connections[0].receiver;
    assert!(receiver.is_some(), "the receiver is held up");
    let start = Instant::now();
    drop(peer);
    server.is_idle().await;
    assert!(start.elapsed() < NOTICED, "it took {:?}", start.elapsed());
    assert_eq!(server.service.calls_cancelled(), 2);
}
