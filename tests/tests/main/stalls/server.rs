//! Limits that handlers hold up: while they move the receiver waits and nothing is lost; when they
//! stand still for `stall_timeout`, what needs room fails, and everybody else goes on.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::duplex,
    sync::Notify,
    time::{Instant, sleep},
};
use ttrpc::{
    Client, ClientConfig, Server, ServerConfig, Status,
    prost::Message,
    server::{Routes, StreamReceiver},
};
use ttrpc_tests::{
    conformance::*,
    harness::{
        code::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED},
        *,
    },
    wire::{Frame, Peer, Request},
};

const STALL: Duration = Duration::from_secs(1);

/// How exactly a stall is timed.
const BIT: Duration = Duration::from_millis(20);

fn few_calls(max_calls_per_connection: usize) -> ServerConfig {
    ServerConfig::default().max_calls_per_connection(max_calls_per_connection)
}

fn small_inbox() -> ServerConfig {
    ServerConfig::default().stream_inbox_messages(4)
}

/// Starts as many Waits as the limit of four allows, with ids from 1.
async fn four_waits(server: &TestServer, peer: &mut Played) {
    for id in [1, 3, 5, 7] {
        peer.send(call(id, "Wait", &key("a"))).await;
    }
    server.has_begun(4).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_over_the_limit_of_handlers_that_stand_still_is_refused_after_the_stall_timeout() {
    let (server, mut peer) = played_client(few_calls(4));
    four_waits(&server, &mut peer).await;
    let start = Instant::now();
    peer.send(call(9, "Release", &key("a"))).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (9, RESOURCE_EXHAUSTED));
    assert!((STALL..STALL + BIT).contains(&start.elapsed()));
    // Nothing has moved, so the next one need not wait to know.
    let start = Instant::now();
    peer.send(call(11, "Release", &key("a"))).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (11, RESOURCE_EXHAUSTED));
    assert!(start.elapsed() < BIT);
    assert_eq!(server.handle.calls_in_flight(), 4);
}

