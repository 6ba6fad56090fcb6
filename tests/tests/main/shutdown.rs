//! The end of a server: gracefully, at the limit, at once; from outside, from a handler, before it
//! has served.

use std::{
    future::Future,
    sync::{Arc, OnceLock},
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    io::duplex,
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Error, Server, ServerConfig, Status,
    server::{Routes, ServerHandle, Service},
    snapshot::ServerState,
};
use ttrpc_tests::{
    conformance::*,
    harness::{code::UNAVAILABLE, *},
    wire::{DATA, Frame},
};

const LIMIT: Duration = Duration::from_secs(5);

/// How exactly a limit is timed.
const BIT: Duration = Duration::from_millis(20);

#[tokio::test(start_paused = true)]
async fn a_graceful_shutdown_lets_accepted_calls_be_answered_and_refuses_new_ones() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(call(1, "Wait", &key("a"))).await;
    peer.send(open_stream(3, "Exchange")).await;
    server.has_begun(2).await;
    let shutdown = server.handle.shutdown(LIMIT);
    for (id, refused) in [(5, call(5, "Echo", &echo_request([]))), (7, open_stream(7, "Collect"))] {
        peer.send(refused).await;
        let refusal = peer.receive().await;
        assert_eq!((refusal.id, refusal.code()), (id, UNAVAILABLE));
    }
    // A stream that was accepted goes on.
    peer.send(Frame::message(3, &chunk(4))).await;
    assert_eq!(peer.receive().await, Frame::message(3, &chunk(4)));
    peer.send(Frame::end(3)).await;
    assert_eq!(peer.receive().await, Frame::end(3));
    server.service.release("a");
    assert_eq!(peer.receive().await.id, 1);
    assert_eq!(peer.try_receive().await, None, "nothing is left to do, so the connection closes");
    let start = Instant::now();
    shutdown.await;
    assert!(start.elapsed() < BIT);
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_to_be_let_in_when_a_shutdown_begins_is_served() {
    let of_connection = ServerConfig::default().max_calls_per_connection(1);
    let of_all = ServerConfig::default().max_calls(1);
    for config in [of_connection, of_all] {
        let (server, mut peer) = played_client(config);
        peer.send(call(1, "Wait", &key("a"))).await;
        server.has_begun(1).await;
        peer.send(call(3, "Echo", &echo_request(*b"second"))).await;
        let receiver_waits = || server.handle.snapshot().connections[0].receiver.is_some();
        eventually("it waits", receiver_waits).await;
        server.handle.begin_shutdown(LIMIT);
        settle().await;
        server.service.release("a");
        for id in [1, 3] {
            let reply = peer.receive().await;
            assert_eq!((reply.id, reply.code()), (id, 0));
        }
        server.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_at_once() {
    let (server, client, _conformance) = connected_by_default();
    eventually("the connection is served", || server.handle.connections() == 1).await;
    let start = Instant::now();
    server.handle.shutdown(LIMIT).await;
    assert!(start.elapsed() < BIT);
    client.closed().await;
    assert_eq!(server.handle.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reply_leaves_before_its_connection_closes_however_narrow_the_pipe() {
    let (server, client, conformance) =
        connected(ClientConfig::default(), ServerConfig::default(), 16);
    let large = EchoRequest { payload: Vec::new(), response_size: 100_000 };
    let echo = tokio::spawn(conformance.echo(large).into_future());
    server.has_begun(1).await;
    server.handle.shutdown(LIMIT).await;
    assert_eq!(echo.await.unwrap().unwrap().payload.len(), 100_000);
    client.closed().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_done_at_the_limit_is_aborted() {
    let (server, _client, conformance) = connected_by_default();
    let wait = tokio::spawn(conformance.wait(key("never")).into_future());
    server.has_begun(1).await;
    let start = Instant::now();
    server.handle.shutdown(LIMIT).await;
    assert!((LIMIT..LIMIT + BIT).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(wait.await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(server.service.calls_cancelled(), 1);
    server.is_idle().await;
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn of_two_limits_the_earlier_counts_in_either_order() {
    for limits in [[LIMIT, 2 * LIMIT], [2 * LIMIT, LIMIT], [LIMIT, Duration::MAX]] {
        let (server, _client, conformance) = connected_by_default();
        let wait = tokio::spawn(conformance.wait(key("never")).into_future());
        server.has_begun(1).await;
        let start = Instant::now();
        let [first, second] = limits.map(|limit| server.handle.shutdown(limit));
        tokio::join!(first, second, server.handle.ended());
        assert!((LIMIT..LIMIT + BIT).contains(&start.elapsed()), "{limits:?}");
        wait.await.unwrap().unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn closing_ends_everything_now() {
    let (server, client, conformance) = connected_by_default();
    let wait = tokio::spawn(conformance.wait(key("never")).into_future());
    let mut replies = conformance
        .generate(GenerateRequest { count: u64::MAX, interval_micros: 5000, ..Default::default() })
        .await
        .unwrap();
    server.has_begun(2).await;
    let start = Instant::now();
    server.handle.close().await;
    assert!(start.elapsed() < BIT);
    assert_eq!(wait.await.unwrap().unwrap_err().code(), Code::Unavailable);
    let end = loop {
        match replies.recv().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    client.closed().await;
    assert_eq!(server.handle.connections() + server.handle.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn closing_cuts_a_graceful_shutdown_short() {
    let (server, _client, conformance) = connected_by_default();
    let wait = tokio::spawn(conformance.wait(key("never")).into_future());
    server.has_begun(1).await;
    let shutdown = server.handle.shutdown(Duration::MAX);
    settle().await;
    let start = Instant::now();
    server.handle.close().await;
    shutdown.await;
    assert!(start.elapsed() < BIT);
    wait.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn dropping_the_serve_future_closes_the_server() {
    let (server, client, conformance) = connected_by_default();
    let wait = tokio::spawn(conformance.wait(key("never")).into_future());
    server.has_begun(1).await;
    let (service, handle) = (server.service.clone(), server.handle.clone());
    drop(server);
    handle.ended().await;
    assert_eq!(wait.await.unwrap().unwrap_err().code(), Code::Unavailable);
    client.closed().await;
    eventually("its handler is dropped", || service.calls_cancelled() == 1).await;
    eventually("its task ends", || handle.calls_in_flight() == 0).await;
    assert_eq!(handle.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_future_moves_to_another_task_still_hears_of_its_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("a.sock");
    // A listener, and no connection whose end it would hear of.
    let server = Server::builder().bind(address.to_str().unwrap()).unwrap().build().unwrap();
    let handle = server.handle();
    let mut serving = Box::pin(server.serve());
    let elsewhere = &mut Context::from_waker(Waker::noop());
    assert!(serving.as_mut().poll(elsewhere).is_pending());
    let serving = tokio::spawn(serving);
    settle().await;
    let ended = tokio::time::timeout(PATIENCE, handle.shutdown(LIMIT)).await;
    assert!(ended.is_ok(), "it ends");
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_shut_down_before_it_served_never_does() {
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().io(there).build().unwrap();
    let handle = server.handle();
    handle.shutdown(LIMIT).await;
    handle.close().await;
    server.serve().await.unwrap();
    let client = Client::from_io(here, ClientConfig::default());
    let call = client.unary::<(), ()>(SERVICE, "Echo", ());
    assert_eq!(call.await.unwrap_err().code(), Code::Unavailable);
    handle.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_dropped_unserved_has_ended() {
    let (_here, there) = duplex(PIPE_LEN);
    let server = Server::builder().io(there).build().unwrap();
    let handle = server.handle();
    drop(server);
    handle.ended().await;
    handle.shutdown(LIMIT).await;
}

/// A server whose method `Stop` shuts it down in a way of its own.
struct Stopping {
    client: Client,
    handle: ServerHandle,
    serving: JoinHandle<Result<(), Error>>,
}

fn stopping(stop: ttrpc::server::UnaryHandler<OnceLock<ServerHandle>, (), ()>) -> Stopping {
    let state = Arc::new(OnceLock::new());
    let routes = Routes::new("test.Stop").unary("Stop", &state, stop);
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().add_service(Handmade(routes)).io(there).build().unwrap();
    let handle = server.handle();
    state.set(handle.clone()).expect("it is set once");
    let serving = tokio::spawn(server.serve());
    Stopping { client: Client::from_io(here, ClientConfig::default()), handle, serving }
}

async fn call_stop(stopping: &Stopping) -> Result<(), Status> {
    stopping.client.unary("test.Stop", "Stop", ()).await
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_begins_a_shutdown_is_answered() {
    let stopping = stopping(|server, _ctx, ()| {
        Box::pin(async {
            server.get().unwrap().begin_shutdown(LIMIT);
            Ok(())
        })
    });
    let start = Instant::now();
    call_stop(&stopping).await.expect("the reply leaves");
    stopping.handle.ended().await;
    assert!(start.elapsed() < BIT);
    stopping.serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_awaits_the_shutdown_is_aborted_at_the_limit() {
    let stopping = stopping(|server, _ctx, ()| {
        Box::pin(async {
            server.get().unwrap().shutdown(LIMIT).await;
            Ok(())
        })
    });
    let start = Instant::now();
    assert_eq!(call_stop(&stopping).await.unwrap_err().code(), Code::Unavailable);
    stopping.handle.ended().await;
    assert!((LIMIT..LIMIT + BIT).contains(&start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_awaits_the_close_is_aborted_at_once() {
    let stopping = stopping(|server, _ctx, ()| {
        Box::pin(async {
            server.get().unwrap().close().await;
            Ok(())
        })
    });
    let start = Instant::now();
    assert_eq!(call_stop(&stopping).await.unwrap_err().code(), Code::Unavailable);
    stopping.handle.ended().await;
    assert!(start.elapsed() < BIT);
    assert_eq!(stopping.handle.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_cannot_hold_up_a_shutdown_beyond_its_limit() {
    let (server, mut peer) = played_client_over(ServerConfig::default(), 256);
    let generate = GenerateRequest { count: u64::MAX, size: 100, ..Default::default() };
    peer.send(Frame::request(1, 1, SERVICE, "Generate", &generate)).await;
    server.has_begun(1).await;
    let start = Instant::now();
    server.handle.shutdown(LIMIT).await;
    assert!((LIMIT..LIMIT + BIT).contains(&start.elapsed()));
    assert_eq!(peer.receive().await.kind, DATA);
}

#[tokio::test(start_paused = true)]
async fn serving_until_a_signal_shuts_down_gracefully() {
    let (here, there) = duplex(PIPE_LEN);
    let server = Server::builder().io(there).build().unwrap();
    let (signal, signalled) = tokio::sync::oneshot::channel::<()>();
    let signalled = async move { drop(signalled.await) };
    let serving = tokio::spawn(server.serve_until(signalled, LIMIT));
    let client = Client::from_io(here, ClientConfig::default());
    let call = client.unary::<(), ()>(SERVICE, "Echo", ());
    assert_eq!(call.await.unwrap_err().code(), Code::Unimplemented, "it serves");
    signal.send(()).unwrap();
    serving.await.unwrap().unwrap();
    client.closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_without_listeners_ends_with_its_last_connection() {
    let (here, there) = duplex(PIPE_LEN);
    let (other_here, other_there) = duplex(PIPE_LEN);
    let server = TestServer::start(ServerConfig::default(), [there, other_there]);
    eventually("both are served", || server.handle.connections() == 2).await;
    drop(here);
    eventually("one has ended", || server.handle.connections() == 1).await;
    drop(other_here);
    server.ended().await;
}

/// Calls without a pause until one fails: how many were answered, and with what code it failed.
async fn call_until_refused(client: ConformanceClient) -> (usize, Code) {
    for answered in 0.. {
        if let Err(status) = client.echo(echo_request(vec![0; 2000])).await {
            return (answered, status.code());
        }
    }
    unreachable!("a server that is shut down answers no more")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_full_load_accepted_calls_are_answered_and_later_ones_unavailable() {
    let pipes: Vec<_> = (0..8).map(|_| duplex(PIPE_LEN)).collect();
    let (here, there): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    let server = TestServer::start(ServerConfig::default(), there);
    let mut calls = JoinSet::new();
    for io in here {
        let client = ConformanceClient::new(Client::from_io(io, ClientConfig::default()));
        for _ in 0..50 {
            calls.spawn(call_until_refused(client.clone()));
        }
    }
    server.has_begun(5000).await;
    // Twice, at once.
    let (first, second) = (server.handle.shutdown(PATIENCE), server.handle.shutdown(PATIENCE));
    tokio::join!(first, second);
    let mut answered = 0;
    while let Some(ended) = calls.join_next().await {
        let (calls, code) = ended.unwrap();
        assert_eq!(code, Code::Unavailable);
        answered += calls as u64;
    }
    assert_eq!(server.service.calls_total(), answered, "whatever began was answered");
    assert_eq!(server.service.calls_cancelled(), 0);
    server.ended().await;
}

/// A service that ends its own server.
struct Stop {
    server: ServerHandle,
    /// Told when the service is dropped.
    _dropped: oneshot::Sender<()>,
}

impl Service for Stop {
    fn into_routes(self) -> Routes {
        Routes::new("Stop").unary("Stop", &Arc::new(self), |stop, _, (): ()| {
            Box::pin(async move {
                assert_eq!(stop.server.snapshot().state, ServerState::Serving);
                assert_eq!((stop.server.connections(), stop.server.calls_in_flight()), (1, 1));
                stop.server.begin_shutdown(PATIENCE);
                Ok(())
            })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_from_before_the_build_goes_into_a_service_and_does_not_keep_it_alive() {
    let (here, there) = duplex(PIPE_LEN);
    let builder = Server::builder();
    let handle = builder.handle();
    assert_eq!(handle.snapshot().state, ServerState::Idle);
    let (sender, dropped) = oneshot::channel();
    let builder = builder.add_service(Stop { server: handle.clone(), _dropped: sender });
    let serving = tokio::spawn(builder.keep_open().serve());
    handle.serve_connection(Connection::new(there)).await.unwrap();
    let client = Client::from_io(here, ClientConfig::default());
    client.unary::<(), ()>("Stop", "Stop", ()).await.unwrap();
    serving.await.unwrap().unwrap();
    handle.ended().await;
    assert_eq!(handle.snapshot().state, ServerState::Ended);
    assert!(dropped.await.is_err(), "the service has gone with its server");
}

#[tokio::test(start_paused = true)]
async fn a_handle_of_a_server_that_is_never_built_has_ended() {
    let builder = Server::builder();
    let handle = builder.handle();
    let (io, _there) = duplex(1);
    let handed_over = tokio::spawn({
        let handle = handle.clone();
        async move { handle.serve_connection(Connection::new(io)).await }
    });
    settle().await;
    drop(builder);
    handle.ended().await;
    assert!(matches!(handed_over.await.unwrap(), Err(Error::ServerEnded)));
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_handle_shut_it_down_before_it_was_built_is_not_served() {
    let builder = Server::builder().keep_open();
    builder.handle().begin_shutdown(PATIENCE);
    builder.serve().await.unwrap();
}
