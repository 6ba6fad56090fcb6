//! Calls that are given up, where the client tells the server: `ttrpc.control.v1.Control/Cancel`.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use tokio::{
    io::{DuplexStream, duplex},
    time::timeout,
};
use ttrpc::{
    Client, ClientConfig, Code, Connection, Context, RawEnd, Server, ServerConfig, Status,
    async_trait,
    client::ConnectOptions,
    observer::{CallEnd, CallInfo, EndCause, Observer},
    server::{Fallback, FallbackCall, Interceptor, Next},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{self, Frame, Peer, REMOTE_OPEN, REQUEST},
};

const CONTROL: &str = "ttrpc.control.v1.Control";

const SECOND: Duration = Duration::from_secs(1);

/// The longest that a handler of the tests would run.
fn hour() -> SleepRequest {
    SleepRequest { millis: 3_600_000 }
}

/// A request of `Cancel`, by its bytes.
fn cancel(id: u32, ids: &[u8]) -> Frame {
    let request = wire::Request {
        service: CONTROL.to_owned(),
        method: "Cancel".to_owned(),
        payload: ids.to_vec(),
        ..wire::Request::default()
    };
    Frame::new(id, REQUEST, 0, ttrpc::prost::Message::encode_to_vec(&request))
}

fn sleep_frame(id: u32) -> Frame {
    Frame::unary(id, SERVICE, "Sleep", &hour())
}

fn telling(config: ClientConfig, io: DuplexStream) -> Client {
    ConnectOptions::new().config(config).cancel_at_server().from_connection(Connection::new(io))
}

fn connect_telling(server_config: ServerConfig) -> (TestServer, Client, ConformanceClient) {
    let (here, there) = duplex(PIPE_LEN);
    let server = TestServer::start(server_config, [there]);
    let client = telling(ClientConfig::default(), here);
    (server, client.clone(), ConformanceClient::new(client))
}

