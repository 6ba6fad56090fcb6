//! What is traced of a peer that breaks the protocol, of replies that are too long, of calls that need not
//! wait, and of a server that is full; what the access log has. In a binary of their own, since a subscriber changes
//! what other threads trace.

mod log;

use std::{sync::Arc, time::Duration};

use tempfile::tempdir;
use tokio::{
    io::{AsyncWriteExt, duplex, split},
    time::sleep,
};
use tracing::Level;
use ttrpc::{
    Client, ClientConfig, Code, Connection, Server, ServerConfig, Status,
    interceptors::{AccessLog, Authorize},
    server::{Listener, PeerPolicy, Routes, StreamReceiver},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    service::ConformanceService,
    wire::{Frame, Response},
};

use log::Log;

/// The most warnings of one connection within a second.
const FEW: usize = 5;

/// Frames that break the protocol, each in its own way, and each answered.
fn violation(nth: u32) -> Frame {
    match nth % 3 {
        0 => Frame::message(2 * nth + 1001, &chunk(0)),
        1 => call(2, "Echo", &Empty {}),
        _ => call(1, "Echo", &Empty {}),
    }
}

#[tokio::test(start_paused = true)]
async fn violations_are_warned_of_a_few_times_a_second_and_not_at_the_peers_pace() {
    const VIOLATIONS: u32 = 10_000;
    let (log, _guard) = Log::start(Level::WARN);
    let (here, there) = duplex(PIPE_LEN);
    let _server = TestServer::start(ServerConfig::default(), [there]);
    let (mut reader, mut writer) = split(here);
    // So that the id is used.
    writer.write_all(&call(1, "Echo", &Empty {}).to_bytes()).await.unwrap();
    read_frame(&mut reader).await;
    let writing = tokio::spawn(async move {
        for nth in 0..VIOLATIONS {
            writer.write_all(&violation(nth).to_bytes()).await.unwrap();
        }
        writer
    });
    for _ in 0..VIOLATIONS {
        let (_, data) = read_frame(&mut reader).await;
        let status = Response::decode_from(&data).status.expect("each is refused");
        assert_eq!(status.code, code::INVALID_ARGUMENT);
    }
    let warnings = log.lines(&["WARN"]);
    assert!(!warnings.is_empty(), "an operator hears of them");
    assert!(warnings.len() <= FEW, "{} warnings, such as {}", warnings.len(), warnings[0]);

    // Much later, an operator hears of the next ones, too.
    let mut writer = writing.await.unwrap();
    sleep(Duration::from_secs(3600)).await;
    let before = warnings.len();
    for nth in 0..100 {
        writer.write_all(&violation(nth).to_bytes()).await.unwrap();
        read_frame(&mut reader).await;
    }
    let later = log.lines(&["WARN"]).len() - before;
    assert!((1..=FEW).contains(&later), "{later} warnings an hour later");
}

#[tokio::test(start_paused = true)]
async fn violations_of_one_connection_do_not_hide_those_of_another() {
    let (log, _guard) = Log::start(Level::WARN);
    let (here, there): (Vec<_>, Vec<_>) = (0..2).map(|_| duplex(PIPE_LEN)).unzip();
    let _server = TestServer::start(ServerConfig::default(), there);
    for (nth, pipe) in here.into_iter().enumerate() {
        let before = log.lines(&["WARN"]).len();
        let mut peer = Played::new(pipe);
        for _ in 0..100 {
            peer.send(Frame::message(7, &chunk(0))).await;
            peer.receive().await;
        }
        let warnings = log.lines(&["WARN"]).len() - before;
        assert!((1..=FEW).contains(&warnings), "{warnings} warnings of connection {nth}");
    }
}

