//! Streams that nobody reads, or nobody reads any more, many of them one after the other: how long all
//! together hold their connection up, and that its end is noticed meanwhile.

use std::{future::pending, net::Shutdown, ops::Range, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    net::UnixStream,
    task::JoinHandle,
    time::{Instant, sleep},
};
use ttrpc::{
    Client, ClientConfig, Code, ConnectionError, Server, ServerConfig, Status,
    client::StreamReceiver,
    server::{Routes, StreamSender},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{self, Frame, Peer},
};

type Requests = ttrpc::server::StreamReceiver<Chunk>;

const STALL: Duration = Duration::from_secs(1);

/// How exactly a stall is timed.
const BIT: Duration = Duration::from_millis(20);

/// Within this time the end of a connection is noticed, whatever holds its receiver up.
const NOTICED: Duration = Duration::from_millis(100);

/// Messages for which an inbox has room.
const ROOM: u64 = 4;

/// Full of messages of one stream, with too many.
fn too_many(id: u32) -> Vec<u8> {
    (0..2 * ROOM).flat_map(|sequence| Frame::message(id, &chunk(sequence)).to_bytes()).collect()
}

/// How many messages a consumer takes, and when. Each stands still from then on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Takes {
    Nothing,
    /// One, before the messages that fill its inbox.
    OneBefore,
    /// The first of those.
    TheFirst,
}

const ALL_TAKES: [Takes; 3] = [Takes::Nothing, Takes::OneBefore, Takes::TheFirst];

fn client_config() -> ClientConfig {
    ClientConfig { stream_inbox_messages: ROOM as usize, ..ClientConfig::default() }
}

fn server_config() -> ServerConfig {
    ServerConfig { stream_inbox_messages: ROOM as usize, ..ServerConfig::default() }
}

/// A consumer that takes so many messages and then holds its stream.
fn takes(mut stream: StreamReceiver<Chunk>, count: usize) -> JoinHandle<StreamReceiver<Chunk>> {
    tokio::spawn(async move {
        for _ in 0..count {
            stream.recv().await.unwrap();
        }
        stream
    })
}

#[tokio::test(start_paused = true)]
async fn a_clients_streams_that_stand_still_hold_its_calls_up_for_a_bounded_time_in_all() {
    for (streams, what) in
        [2, 4, 8, 16, 64].iter().flat_map(|&streams| ALL_TAKES.map(|takes| (streams, takes)))
    {
        let (_client, conformance, mut peer) = played_server(client_config());
        let mut consumers = Vec::new();
        let mut frames = Vec::new();
        for _ in 0..streams {
            let stream = conformance.generate(GenerateRequest::default()).await.unwrap();
            let id = peer.receive().await.id;
            if what == Takes::OneBefore {
                peer.send(Frame::message(id, &chunk(0))).await;
            }
            consumers.push(takes(stream, usize::from(what != Takes::Nothing)));
            frames.extend(too_many(id));
        }
        settle().await;
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let echo_id = peer.receive().await.id;
        frames.extend(Frame::reply(echo_id, &EchoResponse::default()).to_bytes());
        let start = Instant::now();
        peer.send_bytes(&frames).await;
        echo.await.unwrap().expect("it is answered behind the streams");
        let held_up = start.elapsed();
        assert!(held_up < 2 * STALL + BIT, "{streams} streams, {what:?}: {held_up:?}");
        for consumer in consumers {
            let status = consumer.await.unwrap().recv().await.unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
        }
    }
}

fn long() -> Chunk {
    Chunk { sequence: 0, payload: vec![0; 1 << 20] }
}

