//! Limits that all connections share: who holds nothing always gets something, and who waits is served
//! in the order of arrival.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{io::duplex, sync::Semaphore, time::Instant};
use ttrpc::{Server, ServerConfig, Status, server::Routes};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, Peer},
};

const STALL: Duration = Duration::from_secs(1);

/// What passes at once takes less.
const BIT: Duration = Duration::from_millis(20);

/// A server with so many connections, all of them played.
fn played_clients(config: ServerConfig, count: usize) -> (TestServer, Vec<Played>) {
    let (here, there): (Vec<_>, Vec<_>) = (0..count).map(|_| duplex(PIPE_LEN)).unzip();
    (TestServer::start(config, there), here.into_iter().map(Peer::new).collect())
}

/// Each of these clients fills its share of the inboxes with a stream whose handler takes nothing.
async fn fill_inboxes(server: &TestServer, greedy: &mut [Played], share: usize) {
    for peer in &mut *greedy {
        peer.send(open_stream(1, "Hold")).await;
        // The second one reaches the share, by what it costs to keep the two.
        for sequence in 0..2 {
            let payload = vec![0; share / 2 - 50];
            peer.send(Frame::message(1, &Chunk { sequence, payload })).await;
        }
    }
    server.has_begun(greedy.len() as u64).await;
    settle().await;
    let fill = server.handle.snapshot().inbox_bytes;
    assert!(fill.used >= fill.limit, "the inboxes are full: {fill}");
}