#[tokio::test(start_paused = true)]
async fn calls_are_served_again_once_something_has_moved() {
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let (other_here, other_there) = tokio::io::duplex(PIPE_LEN);
    let server = TestServer::start(few_calls(4), [there, other_there]);
    let (mut peer, mut other) =
        (ttrpc_tests::wire::Peer::new(here), ttrpc_tests::wire::Peer::new(other_here));
    four_waits(&server, &mut peer).await;
    peer.send(call(9, "Echo", &echo_request([]))).await;
    assert_eq!(peer.receive().await.code(), RESOURCE_EXHAUSTED);
    other.send(call(1, "Release", &key("a"))).await;
    assert_eq!(other.receive().await.code(), 0, "the limit is each connection's own");
    for _ in 0..4 {
        assert_eq!(peer.receive().await.code(), 0);
    }
    expect_echo(&mut peer, 11).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_within_the_limit_frees_the_waits_before_it() {
    let (server, mut peer) = played_client(few_calls(5));
    four_waits(&server, &mut peer).await;
    peer.send(call(9, "Release", &key("a"))).await;
    for _ in 0..5 {
        assert_eq!(peer.receive().await.code(), 0);
    }
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_ten_times_the_limit_is_served_while_handlers_end_now_and_then() {
    let (server, client, conformance) = connected(ClientConfig::default(), few_calls(4), PIPE_LEN);
    let sleep_request = SleepRequest { millis: 900 };
    let calls = (0..40).map(|_| tokio::spawn(conformance.sleep(sleep_request).into_future()));
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().expect("handlers that take their time are waited for");
    }
    assert_eq!(client.calls_in_flight(), 0);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_all_connections_together_is_kept() {
    let config = ServerConfig::default().max_calls(2);
    let pipes: Vec<_> = (0..3).map(|_| tokio::io::duplex(PIPE_LEN)).collect();
    let (mine, theirs): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    let server = TestServer::start(config, theirs);
    let mut peers: Vec<_> = mine.into_iter().map(ttrpc_tests::wire::Peer::new).collect();
    for peer in &mut peers[..2] {
        peer.send(call(1, "Wait", &key("a"))).await;
    }
    server.has_begun(2).await;
    // Longer than what is let in for the sake of its connection.
    peers[2].send(call(1, "Echo", &echo_request(vec![0; 5000]))).await;
    assert_eq!(peers[2].receive().await.code(), RESOURCE_EXHAUSTED);
    let snapshot = server.handle.snapshot();
    let used: Vec<_> = snapshot.connections.iter().map(|one| one.calls_in_flight.used).collect();
    assert_eq!(
        used,
        [1, 1, 0],
        "what the server refuses takes no place of its connection's either"
    );
    drop(peers.remove(0));
    eventually("the one that went away makes room", || server.handle.calls_in_flight() == 1).await;
    expect_echo(&mut peers[1], 3).await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_refused_are_no_progress() {
    let config = ServerConfig::default().max_calls(1);
    let pipes: Vec<_> = (0..3).map(|_| duplex(PIPE_LEN)).collect();
    let (mine, theirs): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    let server = TestServer::start(config, theirs);
    let mut peers = mine.into_iter().map(Peer::new);
    let [mut first, mut second, mut third] = [(); 3].map(|()| peers.next().unwrap());
    first.send(call(1, "Wait", &key("a"))).await;
    server.has_begun(1).await;
    let start = Instant::now();
    // Longer than what is let in for the sake of its connection.
    second.send(call(1, "Echo", &echo_request(vec![0; 5000]))).await;
    let refusals = async {
        for id in [1, 3, 5, 7] {
            third.send(call(id, "NoSuchMethod", &Empty {})).await;
            assert_eq!(third.receive().await.code(), UNIMPLEMENTED);
            sleep(STALL / 2).await;
        }
    };
    let refusal = async {
        assert_eq!(second.receive().await.code(), RESOURCE_EXHAUSTED);
        assert!((STALL..STALL + BIT).contains(&start.elapsed()), "{:?}", start.elapsed());
    };
    tokio::join!(refusals, refusal);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_served_is_refused_at_once_however_full_the_server_is() {
    let (server, mut peer) = played_client(few_calls(4));
    four_waits(&server, &mut peer).await;
    let start = Instant::now();
    let mut late = call(9, "Echo", &echo_request([]));
    late.data = Request { timeout_nano: -1, ..late.as_request() }.encode_to_vec();
    let unknown = call(11, "NoSuchMethod", &Empty {});
    for (frame, code) in [(late, DEADLINE_EXCEEDED), (unknown, UNIMPLEMENTED)] {
        peer.send(frame).await;
        assert_eq!(peer.receive().await.code(), code);
    }
    assert!(start.elapsed() < BIT);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_handler_does_not_read_fails_and_calls_beside_it_go_on() {
    let (server, mut peer) = played_client(small_inbox());
    peer.send(open_stream(1, "Hold")).await;
    let start = Instant::now();
    for sequence in 0..5 {
        peer.send(Frame::message(1, &chunk(sequence))).await;
    }
    peer.send(call(3, "Echo", &echo_request([]))).await;
    let failure = peer.receive().await;
    assert_eq!((failure.id, failure.code()), (1, RESOURCE_EXHAUSTED));
    assert!((STALL..STALL + BIT).contains(&start.elapsed()));
    assert_eq!(peer.receive().await.id, 3, "the call behind it is served");
    // Later frames of the stream are dropped, and its end answers nothing.
    for sequence in 5..20 {
        peer.send(Frame::message(1, &chunk(sequence))).await;
    }
    peer.send(Frame::end(1)).await;
    assert!(peer.is_quiet().await);
    expect_echo(&mut peer, 5).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn streams_that_stand_still_hold_up_a_connection_once_not_once_each() {
    let (server, mut peer) = played_client(small_inbox());
    let ids = [1, 3, 5, 7];
    for id in ids {
        peer.send(open_stream(id, "Hold")).await;
        for sequence in 0..4 {
            peer.send(Frame::message(id, &chunk(sequence))).await;
        }
    }
    server.has_begun(4).await;
    let start = Instant::now();
    for id in ids {
        peer.send(Frame::message(id, &chunk(4))).await;
        let failure = peer.receive().await;
        assert_eq!((failure.id, failure.code()), (id, RESOURCE_EXHAUSTED));
        // The end of a stream's handler that its failure brings about is no progress of the others.
        settle().await;
    }
    let elapsed = start.elapsed();
    assert!(elapsed < STALL + 2 * BIT, "nothing has moved in between, and yet it took {elapsed:?}");
    expect_echo(&mut peer, 9).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_reads_slowly_loses_nothing() {
    const CHUNKS: u64 = 40;
    let routes = ttrpc::server::Routes::new("test.Slow").client_streaming(
        "Collect",
        &std::sync::Arc::new(()),
        |_, _ctx, mut requests: ttrpc::server::StreamReceiver<Chunk>| {
            Box::pin(async move {
                let mut chunks = 0;
                while let Some(chunk) = requests.recv().await? {
                    assert_eq!(chunk.sequence, chunks);
                    chunks += 1;
                    sleep(STALL - BIT).await;
                }
                Ok(chunks)
            })
        },
    );
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = ttrpc::Server::builder().config(small_inbox()).add_service(Handmade(routes));
    let serving = tokio::spawn(server.io(there).serve());
    let client = ttrpc::Client::from_io(here, ClientConfig::default());
    let (mut requests, reply) =
        client.client_streaming::<Chunk, u64>("test.Slow", "Collect").await.unwrap();
    for sequence in 0..CHUNKS {
        requests.send(chunk(sequence)).await.unwrap();
    }
    requests.finish();
    assert_eq!(reply.await, Ok(CHUNKS));
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_message_longer_than_all_limits_on_bytes_is_let_in_alone() {
    let config = ServerConfig::default()
        .request_bytes_per_connection(1000)
        .request_bytes(1000)
        .stream_inbox_bytes(1000)
        .send_queue_bytes(1000);
    let (server, _client, conformance) = connected(ClientConfig::default(), config, PIPE_LEN);
    let reply = conformance.echo(echo_request(vec![7; 5000])).await.unwrap();
    assert_eq!(reply.payload, [7; 5000]);
    let (mut requests, reply) = conformance.collect().await.unwrap();
    for sequence in 0..3 {
        let sent = requests.send(Chunk { sequence, payload: vec![0; 5000] }).await;
        sent.expect("the stream goes on");
    }
    requests.finish();
    assert_eq!(reply.await.unwrap().bytes, 3 * 5000);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn requests_over_the_limit_on_bytes_wait_for_handlers_and_fail_when_those_stand_still() {
    let config = ServerConfig::default().request_bytes_per_connection(10_000);
    let (server, mut peer) = played_client(config);
    let large_key = "k".repeat(6000);
    // The second one is let in while there is room, and goes over.
    for id in [1, 3] {
        peer.send(call(id, "Wait", &key(&large_key))).await;
    }
    server.has_begun(2).await;
    peer.send(call(5, "Wait", &key(&large_key))).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (5, RESOURCE_EXHAUSTED));
    server.service.release(&large_key);
    for _ in 0..2 {
        assert_eq!(peer.receive().await.code(), 0);
    }
    expect_echo(&mut peer, 7).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn messages_over_the_limit_on_bytes_of_all_streams_fail_their_stream_and_no_call() {
    let config = ServerConfig::default().inbox_bytes_per_connection(10_000);
    let (server, mut peer) = played_client(config);
    let large = Chunk { sequence: 0, payload: vec![0; 6000] };
    for id in [1, 3] {
        peer.send(open_stream(id, "Hold")).await;
        peer.send(Frame::message(id, &large)).await;
    }
    let start = Instant::now();
    peer.send(Frame::message(1, &large)).await;
    let failure = peer.receive().await;
    assert_eq!((failure.id, failure.code()), (1, RESOURCE_EXHAUSTED));
    assert!((STALL..STALL + BIT).contains(&start.elapsed()));
    expect_echo(&mut peer, 5).await;
    // What the failed stream held is free again for the other one.
    peer.send(Frame::message(3, &large)).await;
    peer.send(Frame::end(3)).await;
    server.service.release("hold");
    let reply: CollectResponse = payload_of(&peer.receive().await);
    assert_eq!(reply.chunks, 2);
    server.is_idle().await;
}

/// `ttrpc-memory` found a server with ten times the memory that its limits allow.
#[tokio::test(start_paused = true)]
async fn messages_without_a_byte_count_for_what_it_costs_to_keep_them() {
    let config = ServerConfig::default().inbox_bytes_per_connection(100 * 64);
    let (server, mut peer) = played_client(config);
    peer.send(open_stream(1, "Hold")).await;
    for _ in 0..100 {
        peer.send(Frame::message(1, &Empty {})).await;
    }
    expect_echo(&mut peer, 3).await;
    peer.send(Frame::message(1, &Empty {})).await;
    let failure = peer.receive().await;
    assert_eq!((failure.id, failure.code()), (1, RESOURCE_EXHAUSTED));
    server.is_idle().await;
}

/// It is counted where it is let in, and not where it waits for room in its stream's inbox.
#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_its_stream_is_counted_once() {
    let (server, mut peer) = played_client(ServerConfig::default().stream_inbox_messages(1));
    let used = || server.handle.snapshot().inbox_bytes.used;
    peer.send(open_stream(1, "Hold")).await;
    peer.send(Frame::message(1, &Empty {})).await;
    settle().await;
    let cost = used();
    peer.send(Frame::message(1, &Empty {})).await;
    settle().await;
    assert_eq!(used(), cost);
    server.service.release("hold");
    peer.send(Frame::end(1)).await;
    let reply: CollectResponse = payload_of(&peer.receive().await);
    assert_eq!((reply.chunks, used()), (2, 0));
    server.is_idle().await;
}

/// A message that nobody waits for takes no room from those that somebody does.
#[tokio::test(start_paused = true)]
async fn messages_to_a_handler_that_takes_no_more_do_not_wait_for_others() {
    let routes = Routes::new(SERVICE)
        .client_streaming("Hold", &Arc::new(()), |(), _, _requests: StreamReceiver<Chunk>| {
            Box::pin(std::future::pending::<Result<Empty, Status>>())
        })
        .client_streaming("Collect", &Arc::new(()), |(), _, requests: StreamReceiver<Chunk>| {
            Box::pin(async move {
                drop(requests);
                sleep(STALL * 10).await;
                Ok(Empty {})
            })
        });
    let config = ServerConfig::default().inbox_bytes_per_connection(100);
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().config(config).add_service(Handmade(routes)).io(there);
    let serving = tokio::spawn(server.serve());
    let mut peer = Played::new(here);
    peer.send(open_stream(1, "Hold")).await;
    let large = Chunk { sequence: 0, payload: vec![0; 200] };
    peer.send(Frame::message(1, &large)).await;
    peer.send(open_stream(3, "Collect")).await;
    settle().await;
    for _ in 0..10 {
        peer.send(Frame::message(3, &large)).await;
    }
    peer.send(Frame::end(3)).await;
    let reply = peer.receive().await;
    assert_eq!((reply.id, reply.code()), (3, 0));
    drop(peer);
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_byte_let_one_request_in_after_the_other() {
    let config = ServerConfig::default()
        .request_bytes_per_connection(1)
        .request_bytes(1)
        .inbox_bytes_per_connection(1)
        .inbox_bytes(1);
    let (server, mut peer) = played_client(config);
    for id in (1..100).step_by(2) {
        expect_echo(&mut peer, id).await;
    }
    peer.send(open_stream(101, "Collect")).await;
    for sequence in 0..10 {
        peer.send(Frame::message(101, &chunk(sequence))).await;
    }
    peer.send(Frame::end(101)).await;
    let reply: CollectResponse = payload_of(&peer.receive().await);
    assert_eq!(reply.chunks, 10);
    server.is_idle().await;
}

/// Else a server would run out of room for messages little by little.
#[tokio::test(start_paused = true)]
async fn messages_that_nobody_takes_any_more_are_not_counted() {
    let gone = Arc::new(Notify::new());
    let routes = Routes::new("test.Takes").client_streaming(
        "One",
        &gone,
        |gone: &Notify, _ctx, mut requests: StreamReceiver<Chunk>| {
            Box::pin(async move {
                gone.notified().await;
                requests.recv().await?;
                drop(requests);
                gone.notified().await;
                Ok::<(), Status>(())
            })
        },
    );
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes)).io(there).build().unwrap();
    let handle = server.handle();
    tokio::spawn(server.serve());
    let client = Client::from_io(here, ClientConfig::default());
    let (mut requests, _reply) =
        client.client_streaming::<Chunk, ()>("test.Takes", "One").await.unwrap();
    let used = || handle.snapshot().inbox_bytes.used;
    for sequence in 0..10 {
        requests.send(chunk(sequence)).await.unwrap();
    }
    settle().await;
    assert!(used() > 0, "ten messages are not taken");
    gone.notify_one();
    settle().await;
    assert_eq!(used(), 0, "one was taken, the others were dropped");
    requests.send(chunk(10)).await.unwrap();
    settle().await;
    assert_eq!(used(), 0, "a message that came later was dropped");
    assert_eq!(handle.calls_in_flight(), 1);
}

#[tokio::test(start_paused = true)]
async fn clients_that_hold_every_place_leave_the_others_one_short_call_at_a_time() {
    let (here, there) = duplex(PIPE_LEN);
    let (other_here, other_there) = duplex(PIPE_LEN);
    let config = ServerConfig::default().max_calls(4);
    let server = TestServer::start(config, [there, other_there]);
    let mut greedy = Peer::new(here);
    for index in 0..4 {
        greedy.send(call(2 * index + 1, "Wait", &key("a"))).await;
    }
    server.has_begun(4).await;

    let start = Instant::now();
    let mut other = Peer::new(other_here);
    for id in [1, 3, 5] {
        expect_echo(&mut other, id).await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody waited");
    other.send(call(7, "Wait", &key("b"))).await;
    other.send(call(9, "Wait", &key("b"))).await;
    let refused = other.receive().await;
    assert_eq!((refused.id, refused.code()), (9, RESOURCE_EXHAUSTED), "a second one at a time");
    other.send(call(11, "Echo", &echo_request(vec![0; 5000]))).await;
    assert_eq!(other.receive().await.code(), RESOURCE_EXHAUSTED);
}