/// A service whose handlers take one message of a stream, or none, and stand still. Others take all.
fn still() -> Handmade {
    let routes = Routes::new("test.Still")
        .client_streaming("TakeOne", &Arc::new(()), |_, _, mut requests: Requests| {
            Box::pin(async move {
                requests.recv().await?;
                pending::<Result<Empty, Status>>().await
            })
        })
        .client_streaming("TakeSlowly", &Arc::new(()), |_, _, mut requests: Requests| {
            Box::pin(async move {
                while requests.recv().await?.is_some() {
                    sleep(STALL / 10).await;
                }
                Ok(Empty {})
            })
        })
        .bidi_streaming(
            "ReplyAndTakeAll",
            &Arc::new(()),
            |_, _, mut requests: Requests, mut replies: StreamSender<Chunk>| {
                Box::pin(async move {
                    replies.send(long()).await?;
                    while requests.recv().await?.is_some() {}
                    Ok(())
                })
            },
        )
        .client_streaming("TakeAllLate", &Arc::new(()), |_, _, mut requests: Requests| {
            Box::pin(async move {
                sleep(STALL * 7 / 10).await;
                while requests.recv().await?.is_some() {}
                Ok(Empty {})
            })
        })
        .client_streaming("TakeAll", &Arc::new(()), |_, _, mut requests: Requests| {
            Box::pin(async move {
                while requests.recv().await?.is_some() {}
                Ok(Empty {})
            })
        })
        .client_streaming("TakeTwoLater", &Arc::new(()), |_, _, mut requests: Requests| {
            Box::pin(async move {
                sleep(BIT / 2).await;
                // The second one comes with a run, of which it leaves messages at hand.
                requests.recv().await?;
                requests.recv().await?;
                pending::<Result<Empty, Status>>().await
            })
        })
        .client_streaming("TakeNothing", &Arc::new(()), |_, _, requests: Requests| {
            Box::pin(async move {
                let _held = requests;
                pending::<Result<Empty, Status>>().await
            })
        })
        .unary("Long", &Arc::new(()), |_, _, _: Empty| Box::pin(async { Ok(long()) }))
        .unary("Echo", &Arc::new(()), |_, _, _: Empty| Box::pin(async { Ok(Empty {}) }));
    Handmade(routes)
}

fn serve_still(config: ServerConfig) -> (JoinHandle<Result<(), ttrpc::Error>>, Played) {
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = Server::builder().config(config).add_service(still());
    (tokio::spawn(server.io(there).serve()), Peer::new(here))
}

/// Bytes of the messages that reach the limits which streams share.
const LEN: usize = 1000;

/// Twenty such messages reach the connection's limit.
fn room_for_20() -> ServerConfig {
    ServerConfig { inbox_bytes_per_connection: 20 * LEN, ..ServerConfig::default() }
}

fn open(id: u32, method: &str) -> Frame {
    Frame::request(id, wire::REMOTE_OPEN, "test.Still", method, &Empty {})
}

#[tokio::test(start_paused = true)]
async fn a_servers_streams_that_stand_still_hold_calls_up_for_a_bounded_time_in_all() {
    for (streams, what) in
        [2, 4, 8, 64].iter().flat_map(|&streams| ALL_TAKES.map(|takes| (streams, takes)))
    {
        let (serving, mut peer) = serve_still(server_config());
        let method = if what == Takes::Nothing { "TakeNothing" } else { "TakeOne" };
        let mut messages = Vec::new();
        for id in (0..streams).map(|nth| 2 * nth + 1) {
            peer.send(open(id, method)).await;
            if what == Takes::OneBefore {
                peer.send(Frame::message(id, &chunk(0))).await;
            }
            messages.extend(too_many(id));
        }
        settle().await;
        let echo = Frame::unary(2 * streams + 1, "test.Still", "Echo", &Empty {});
        let start = Instant::now();
        peer.send_bytes(&[messages, echo.to_bytes()].concat()).await;
        for _ in 0..streams {
            assert_eq!(peer.receive().await.code(), code::RESOURCE_EXHAUSTED);
        }
        assert_eq!(peer.receive().await.id, 2 * streams + 1);
        let held_up = start.elapsed();
        assert!(held_up < 2 * STALL + BIT, "{streams} streams, {what:?}: {held_up:?}");
        serving.abort();
    }
}

