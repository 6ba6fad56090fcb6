//! Limits that several connections of a server share: a connection that holds nothing is served, whatever the
//! others hold.

use std::time::Duration;

use tokio::{io::duplex, time::Instant};
use ttrpc::{Client, ClientConfig, ServerConfig};
use ttrpc_tests::{conformance::*, harness::*, wire::Watchdog};

/// How exactly a wait is timed.
const BIT: Duration = Duration::from_millis(20);

/// A server and a client on each of so many connections.
fn connections(config: ServerConfig, count: usize) -> (TestServer, Vec<ConformanceClient>) {
    let pipes = (0..count).map(|_| duplex(PIPE_LEN));
    let (here, there): (Vec<_>, Vec<_>) = pipes.unzip();
    let server = TestServer::start(config, there);
    let client = |io| ConformanceClient::new(Client::from_io(io, ClientConfig::default()));
    (server, here.into_iter().map(client).collect())
}

/// The first of the two is its connection's only call, and is let in. When it has ended the other one is.
#[tokio::test(start_paused = true)]
async fn two_short_calls_on_a_connection_that_holds_nothing_are_served_while_others_hold_all_calls()
{
    let _watchdog = Watchdog::default();
    let config = ServerConfig { max_calls: 4, ..ServerConfig::default() };
    let (server, clients) = connections(config, 2);
    let waits: Vec<_> =
        (0..4).map(|_| tokio::spawn(clients[0].wait(key("a")).into_future())).collect();
    server.has_begun(4).await;
    let start = Instant::now();
    let echo = || clients[1].echo(echo_request([])).into_future();
    let (first, second) = tokio::join!(echo(), echo());
    first.expect("the first is its connection's only call");
    second.expect("so is the second, when the first has ended");
    assert!(start.elapsed() < BIT, "after {:?}", start.elapsed());
    server.service.release("a");
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_connection_that_holds_nothing_gets_in_while_others_hold_all_inboxes() {
    let _watchdog = Watchdog::default();
    let config = ServerConfig { inbox_bytes: 40_000, ..ServerConfig::default() };
    let (server, clients) = connections(config, 3);
    // Handlers that take nothing hold all of it, on two connections.
    let mut held = Vec::new();
    for client in &clients[..2] {
        let (mut requests, reply) = client.hold().await.unwrap();
        for sequence in 0..2 {
            requests.send(Chunk { sequence, payload: vec![0; 10_000] }).await.unwrap();
        }
        held.push((requests, reply));
    }
    server.has_begun(2).await;
    settle().await;
    let start = Instant::now();
    let (mut requests, reply) = clients[2].collect().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    requests.finish();
    assert_eq!(reply.await.expect("its message gets in").chunks, 1);
    assert!(start.elapsed() < BIT, "after {:?}", start.elapsed());
}