/// A client sends them at its own pace, each on a stream of its own.
#[tokio::test(start_paused = true)]
async fn messages_of_streams_that_are_too_long_are_not_warned_of() {
    let (log, _guard) = Log::start(Level::WARN);
    let (here, there) = duplex(PIPE_LEN);
    let _server = TestServer::start(ServerConfig::default(), [there]);
    let mut peer = Played::new(here);
    for id in (1..FEW as u32 * 4).step_by(2) {
        peer.send(open_stream(id, "Collect")).await;
        peer.send(Frame { data: vec![0; MAX_DATA_LEN + 1], ..Frame::message(id, &chunk(0)) }).await;
        let status = Response::decode_from(&peer.receive().await.data).status.unwrap();
        assert_eq!(status.code, code::RESOURCE_EXHAUSTED);
    }
    assert_eq!(log.lines(&["WARN"]), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn violations_by_a_server_are_warned_of_in_the_same_way() {
    let (log, _guard) = Log::start(Level::WARN);
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let mut before = 0;
    for _ in 0..2 {
        for _ in 0..100 {
            let call = tokio::spawn(conformance.echo(echo_request([])).into_future());
            let id = peer.receive().await.id;
            peer.send(Frame::message(id, &chunk(0))).await;
            assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Internal);
        }
        let warnings = log.lines(&["WARN", "the server broke the protocol"]).len() - before;
        assert!((1..=FEW).contains(&warnings), "{warnings} warnings");
        before += warnings;
        sleep(Duration::from_secs(3600)).await;
    }
}

/// What a peer has made up does not fill it.
#[tokio::test(start_paused = true)]
async fn the_access_log_has_one_short_line_for_each_call_whoever_refuses_it() {
    let (log, _guard) = Log::start(Level::INFO);
    let (here, there) = duplex(PIPE_LEN);
    let rules = Authorize::deny_all().allow(PeerPolicy::anybody());
    let rules = rules.allow_method(SERVICE, "Stats", PeerPolicy::custom(|_| false));
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(AccessLog::default()).intercept(rules).io(there)
    });
    let client = Client::from_io(here, ClientConfig::default());
    let conformance = ConformanceClient::new(client.clone());
    conformance.echo(echo_request([7; 100])).await.unwrap();
    let fail = FailRequest { code: code::NOT_FOUND, message: "gone".into(), ..Default::default() };
    conformance.fail(fail).await.unwrap_err();
    conformance.stats(Empty {}).await.unwrap_err();
    let unknown = "x".repeat(100_000);
    client.unary::<(), ()>(unknown.clone(), unknown, ()).await.unwrap_err();
    server.is_idle().await;

    for parts in [
        ["method=\"Echo\"", "code=OK", "cause=replied"],
        ["method=\"Fail\"", "code=NOT_FOUND", "error=\"gone\""],
        ["method=\"Stats\"", "code=PERMISSION_DENIED", "cause=refused"],
        ["method=\"xxx", "code=UNIMPLEMENTED", "cause=unimplemented"],
    ] {
        let mut parts = parts.to_vec();
        parts.extend(["INFO ttrpc::access: side=\"server\"", "peer=an unknown peer", "duration="]);
        assert_eq!(log.lines(&parts).len(), 1, "{parts:?}: {:?}", log.lines(&[]));
    }
    let lines = log.lines(&[]);
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(log.lines(&["error="]).len(), 3, "a call that succeeds has no error: {lines:?}");
    let longest = lines.iter().map(String::len).max();
    assert!(longest < Some(2000), "{longest:?}");
}

/// So that logs and traces can be joined.
#[tokio::test(start_paused = true)]
async fn the_access_log_is_written_in_the_call_s_span_with_its_trace_id() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(AccessLog::default()).io(there)
    });
    let conformance = ConformanceClient::new(Client::from_io(here, ClientConfig::default()));
    let trace_id = "0af7651916cd43dd8448eb211c80319c";
    let (good, no_digits) =
        (format!("00-{trace_id}-b7-01"), format!("00-{}-b7-01", "x".repeat(32)));
    for traceparent in [&*good, &*no_digits, "00-no\ntrace-b7-01"] {
        conformance.echo(echo_request([7])).metadata("traceparent", traceparent).await.unwrap();
    }
    server.is_idle().await;
    let lines = log.lines(&["ttrpc::access"]);
    assert_eq!((lines.len(), log.lines(&["ttrpc::access", "call{"]).len()), (3, 3), "{lines:?}");
    let with_trace_id = log.lines(&[&format!("trace_id={trace_id:?}")]);
    assert_eq!((with_trace_id.len(), log.lines(&["trace_id="]).len()), (1, 1), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn the_access_log_has_the_whole_message_of_a_method_that_the_server_has() {
    let (log, _guard) = Log::start(Level::INFO);
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(AccessLog::default()).io(there)
    });
    let client = ConformanceClient::new(Client::from_io(here, ClientConfig::default()));
    let message = "x".repeat(600);
    let fail = FailRequest { code: code::NOT_FOUND, message, ..Default::default() };
    client.fail(fail.clone()).await.unwrap_err();
    server.is_idle().await;
    let error = format!("error={:?}", fail.message);
    assert_eq!(log.lines(&["method=\"Fail\"", &error]).len(), 1, "{:?}", log.lines(&[]));
}

/// Longer than a frame may be.
const TOO_LONG: u32 = 5 << 20;