/// None of them is full: together they have as many bytes as their connection may, or the server.
#[tokio::test(start_paused = true)]
async fn a_servers_streams_below_their_own_limits_hold_calls_up_for_a_bounded_time_in_all() {
    let methods = ["TakeNothing", "TakeOne", "TakeTwoLater"];
    let limits = [
        |bytes| ServerConfig { inbox_bytes_per_connection: bytes, ..ServerConfig::default() },
        |bytes| ServerConfig { inbox_bytes: bytes, ..ServerConfig::default() },
    ];
    let cases = [2, 8, 64].iter().flat_map(|&streams| methods.map(|method| (streams, method)));
    for ((streams, method), limit) in cases.flat_map(|case| limits.map(|limit| (case, limit))) {
        let config = limit(streams as usize * ROOM as usize * LEN);
        let (serving, mut peer) = serve_still(config);
        let message = |id, sequence| {
            Frame::message(id, &Chunk { sequence, payload: vec![0; LEN] }).to_bytes()
        };
        for id in (0..streams).map(|nth| 2 * nth + 1) {
            peer.send(open(id, method)).await;
        }
        settle().await;
        let rounds = (0..8 * ROOM)
            .flat_map(|sequence| (0..streams).flat_map(move |nth| message(2 * nth + 1, sequence)));
        let messages: Vec<_> = rounds.collect();
        let echo = Frame::unary(2 * streams + 1, "test.Still", "Echo", &Empty {});
        let start = Instant::now();
        peer.send_bytes(&[messages, echo.to_bytes()].concat()).await;
        let mut failed = 0;
        while let reply = peer.receive().await
            && reply.id != 2 * streams + 1
        {
            assert_eq!(reply.code(), code::RESOURCE_EXHAUSTED);
            failed += 1;
        }
        assert!(failed > 0, "the connection's limit was reached");
        let held_up = start.elapsed();
        assert!(held_up < 2 * STALL + BIT, "{streams} streams, {method}: {held_up:?}");
        serving.abort();
    }
}

/// What a stream that failed has filled is free for later ones, however soon they come; also where another stream that nobody
/// reads still holds most of the limit.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_passes_at_its_connections_limit_after_one_that_was_not() {
    for (rest, held) in [0, 1, 3600].into_iter().flat_map(|rest| [0, 15].map(|held| (rest, held))) {
        let (serving, mut peer) = serve_still(room_for_20());
        let streams = [(1, "TakeNothing", held), (3, "TakeNothing", 60), (5, "TakeAll", 60)];
        for (id, method, messages) in streams {
            peer.send(open(id, method)).await;
            settle().await;
            let message = |sequence| Frame::message(id, &Chunk { sequence, payload: vec![0; LEN] });
            let messages: Vec<_> = (0..messages).flat_map(|nth| message(nth).to_bytes()).collect();
            peer.send_bytes(&messages).await;
            if id == 1 {
                continue;
            }
            peer.send(Frame::end(id)).await;
            let reply = peer.receive().await;
            let expected = if id == 3 { code::RESOURCE_EXHAUSTED } else { 0 };
            assert_eq!((reply.id, reply.code()), (id, expected), "{rest} s later, {held} held");
            sleep(rest * STALL).await;
        }
        serving.abort();
    }
}

