//! Peers that give no sign of life while their sockets stay open.

use std::{future::poll_fn, io, pin::Pin, task::Poll, thread, time::Duration};

use tempfile::tempdir;
use tokio::{
    io::{AsyncReadExt, DuplexStream, duplex},
    sync::mpsc,
    time::{Instant, advance, sleep},
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, ConnectionError, ServerConfig, Status,
    client::{Backoff, ClientState, ConnectOptions, Keepalive},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    process::Process,
    wire::{Frame, Peer},
};

const SECOND: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_secs(3600);

const HEALTH: &str = "grpc.health.v1.Health";

fn keepalive() -> Keepalive {
    Keepalive::new(EVERY, TIMEOUT)
}

fn over(keepalive: Keepalive, io: DuplexStream) -> (Client, ConformanceClient) {
    let options = ConnectOptions::new().config(ClientConfig::default()).keepalive(keepalive);
    let client = options.from_connection(Connection::new(io));
    (client.clone(), ConformanceClient::new(client))
}

fn played_over(keepalive: Keepalive, len: usize) -> (Client, ConformanceClient, Played) {
    let (here, there) = duplex(len);
    let (client, conformance) = over(keepalive, here);
    (client, conformance, Peer::new(there))
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

fn is_lost(status: &Status) -> bool {
    let cause = status.connection_error();
    status.code() == Code::Unavailable && matches!(cause, Some(ConnectionError::KeepaliveTimeout))
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_nothing_is_asked_in_time_and_its_connection_ends() {
    let (client, conformance, mut server) = played_over(keepalive(), PIPE_LEN);
    sleep(HOUR).await;
    let began = Instant::now();
    let call = tokio::spawn(conformance.wait(key("never")).into_future());
    assert_eq!(server.receive().await.as_request().method, "Wait");
    let check = server.receive().await;
    assert_eq!(began.elapsed(), EVERY);
    let request = check.as_request();
    assert_eq!((request.service.as_str(), request.method.as_str()), (HEALTH, "Check"));
    assert_eq!((request.payload.len(), request.timeout_nano), (0, 1_500_000_000));
    let status = call.await.unwrap().unwrap_err();
    assert!(is_lost(&status), "{status:?}");
    assert_eq!(began.elapsed(), EVERY + TIMEOUT);
    assert!(matches!(client.closed().await, ConnectionError::KeepaliveTimeout));
    assert!(server.expect_end().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn any_answer_shows_life_and_so_does_any_byte() {
    let (_client, conformance, mut server) = played_over(keepalive(), PIPE_LEN);
    let mut call = conformance.wait(key("a"));
    assert!(poll_once(&mut call).await.is_pending());
    let id = server.receive().await.id;
    for code in [0, code::UNIMPLEMENTED, code::INTERNAL, code::UNAVAILABLE] {
        let asked = Instant::now();
        let check = server.receive().await;
        assert_eq!(asked.elapsed(), EVERY);
        server.send(Frame::failure(check.id, code, "")).await;
    }
    // Part of a frame that ends much later, and the answer to what was asked long ago.
    let reply = Frame::reply(id, &Empty {}).to_bytes();
    let check = server.receive().await;
    sleep(TIMEOUT - SECOND).await;
    let asked = Instant::now();
    server.send_bytes(&reply[..1]).await;
    let next = server.receive().await;
    assert_eq!(asked.elapsed(), EVERY);
    server.send_bytes(&reply[1..]).await;
    server.send(Frame::reply(check.id, &Empty {})).await;
    server.send(Frame::reply(next.id, &Empty {})).await;
    call.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_calls_is_asked_only_if_that_is_asked_for() {
    let (_client, conformance, mut server) = played_over(keepalive(), PIPE_LEN);
    sleep(HOUR).await;
    assert!(server.is_quiet().await);
    // Its call is the only one that counts: nothing has arrived for an hour.
    let mut call = conformance.wait(key("a"));
    assert!(poll_once(&mut call).await.is_pending());
    let asked = Instant::now();
    server.receive().await;
    server.receive().await;
    assert_eq!(asked.elapsed(), EVERY);

    let (client, _conformance, mut server) = played_over(keepalive().always(), PIPE_LEN);
    let began = Instant::now();
    let check = server.receive().await;
    server.send(Frame::failure(check.id, code::UNIMPLEMENTED, "")).await;
    server.receive().await;
    assert_eq!(began.elapsed(), 2 * EVERY);
    client.closed().await;
    assert_eq!(began.elapsed(), 2 * EVERY + TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_is_never_asked() {
    let (_client, conformance, mut server) = played_over(keepalive().always(), PIPE_LEN);
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let id = server.receive().await.id;
    for sequence in 0..1000 {
        sleep(EVERY - SECOND).await;
        server.send(Frame::message(id, &chunk(sequence))).await;
        assert_eq!(replies.recv().await.unwrap(), Some(chunk(sequence)));
    }
    assert!(server.is_quiet().await);
}

/// It swallows what the client sends, however much that is.
#[tokio::test(start_paused = true)]
async fn a_peer_behind_one_that_reads_everything_is_noticed_while_calls_are_made() {
    let (here, mut there) = duplex(PIPE_LEN);
    let (client, conformance) = over(keepalive(), here);
    let swallowing = tokio::spawn(async move { while there.read_u8().await.is_ok() {} });
    let began = Instant::now();
    let late = loop {
        let call = conformance.echo(echo_request([7; 1000])).timeout(SECOND).await;
        let status = call.unwrap_err();
        if status.code() != Code::DeadlineExceeded {
            break status;
        }
        assert!(began.elapsed() < HOUR, "each call is young");
        let mut open = conformance.wait(key("a"));
        assert!(poll_once(&mut open).await.is_pending());
        tokio::spawn(open);
    };
    assert!(is_lost(&late), "{late:?}");
    assert!(began.elapsed() <= EVERY + TIMEOUT + SECOND, "{:?}", began.elapsed());
    drop(client);
    swallowing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_slowly_is_not_given_up_and_one_that_does_not_read_is() {
    let (client, conformance, server) = played_over(keepalive(), 1);
    let began = Instant::now();
    let call = tokio::spawn(conformance.echo(echo_request([7; 1000])).into_future());
    let mut there = server.into_inner();
    // Two bytes of each part of the time: some half an hour, in which nothing arrives.
    let mut frame = vec![0; 10];
    while frame.len() < 10 + 1000 {
        sleep(TIMEOUT / 2).await;
        frame.push(there.read_u8().await.unwrap());
    }
    assert!(client.close_reason().is_none() && began.elapsed() > HOUR / 3);
    assert!(!call.is_finished());
    let silent = Instant::now();
    let status = call.await.unwrap().unwrap_err();
    assert!(is_lost(&status), "{status:?}");
    assert!(silent.elapsed() <= 2 * TIMEOUT, "{:?}", silent.elapsed());
}

/// It is this side that does not read.
#[tokio::test(start_paused = true)]
async fn a_connection_is_not_ended_while_its_receiver_waits_for_a_consumer() {
    let (here, there) = duplex(100);
    let config = ClientConfig::default().stream_inbox_messages(1).stall_timeout(HOUR);
    let options = ConnectOptions::new().config(config).keepalive(keepalive());
    let client = options.from_connection(Connection::new(here));
    let conformance = ConformanceClient::new(client.clone());
    let mut server = Peer::new(there);
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let id = server.receive().await.id;
    let sending = tokio::spawn(async move {
        for sequence in 0.. {
            server.send(Frame::message(id, &chunk(sequence))).await;
        }
    });
    for sequence in 0..100 {
        sleep(4 * EVERY).await;
        assert_eq!(replies.recv().await.unwrap(), Some(chunk(sequence)));
    }
    assert!(client.close_reason().is_none());
    sending.abort();
}

/// Nothing is read there meanwhile, for up to `stall_timeout`: a client that waits for less takes the server for dead.
#[tokio::test(start_paused = true)]
async fn a_server_at_its_limit_is_not_taken_for_dead_by_a_client_that_waits_longer_than_it_stalls()
{
    for is_patient in [true, false] {
        let (here, there) = duplex(PIPE_LEN);
        let stall_timeout = if is_patient { TIMEOUT / 2 } else { TIMEOUT * 2 };
        let config =
            ServerConfig::default().max_calls_per_connection(1).stall_timeout(stall_timeout);
        let _server = TestServer::start(config, [there]);
        let (client, conformance) = over(Keepalive::new(SECOND / 10, TIMEOUT), here);
        let long = conformance.sleep(SleepRequest { millis: 60_000 });
        let refused = conformance.sleep(SleepRequest { millis: 60_000 });
        let (long, refused) = tokio::join!(long, refused);
        let (Err(refused), true) = (refused, long.is_ok() == is_patient) else {
            panic!("patient: {is_patient}, {long:?}");
        };
        match is_patient {
            true => assert_eq!(refused.code(), Code::ResourceExhausted),
            false => assert!(is_lost(&refused), "{refused:?}"),
        }
        assert_eq!(client.close_reason().is_none(), is_patient);
    }
}

/// The process was stopped, or nobody drove its runtime: all timers are due at once.
#[tokio::test(start_paused = true)]
async fn a_client_that_did_not_run_meanwhile_reads_what_has_arrived_first() {
    let (client, conformance, mut server) = played_over(keepalive(), PIPE_LEN);
    let mut call = conformance.wait(key("a"));
    assert!(poll_once(&mut call).await.is_pending());
    let id = server.receive().await.id;
    let check = server.receive().await;
    advance(HOUR).await;
    server.send(Frame::reply(check.id, &Empty {})).await;
    sleep(EVERY - SECOND).await;
    assert!(client.close_reason().is_none());
    server.send(Frame::reply(id, &Empty {})).await;
    call.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reconnects_does() {
    let (connections, mut accepted) = mpsc::unbounded_channel();
    let options = ConnectOptions::new().reconnect(Backoff::new()).keepalive(keepalive());
    let client = options.connect_through(move || {
        let (here, there) = duplex(PIPE_LEN);
        connections.send(Peer::new(there)).expect("the test takes it");
        async { Ok::<_, io::Error>(Connection::new(here)) }
    });
    let conformance = ConformanceClient::new(client.clone());
    let lost = tokio::spawn(conformance.wait(key("a")).into_future());
    let mut dead = accepted.recv().await.unwrap();
    let status = lost.await.unwrap().unwrap_err();
    assert!(is_lost(&status), "{status:?}");
    assert_eq!(dead.expect_end().await.len(), 2);
    assert!(matches!(client.state(), ClientState::Idle));
    let call = tokio::spawn(conformance.echo(echo_request([7])).into_future());
    let mut alive = accepted.recv().await.unwrap();
    let id = alive.receive().await.id;
    alive.send(Frame::reply(id, &EchoResponse { payload: vec![7] })).await;
    assert_eq!(call.await.unwrap().unwrap().payload, [7]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_connection_that_was_closed() {
    let before = alive_tasks();
    let (here, there) = duplex(PIPE_LEN);
    let options = ConnectOptions::new().keepalive(keepalive().always()).cancel_at_server();
    let client = options.from_connection(Connection::new(here));
    settle().await;
    assert_eq!(alive_tasks(), before + 4);
    drop(client);
    tasks_are_back_at(before).await;
    drop(there);
}

/// A conformance server that has been stopped.
fn stopped_server(address: &str) -> Process {
    let program = env!("CARGO_BIN_EXE_ttrpc-conformance-server");
    let server = Process::start_conformance_server(program, address).expect("it starts");
    server.stop();
    server
}

fn impatient() -> ConnectOptions {
    let keepalive = Keepalive::new(Duration::from_millis(20), Duration::from_millis(200));
    ConnectOptions::new().keepalive(keepalive)
}

#[tokio::test]
async fn a_process_that_was_stopped_is_noticed() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let server = stopped_server(&address);
    let client = impatient().connect(&address).await.unwrap();
    let conformance = ConformanceClient::new(client.clone());
    let status = conformance.echo(echo_request([])).timeout(PATIENCE).await.unwrap_err();
    assert!(is_lost(&status), "{status:?}");
    // The same when the socket is full.
    let client = impatient().connect(&address).await.unwrap();
    let conformance = ConformanceClient::new(client);
    let status =
        conformance.echo(echo_request(vec![0; 3 << 20])).timeout(PATIENCE).await.unwrap_err();
    assert!(is_lost(&status), "{status:?}");
    server.resume();
    let conformance = ConformanceClient::new(Client::connect(&address).await.unwrap());
    conformance.echo(echo_request([])).await.unwrap();
}

#[test]
fn a_blocking_client_notices_it_too() {
    let folder = tempdir().unwrap();
    let address = folder.path().join("a.sock").to_str().unwrap().to_owned();
    let _server = stopped_server(&address);
    let client = impatient().connect_blocking(&address).unwrap();
    let call = client.unary::<_, EchoResponse>(SERVICE, "Echo", echo_request([]));
    let status = call.timeout(PATIENCE).call().unwrap_err();
    assert!(is_lost(&status), "{status:?}");
    let waiting = thread::spawn(move || client.closed());
    assert!(matches!(waiting.join().unwrap(), ConnectionError::KeepaliveTimeout));
}