fn played_by_telling(config: ClientConfig, len: usize) -> (Client, ConformanceClient, Played) {
    let (here, there) = duplex(len);
    let client = telling(config, here);
    (client.clone(), ConformanceClient::new(client), Peer::new(there))
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_dropped_when_its_caller_gives_the_call_up() {
    let (server, client, conformance) = connect_telling(ServerConfig::default());
    let mut given_up = conformance.sleep(hour());
    let mut kept = conformance.sleep(SleepRequest { millis: 10_000 });
    for call in [&mut given_up, &mut kept] {
        assert!(poll_once(call).await.is_pending());
    }
    server.has_begun(2).await;
    drop(given_up);
    eventually("it is cancelled", || server.service.calls_cancelled() == 1).await;
    kept.await.expect("another call goes on");
    // The same where the time is the program's own, of which the server does not know.
    let late = timeout(SECOND, conformance.sleep(hour())).await;
    assert!(late.is_err());
    eventually("it is cancelled", || server.service.calls_cancelled() == 2).await;
    server.is_idle().await;
    eventually("nothing is left", || client.calls_in_flight() == 0).await;
}

/// A server that keeps no deadlines hears of them.
#[tokio::test(start_paused = true)]
async fn a_call_whose_deadline_has_passed_is_given_up() {
    let (_client, conformance, mut server) = played_by_telling(ClientConfig::default(), PIPE_LEN);
    let call = tokio::spawn(conformance.sleep(hour()).timeout(SECOND).into_future());
    assert_eq!(server.receive().await.as_request().method, "Sleep");
    assert_eq!(server.receive().await, cancel(3, &[0x08, 1]));
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_stream_ends_when_its_client_gives_it_up() {
    let (server, _client, conformance) = connect_telling(ServerConfig::default());
    let endless =
        || GenerateRequest { count: u64::MAX, interval_micros: 1000, ..Default::default() };
    let mut generated = conformance.generate(endless()).await.unwrap();
    generated.recv().await.unwrap();
    drop(generated);
    server.is_idle().await;
    let (requests, reply) = conformance.hold().await.unwrap();
    server.has_begun(2).await;
    drop((requests, reply));
    server.is_idle().await;
    let (requests, replies) = conformance.exchange().await.unwrap();
    server.has_begun(3).await;
    drop(replies);
    settle().await;
    assert_eq!(server.handle.calls_in_flight(), 1, "its requests go on");
    drop(requests);
    server.is_idle().await;
}

/// Else a handler would take half an upload for a whole one.
#[tokio::test(start_paused = true)]
async fn an_upload_that_is_given_up_has_no_good_end() {
    let (_client, conformance, mut server) = played_by_telling(ClientConfig::default(), PIPE_LEN);
    // By the program; by a future that is dropped, which drops what came last first; and not where the program has ended it.
    for ends in [false, false, true] {
        let (requests, reply) = conformance.hold().await.unwrap();
        let id = server.receive().await.id;
        if ends {
            requests.finish();
            assert_eq!(server.receive().await, Frame::end(id));
            drop(reply);
        } else if id == 1 {
            requests.give_up();
            assert_eq!(reply.await.unwrap_err().code(), Code::Cancelled);
        } else {
            drop(reply);
            drop(requests);
        }
        let told = server.receive().await;
        assert_eq!(told, cancel(id + 2, &[0x08, id as u8]));
        server.send(Frame::reply(told.id, &Empty {})).await;
        assert!(server.is_quiet().await);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_given_up_together_are_one_call_and_those_after_them_wait_for_its_answer() {
    let (client, conformance, mut server) = played_by_telling(ClientConfig::default(), PIPE_LEN);
    let mut calls: Vec<_> = (0..5).map(|_| conformance.sleep(hour())).collect();
    for call in &mut calls {
        assert!(poll_once(call).await.is_pending());
        assert_eq!(server.receive().await.as_request().method, "Sleep");
    }
    drop(calls.drain(..2));
    let told = server.receive().await;
    assert_eq!(told, cancel(11, &[0x08, 1, 0x08, 3]));
    drop(calls.drain(..2));
    assert!(server.is_quiet().await);
    server.send(Frame::reply(11, &Empty {})).await;
    assert_eq!(server.receive().await, cancel(13, &[0x08, 5, 0x08, 7]));
    server.send(Frame::failure(13, code::RESOURCE_EXHAUSTED, "some other day")).await;
    drop(calls);
    assert_eq!(server.receive().await, cancel(15, &[0x08, 9]));
    server.send(Frame::reply(15, &Empty {})).await;
    eventually("nothing is left", || client.calls_in_flight() == 0).await;
    // However many calls wait for the answer.
    let mut calls: Vec<_> = (0..3000).map(|_| conformance.sleep(hour())).collect();
    for call in &mut calls {
        assert!(poll_once(call).await.is_pending());
        server.receive().await;
    }
    drop(calls.remove(0));
    server.receive().await;
    drop(calls);
    server.send(Frame::reply(15 + 2 * 3001, &Empty {})).await;
    let told = server.receive().await.as_request().payload;
    let ids = told.iter().filter(|&&byte| byte == 0x08).count();
    assert!(ids >= 1024 && told.len() <= 6 * 1024, "{ids} {}", told.len());
}

#[tokio::test(start_paused = true)]
async fn of_a_call_whose_request_was_not_written_the_server_hears_nothing() {
    let (client, conformance, mut server) = played_by_telling(ClientConfig::default(), 100);
    // The first fills the pipe; the others wait in the sender's batch and in the queue.
    let mut calls: Vec<_> = (0..4).map(|_| conformance.echo(echo_request([7; 500]))).collect();
    for call in &mut calls {
        assert!(poll_once(call).await.is_pending());
        settle().await;
    }
    let last = calls.pop().unwrap();
    drop(calls.drain(1..));
    settle().await;
    drop(calls);
    let first = server.receive().await;
    assert_eq!((first.id, first.as_request().method.as_str()), (1, "Echo"));
    let second = server.receive().await;
    assert_eq!((second.id, second.as_request().method.as_str()), (7, "Echo"));
    let told = server.receive().await;
    assert_eq!(told.as_request().payload, [0x08, 1]);
    server.send(Frame::reply(told.id, &Empty {})).await;
    drop(last);
    assert_eq!(server.receive().await.as_request().payload, [0x08, 7]);
    drop(client);
}

/// The bytes of the page's examples.
fn wire_bytes() -> Vec<Vec<u8>> {
    let page = include_str!("../../../docs/internals/extensions.md");
    let is_byte = |word: &&str| word.len() == 2 && u8::from_str_radix(word, 16).is_ok();
    let bytes_of = |block: &str| {
        let bytes = |line: &str| -> Vec<u8> {
            // The explanation follows after four blanks.
            let words = line.split("    ").next().unwrap_or_default().split_whitespace();
            let words = words.filter(is_byte);
            words.map(|word| u8::from_str_radix(word, 16).expect("it is one")).collect()
        };
        block.lines().flat_map(bytes).collect()
    };
    crate::guide::blocks(&[page], "text").into_iter().map(bytes_of).collect()
}

#[tokio::test(start_paused = true)]
async fn the_page_for_other_implementations_has_the_bytes() {
    let [told, answer] = wire_bytes().try_into().expect("the page has two examples");
    let (_client, conformance, mut server) = played_by_telling(ClientConfig::default(), PIPE_LEN);
    let mut call = conformance.sleep(hour());
    assert!(poll_once(&mut call).await.is_pending());
    server.receive().await;
    drop(call);
    assert_eq!(server.receive().await.to_bytes(), told);
    let (server, mut client) = played_client(ServerConfig::default());
    client.send(sleep_frame(1)).await;
    server.has_begun(1).await;
    client.send_bytes(&told).await;
    assert_eq!(client.receive().await.to_bytes(), answer);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_option_no_byte_is_sent() {
    let (_client, conformance, mut server) = played_server(ClientConfig::default());
    let mut call = conformance.sleep(hour());
    assert!(poll_once(&mut call).await.is_pending());
    server.receive().await;
    drop(call);
    assert!(server.is_quiet().await);
    let late = timeout(SECOND, conformance.sleep(hour())).await;
    assert!(late.is_err());
    server.receive().await;
    assert!(server.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_the_service_is_asked_once_a_connection() {
    for unknown in [code::UNIMPLEMENTED, code::NOT_FOUND, code::INVALID_ARGUMENT] {
        let (_client, conformance, mut server) =
            played_by_telling(ClientConfig::default(), PIPE_LEN);
        for round in 0..3 {
            let mut call = conformance.sleep(hour());
            assert!(poll_once(&mut call).await.is_pending());
            server.receive().await;
            drop(call);
            if round == 0 {
                let told = server.receive().await;
                assert_eq!(told.as_request().service, CONTROL);
                server.send(Frame::failure(told.id, unknown, "service")).await;
            }
            assert!(server.is_quiet().await, "{unknown}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_cancels_calls_of_its_own_connection_alone() {
    let (here, there) = duplex(PIPE_LEN);
    let (other_here, other_there) = duplex(PIPE_LEN);
    let server = TestServer::start(ServerConfig::default(), [there, other_there]);
    let (mut client, mut other) = (Peer::new(here), Peer::new(other_here));
    client.send(sleep_frame(1)).await;
    other.send(sleep_frame(3)).await;
    server.has_begun(2).await;
    // Of another connection, its own, of the future, over, none that could be, and the highest.
    client.send(cancel(3, &[0x08, 3, 0x08, 3, 0x08, 5, 0x08, 0, 0x08, 2])).await;
    assert_eq!(client.receive().await, Frame::new(3, wire::RESPONSE, 0, []));
    client.send(cancel(7, &[0x08, 0xff, 0xff, 0xff, 0xff, 0x0f])).await;
    assert_eq!(client.receive().await.code(), 0);
    assert_eq!((server.service.calls_cancelled(), server.handle.calls_in_flight()), (0, 2));
    // What was of the future is not remembered.
    client.send(sleep_frame(9)).await;
    server.has_begun(3).await;
    // Twice, packed, and in any order; nothing is sent for the calls themselves.
    client.send(cancel(11, &[0x0a, 3, 9, 1, 9])).await;
    assert_eq!(client.receive().await, Frame::new(11, wire::RESPONSE, 0, []));
    eventually("both are cancelled", || server.service.calls_cancelled() == 2).await;
    client.send(cancel(13, &[0x08, 1])).await;
    assert_eq!(client.receive().await, Frame::new(13, wire::RESPONSE, 0, []));
    assert!(client.is_quiet().await);
    assert_eq!(server.handle.calls_in_flight(), 1);
    other.send(cancel(5, &[0x08, 3])).await;
    assert_eq!(other.receive().await.code(), 0);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_still_sends_on_a_stream_that_it_cancelled_is_ignored() {
    let (server, mut client) = played_client(ServerConfig::default());
    client.send(Frame::request(1, REMOTE_OPEN, SERVICE, "Collect", &Empty {})).await;
    client.send(Frame::message(1, &chunk(0))).await;
    server.has_begun(1).await;
    client.send(cancel(3, &[0x08, 1])).await;
    client.send(Frame::message(1, &chunk(1))).await;
    client.send(Frame::end(1)).await;
    assert_eq!(client.receive().await, Frame::new(3, wire::RESPONSE, 0, []));
    assert!(client.is_quiet().await);
    server.is_idle().await;
    assert_eq!(server.service.calls_cancelled(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_request_to_cancel_is_refused() {
    let (server, mut client) = played_client(ServerConfig::default());
    let mut code_of = async |mut frame: Frame, id| {
        frame.id = id;
        client.send(frame).await;
        let answer = client.receive().await;
        assert_eq!(answer.id, id);
        answer.code()
    };
    let many = |count: usize| [[0x08, 1]; 1025][..count].concat();
    assert_eq!(code_of(cancel(0, &many(1024)), 1).await, 0);
    assert_eq!(code_of(cancel(0, &many(1025)), 3).await, code::RESOURCE_EXHAUSTED);
    assert_eq!(code_of(cancel(0, &vec![0; 1 << 20]), 5).await, code::RESOURCE_EXHAUSTED);
    assert_eq!(code_of(cancel(0, &[0x08]), 7).await, code::INVALID_ARGUMENT);
    assert_eq!(code_of(cancel(0, &[]), 9).await, 0);
    let opens = Frame { flags: REMOTE_OPEN, ..cancel(0, &[]) };
    assert_eq!(code_of(opens, 11).await, code::INVALID_ARGUMENT);
    let other = Frame::unary(0, CONTROL, "Other", &Empty {});
    assert_eq!(code_of(other, 13).await, code::UNIMPLEMENTED);
    server.is_idle().await;

    let (_server, mut client) = played_client(ServerConfig::default().cancellable(false));
    client.send(cancel(1, &[0x08, 1])).await;
    assert_eq!(client.receive().await.code(), code::UNIMPLEMENTED);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drains_need_not_wait_for_calls_that_are_given_up() {
    let (server, mut client) = played_client(ServerConfig::default());
    client.send(sleep_frame(1)).await;
    server.has_begun(1).await;
    server.handle.begin_shutdown(100 * SECOND);
    client.send(sleep_frame(3)).await;
    assert_eq!(client.receive().await.code(), code::UNAVAILABLE);
    client.send(cancel(5, &[0x08, 1])).await;
    assert_eq!(client.receive().await.code(), 0);
    let began = tokio::time::Instant::now();
    assert!(client.expect_end().await.is_empty());
    assert!(began.elapsed() < SECOND);
    server.ended().await;
}

/// A client that reads no answers is not read.
#[tokio::test(start_paused = true)]
async fn a_flood_costs_no_more_than_the_queue_holds() {
    let (here, there) = duplex(1000);
    let config = ServerConfig::default().send_queue_frames(10);
    let server = TestServer::start(config, [there]);
    let mut client = Peer::new(here);
    let mut sent = 0;
    while timeout(SECOND, client.send(cancel(2 * sent + 1, &[0x08, 1]))).await.is_ok() {
        sent += 1;
        assert!(sent < 10_000, "nothing holds it back");
    }
    let fill = server.handle.snapshot().connections[0].queue.frames;
    assert!(fill.used <= 10, "{fill:?}");
}

/// Refuses whatever comes.
struct Refuses;

#[async_trait]
impl Interceptor for Refuses {
    async fn intercept(&self, _: &mut Context, next: Next<'_>) -> Result<(), Status> {
        drop(next);
        Err(Status::permission_denied("nobody may"))
    }
}

/// Notes how calls end.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<(String, EndCause)>>>);

impl Observer for Ends {
    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.0.lock().unwrap().push((call.method.to_owned(), end.cause));
    }
}

#[tokio::test(start_paused = true)]
async fn interceptors_that_refuse_everything_do_not_hear_of_it() {
    let (here, there) = duplex(PIPE_LEN);
    let config = ServerConfig::default();
    let _server = TestServer::start_with(config, |builder| builder.intercept(Refuses).io(there));
    let mut client = Peer::new(here);
    client.send(sleep_frame(1)).await;
    assert_eq!(client.receive().await.code(), code::PERMISSION_DENIED);
    client.send(cancel(3, &[0x08, 1])).await;
    assert_eq!(client.receive().await.code(), 0);
}

#[tokio::test(start_paused = true)]
async fn limits_and_observers_do_not_get_in_the_way() {
    let (here, there) = duplex(PIPE_LEN);
    let ends = Ends::default();
    // The call that is cancelled holds all that there is.
    let config = ServerConfig::default().max_calls(1).max_calls_per_connection(1);
    let server = TestServer::start_with(config, |builder| builder.observe(ends.clone()).io(there));
    let client = ConnectOptions::new()
        .config(ClientConfig::default().max_calls(1))
        .cancel_at_server()
        .from_connection(Connection::new(here));
    let conformance = ConformanceClient::new(client);
    for round in 1..=3 {
        let mut call = conformance.sleep(hour());
        assert!(poll_once(&mut call).await.is_pending());
        server.has_begun(round).await;
        drop(call);
        server.is_idle().await;
    }
    let seen = ends.0.lock().unwrap().clone();
    assert_eq!(seen, vec![("Sleep".to_owned(), EndCause::GivenUp); 3]);
}

/// Passes calls on over a connection that tells of those that are given up.
struct Proxy(Client);

#[async_trait]
impl Fallback for Proxy {
    async fn call(&self, ctx: &Context, call: FallbackCall) -> Result<RawEnd, Status> {
        call.pass_on(ctx, &self.0).await
    }
}

/// Serves a client over a pipe, in front of a server behind another one.
fn proxy(behind: DuplexStream) -> DuplexStream {
    let (here, there) = duplex(PIPE_LEN);
    let upstream = telling(ClientConfig::default(), behind);
    let server = Server::builder().fallback(Proxy(upstream)).io(there).build().unwrap();
    tokio::spawn(server.serve());
    here
}

#[tokio::test(start_paused = true)]
async fn a_proxy_passes_it_on() {
    let (behind, there) = duplex(PIPE_LEN);
    let server = TestServer::start(ServerConfig::default(), [there]);
    let client = telling(ClientConfig::default(), proxy(proxy(behind)));
    let conformance = ConformanceClient::new(client);
    let mut call = conformance.sleep(hour());
    assert!(poll_once(&mut call).await.is_pending());
    server.has_begun(1).await;
    drop(call);
    server.is_idle().await;
    assert_eq!(server.service.calls_cancelled(), 1);
    let (requests, replies) = conformance.exchange().await.unwrap();
    server.has_begun(2).await;
    drop((requests, replies));
    server.is_idle().await;
    conformance.echo(echo_request([])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_proxy_makes_no_good_end_of_an_upload_that_is_cancelled() {
    let (behind, there) = duplex(PIPE_LEN);
    let mut server = Peer::new(there);
    let mut client = Peer::new(proxy(behind));
    let opens = |id| Frame::request(id, REMOTE_OPEN, SERVICE, "Collect", &Empty {});
    for id in [1, 3, 5] {
        client.send(opens(id)).await;
        assert_eq!(server.receive().await.kind, REQUEST);
    }
    client.send(cancel(7, &[0x08, 1])).await;
    assert_eq!(client.receive().await.code(), 0);
    let told = server.receive().await;
    assert_eq!(told.as_request().payload, [0x08, 1]);
    server.send(Frame::reply(told.id, &Empty {})).await;
    assert!(server.is_quiet().await);
    // The handler of a server that does not know the service would wait for ever.
    client.send(cancel(9, &[0x08, 3])).await;
    let told = server.receive().await;
    assert!(server.is_quiet().await);
    server.send(Frame::failure(told.id, code::UNIMPLEMENTED, "service")).await;
    assert_eq!(server.receive().await, Frame::end(3));
    assert_eq!(client.receive().await.code(), 0);
    client.send(cancel(11, &[0x08, 5])).await;
    assert_eq!(server.receive().await, Frame::end(5));
    assert_eq!(client.receive().await.code(), 0);
    assert!(server.is_quiet().await);
}
