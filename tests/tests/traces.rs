//! Traces tell what happened. One test, since a subscriber changes what other threads trace.

mod log;

use std::time::Duration;

use tracing::Level;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt};
use ttrpc::{
    ClientConfig, Connection, ServerConfig,
    client::ConnectOptions,
    observer::{CallInfo, Observer},
};
use ttrpc_tests::{conformance::*, harness::*};

use log::Log;

const SECOND: Duration = Duration::from_secs(1);

async fn panics_of_an_observer_harm_nobody() {
    struct Panics;
    impl Observer for Panics {
        fn call_begun(&self, _: &CallInfo<'_>) {
            panic!("asked to");
        }
    }
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let _server = TestServer::start(ServerConfig::default(), [there]);
    let client = ConnectOptions::new().observe(Panics).from_connection(Connection::new(here));
    ConformanceClient::new(client).echo(echo_request([])).await.unwrap();
}

/// The end of a call that nobody observes is an event if its span is on.
async fn a_filter_by_the_target_of_an_event_keeps_the_event() {
    let call_once = async || {
        let (_server, _client, conformance) =
            connected(ClientConfig::default(), ServerConfig::default(), 4096);
        conformance.echo(echo_request([])).await.unwrap();
    };
    let (log, guard) = Log::start(Level::DEBUG);
    call_once().await;
    drop(guard);
    let line = log.lines(&["call ended", "ttrpc::client"]).pop().expect("it is told");
    let (_, target) = line.split_once(" ttrpc::client").expect("it is there");
    let (target, _) = target.split_once(": ").expect("fields follow");
    let only = Targets::new().with_target(format!("ttrpc::client{target}"), Level::DEBUG);
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(log.clone());
    let filtered = tracing_subscriber::registry().with(layer.with_filter(only));
    let _filtered = tracing::subscriber::set_default(filtered);
    call_once().await;
    assert_eq!(log.lines(&["call ended", "ttrpc::client", "Echo"]).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn traces_tell_of_connections_calls_outcomes_and_waits() {
    a_filter_by_the_target_of_an_event_keeps_the_event().await;
    let (log, _guard) = Log::start(Level::DEBUG);

    let config = ClientConfig::default().send_queue_frames(1);
    let (server, client, conformance) = connected(config, ServerConfig::default(), 4096);
    let large = || tokio::spawn(conformance.echo(echo_request(vec![0; 10_000])).into_future());
    for call in [large(), large(), large()] {
        call.await.unwrap().unwrap();
    }
    let fail = FailRequest { code: code::INVALID_ARGUMENT, ..FailRequest::default() };
    conformance.fail(fail).await.unwrap_err();
    conformance.wait(key("a")).timeout(SECOND).await.unwrap_err();
    for _ in 0..3 {
        panics_of_an_observer_harm_nobody().await;
    }
    drop((client, conformance));
    eventually("the connection ends", || server.handle.connections() == 0).await;
    server.is_idle().await;

    let all = log.lines(&[]).join("\n");
    assert_eq!(log.lines(&["an observer panicked"]).len(), 1, "{all}");
    for parts in [
        &["connection{id=1", "connection accepted"][..],
        &[
            "connection{id=1",
            "call{stream_id=",
            "method=\"Echo\"",
            "call ended",
            "code=OK",
            "cause=replied",
        ],
        &[
            "ttrpc::client",
            "method=\"Echo\"",
            "call ended",
            "code=OK",
            "cause=replied",
            "duration=",
        ],
        &["ttrpc::client", "method=\"Fail\"", "code=INVALID_ARGUMENT", "cause=failed", "error="],
        &["ttrpc::client", "method=\"Wait\"", "code=DEADLINE_EXCEEDED", "duration=1"],
        &["connection{id=1", "method=\"Wait\"", "code=DEADLINE_EXCEEDED"],
        &["method=\"Echo\"", "waited ", "capacity of the send queue"],
        &["connection{id=1", "connection ended", "duration="],
    ] {
        assert!(!log.lines(parts).is_empty(), "a line with {parts:?} in:\n{all}");
    }
}
