//! The limit on pairs of metadata, as a server configures it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::task::yield_now;
use ttrpc::{ClientConfig, Code, ServerConfig};
use ttrpc_tests::{
    conformance::*,
    harness::{
        code::{INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED},
        *,
    },
    wire::{Frame, REMOTE_CLOSED, REMOTE_OPEN},
};

/// A field of two bytes: an empty pair of a Request's metadata, tag 5.
const EMPTY_PAIR: [u8; 2] = [0x2a, 0];

/// What a pair costs to keep, at least: two strings without bytes of their own.
const PAIR_COST: usize = 2 * size_of::<String>();

fn with_pairs(mut request: Frame, pairs: usize) -> Frame {
    request.data.extend(EMPTY_PAIR.repeat(pairs));
    request
}

fn config(max_metadata_pairs: usize) -> ServerConfig {
    ServerConfig { max_metadata_pairs, ..ServerConfig::default() }
}

#[test]
fn max_metadata_pairs_is_1024_by_default() {
    assert_eq!(ServerConfig::default().max_metadata_pairs, 1024);
}

#[tokio::test(start_paused = true)]
async fn max_metadata_pairs_are_served_and_one_more_is_refused() {
    for max in [0, 1, 4, 5000] {
        let (server, mut peer) = played_client(config(max));
        for (id, pairs, code) in [(1, max, 0), (3, max + 1, RESOURCE_EXHAUSTED), (5, max, 0)] {
            peer.send(with_pairs(call(id, "Echo", &echo_request([])), pairs)).await;
            let reply = peer.receive().await;
            assert_eq!((reply.id, reply.code()), (id, code), "{pairs} pairs, {max} may come");
        }
        expect_echo(&mut peer, 7).await;
        server.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn max_metadata_pairs_holds_for_every_kind_of_call_and_runs_no_handler() {
    let (server, mut peer) = played_client(config(2));
    let kinds = [
        ("Echo", 0),
        ("Collect", REMOTE_OPEN),
        ("Generate", REMOTE_CLOSED),
        ("Exchange", REMOTE_OPEN),
    ];
    for (nth, (method, flags)) in (0..).zip(kinds) {
        let id = 2 * nth + 1;
        peer.send(with_pairs(Frame::request(id, flags, SERVICE, method, &Empty {}), 3)).await;
        let refusal = peer.receive().await;
        assert_eq!((refusal.id, refusal.code()), (id, RESOURCE_EXHAUSTED), "{method}");
        let message = refusal.as_response().status.expect("a refusal has one").message;
        assert!(message.contains("metadata"), "{message}");
    }
    assert_eq!(server.service.calls_total(), 0);
    expect_echo(&mut peer, 9).await;
    server.is_idle().await;
}

/// The method is looked for first: what does not exist is not refused for its metadata.
#[tokio::test(start_paused = true)]
async fn max_metadata_pairs_does_not_hide_that_a_method_is_unknown() {
    let (_server, mut peer) = played_client(config(2));
    peer.send(with_pairs(call(1, "NoSuchMethod", &Empty {}), 1000)).await;
    assert_eq!(peer.receive().await.code(), UNIMPLEMENTED);
}

#[tokio::test(start_paused = true)]
async fn max_metadata_pairs_raised_are_charged_by_what_they_cost_to_keep() {
    const PAIRS: usize = 100_000;
    let per_connection = 2 * PAIRS * PAIR_COST;
    let limits = ServerConfig { request_bytes_per_connection: per_connection, ..config(PAIRS) };
    let (server, mut peer) = played_client(limits);
    let used = || server.handle.snapshot().request_bytes.used;
    let request = |id| with_pairs(call(id, "Wait", &key("a")), PAIRS);
    let least = request(1).data.len() + PAIRS * PAIR_COST;
    peer.send(request(1)).await;
    server.has_begun(1).await;
    assert!((least..2 * least).contains(&used()), "{} bytes, {least} at least", used());
    // The second one is let in while there is room, and goes over.
    peer.send(request(3)).await;
    server.has_begun(2).await;
    peer.send(request(5)).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (5, RESOURCE_EXHAUSTED));
    server.service.release("a");
    for _ in 0..2 {
        assert_eq!(peer.receive().await.code(), 0);
    }
    server.is_idle().await;
    assert_eq!(used(), 0);
}

#[tokio::test(start_paused = true)]
async fn max_metadata_pairs_is_what_a_client_of_the_library_hears_of_too() {
    let (_server, _client, conformance) = connected(ClientConfig::default(), config(2), PIPE_LEN);
    let inspect = |pairs: usize| {
        (0..pairs)
            .fold(conformance.inspect(Empty {}), |call, nth| call.metadata("key", nth.to_string()))
    };
    assert_eq!(inspect(2).await.unwrap().metadata.len(), 2);
    assert_eq!(inspect(3).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(inspect(2).await.unwrap().metadata.len(), 2);
}

/// Decoding the second pair would skip all of them, in one turn of the runtime.
#[tokio::test(start_paused = true)]
async fn a_million_fields_between_two_pairs_are_refused() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let unknown = [0x78, 0];
    let mut request = with_pairs(call(1, "Echo", &echo_request([])), 1);
    request.data.extend(unknown.repeat(1_000_000));
    peer.send(with_pairs(request, 1)).await;
    let refusal = peer.receive().await;
    assert_eq!((refusal.id, refusal.code()), (1, INVALID_ARGUMENT));
    assert_eq!(server.service.calls_total(), 0);
    expect_echo(&mut peer, 3).await;
}

/// The runtime has one thread, and another task counts its turns while the Request is decoded.
#[tokio::test(start_paused = true)]
async fn other_tasks_have_their_turns_while_many_pairs_are_decoded() {
    const PAIRS: usize = 100_000;
    let (_server, mut peer) = played_client(config(PAIRS));
    let turns = Arc::new(AtomicUsize::new(0));
    let counting = turns.clone();
    tokio::spawn(async move {
        loop {
            counting.fetch_add(1, Relaxed);
            yield_now().await;
        }
    });
    let request = with_pairs(call(1, "Echo", &echo_request([])), PAIRS).to_bytes();
    let (last, first) = request.split_last().expect("it is no empty frame");
    peer.send_bytes(first).await;
    // All but the last byte is read: the pipe is empty.
    for _ in 0..1000 {
        yield_now().await;
    }
    let before = turns.load(Relaxed);
    peer.send_bytes(&[*last]).await;
    assert_eq!(peer.receive().await.code(), 0);
    let turns = turns.load(Relaxed) - before;
    assert!(turns >= PAIRS / 4096, "{turns} turns");
}