/// The streams before it have used up the time for those that have stalled, and it has not.
#[tokio::test(start_paused = true)]
async fn a_stream_is_waited_for_at_its_connections_limit_however_many_have_failed_there() {
    let (serving, mut peer) = serve_still(room_for_20());
    let message = |id| Frame::message(id, &Chunk { sequence: 0, payload: vec![0; LEN] }).to_bytes();
    for id in [1, 3, 5, 7] {
        peer.send(open(id, "TakeNothing")).await;
    }
    let messages = (0..30).flat_map(|_| [1, 3, 5, 7].map(message)).flatten();
    peer.send_bytes(&messages.collect::<Vec<_>>()).await;
    for _ in 0..4 {
        assert_eq!(peer.receive().await.code(), code::RESOURCE_EXHAUSTED);
    }
    peer.send(open(9, "TakeAllLate")).await;
    peer.send_bytes(&(0..30).flat_map(|_| message(9)).collect::<Vec<_>>()).await;
    peer.send(Frame::end(9)).await;
    let reply = peer.receive().await;
    assert_eq!((reply.id, reply.code()), (9, 0));
    serving.abort();
}

/// Its handler is busy, and has a message all the time. That streams failed at the limit, now or long ago, is not its fault.
#[tokio::test(start_paused = true)]
async fn a_stream_waits_at_its_connections_limit_while_another_is_read() {
    for rest in [0, 3, 3600] {
        let (serving, mut peer) = serve_still(room_for_20());
        let message = |id, len| Frame::message(id, &Chunk { sequence: 0, payload: vec![0; len] });
        let burst = |id| (0..30).flat_map(|_| message(id, LEN).to_bytes()).collect::<Vec<_>>();
        for (id, method) in [(1, "TakeNothing"), (3, "TakeNothing"), (5, "TakeSlowly")] {
            peer.send(open(id, method)).await;
        }
        peer.send(message(1, 100)).await;
        peer.send_bytes(&burst(3)).await;
        let reply = peer.receive().await;
        assert_eq!((reply.id, reply.code()), (3, code::RESOURCE_EXHAUSTED));
        sleep(rest * STALL).await;
        peer.send_bytes(&[burst(5), message(1, 100).to_bytes()].concat()).await;
        peer.send(Frame::end(5)).await;
        peer.send(Frame::unary(7, "test.Still", "Echo", &Empty {})).await;
        for expected in [7, 5] {
            let reply = peer.receive().await;
            assert_eq!((reply.id, reply.code()), (expected, 0), "{rest} s later");
        }
        serving.abort();
    }
}

/// Its inbox is full, but it is the client who blocks its handler.
#[tokio::test(start_paused = true)]
async fn a_stream_whose_handler_waits_for_its_client_outlives_others_at_their_shared_limit() {
    let config = ServerConfig {
        stream_inbox_messages: ROOM as usize,
        inbox_bytes_per_connection: 4400,
        send_queue_bytes: (1 << 20) + 100,
        reply_bytes_per_connection: 100 << 20,
        ..ServerConfig::default()
    };
    let (here, there) = tokio::io::duplex(4096);
    let server = Server::builder().config(config).add_service(still());
    let serving = tokio::spawn(server.io(there).serve());
    let (mut reader, mut writer) = tokio::io::split(here);
    let message = |id, len| Frame::message(id, &Chunk { sequence: 0, payload: vec![0; len] });
    let messages = |id, len, count| (0..count).flat_map(move |_| message(id, len).to_bytes());
    let mut wire = Vec::new();
    for nth in 0..15 {
        wire.extend(Frame::unary(101 + 2 * nth, "test.Still", "Long", &Empty {}).to_bytes());
    }
    for (id, method) in [(201, "TakeNothing"), (203, "TakeNothing"), (205, "ReplyAndTakeAll")] {
        wire.extend(open(id, method).to_bytes());
    }
    wire.extend(messages(205, 0, 4).chain(messages(201, 1000, 4)).chain(messages(203, 1000, 1)));
    wire.extend(messages(205, 0, 3).chain(Frame::end(205).to_bytes()));
    let writing = tokio::spawn(async move {
        writer.write_all(&wire).await.unwrap();
        writer
    });
    // It reads, a reply at a time.
    let mut ends = Vec::new();
    while !ends.contains(&205) {
        sleep(STALL / 5).await;
        let (id, data) = read_frame(&mut reader).await;
        if data.len() < 1000 {
            ends.push(id);
            let code = Frame::new(id, wire::RESPONSE, 0, data).code();
            assert_eq!(code, if id == 203 { code::RESOURCE_EXHAUSTED } else { 0 }, "{id}");
        }
    }
    assert_eq!(ends, [203, 205]);
    drop(writing.await.unwrap());
    serving.abort();
}

