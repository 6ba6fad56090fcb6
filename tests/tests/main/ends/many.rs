//! Ten thousand calls that end badly leave nothing behind.

use std::time::Duration;

use tokio::time::timeout;
use ttrpc::{Client, ClientConfig, Code, ServerConfig};
use ttrpc_tests::{conformance::*, harness::*};

use super::nothing_is_left;

const TIMES: usize = 10_000;

/// Calls that are under way at once.
const AT_ONCE: usize = 100;

/// Runs a scenario ten thousand times, and then looks for what is left. The scenario is given a
/// key that is released when it is over.
async fn leaves_nothing<F>(scenario: impl Fn(ConformanceClient, KeyRequest) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let before = alive_tasks();
    let (server, client, conformance) = connected_by_default();
    conformance.echo(echo_request([])).await.unwrap();
    let connected = alive_tasks();
    for round in 0..TIMES / AT_ONCE {
        // A release is remembered, so each round waits for a key of its own.
        let key = key(&round.to_string());
        let start = |_| tokio::spawn(scenario(conformance.clone(), key.clone()));
        let scenarios: Vec<_> = (0..AT_ONCE).map(start).collect();
        for scenario in scenarios {
            scenario.await.expect("it goes as it should");
        }
        // Before the server has answered: entries do not wait for answers.
        assert_eq!(client.calls_in_flight(), 0);
        server.service.release(&key.key);
    }
    nothing_is_left(&server, &client).await;
    tasks_are_back_at(connected).await;
    conformance.echo(echo_request([])).await.expect("the connection lives");
    drop((client, conformance));
    server.ended().await;
    tasks_are_back_at(before).await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_that_time_out_leave_nothing() {
    leaves_nothing(|conformance, key| async move {
        let call = conformance.wait(key).timeout(Duration::from_millis(10));
        assert_eq!(call.await.unwrap_err().code(), Code::DeadlineExceeded);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_streams_that_time_out_leave_nothing() {
    leaves_nothing(|conformance, _| async move {
        let limit = Duration::from_millis(10);
        let (mut requests, mut replies) = conformance.exchange().timeout(limit).await.unwrap();
        requests.send(chunk(1)).await.unwrap();
        assert_eq!(replies.recv().await.unwrap(), Some(chunk(1)));
        assert_eq!(replies.recv().await.unwrap_err().code(), Code::DeadlineExceeded);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_dropped_half_way_leave_nothing() {
    leaves_nothing(|conformance, key| async move {
        let call = conformance.wait(key).into_future();
        assert!(timeout(Duration::from_millis(1), call).await.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_dropped_before_they_were_written_leave_nothing() {
    leaves_nothing(|conformance, key| async move {
        let call = conformance.wait(key).into_future();
        assert!(timeout(Duration::ZERO, call).await.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_streams_dropped_half_way_leave_nothing() {
    leaves_nothing(|conformance, _| async move {
        let (mut requests, mut replies) = conformance.exchange().await.unwrap();
        requests.send(chunk(1)).await.unwrap();
        assert_eq!(replies.recv().await.unwrap(), Some(chunk(1)));
        let request = GenerateRequest { count: 5, ..GenerateRequest::default() };
        let mut generated = conformance.generate(request).await.unwrap();
        generated.recv().await.unwrap();
        let (mut upload, _reply) = conformance.collect().await.unwrap();
        upload.send(chunk(0)).await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_connections_that_break_leave_nothing() {
    let before = alive_tasks();
    for _ in 0..TIMES / AT_ONCE {
        let pipes: Vec<_> = (0..AT_ONCE).map(|_| tokio::io::duplex(1000)).collect();
        let (mine, theirs): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        let server = TestServer::start(ServerConfig::default(), theirs);
        let calls: Vec<_> = mine
            .into_iter()
            .map(|io| ConformanceClient::new(Client::from_io(io, ClientConfig::default())))
            .map(|client| tokio::spawn(client.wait(key("a")).into_future()))
            .collect();
        server.has_begun(AT_ONCE as u64).await;
        for call in &calls {
            call.abort();
        }
        server.is_idle().await;
        server.ended().await;
    }
    tasks_are_back_at(before).await;
}
