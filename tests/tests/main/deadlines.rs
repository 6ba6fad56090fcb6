//! A deadline covers the whole life of a call: waiting for a place, for room, for the socket, for the
//! answer; in a stream and in `send`. The clock is paused, so "about" is "exactly".

use std::{sync::Arc, time::Duration};

use tokio::{
    io::AsyncReadExt,
    time::{Instant, sleep},
};
use ttrpc::{
    Client, ClientConfig, Code, Server, ServerConfig, Status,
    server::{Routes, Service},
};
use ttrpc_tests::{
    conformance::*,
    harness::{code::DEADLINE_EXCEEDED, *},
    wire::{Frame, Peer, Request},
};

const LIMIT: Duration = Duration::from_millis(300);

/// More than a pipe and a send queue of these tests hold.
const LARGE: usize = 100 << 10;

fn assert_deadline<T: std::fmt::Debug>(result: Result<T, Status>, start: Instant) {
    let code = result.expect_err("nobody answers").code();
    assert_eq!(code, Code::DeadlineExceeded);
    // Timers have a resolution of one millisecond.
    let elapsed = start.elapsed();
    assert!((LIMIT..=LIMIT + Duration::from_millis(2)).contains(&elapsed), "after {elapsed:?}");
}

/// A queue for one frame.
fn one_frame() -> ClientConfig {
    ClientConfig::default().send_queue_frames(1)
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_call_that_waits_for_its_answer() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let start = Instant::now();
    assert_deadline(conformance.echo(echo_request([])).timeout(LIMIT).await, start);
    assert_eq!(client.calls_in_flight(), 0);
    let request = peer.receive().await;
    peer.send(Frame::reply(request.id, &EchoResponse::default())).await;
    let again = conformance.echo(echo_request([])).into_future();
    let again = tokio::spawn(again);
    answer_echo(&mut peer).await;
    again.await.unwrap().expect("the late answer harms nobody");
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_call_that_is_being_written_to_a_peer_that_does_not_read() {
    let (client, conformance, _peer) = played_server_over(ClientConfig::default(), 100);
    let start = Instant::now();
    let call = conformance.echo(echo_request(vec![0; LARGE])).timeout(LIMIT);
    assert_deadline(call.await, start);
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_call_that_waits_in_the_queue_behind_a_blocked_one() {
    let (client, conformance, _peer) = played_server_over(ClientConfig::default(), 100);
    let blocked = tokio::spawn(conformance.echo(echo_request(vec![0; LARGE])).into_future());
    settle().await;
    let start = Instant::now();
    assert_deadline(conformance.echo(echo_request([])).timeout(LIMIT).await, start);
    assert_eq!(client.calls_in_flight(), 1, "the blocked one");
    blocked.abort();
}

#[tokio::test(start_paused = true)]
async fn it_ends_calls_of_every_kind_that_wait_for_room_in_the_queue() {
    let (_client, conformance, _peer) = played_server_over(one_frame(), 100);
    let blocked = tokio::spawn(conformance.echo(echo_request(vec![0; LARGE])).into_future());
    settle().await;
    let start = Instant::now();
    let (unary, collect, generate, exchange) = tokio::join!(
        conformance.echo(echo_request([])).timeout(LIMIT).into_future(),
        conformance.collect().timeout(LIMIT).into_future(),
        conformance.generate(GenerateRequest::default()).timeout(LIMIT).into_future(),
        conformance.exchange().timeout(LIMIT).into_future(),
    );
    assert_deadline(unary, start);
    assert_deadline(collect.map(drop), start);
    assert_deadline(generate.map(drop), start);
    assert_deadline(exchange.map(drop), start);
    blocked.abort();
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_call_that_waits_for_a_place_among_the_calls() {
    let config = ClientConfig::default().max_calls(1);
    let (client, conformance, mut peer) = played_server(config);
    let first = tokio::spawn(conformance.wait(key("a")).into_future());
    let first_id = peer.receive().await.id;
    let start = Instant::now();
    assert_deadline(conformance.echo(echo_request([])).timeout(LIMIT).await, start);
    peer.send(Frame::reply(first_id, &Empty {})).await;
    first.await.unwrap().unwrap();
    let next = tokio::spawn(conformance.echo(echo_request([])).into_future());
    assert_eq!(answer_echo(&mut peer).await, first_id + 2, "the other one never reached the wire");
    next.await.unwrap().unwrap();
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_stream_whose_next_message_does_not_come() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let start = Instant::now();
    let mut replies =
        conformance.generate(GenerateRequest::default()).timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    sleep(LIMIT / 2).await;
    peer.send(Frame::message(id, &chunk(7))).await;
    assert_eq!(replies.recv().await.unwrap().unwrap().sequence, 7);
    assert_deadline(replies.recv().await, start);
    assert_eq!(client.calls_in_flight(), 0);
    assert_eq!(replies.recv().await, Ok(None), "the stream has ended once");
}

/// However many messages there are to read, and however slow their reader is.
#[tokio::test(start_paused = true)]
async fn it_ends_a_stream_whose_messages_do_not_end() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let start = Instant::now();
    let mut replies =
        conformance.generate(GenerateRequest::default()).timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    for sequence in 0..100 {
        peer.send(Frame::message(id, &chunk(sequence))).await;
    }
    let end = loop {
        sleep(LIMIT / 10).await;
        match replies.recv().await {
            Ok(message) => assert!(message.is_some(), "the stream ended well"),
            Err(status) => break status,
        }
    };
    assert_deadline(Err::<(), _>(end), start);
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_in_time_may_be_read_later() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let mut replies =
        conformance.generate(GenerateRequest::default()).timeout(LIMIT).await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::message(id, &chunk(0))).await;
    peer.send(Frame::end(id)).await;
    sleep(2 * LIMIT).await;
    assert_eq!(replies.recv().await.unwrap().unwrap().sequence, 0);
    assert_eq!(replies.recv().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn it_ends_the_wait_for_the_reply_to_a_stream() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let start = Instant::now();
    let (mut requests, reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    assert_deadline(reply.await, start);
    assert_eq!(client.calls_in_flight(), 0);
    let error = requests.send(chunk(1)).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    drop(requests);
    peer.receive().await;
    peer.receive().await;
    assert!(peer.is_quiet().await, "half a stream is not closed as if it were whole");
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_send_that_waits_for_room() {
    let (client, conformance, mut peer) = played_server_over(one_frame(), 100);
    let start = Instant::now();
    let (mut requests, _reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    peer.receive().await;
    requests.send(Chunk { sequence: 0, payload: vec![0; LARGE] }).await.unwrap();
    assert_deadline(requests.send(chunk(1)).await, start);
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn it_ends_a_send_that_would_have_room() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, _reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    peer.receive().await;
    sleep(2 * LIMIT).await;
    let sent = requests.send(chunk(0)).await;
    assert_eq!(sent.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_is_dropped_after_the_deadline_sends_no_good_end() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, reply) = conformance.collect().timeout(LIMIT).await.unwrap();
    peer.receive().await;
    requests.send(chunk(0)).await.unwrap();
    peer.receive().await;
    sleep(2 * LIMIT).await;
    drop(requests);
    assert!(peer.is_quiet().await, "half a stream is not closed as if it were whole");
    drop(reply);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_time_is_zero_never_reaches_the_wire() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let code = |status: Status| status.code();
    let zero = Duration::ZERO;
    let unary = conformance.echo(echo_request([])).timeout(zero).await;
    assert_eq!(unary.map_err(code), Err(Code::DeadlineExceeded));
    let stream = conformance.collect().timeout(zero).await;
    assert_eq!(stream.map(drop).map_err(code), Err(Code::DeadlineExceeded));
    assert!(peer.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn the_wire_carries_what_is_left_of_the_time() {
    let (_client, conformance, mut peer) = played_server_over(one_frame(), 100);
    let blocked = tokio::spawn(conformance.echo(echo_request(vec![0; LARGE])).into_future());
    settle().await;
    let late = tokio::spawn(conformance.echo(echo_request([])).timeout(LIMIT).into_future());
    sleep(LIMIT / 3).await;
    peer.receive().await;
    let left = Duration::from_nanos(peer.receive().await.as_request().timeout_nano as u64);
    assert!(left <= LIMIT - LIMIT / 3, "{left:?} are not left");
    assert!(left > LIMIT / 2, "{left:?} is too little");
    blocked.abort();
    late.abort();
}

#[tokio::test(start_paused = true)]
async fn the_wire_carries_zero_for_no_timeout_and_all_there_is_for_ever() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let timeouts = [
        (None, 0),
        (Some(Duration::from_nanos(1)), 1),
        (Some(Duration::from_secs(5)), 5_000_000_000),
        (Some(Duration::MAX), i64::MAX),
    ];
    for (timeout, expected) in timeouts {
        let call = conformance.echo(echo_request([]));
        let call = match timeout {
            Some(timeout) => call.timeout(timeout),
            None => call,
        };
        let call = tokio::spawn(call.into_future());
        let request = peer.receive().await.as_request();
        assert_eq!(request.timeout_nano, expected, "for {timeout:?}");
        call.abort();
    }
}

fn timed(id: u32, method: &str, flags: u8, timeout_nano: i64) -> Frame {
    let frame = Frame::request(id, flags, SERVICE, method, &key("k"));
    let request = Request { timeout_nano, ..frame.as_request() };
    Frame { data: ttrpc::prost::Message::encode_to_vec(&request), ..frame }
}

#[tokio::test(start_paused = true)]
async fn a_server_ends_a_call_at_its_deadline_and_drops_its_handler() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let start = Instant::now();
    peer.send(timed(1, "Wait", 0, LIMIT.as_nanos() as i64)).await;
    let frame = peer.receive().await;
    assert_eq!((frame.id, frame.code()), (1, DEADLINE_EXCEEDED));
    assert!((LIMIT..=LIMIT + Duration::from_millis(2)).contains(&start.elapsed()));
    eventually("its handler is dropped", || server.service.calls_cancelled() == 1).await;
    server.is_idle().await;
    // A stream's client may still send; that is dropped in silence.
    peer.send(timed(3, "Hold", 2, LIMIT.as_nanos() as i64)).await;
    assert_eq!(peer.receive().await.code(), DEADLINE_EXCEEDED);
    peer.send(Frame::message(3, &chunk(0))).await;
    peer.send(Frame::end(3)).await;
    assert!(peer.is_quiet().await);
}

/// A handler that fails at its deadline.
fn late() -> Routes {
    Routes::new("Late").unary("Call", &Arc::new(()), |_, ctx, ()| {
        Box::pin(async move {
            tokio::time::sleep_until(ctx.deadline().expect("it has one")).await;
            Err::<(), _>(Status::deadline_exceeded("a call within has failed"))
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_no_late_calls_ends_them_and_is_silent() {
    let config = ServerConfig::default().answer_late_calls(false);
    let (server, mut peer) = played_client(config.clone());
    let nanos = LIMIT.as_nanos() as i64;
    // In its handler; streamed; before it starts.
    for (id, method, flags, nanos) in
        [(1, "Wait", 0, nanos), (3, "Hold", 2, nanos), (5, "Wait", 0, -1)]
    {
        peer.send(timed(id, method, flags, nanos)).await;
        assert!(peer.is_quiet().await, "{method} is answered");
    }
    eventually("the handlers are dropped", || server.service.calls_cancelled() == 2).await;
    server.is_idle().await;
    expect_echo(&mut peer, 7).await;
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let mut peer = Peer::new(here);
    tokio::spawn(Server::builder().config(config).add_service(Handmade(late())).io(there).serve());
    let frame = Frame::request(1, 0, "Late", "Call", &());
    let request = Request { timeout_nano: nanos, ..frame.as_request() };
    peer.send(Frame { data: ttrpc::prost::Message::encode_to_vec(&request), ..frame }).await;
    assert!(peer.is_quiet().await, "the handler's own status is sent");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_time_has_passed_already_is_not_started() {
    let (server, mut peer) = played_client(ServerConfig::default());
    for (id, nanos) in [(1, -1), (3, i64::MIN)] {
        peer.send(timed(id, "Wait", 0, nanos)).await;
        assert_eq!(peer.receive().await.code(), DEADLINE_EXCEEDED);
    }
    assert_eq!(server.service.calls_total(), 0);
    peer.send(timed(5, "Release", 0, i64::MAX)).await;
    assert_eq!(peer.receive().await.code(), 0, "292 years are no problem");
    expect_echo(&mut peer, 7).await;
}

#[tokio::test(start_paused = true)]
async fn a_servers_deadline_holds_while_the_client_does_not_read() {
    let (server, peer) = played_client_over(ServerConfig::default(), 256);
    let mut peer = peer;
    let generate = GenerateRequest { count: 1, size: 1 << 20, ..GenerateRequest::default() };
    let frame = Frame::request(1, 1, SERVICE, "Generate", &generate);
    let request = Request { timeout_nano: LIMIT.as_nanos() as i64, ..frame.as_request() };
    let data = ttrpc::prost::Message::encode_to_vec(&request);
    peer.send(Frame { data, ..frame }).await;
    peer.send(timed(3, "Wait", 0, LIMIT.as_nanos() as i64)).await;
    server.has_begun(2).await;
    eventually("the handler is dropped in time", || server.service.calls_cancelled() == 1).await;
    let mut everything = Vec::new();
    let mut io = peer.into_inner();
    let read = tokio::time::timeout(LIMIT, io.read_to_end(&mut everything)).await;
    assert!(read.is_err(), "the connection lives");
    assert!(everything.len() > 1 << 20);
    server.is_idle().await;
}

/// A reply that waits for room gives way at its deadline, since its client has given the call up by
/// then; what is left to be sent is short.
#[tokio::test(start_paused = true)]
async fn replies_that_wait_for_room_at_the_deadline_give_way_to_a_status() {
    let config = ServerConfig { send_queue_frames: 1, ..ServerConfig::default() };
    let (server, mut peer) = played_client_over(config, 256);
    for id in [1, 3] {
        let frame = Frame::request(id, 0, SERVICE, "Wait", &key(&id.to_string()));
        let request = Request { timeout_nano: LIMIT.as_nanos() as i64, ..frame.as_request() };
        let data = ttrpc::prost::Message::encode_to_vec(&request);
        peer.send(Frame { data, ..frame }).await;
    }
    let large = EchoRequest { payload: Vec::new(), response_size: 100 << 10 };
    peer.send(call(5, "Echo", &large)).await;
    server.has_begun(3).await;
    server.service.release("1");
    sleep(2 * LIMIT).await;
    assert_eq!(peer.receive().await.id, 5);
    let mut codes =
        [peer.receive().await, peer.receive().await].map(|frame| (frame.id, frame.code()));
    codes.sort_unstable();
    assert_eq!(codes, [(1, DEADLINE_EXCEEDED), (3, DEADLINE_EXCEEDED)]);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn it_is_the_earliest_of_all_that_are_said() {
    let said: [(Option<Duration>, &[Duration]); 4] = [
        (None, &[LIMIT]),
        (Some(2 * LIMIT), &[LIMIT]),
        (Some(LIMIT), &[2 * LIMIT]),
        (None, &[2 * LIMIT, LIMIT, 3 * LIMIT]),
    ];
    for (timeout, ends) in said {
        let (_client, conformance, mut peer) = played_server(ClientConfig::default());
        let start = Instant::now();
        let mut call = conformance.echo(echo_request([]));
        if let Some(timeout) = timeout {
            call = call.timeout(timeout);
        }
        let call = ends.iter().fold(call, |call, end| call.deadline(start + *end));
        assert_deadline(call.await, start);
        let nanos = i64::try_from(LIMIT.as_nanos()).unwrap();
        assert_eq!(peer.receive().await.as_request().timeout_nano, nanos);
    }
}

#[tokio::test(start_paused = true)]
async fn it_keeps_a_call_from_being_sent_when_it_has_passed_before() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let deadline = Instant::now();
    sleep(LIMIT).await;
    let late = conformance.echo(echo_request([])).deadline(deadline).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(conformance.collect().deadline(deadline).await.is_err());
    client.shutdown().await;
    assert_eq!(peer.try_receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn it_says_on_which_side_it_passed_first() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let call = tokio::spawn(conformance.echo(echo_request([])).timeout(LIMIT));
    let id = peer.receive().await.id;
    peer.send(Frame::failure(id, DEADLINE_EXCEEDED, "late")).await;
    assert!(call.await.unwrap().unwrap_err().is_from_peer());
    let here = conformance.echo(echo_request([])).timeout(LIMIT).await.unwrap_err();
    assert_eq!(here.code(), Code::DeadlineExceeded);
    assert!(!here.is_from_peer());
}

/// A server that calls on.
struct Relay {
    backend: Client,
}

impl Service for Relay {
    fn into_routes(self) -> Routes {
        Routes::new("Relay").unary("Call", &Arc::new(self), |relay, ctx, (): ()| {
            Box::pin(relay.backend.unary::<(), ()>("Backend", "Call", ()).within(ctx))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_handed_down_to_calls_within_a_handlers_own() {
    let (backend, _, mut peer) = played_server(ClientConfig::default());
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    tokio::spawn(Server::builder().add_service(Relay { backend }).io(there).serve());
    let client = Client::from_io(here, ClientConfig::default());
    for timeout in [None, Some(LIMIT)] {
        let mut call = client.unary::<(), ()>("Relay", "Call", ());
        if let Some(timeout) = timeout {
            call = call.timeout(timeout);
        }
        let call = tokio::spawn(call);
        let request = peer.receive().await;
        let nanos = timeout.map_or(0, |limit| i64::try_from(limit.as_nanos()).unwrap());
        assert_eq!(request.as_request().timeout_nano, nanos);
        peer.send(Frame::reply(request.id, &())).await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_what_is_left_of_its_time() {
    let routes = Routes::new("test.Left").unary("Left", &Arc::new(()), |_, ctx, ()| {
        Box::pin(async move {
            sleep(LIMIT).await;
            let left = ctx.remaining();
            sleep(2 * LIMIT).await;
            Ok(format!("{left:?} {:?}", ctx.remaining()))
        })
    });
    let client = ttrpc::testing::connect(Handmade(routes));
    let left = client.unary::<(), String>("test.Left", "Left", ());
    assert_eq!(left.await.unwrap(), "None None");
    let left = client.unary::<(), String>("test.Left", "Left", ()).timeout(4 * LIMIT);
    assert_eq!(left.await.unwrap(), "Some(900ms) Some(300ms)");
}