/// A consumer that has been waited for, and has moved, is waited for again, although others that were
/// read once have used up the connection's time.
#[tokio::test(start_paused = true)]
async fn a_stream_that_moves_loses_nothing_behind_streams_that_were_read_once() {
    const COUNT: u64 = 60;
    let (_client, conformance, mut peer) = played_server(client_config());
    let mut slow = conformance.generate(GenerateRequest::default()).await.unwrap();
    let slow_id = peer.receive().await.id;
    let messages =
        |range: Range<u64>| range.flat_map(|nth| Frame::message(slow_id, &chunk(nth)).to_bytes());
    let mut frames: Vec<_> = messages(0..20).collect();
    let mut still = Vec::new();
    for nth in 1..=10 {
        let stream = conformance.generate(GenerateRequest::default()).await.unwrap();
        frames.extend(too_many(peer.receive().await.id));
        frames.extend(messages(16 + 4 * nth..20 + 4 * nth));
        still.push(takes(stream, 1));
    }
    frames.extend(Frame::end(slow_id).to_bytes());
    let sending = tokio::spawn(async move {
        peer.send_bytes(&frames).await;
        peer
    });
    for sequence in 0..COUNT {
        assert_eq!(slow.recv().await, Ok(Some(chunk(sequence))));
        tokio::time::sleep(STALL / 5).await;
    }
    assert_eq!(slow.recv().await, Ok(None));
    sending.await.unwrap();
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
        assert!(client.snapshot().receiver.is_some(), "the receiver is stalled");
        let start = Instant::now();
        drop(peer);
        assert_eq!(echo.await.unwrap().unwrap_err().code(), Code::Unavailable);
        assert!(start.elapsed() < NOTICED, "it took {:?}", start.elapsed());
    }
}

/// Its connection ends as that of a client whose receiver reads, a write having failed and no end having come for 100 ms.
#[tokio::test(start_paused = true)]
async fn a_client_whose_receiver_is_held_up_notices_that_the_server_takes_nothing_more() {
    let (here, there) = UnixStream::pair().unwrap();
    let config = ClientConfig { stall_timeout: 10 * STALL, ..client_config() };
    let client = Client::from_unix_stream(here, config);
    let conformance = ConformanceClient::new(client.clone());
    let mut peer = Peer::new(there);
    let _unread = conformance.generate(GenerateRequest::default()).await.unwrap();
    let unread = peer.receive().await.id;
    let written = tokio::spawn(conformance.echo(echo_request([])).into_future());
    peer.receive().await;
    peer.send_bytes(&too_many(unread)).await;
    settle().await;
    assert!(client.snapshot().receiver.is_some(), "the receiver is stalled");
    let there = peer.into_inner().into_std().unwrap();
    there.shutdown(Shutdown::Read).unwrap();
    let start = Instant::now();
    let not_written = conformance.echo(echo_request([])).await;
    for echo in [not_written, written.await.unwrap()] {
        assert_eq!(echo.unwrap_err().code(), Code::Unavailable);
    }
    assert!(matches!(client.closed().await, ConnectionError::Write(_)));
    assert!(start.elapsed() < NOTICED + BIT, "it took {:?}", start.elapsed());
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
    assert!(receiver.is_some(), "the receiver is stalled");
    let start = Instant::now();
    drop(peer);
    server.is_idle().await;
    assert!(start.elapsed() < NOTICED, "it took {:?}", start.elapsed());
    assert_eq!(server.service.calls_cancelled(), 2);
}