/// Streams of small requests go on, one after the other, and so do calls behind them.
async fn streams_go_on(peer: &mut Played, ids: Range<u32>) {
    for id in ids.step_by(4) {
        let start = Instant::now();
        peer.send(open_stream(id, "Collect")).await;
        for sequence in 0..10 {
            peer.send(Frame::message(id, &chunk(sequence))).await;
        }
        peer.send(Frame::end(id)).await;
        let reply = peer.receive().await;
        assert_eq!((reply.id, reply.code()), (id, 0), "{:?}", reply.as_response().status);
        assert_eq!(payload_of::<CollectResponse>(&reply).chunks, 10);
        expect_echo(peer, id + 2).await;
        assert!(start.elapsed() < BIT, "nobody waited: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_hold_nothing_stream_beside_16_that_fill_every_inbox() {
    const SHARE: usize = 10_000;
    let config = ServerConfig {
        inbox_bytes_per_connection: SHARE,
        inbox_bytes: 16 * SHARE,
        ..ServerConfig::default()
    };
    let (server, mut peers) = played_clients(config, 18);
    fill_inboxes(&server, &mut peers[..16], SHARE).await;
    expect_echo(&mut peers[16], 1).await;
    streams_go_on(&mut peers[16], 3..43).await;
    streams_go_on(&mut peers[17], 1..41).await;
    assert_eq!(server.handle.calls_in_flight(), 16, "the others are as they were");
}

#[tokio::test(start_paused = true)]
async fn connections_that_hold_nothing_stream_beside_one_that_fills_every_inbox() {
    const SHARE: usize = 100_000;
    let config = ServerConfig {
        inbox_bytes_per_connection: SHARE,
        inbox_bytes: SHARE,
        ..ServerConfig::default()
    };
    let (server, mut peers) = played_clients(config, 2);
    let (greedy, other) = peers.split_at_mut(1);
    fill_inboxes(&server, greedy, SHARE).await;
    streams_go_on(&mut other[0], 1..41).await;
}

/// A call behind a stream's message on the same connection, which is held up with it.
#[tokio::test(start_paused = true)]
async fn unary_calls_behind_a_message_are_not_held_up_by_other_connections_inboxes() {
    const SHARE: usize = 100_000;
    let config = ServerConfig {
        inbox_bytes_per_connection: SHARE,
        inbox_bytes: SHARE,
        ..ServerConfig::default()
    };
    let (server, mut peers) = played_clients(config, 2);
    let (greedy, other) = peers.split_at_mut(1);
    fill_inboxes(&server, greedy, SHARE).await;
    let start = Instant::now();
    other[0].send(open_stream(1, "Hold")).await;
    other[0].send(Frame::message(1, &chunk(0))).await;
    expect_echo(&mut other[0], 3).await;
    assert!(start.elapsed() < BIT, "{:?}", start.elapsed());
}

/// Short calls, two at once, each of which begins without a wait.
async fn two_at_once_pass(peer: &mut Played) {
    let start = Instant::now();
    for round in 0..20 {
        let ids = [4 * round + 1, 4 * round + 3];
        let echo = |id| call(id, "Echo", &echo_request([7; 10])).to_bytes();
        peer.send_bytes(&ids.map(echo).concat()).await;
        for _ in ids {
            let reply = peer.receive().await;
            assert_eq!(reply.code(), 0, "#{}: {:?}", reply.id, start.elapsed());
        }
    }
    assert!(start.elapsed() < BIT, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_short_calls_at_once_pass_beside_connections_that_hold_every_place() {
    for max_calls in [1, 4, 64] {
        let config = ServerConfig { max_calls, ..ServerConfig::default() };
        let (server, mut peers) = played_clients(config, 2);
        for nth in 0..max_calls as u32 {
            peers[0].send(call(2 * nth + 1, "Wait", &key("a"))).await;
        }
        server.has_begun(max_calls as u64).await;
        two_at_once_pass(&mut peers[1]).await;
    }
}

/// A call that is refused leaves its mark at the limit: calls are refused at once until one ends.
#[tokio::test(start_paused = true)]
async fn two_short_calls_at_once_pass_after_a_call_of_another_connection_was_refused() {
    let config = ServerConfig { max_calls: 4, ..ServerConfig::default() };
    let (server, mut peers) = played_clients(config, 3);
    for nth in 0..4 {
        peers[0].send(call(2 * nth + 1, "Wait", &key("a"))).await;
    }
    server.has_begun(4).await;
    // Too long for what is let in for the sake of its connection.
    peers[2].send(call(1, "Echo", &echo_request([0; 5000]))).await;
    assert_eq!(peers[2].receive().await.code(), code::RESOURCE_EXHAUSTED);
    two_at_once_pass(&mut peers[1]).await;
}

#[tokio::test(start_paused = true)]
async fn connections_that_hold_nothing_stream_after_a_message_of_another_one_was_refused() {
    const SHARE: usize = 10_000;
    let config = ServerConfig {
        inbox_bytes_per_connection: SHARE,
        inbox_bytes: 2 * SHARE,
        ..ServerConfig::default()
    };
    let (server, mut peers) = played_clients(config, 4);
    fill_inboxes(&server, &mut peers[..2], SHARE).await;
    // The first message gets in as the only one of its connection.
    for id in [1, 3] {
        peers[2].send(open_stream(id, "Hold")).await;
        peers[2].send(Frame::message(id, &chunk(0))).await;
    }
    let refusal = peers[2].receive().await;
    assert_eq!((refusal.id, refusal.code()), (3, code::RESOURCE_EXHAUSTED));
    streams_go_on(&mut peers[3], 1..41).await;
}

/// While its other call goes on, a connection's second call is refused, and further ones do not wait for that again.
#[tokio::test(start_paused = true)]
async fn a_connection_whose_only_call_does_not_end_waits_once() {
    let config = ServerConfig { max_calls: 1, ..ServerConfig::default() };
    let (server, mut peers) = played_clients(config, 2);
    for peer in &mut peers {
        peer.send(call(1, "Wait", &key("a"))).await;
    }
    server.has_begun(2).await;
    let start = Instant::now();
    for id in [3, 5, 7] {
        peers[1].send(call(id, "Echo", &echo_request([]))).await;
        assert_eq!(peers[1].receive().await.code(), code::RESOURCE_EXHAUSTED);
        assert!((STALL..STALL + BIT).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
    server.service.release("a");
    assert_eq!(peers[1].receive().await.id, 1);
    expect_echo(&mut peers[1], 9).await;
}

/// The order in which handlers began, and what lets them end, one after the other.
struct Turns {
    began: Mutex<Vec<String>>,
    ends: Semaphore,
}

impl Turns {
    fn began(&self) -> Vec<String> {
        self.began.lock().unwrap().clone()
    }
}

/// A server with so many connections whose handlers take turns.
fn turns(config: ServerConfig, count: usize) -> (Arc<Turns>, Vec<Played>) {
    let turns = Arc::new(Turns { began: Mutex::default(), ends: Semaphore::new(0) });
    let routes = Routes::new(SERVICE).unary("Wait", &turns, |turns, _, request: KeyRequest| {
        Box::pin(async move {
            let name = request.key.trim_end_matches('-').to_owned();
            turns.began.lock().unwrap().push(name);
            turns.ends.acquire().await.expect("it is never closed").forget();
            Ok::<_, Status>(Empty {})
        })
    });
    let mut builder = Server::builder().config(config).add_service(Handmade(routes));
    let mut peers = Vec::new();
    for _ in 0..count {
        let (here, there) = duplex(PIPE_LEN);
        builder = builder.io(there);
        peers.push(Peer::new(here));
    }
    tokio::spawn(builder.serve());
    (turns, peers)
}

/// A call, longer than what is let in for the sake of its connection.
fn long_call(id: u32, name: &str) -> Frame {
    call(id, "Wait", &key(&format!("{name:-<5000}")))
}

/// Two limits that one call fills.
fn one_at_a_time() -> [ServerConfig; 2] {
    [
        ServerConfig { max_calls: 1, ..ServerConfig::default() },
        ServerConfig { request_bytes: 1000, ..ServerConfig::default() },
    ]
}

#[tokio::test(start_paused = true)]
async fn connections_that_wait_are_let_in_in_the_order_of_their_arrival() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    for config in one_at_a_time() {
        let (turns, mut peers) = turns(config, NAMES.len());
        for (peer, name) in peers.iter_mut().zip(NAMES) {
            peer.send(long_call(1, name)).await;
            settle().await;
        }
        for count in 1..=NAMES.len() {
            assert_eq!(turns.began(), NAMES[..count]);
            turns.ends.add_permits(1);
            // Past the times at which those who wait look again by themselves.
            tokio::time::sleep(STALL * 3 / 4).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn newcomers_do_not_overtake_connections_that_wait() {
    for config in one_at_a_time() {
        let (turns, mut peers) = turns(config, 3);
        let [holder, waiter, newcomer] = &mut peers[..] else { unreachable!("there are three") };
        holder.send(long_call(1, "holder")).await;
        settle().await;
        waiter.send(long_call(1, "waiter")).await;
        settle().await;
        assert_eq!(turns.began(), ["holder"]);
        // The handler is about to run, and behind it the newcomer's receiver.
        turns.ends.add_permits(1);
        newcomer.send(long_call(1, "newcomer")).await;
        settle().await;
        assert_eq!(turns.began(), ["holder", "waiter"]);
        turns.ends.add_permits(1);
        settle().await;
        assert_eq!(turns.began(), ["holder", "waiter", "newcomer"]);
    }
}

/// Each end lets one in, and always another one wants to be.
#[tokio::test(start_paused = true)]
async fn a_connection_that_waits_gets_its_turn_however_many_come_after_it() {
    for config in one_at_a_time() {
        let (turns, mut peers) = turns(config, 10);
        peers[0].send(long_call(1, "holder")).await;
        settle().await;
        peers[1].send(long_call(1, "waiter")).await;
        settle().await;
        for newcomer in &mut peers[2..] {
            turns.ends.add_permits(1);
            newcomer.send(long_call(1, "newcomer")).await;
            settle().await;
        }
        let place = turns.began().iter().position(|name| name == "waiter");
        assert_eq!(place, Some(1), "{:?}", turns.began());
    }
}
