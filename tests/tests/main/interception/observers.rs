//! Each end of a call is told once, with its cause, on both sides.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::sleep;
use ttrpc::{
    ClientConfig, Code, Context, Raw, RawEnd, ServerConfig, Status, async_trait,
    observer::{
        CallEnd, CallInfo, ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause, Observer,
    },
    prost::Message,
    server::{Fallback, FallbackCall},
};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame, Peer, RESPONSE, Response},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_reply_is_told_with_what_was_sent() {
    let all = observed();
    let Observed { server, at_server, conformance, at_client, .. } = &all;
    conformance.echo(echo_request(vec![7; 1000])).await.unwrap();
    at_server.expect("Echo", Code::Ok, EndCause::Replied).await;
    at_client.expect("Echo", Code::Ok, EndCause::Replied).await;
    let (there, here) = (at_server.only_end().await.traffic, at_client.only_end().await.traffic);
    assert_eq!((here.messages_sent, here.messages_received), (1, 1));
    assert_eq!((there.messages_received, there.messages_sent), (1, 1));
    assert_eq!((here.bytes_sent, here.bytes_received), (there.bytes_received, there.bytes_sent));
    assert!(here.bytes_sent > 1000 && here.bytes_received > 1000, "{here:?}");
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_with_its_message() {
    let all = observed();
    let Observed { at_server, conformance, at_client, .. } = &all;
    let fail = FailRequest { code: code::NOT_FOUND, message: "gone".into(), ..Default::default() };
    conformance.fail(fail).await.unwrap_err();
    for recorder in [at_server, at_client] {
        recorder.expect("Fail", Code::NotFound, EndCause::Failed).await;
        assert_eq!(recorder.only_end().await.message, "gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_told_by_the_side_on_which_it_passes() {
    let all = observed();
    let Observed { at_server, conformance, at_client, .. } = &all;
    conformance.wait(key("a")).timeout(SECOND).await.unwrap_err();
    at_server.expect("Wait", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
    at_client.expect("Wait", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_at_the_peer_is_told_as_such() {
    let all = observed();
    let Observed { conformance, at_client, .. } = &all;
    let fail = FailRequest { code: code::DEADLINE_EXCEEDED, ..Default::default() };
    conformance.fail(fail).await.unwrap_err();
    at_client.expect("Fail", Code::DeadlineExceeded, EndCause::DeadlineAtPeer).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_told_as_given_up() {
    let all = observed();
    let Observed { server, at_server, conformance, at_client, .. } = &all;
    let call = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    call.abort();
    at_client.expect("Wait", Code::Cancelled, EndCause::GivenUp).await;
    // The server hears nothing of it.
    server.service.release("a");
    at_server.expect("Wait", Code::Ok, EndCause::Replied).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_is_told_as_given_up() {
    let all = observed();
    let Observed { conformance, at_client, .. } = &all;
    let request = GenerateRequest { count: 3, interval_micros: 1 << 40, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    replies.recv().await.unwrap().unwrap();
    assert!(at_client.told(|told| told.ends.is_empty()));
    drop(replies);
    at_client.expect("Generate", Code::Cancelled, EndCause::GivenUp).await;
    assert_eq!(at_client.only_end().await.traffic.messages_received, 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_is_told_by_the_server() {
    let all = observed();
    let Observed { server, at_server, client, conformance, at_client } = &all;
    let call = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    client.close();
    call.await.unwrap().unwrap_err();
    at_server.expect("Wait", Code::Cancelled, EndCause::PeerGone).await;
    at_client.expect("Wait", Code::Unavailable, EndCause::Shutdown).await;
    assert_eq!(at_server.told(|told| told.closed.clone()), [ConnectionEndCause::ClosedByPeer]);
    assert_eq!(at_client.told(|told| told.closed.clone()), [ConnectionEndCause::ClosedHere]);
    assert_eq!((at_server.told(|told| told.opened), at_client.told(|told| told.opened)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_is_told_by_both_sides() {
    let all = observed();
    let Observed { server, at_server, client, conformance, at_client } = &all;
    let call = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    server.handle.close().await;
    call.await.unwrap().unwrap_err();
    at_server.expect("Wait", Code::Cancelled, EndCause::Shutdown).await;
    at_client.expect("Wait", Code::Unavailable, EndCause::PeerGone).await;
    assert_eq!(at_server.told(|told| told.closed.clone()), [ConnectionEndCause::ClosedHere]);
    assert_eq!(at_client.told(|told| told.closed.clone()), [ConnectionEndCause::ClosedByPeer]);
    // A call on the dead connection begins and ends, too.
    ConformanceClient::new(client.clone()).echo(echo_request([])).await.unwrap_err();
    assert_eq!(at_client.told(|told| (told.begun.len(), told.ends.len())), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_told() {
    let all = observed();
    let Observed { at_server, conformance, at_client, .. } = &all;
    conformance.panic(Empty {}).await.unwrap_err();
    at_server.expect("Panic", Code::Internal, EndCause::Panicked).await;
    at_client.expect("Panic", Code::Internal, EndCause::Failed).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_methods_are_told_with_their_names() {
    let all = observed();
    let Observed { at_server, client, .. } = &all;
    client.unary::<(), ()>(SERVICE, "Nothing", ()).await.unwrap_err();
    at_server.expect("Nothing", Code::Unimplemented, EndCause::Unimplemented).await;
}

#[tokio::test(start_paused = true)]
async fn calls_over_a_limit_are_told_with_the_time_that_they_waited() {
    #[derive(Clone, Default)]
    struct Waits(Arc<Mutex<Vec<Duration>>>);
    impl Observer for Waits {
        fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
            assert!(call.is_known);
            if end.cause == EndCause::Limit {
                self.0.lock().unwrap().push(end.waited_for_admission);
            }
        }
    }
    let waits = Waits::default();
    let config = ServerConfig { stall_timeout: SECOND, ..ServerConfig::default() };
    let config = config.max_calls_per_connection(1);
    let observe = waits.clone();
    let all = observed_with(config, ClientConfig::default(), |builder| builder.observe(observe));
    let Observed { server, conformance, at_server, .. } = &all;
    let call = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    let status = conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    at_server.expect_of("Echo", Code::ResourceExhausted, EndCause::Limit).await;
    let waited = waits.0.lock().unwrap()[0];
    assert!(waited >= SECOND && waited < 3 * SECOND, "{waited:?}");
    server.service.release("a");
    call.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn replies_that_wait_for_a_client_to_read_are_told_with_the_time_that_they_waited() {
    #[derive(Clone, Default)]
    struct Waits(Arc<Mutex<Vec<(String, Duration)>>>);
    impl Observer for Waits {
        fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
            self.0.lock().unwrap().push((call.method.to_owned(), end.waited_for_capacity));
        }
    }
    let waits = Waits::default();
    let (here, there) = duplex(4096);
    let config = patient_server().send_queue_frames(1);
    let server = TestServer::start_with(config, |builder| builder.observe(waits.clone()).io(there));
    let mut peer = Peer::new(here);
    peer.send(call(1, "Wait", &key("a"))).await;
    peer.send(open_stream(3, "Hold")).await;
    peer.send(Frame::end(3)).await;
    server.has_begun(2).await;
    // The reply fills the pipe, and the rest of it the queue.
    peer.send(call(5, "Echo", &echo_request([7; 10_000]))).await;
    settle().await;
    server.service.release("a");
    server.service.release("hold");
    sleep(3 * SECOND).await;
    for _ in 0..3 {
        peer.receive().await;
    }
    server.is_idle().await;
    let mut waits = waits.0.lock().unwrap().clone();
    waits.sort_unstable();
    let expected = [("Echo", 0), ("Hold", 3), ("Wait", 3)];
    assert_eq!(waits, expected.map(|(method, seconds)| (method.to_owned(), seconds * SECOND)));
}

/// On the machine's clock, since a paused one would hide a wait that was none.
#[tokio::test]
async fn calls_that_are_refused_at_once_have_waited_for_no_place() {
    #[derive(Clone, Default)]
    struct Waits(Arc<Mutex<Vec<(EndCause, Duration)>>>);
    impl Observer for Waits {
        fn call_ended(&self, _: &CallInfo<'_>, end: &CallEnd<'_>) {
            self.0.lock().unwrap().push((end.cause, end.waited_for_admission));
        }
    }
    let waits = Waits::default();
    let observe = waits.clone();
    let all = observed_with(patient_server(), patient_client(), |builder| builder.observe(observe));
    let Observed { client, .. } = &all;
    client.unary::<(), ()>(SERVICE, "Nothing", ()).await.unwrap_err();
    // A stream where the method has none.
    client.bidi_streaming::<(), ()>(SERVICE, "Echo").await.unwrap().1.recv().await.unwrap_err();
    eventually("both are told", || waits.0.lock().unwrap().len() == 2).await;
    let expected = [EndCause::Unimplemented, EndCause::ProtocolViolation];
    assert_eq!(*waits.0.lock().unwrap(), expected.map(|cause| (cause, Duration::ZERO)));
}

impl Recorder {
    /// The end of a method's only call.
    pub(super) async fn expect_of(&self, method: &str, code: Code, cause: EndCause) {
        let ends = || -> Vec<_> {
            self.told(|told| told.ends.iter().filter(|end| end.method == method).cloned().collect())
        };
        eventually("it is told", || !ends().is_empty()).await;
        let ends = ends();
        assert_eq!(ends.len(), 1);
        assert_eq!((ends[0].code, ends[0].cause), (code, cause));
    }
}

/// On a socket, since a pipe in memory does not show that its other end has gone.
#[tokio::test]
async fn a_call_that_waits_to_be_let_in_when_its_client_goes_is_told() {
    let (here, there) = tokio::net::UnixStream::pair().unwrap();
    let at_server = Recorder::default();
    let server = TestServer::start_with(patient_server().max_calls_per_connection(1), |builder| {
        builder.observe(at_server.clone()).unix_stream(there)
    });
    let client = Client::from_unix_stream(here, patient_client());
    let conformance = ConformanceClient::new(client.clone());
    let calls = ["a", "b"].map(|name| tokio::spawn(conformance.wait(key(name)).into_future()));
    let is_held_up = || {
        let connections = server.handle.snapshot().connections;
        connections.first().is_some_and(|connection| connection.receiver.is_some())
    };
    eventually("a call waits to be let in", is_held_up).await;
    client.close();
    for call in calls {
        call.await.unwrap().unwrap_err();
    }
    eventually("both ends are told", || at_server.told(|told| told.ends.len() == 2)).await;
    at_server.told(|told| {
        assert_eq!(told.begun, ["Wait", "Wait"]);
        assert!(told.ends.iter().all(|end| end.cause == EndCause::PeerGone), "{told:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn violations_are_told_by_the_server() {
    let recorder = Recorder::default();
    let (here, there) = duplex(PIPE_LEN);
    let _server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(recorder.clone()).io(there)
    });
    let mut peer = ttrpc_tests::wire::Peer::new(here);
    // A Request that does not decode, and one whose payload does not.
    peer.send(Frame::new(1, 1, 0, [0xff; 9])).await;
    peer.receive().await;
    recorder.expect("", Code::InvalidArgument, EndCause::ProtocolViolation).await;
    let request = ttrpc_tests::wire::Request {
        service: SERVICE.to_owned(),
        method: "Echo".to_owned(),
        payload: vec![0xff; 3],
        ..Default::default()
    };
    peer.send(Frame::new(3, 1, 0, ttrpc::prost::Message::encode_to_vec(&request))).await;
    peer.receive().await;
    recorder.expect_of("Echo", Code::InvalidArgument, EndCause::ProtocolViolation).await;
    // A frame that is too long.
    let mut bytes = ttrpc_tests::wire::header(MAX_DATA_LEN as u32 + 1, 5, 1, 0);
    bytes.resize(10 + MAX_DATA_LEN + 1, 0);
    peer.send_bytes(&bytes).await;
    assert_eq!(peer.receive().await.code(), code::RESOURCE_EXHAUSTED);
    let last = recorder.told(|told| told.ends.last().cloned().unwrap());
    assert_eq!((last.cause, last.code), (EndCause::Limit, Code::ResourceExhausted));
    recorder.told(|told| assert_eq!((told.begun.len(), told.ends.len()), (3, 3)));
}

#[tokio::test(start_paused = true)]
async fn a_servers_inbox_that_nobody_empties_is_told() {
    let config = ServerConfig { stall_timeout: SECOND, ..ServerConfig::default() };
    let config = config.stream_inbox_messages(2);
    let all = observed_with(config, ClientConfig::default(), |builder| builder);
    let Observed { server, conformance, at_server, at_client, .. } = &all;
    let (mut requests, reply) = conformance.hold().await.unwrap();
    for sequence in 0..5 {
        requests.send(chunk(sequence)).await.unwrap();
    }
    at_server.expect("Hold", Code::ResourceExhausted, EndCause::Limit).await;
    assert_eq!(reply.await.unwrap_err().code(), Code::ResourceExhausted);
    at_client.expect("Hold", Code::ResourceExhausted, EndCause::Failed).await;
    server.service.release("hold");
    server.is_idle().await;
    at_server.expect("Hold", Code::ResourceExhausted, EndCause::Limit).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_while_the_server_drains_is_told() {
    let all = observed();
    let Observed { server, conformance, at_server, at_client, .. } = &all;
    let first = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    let handle = server.handle.clone();
    let draining = tokio::spawn(async move { handle.shutdown(60 * SECOND).await });
    settle().await;
    let status = conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    at_server.expect_of("Echo", Code::Unavailable, EndCause::Shutdown).await;
    at_client.expect_of("Echo", Code::Unavailable, EndCause::Failed).await;
    server.service.release("a");
    first.await.unwrap().unwrap();
    draining.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_deadline_passes_before_it_is_let_in_is_told() {
    let config = ServerConfig { stall_timeout: 60 * SECOND, ..ServerConfig::default() };
    let config = config.max_calls_per_connection(1);
    let all = observed_with(config, ClientConfig::default(), |builder| builder);
    let Observed { server, conformance, at_server, at_client, .. } = &all;
    let first = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    let status = conformance.echo(echo_request([])).timeout(SECOND).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    at_client.expect_of("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
    server.service.release("a");
    first.await.unwrap().unwrap();
    at_server.expect_of("Echo", Code::DeadlineExceeded, EndCause::DeadlineHere).await;
}

/// What a server sends in answer to a Request with this id, and how the call ends at the client.
struct Answered {
    method: &'static str,
    answer: fn(u32) -> Frame,
    end: (Code, EndCause),
    rule: Option<&'static str>,
}

/// A message in which nothing is as it should be.
fn garbage() -> Vec<u8> {
    vec![0xff; 3]
}

fn reply_of_garbage(id: u32) -> Frame {
    let response = Response { payload: garbage(), ..Default::default() };
    Frame::new(id, RESPONSE, 0, response.encode_to_vec())
}

const VIOLATION: (Code, EndCause) = (Code::Internal, EndCause::ProtocolViolation);

#[tokio::test(start_paused = true)]
async fn violations_are_told_by_the_client() {
    let no_data = "Data on a stream that carries none in this direction";
    let cases = [
        Answered {
            method: "Echo",
            answer: |id| Frame::message(id, &chunk(0)),
            end: VIOLATION,
            rule: Some(no_data),
        },
        Answered {
            method: "Collect",
            answer: |id| Frame::message(id, &chunk(0)),
            end: VIOLATION,
            rule: Some(no_data),
        },
        Answered {
            method: "Echo",
            answer: |id| Frame::new(id, RESPONSE, 0, garbage()),
            end: VIOLATION,
            rule: None,
        },
        Answered { method: "Echo", answer: reply_of_garbage, end: VIOLATION, rule: None },
        Answered { method: "Collect", answer: reply_of_garbage, end: VIOLATION, rule: None },
        Answered {
            method: "Generate",
            answer: |id| Frame::new(id, RESPONSE, 0, garbage()),
            end: VIOLATION,
            rule: None,
        },
        Answered {
            method: "Generate",
            answer: |id| Frame::new(id, DATA, 0, garbage()),
            end: VIOLATION,
            rule: None,
        },
        Answered {
            method: "Exchange",
            answer: |id| Frame::new(id, DATA, 0, garbage()),
            end: VIOLATION,
            rule: None,
        },
        Answered {
            method: "Generate",
            answer: |id| Frame::new(id, DATA, 0, vec![0; MAX_DATA_LEN + 1]),
            end: (Code::ResourceExhausted, EndCause::Limit),
            rule: None,
        },
    ];
    for case in cases {
        let recorder = Recorder::default();
        let (here, there) = duplex(PIPE_LEN);
        let client = observed_client(here, ClientConfig::default(), &recorder);
        let conformance = ConformanceClient::new(client.clone());
        let call = tokio::spawn(async move {
            match case.method {
                "Echo" => conformance.echo(echo_request([])).await.map(drop),
                "Collect" => conformance.collect().await?.1.await.map(drop),
                "Exchange" => conformance.exchange().await?.1.recv().await.map(drop),
                _ => conformance.generate(Default::default()).await?.recv().await.map(drop),
            }
        });
        let mut peer = ttrpc_tests::wire::Peer::new(there);
        let id = peer.receive().await.id;
        peer.send((case.answer)(id)).await;
        let status = call.await.unwrap().unwrap_err();
        let (code, cause) = case.end;
        assert_eq!(status.code(), code, "{}: {status}", case.method);
        recorder.expect(case.method, code, cause).await;
        assert_eq!(recorder.only_end().await.message, status.message());
        let rules: Vec<_> = case.rule.into_iter().map(str::to_owned).collect();
        recorder.told(|told| assert_eq!(told.violations, rules));
    }
}

/// A good reply to a stream of requests is told when it has been decoded, or when the call is dropped.
#[tokio::test(start_paused = true)]
async fn a_reply_to_a_stream_of_requests_is_told_when_it_is_taken() {
    for is_taken in [true, false] {
        let all = observed();
        let Observed { server, conformance, at_client, .. } = &all;
        let (requests, reply) = conformance.collect().await.unwrap();
        requests.finish();
        server.has_begun(1).await;
        server.is_idle().await;
        settle().await;
        at_client.told(|told| assert!(told.ends.is_empty(), "{told:?}"));
        if is_taken {
            reply.await.unwrap();
        } else {
            drop(reply);
        }
        at_client.expect("Collect", Code::Ok, EndCause::Replied).await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_of_a_client_that_the_protocol_does_not_allow_are_told() {
    let recorder = Recorder::default();
    let (here, there) = duplex(PIPE_LEN);
    let _server = TestServer::start_with(ServerConfig::default(), |builder| {
        builder.observe(recorder.clone()).io(there)
    });
    let mut peer = ttrpc_tests::wire::Peer::new(here);
    peer.send(Frame::message(7, &chunk(0))).await;
    peer.receive().await;
    recorder.told(|told| {
        assert_eq!(told.violations, ["no stream with this id is open"]);
        assert!(told.begun.is_empty(), "{told:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn a_clients_inbox_that_nobody_empties_is_told() {
    let config = ClientConfig::default().stream_inbox_messages(2).stall_timeout(SECOND);
    let all = observed_with(ServerConfig::default(), config, |builder| builder);
    let Observed { server, conformance, at_client, at_server, .. } = &all;
    let request = GenerateRequest { count: 5, ..Default::default() };
    let mut replies = conformance.generate(request).await.unwrap();
    at_client.expect("Generate", Code::ResourceExhausted, EndCause::Limit).await;
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::ResourceExhausted);
    drop(replies);
    server.is_idle().await;
    at_client.expect("Generate", Code::ResourceExhausted, EndCause::Limit).await;
    at_server.expect("Generate", Code::Ok, EndCause::Replied).await;
}

#[tokio::test(start_paused = true)]
async fn calls_over_a_clients_limit_are_told_with_the_time_that_they_waited() {
    let config = ClientConfig::default().max_calls(1).stall_timeout(SECOND);
    let all = observed_with(ServerConfig::default(), config, |builder| builder);
    let Observed { server, client, conformance, at_client, .. } = &all;
    let first = tokio::spawn(conformance.wait(key("a")).into_future());
    server.has_begun(1).await;
    let status = conformance.echo(echo_request([])).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    at_client.expect_of("Echo", Code::ResourceExhausted, EndCause::Limit).await;
    // One that is longer than a frame may be.
    let too_long = Raw::from(vec![0; MAX_DATA_LEN]);
    let status = client.unary::<_, Raw>(SERVICE, "Inspect", too_long).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    at_client.expect_of("Inspect", Code::ResourceExhausted, EndCause::Limit).await;
    server.service.release("a");
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_are_told_with_all_their_messages() {
    let all = observed();
    let Observed { server, at_server, conformance, at_client, .. } = &all;
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    for sequence in 0..5 {
        requests.send(chunk(sequence)).await.unwrap();
        replies.recv().await.unwrap().unwrap();
    }
    requests.finish();
    assert!(replies.recv().await.unwrap().is_none());
    let (here, there) = (at_client.only_end().await, at_server.only_end().await);
    assert_eq!((here.cause, there.cause), (EndCause::Replied, EndCause::Replied));
    assert_eq!((here.traffic.messages_sent, here.traffic.messages_received), (5, 5));
    assert_eq!((there.traffic.messages_received, there.traffic.messages_sent), (5, 5));
    assert_eq!(here.traffic.bytes_received, there.traffic.bytes_sent);
    assert_eq!(here.traffic.bytes_sent, there.traffic.bytes_received);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_harms_nobody() {
    struct Panics;
    impl Observer for Panics {
        fn call_begun(&self, _: &CallInfo<'_>) {
            panic!("as the test asks");
        }
        fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
            panic!("as the test asks");
        }
    }
    let all =
        observed_with(ServerConfig::default(), ClientConfig::default(), |b| b.observe(Panics));
    let Observed { at_server, conformance, .. } = &all;
    conformance.echo(echo_request(*b"hi")).await.unwrap();
    at_server.expect("Echo", Code::Ok, EndCause::Replied).await;
}

/// A client can make up names for a fallback, and is no reason to make labels of them.
#[tokio::test(start_paused = true)]
async fn names_are_known_where_the_server_has_the_method_and_not_at_a_fallback() {
    struct Nothing;
    #[async_trait]
    impl Fallback for Nothing {
        async fn call(&self, _: &Context, _: FallbackCall) -> Result<RawEnd, Status> {
            Ok(RawEnd::Reply(Raw::default()))
        }
    }
    type Seen = (String, bool, Option<u64>);
    #[derive(Clone, Default)]
    struct Names(Arc<Mutex<Vec<Seen>>>);
    impl Observer for Names {
        fn call_begun(&self, call: &CallInfo<'_>) {
            self.0.lock().unwrap().push((call.method.to_owned(), call.is_known, call.method_id));
        }
    }
    let names = Names::default();
    let observe = names.clone();
    let all = observed_with(ServerConfig::default(), ClientConfig::default(), |builder| {
        builder.fallback(Nothing).observe(observe)
    });
    for _ in 0..2 {
        all.conformance.echo(echo_request([])).await.unwrap();
    }
    all.conformance.release(key("a")).await.unwrap();
    all.client.unary::<Raw, Raw>("made.up", "Name", Raw::default()).await.unwrap();
    let seen = std::mem::take(&mut *names.0.lock().unwrap());
    let names: Vec<_> = seen.iter().map(|(name, is_known, _)| (name.as_str(), *is_known)).collect();
    assert_eq!(names, [("Echo", true), ("Echo", true), ("Release", true), ("Name", false)]);
    let [echo, again, release, unknown] = [0, 1, 2, 3].map(|at: usize| seen[at].2);
    assert!(echo.is_some() && echo == again && release.is_some());
    assert_ne!(echo, release);
    assert_eq!(unknown, None);
}

/// Notes how calls and connections end, in order.
#[derive(Debug, Default)]
struct Ends(Mutex<Vec<&'static str>>);

impl Observer for Ends {
    fn call_ended(&self, _: &CallInfo<'_>, _: &CallEnd<'_>) {
        self.0.lock().unwrap().push("call");
    }

    fn connection_closed(&self, _: &ConnectionInfo<'_>, _: &ConnectionEnd<'_>) {
        self.0.lock().unwrap().push("connection");
    }
}

#[tokio::test(start_paused = true)]
async fn a_servers_calls_are_told_as_ended_before_their_connection_is() {
    for is_closed_here in [true, false] {
        let (ends, (here, there)) = (Arc::<Ends>::default(), duplex(PIPE_LEN));
        let config = ServerConfig::default().max_calls_per_connection(2);
        let server =
            TestServer::start_with(config, |builder| builder.observe(ends.clone()).io(there));
        let mut peer = Peer::new(here);
        peer.send(call(1, "Wait", &key("a"))).await;
        peer.send(open_stream(3, "Hold")).await;
        server.has_begun(2).await;
        peer.send(call(5, "Echo", &echo_request([]))).await;
        let receiver_waits = || server.handle.snapshot().connections[0].receiver.is_some();
        eventually("the third call waits to be let in", receiver_waits).await;
        match is_closed_here {
            true => server.handle.close().await,
            false => drop(peer),
        }
        server.ended().await;
        assert_eq!(*ends.0.lock().unwrap(), ["call", "call", "call", "connection"]);
    }
}
