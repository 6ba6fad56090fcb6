//! Who may connect, and how many: Unix sockets and their peers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use tokio::{
    io::{AsyncReadExt, duplex},
    net::UnixStream,
};
use ttrpc::{Client, ClientConfig, ServerConfig, server::PeerPolicy};
use ttrpc_tests::{
    conformance::*,
    harness::{PATIENCE, echo_request, eventually, key},
    service::ConformanceService,
};

fn abstract_address(name: &str) -> String {
    format!("unix://@ttrpc-{name}-{}", std::process::id())
}

async fn is_served(stream: UnixStream) -> bool {
    let client = ConformanceClient::new(Client::from_unix_stream(stream, ClientConfig::default()));
    client.echo(echo_request([])).timeout(PATIENCE).await.is_ok()
}

#[tokio::test]
async fn a_policy_decides_before_the_first_frame() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let policy = PeerPolicy::custom(move |peer| {
        let credentials = peer.credentials().expect("it is a Unix socket");
        assert_eq!(credentials.pid, Some(std::process::id() as i32));
        counted.fetch_add(1, SeqCst) > 0
    });
    let address = abstract_address("policy");
    let server = ConformanceService::builder().allow_peers(policy).bind(&address).unwrap();
    let serving = tokio::spawn(server.serve());
    let refused = Client::connect(&address).await.unwrap();
    // Nothing was sent, and yet the connection ends.
    refused.closed().await;
    let allowed = ConformanceClient::new(Client::connect(&address).await.unwrap());
    allowed.echo(echo_request([])).await.unwrap();
    assert_eq!(asked.load(SeqCst), 2, "asked once for each connection");
    serving.abort();
}

#[tokio::test]
async fn a_policy_that_panics_refuses_one_connection_and_ends_no_server() {
    let asked = AtomicUsize::new(0);
    let policy = PeerPolicy::custom(move |_| match asked.fetch_add(1, SeqCst) {
        0 => panic!("this one is beyond me"),
        _ => true,
    });
    let address = abstract_address("panics");
    let server = ConformanceService::builder().allow_peers(policy).bind(&address).unwrap();
    let serving = tokio::spawn(server.serve());
    let refused = Client::connect(&address).await.unwrap();
    refused.closed().await;
    let allowed = ConformanceClient::new(Client::connect(&address).await.unwrap());
    allowed.echo(echo_request([])).await.unwrap();
    serving.abort();
}

#[tokio::test]
async fn policies_hold_for_streams_that_were_handed_over() {
    let mine = PeerPolicy::same_user();
    let nobody = PeerPolicy::custom(|_| false);
    for (policy, expected) in
        [(mine.clone(), true), (nobody.clone(), false), (nobody.or(mine), true)]
    {
        let (here, there) = UnixStream::pair().unwrap();
        let serving = tokio::spawn(
            ConformanceService::builder().allow_peers(policy).unix_stream(there).serve(),
        );
        assert_eq!(is_served(here).await, expected);
        serving.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn what_is_no_unix_socket_has_no_peer_and_passes_no_policy_of_users() {
    let (mut here, there) = duplex(100);
    let server = ConformanceService::builder()
        .allow_peers(PeerPolicy::same_user().or(PeerPolicy::root()))
        .io(there);
    server.serve().await.unwrap();
    assert_eq!(here.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn connections_over_the_limit_wait_until_one_ends() {
    let address = abstract_address("limit");
    let config = ServerConfig::default().max_connections(2);
    let server =
        ConformanceService::builder().config(config).bind(&address).unwrap().build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::connect(&address).await.unwrap());
    }
    let waiting = ConformanceClient::new(clients.pop().unwrap());
    let echo = tokio::spawn(waiting.echo(echo_request([])).into_future());
    for client in &clients {
        let served = ConformanceClient::new(client.clone());
        served.echo(echo_request([])).await.expect("these are within the limit");
    }
    assert_eq!(handle.connections(), 2);
    assert!(!echo.is_finished());
    drop(clients);
    echo.await.unwrap().expect("it is served when there is a place");
    serving.abort();
}

#[tokio::test]
async fn a_key_is_waited_for_and_released_over_different_connections() {
    let address = abstract_address("keys");
    let server = ConformanceService::builder().bind(&address).unwrap().build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let waiter = ConformanceClient::new(Client::connect(&address).await.unwrap());
    let releaser = ConformanceClient::new(Client::connect(&address).await.unwrap());
    let wait = tokio::spawn(waiter.wait(key("a")).into_future());
    eventually("the call arrives", || handle.calls_in_flight() == 1).await;
    releaser.release(key("a")).await.unwrap();
    wait.await.unwrap().unwrap();
    serving.abort();
}
