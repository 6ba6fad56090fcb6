//! Nothing lives on its own: tasks and descriptors are back where they were after whatever was
//! built, used, broken or dropped. One test, so that no other one opens descriptors meanwhile.

use std::{fs, os::unix::net::UnixListener, time::Duration};

use tempfile::TempDir;
use tokio::{net::UnixStream, time::timeout};
use ttrpc::{Client, ClientConfig, ServerConfig};
use ttrpc_tests::{
    conformance::*,
    harness::{alive_tasks, echo_request, eventually, key},
    service::ConformanceService,
};

/// Repetitions, so that one leak per repetition is told from a runtime's own descriptors.
const TIMES: usize = 20;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("this is Linux").count()
}

struct Folder(TempDir);

impl Folder {
    fn address(&self) -> String {
        format!("unix://{}", self.0.path().join("a.sock").display())
    }
}

/// Runs a scenario many times and checks that all it took is given back.
async fn leaves_nothing<F: Future<Output = ()>>(name: &str, scenario: impl Fn(String) -> F) {
    let folder = Folder(tempfile::tempdir().expect("a folder can be made"));
    let (tasks, open) = (alive_tasks(), descriptors());
    for _ in 0..TIMES {
        scenario(folder.address()).await;
    }
    eventually(&format!("tasks end after: {name}"), || alive_tasks() == tasks).await;
    eventually(&format!("descriptors close after: {name}"), || descriptors() <= open).await;
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 0, "socket files after: {name}");
}