#[tokio::test(start_paused = true)]
async fn replies_that_are_too_long_are_traced_with_the_code_that_the_client_gets() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let (server, _client, conformance) = connected_by_default();
    let request = EchoRequest { payload: Vec::new(), response_size: TOO_LONG };
    let failed = conformance.echo(request).await.unwrap_err();
    assert_eq!(failed.code(), Code::ResourceExhausted);
    server.is_idle().await;
    let of_server = log.lines(&["ttrpc::server", "method=\"Echo\"", "call ended", "code="]);
    assert_eq!(of_server.len(), 1, "each call ends once: {of_server:#?}");
    assert!(of_server[0].contains("code=RESOURCE_EXHAUSTED"), "{}", of_server[0]);
}

/// The same where the reply ends a stream of requests.
#[tokio::test(start_paused = true)]
async fn replies_to_streams_that_are_too_long_are_traced_with_the_code_that_the_client_gets() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let routes = Routes::new("test.Long").client_streaming(
        "Collect",
        &Arc::new(()),
        |(), _, _: StreamReceiver<Empty>| {
            Box::pin(async {
                Ok::<_, Status>(EchoResponse { payload: vec![0; TOO_LONG as usize] })
            })
        },
    );
    let (here, there) = duplex(PIPE_LEN);
    tokio::spawn(Server::builder().add_service(Handmade(routes)).io(there).serve());
    let client = Client::from_io(here, ClientConfig::default());
    let (_requests, reply) =
        client.client_streaming::<Empty, EchoResponse>("test.Long", "Collect").await.unwrap();
    assert_eq!(reply.await.unwrap_err().code(), Code::ResourceExhausted);
    settle().await;
    let of_server = log.lines(&["ttrpc::server", "method=\"Collect\"", "call ended", "code="]);
    assert_eq!(of_server.len(), 1, "each call ends once: {of_server:#?}");
    assert!(of_server[0].contains("code=RESOURCE_EXHAUSTED"), "{}", of_server[0]);
}

/// What has to wait is traced; a stream that finds room at once is not among that.
#[tokio::test(start_paused = true)]
async fn streams_that_find_room_at_once_are_not_traced_as_waiting() {
    let (log, _guard) = Log::start(Level::DEBUG);
    let (server, _client, conformance) = connected_by_default();
    let request = GenerateRequest { count: 3, ..GenerateRequest::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    while replies.recv().await.unwrap().is_some() {}
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    requests.finish();
    while replies.recv().await.unwrap().is_some() {}
    let (mut requests, reply) = conformance.collect().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    requests.finish();
    reply.await.unwrap();
    server.is_idle().await;
    let waits = log.lines(&["waited "]);
    assert!(waits.is_empty(), "nobody had to wait: {waits:#?}");
}

/// The warning came with the last place, though nobody waited for one.
#[tokio::test(start_paused = true)]
async fn a_full_server_is_warned_of_when_somebody_waits() {
    let (log, _guard) = Log::start(Level::WARN);
    let warnings = || log.lines(&["new connections wait"]).len();
    let folder = tempdir().unwrap();
    let address = folder.path().join("a").to_str().unwrap().to_owned();
    let tcp = Listener::bind("tcp://127.0.0.1:0").unwrap();
    let tcp_address = format!("tcp://{}", tcp.socket_addr().unwrap());
    let server = Server::builder()
        .add_service(ConformanceServer::new(ConformanceService::default()))
        .config(ServerConfig::default().max_connections(1))
        .bind(&address)
        .and_then(|builder| builder.listener(tcp).build())
        .unwrap();
    let handle = server.handle();
    let serving = tokio::spawn(server.serve());
    let mut expected = 0;
    for address in [&address, &tcp_address, &address] {
        let first = ConformanceClient::new(Client::connect(address).await.unwrap());
        first.echo(echo_request([])).await.unwrap();
        settle().await;
        assert_eq!(warnings(), expected, "nobody waits");
        let second = ConformanceClient::new(Client::connect(address).await.unwrap());
        expected += 1;
        eventually("a warning comes", || warnings() == expected).await;
        first.echo(echo_request([])).await.unwrap();
        settle().await;
        assert_eq!(warnings(), expected, "it is said once");
        drop(first);
        second.echo(echo_request([])).await.unwrap();
        settle().await;
        assert_eq!(warnings(), expected, "nobody waits any more");
        drop(second);
        eventually("the connection ends", || handle.connections() == 0).await;
    }

    let (_here, there) = duplex(PIPE_LEN);
    handle.serve_connection(Connection::new(there)).await.unwrap();
    settle().await;
    assert_eq!(warnings(), expected);
    let (_here, there) = duplex(PIPE_LEN);
    let handing_over = tokio::spawn({
        let handle = handle.clone();
        async move { handle.serve_connection(Connection::new(there)).await }
    });
    eventually("a warning comes", || warnings() == expected + 1).await;
    assert!(!handing_over.is_finished());
    serving.abort();
}