async fn in_use(address: String) {
    let server = ConformanceService::builder().bind(&address).unwrap().build().unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let client = Client::connect(&address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone());
    conformance.echo(echo_request(vec![0; 100_000])).await.unwrap();
    let pending = tokio::spawn(conformance.wait(key("a")).into_future());
    let upload = conformance.collect().await.unwrap();
    let exchange = conformance.exchange().await.unwrap();
    eventually("all calls arrive", || handle.calls_in_flight() == 3).await;
    // Everything ends abruptly, each time in another order.
    match std::process::id() as usize % 2 {
        0 => drop((upload, exchange)),
        _ => client.close(),
    }
    handle.close().await;
    pending.await.unwrap().unwrap_err();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn whatever_was_built_and_dropped_or_failed_half_way_leaves_nothing_behind() {
    // The first round opens what the runtime keeps open.
    leaves_nothing("warming up", in_use).await;

    leaves_nothing("a server that was built and dropped", |address| async move {
        drop(ConformanceService::builder().bind(&address).unwrap().build().unwrap());
    })
    .await;

    leaves_nothing("a serve future that was never polled", |address| async move {
        drop(ConformanceService::builder().bind(&address).unwrap().serve());
    })
    .await;

    leaves_nothing("a client that was connected and dropped", |address| async move {
        let listener = UnixListener::bind(address.trim_start_matches("unix://")).unwrap();
        let client = Client::connect(&address).await.unwrap();
        drop((client, listener));
        fs::remove_file(address.trim_start_matches("unix://")).unwrap();
    })
    .await;

    leaves_nothing("a server whose second address is in use", |address| async move {
        let living = ConformanceService::builder().bind(&address).unwrap();
        let other = format!("{address}.2");
        ConformanceService::builder()
            .bind(&other)
            .unwrap()
            .bind(&address)
            .expect_err("it is in use");
        drop(living);
    })
    .await;

    leaves_nothing("a server that was aborted with connections and calls", |address| async move {
        let serving = tokio::spawn(ConformanceService::builder().bind(&address).unwrap().serve());
        let conformance = ConformanceClient::new(Client::connect(&address).await.unwrap());
        conformance.echo(echo_request([])).await.unwrap();
        let wait = tokio::spawn(conformance.wait(key("a")).into_future());
        let (stream, _) = (conformance.collect().await.unwrap(), tokio::task::yield_now().await);
        serving.abort();
        wait.await.unwrap().unwrap_err();
        drop(stream);
    })
    .await;

    leaves_nothing("a server in use that was closed", in_use).await;

    leaves_nothing("a peer that does not read", |_| async move {
        let (here, there) = UnixStream::pair().unwrap();
        let client =
            ConformanceClient::new(Client::from_unix_stream(here, ClientConfig::default()));
        let calls: Vec<_> = (0..5)
            .map(|_| tokio::spawn(client.echo(echo_request(vec![0; 1 << 20])).into_future()))
            .collect();
        tokio::task::yield_now().await;
        calls.iter().for_each(|call| call.abort());
        let one = client.echo(echo_request([])).timeout(Duration::from_millis(1)).await;
        one.unwrap_err();
        drop((client, there));
    })
    .await;

    leaves_nothing("a connection that a policy refuses", |address| async move {
        let nobody = ttrpc::server::PeerPolicy::custom(|_| false);
        let server = ConformanceService::builder().allow_peers(nobody).bind(&address).unwrap();
        let serving = tokio::spawn(server.serve());
        let client = Client::connect(&address).await.unwrap();
        client.closed().await;
        serving.abort();
        let _ = serving.await;
    })
    .await;

    leaves_nothing("clients that went away while the server produced", |address| async move {
        let server = ConformanceService::builder().bind(&address).unwrap().build().unwrap();
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        for _ in 0..5 {
            let client = ConformanceClient::new(Client::connect(&address).await.unwrap());
            let for_ever = GenerateRequest { count: u64::MAX, size: 1000, ..Default::default() };
            let mut replies = client.generate(for_ever).await.unwrap();
            replies.recv().await.unwrap();
        }
        eventually("the handlers are told", || handle.calls_in_flight() == 0).await;
        eventually("the connections end", || handle.connections() == 0).await;
        handle.close().await;
        serving.await.unwrap().unwrap();
    })
    .await;

    leaves_nothing("calls whose handlers outlived them", |address| async move {
        let server = ConformanceService::builder().bind(&address).unwrap().build().unwrap();
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        let client = Client::connect(&address).await.unwrap();
        let conformance = ConformanceClient::new(client.clone());
        for number in 0..5 {
            let key = key(&number.to_string());
            let waiting = conformance.wait(key.clone()).into_future();
            timeout(Duration::from_millis(2), waiting).await.expect_err("nobody has released it");
            conformance.release(key).await.unwrap();
        }
        eventually("the handlers end", || handle.calls_in_flight() == 0).await;
        // The replies have come when this one has.
        conformance.echo(echo_request([])).await.unwrap();
        assert_eq!(client.calls_in_flight(), 0);
        drop((client, conformance));
        handle.close().await;
        serving.await.unwrap().unwrap();
    })
    .await;

    leaves_nothing("ten thousand connections that were made and broken", |address| async move {
        let config = ServerConfig::default().max_connections(16);
        let server =
            ConformanceService::builder().config(config).bind(&address).unwrap().build().unwrap();
        let handle = server.handle();
        let serving = tokio::spawn(server.serve());
        for number in 0..10_000 / TIMES {
            make_and_break(&address, number).await;
        }
        eventually("all connections end", || handle.connections() == 0).await;
        eventually("all handlers end", || handle.calls_in_flight() == 0).await;
        handle.close().await;
        serving.await.unwrap().unwrap();
    })
    .await;
}

/// Breaks a connection in one of several ways.
async fn make_and_break(address: &str, number: usize) {
    let client = Client::connect(address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone());
    match number % 4 {
        0 => {}
        1 => drop(conformance.echo(echo_request([])).await.unwrap()),
        2 => {
            let wait = conformance.wait(key("a")).into_future();
            assert!(timeout(Duration::ZERO, wait).await.is_err());
        }
        _ => {
            let _upload = conformance.collect().await.unwrap();
            client.close();
        }
    }
}
