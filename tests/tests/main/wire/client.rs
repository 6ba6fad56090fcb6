//! A client seen from the other side of the wire: the frames that it sends, accepts and ignores.

use std::collections::BTreeSet;

use ttrpc::{ClientConfig, Code, ConnectionError, Status};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{
        DATA, Frame, REMOTE_CLOSED, REMOTE_OPEN, REQUEST, RESPONSE, Response, Status as WireStatus,
    },
};

fn code<T>(result: Result<T, Status>) -> Code {
    result.map(drop).expect_err("the call fails").code()
}

/// Why a connection ended, as the source of a status that it left behind.
fn cause(status: &Status) -> &ConnectionError {
    let source = std::error::Error::source(status).expect("there is a cause");
    source.downcast_ref().expect("the cause is the connection's")
}

#[tokio::test(start_paused = true)]
async fn ids_are_odd_and_rise_in_the_order_of_the_wire() {
    let (_client, conformance, mut peer) = played_server_over(ClientConfig::default(), 64);
    let calls: Vec<_> = (0..100u8)
        .map(|number| {
            let conformance = conformance.clone();
            tokio::spawn(async move {
                match number % 4 {
                    0 => drop(conformance.collect().await?.1.await),
                    1 => drop(conformance.generate(generate_request()).await?.recv().await),
                    // Some are encoded for long, some queue at once.
                    2 => drop(conformance.echo(echo_request(vec![0; 10_000])).await?),
                    _ => drop(conformance.echo(echo_request([])).await?),
                }
                Ok::<_, Status>(())
            })
        })
        .collect();
    let mut ids = Vec::new();
    while ids.len() < calls.len() {
        let frame = peer.receive().await;
        if frame.kind == REQUEST {
            ids.push(frame.id);
            peer.send(Frame::new(frame.id, RESPONSE, 0, [])).await;
        }
    }
    let expected: Vec<_> = (0..100).map(|index| 2 * index + 1).collect();
    assert_eq!(ids, expected);
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

fn generate_request() -> GenerateRequest {
    GenerateRequest::default()
}

#[tokio::test(start_paused = true)]
async fn ids_rise_over_calls_that_never_reached_the_wire() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    // A call that was queued and dropped leaves a gap, one that was not queued leaves none.
    for expected in [3, 7, 11] {
        let too_long = conformance.echo(echo_request(vec![0; MAX_DATA_LEN])).await;
        assert_eq!(code(too_long), Code::ResourceExhausted);
        // A call that is dropped before it was awaited, and one that was before it was written.
        drop(conformance.echo(echo_request([])));
        let mut never_written = conformance.echo(echo_request([])).into_future();
        poll_once(&mut never_written).await;
        drop(never_written);
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        assert_eq!(answer_echo(&mut peer).await, expected);
        echo.await.unwrap().unwrap();
    }
}

/// Polls a future that is not ready yet once.
async fn poll_once(future: &mut (impl Future + Unpin)) {
    let poll = std::future::poll_fn(|cx| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())
    });
    assert!(poll.await, "nobody has answered");
}

#[tokio::test(start_paused = true)]
async fn a_request_opens_each_kind_of_stream_with_its_flags() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let unary = tokio::spawn(conformance.echo(echo_request(*b"u")).into_future());
    let frame = peer.receive().await;
    let request = frame.as_request();
    assert_eq!((frame.kind, frame.flags), (REQUEST, 0));
    assert_eq!((&request.service[..], &request.method[..]), (SERVICE, "Echo"));
    assert_eq!(EchoRequest::decode_from(&request.payload).payload, b"u");
    unary.abort();

    let generate = GenerateRequest { count: 3, ..GenerateRequest::default() };
    let _replies = conformance.generate(generate).await.unwrap();
    let frame = peer.receive().await;
    assert_eq!((frame.kind, frame.flags), (REQUEST, REMOTE_CLOSED));
    assert_eq!(GenerateRequest::decode_from(&frame.as_request().payload), generate);

    let _upload = conformance.collect().await.unwrap();
    let frame = peer.receive().await;
    assert_eq!((frame.kind, frame.flags), (REQUEST, REMOTE_OPEN));
    assert!(frame.as_request().payload.is_empty());

    let _exchange = conformance.exchange().await.unwrap();
    assert_eq!(peer.receive().await.flags, REMOTE_OPEN);
    assert!(peer.is_quiet().await, "nothing follows by itself");
}

#[tokio::test(start_paused = true)]
async fn a_response_of_no_bytes_is_a_success() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let unary = tokio::spawn(conformance.release(key("k")).into_future());
    let id = peer.receive().await.id;
    peer.send(Frame::new(id, RESPONSE, 0, [])).await;
    assert_eq!(unary.await.unwrap(), Ok(Empty {}));
    let (requests, reply) = conformance.collect().await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::new(id, RESPONSE, 0, [])).await;
    assert_eq!(reply.await, Ok(CollectResponse::default()));
    drop(requests);
    assert!(peer.is_quiet().await, "the server has ended the stream, nothing is closed after it");
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_status_of_code_zero_is_a_success() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let id = peer.receive().await.id;
    let status = Some(WireStatus { code: 0, message: "fine".to_owned(), details: Vec::new() });
    let payload = ttrpc::prost::Message::encode_to_vec(&EchoResponse { payload: vec![1] });
    let response = ttrpc::prost::Message::encode_to_vec(&Response { status, payload });
    peer.send(Frame::new(id, RESPONSE, 0, response)).await;
    assert_eq!(echo.await.unwrap().unwrap().payload, [1]);
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_protocol_fails_its_call_and_no_other() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let other = tokio::spawn(conformance.wait(key("a")).into_future());
    let other_id = peer.receive().await.id;
    for broken in [
        Frame::new(0, DATA, 0, []),
        Frame::end(0),
        Frame::new(0, RESPONSE, 0, [0xff; 5]),
        Frame::new(0, RESPONSE, 0, [0x12, 100, 1]),
        Frame::new(0, RESPONSE, 0, [0x12, 2, 0xff, 0xff]),
    ] {
        let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let id = peer.receive().await.id;
        peer.send(Frame { id, ..broken.clone() }).await;
        assert_eq!(code(echo.await.unwrap()), Code::Internal, "after {broken:?}");
    }
    let (_requests, reply) = conformance.collect().await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::message(id, &chunk(0))).await;
    assert_eq!(code(reply.await), Code::Internal);
    let mut replies = conformance.generate(generate_request()).await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::new(id, DATA, 0, [0xff])).await;
    assert_eq!(code(replies.recv().await), Code::Internal);
    drop(replies);
    assert_eq!(client.calls_in_flight(), 1);
    peer.send(Frame::new(other_id, RESPONSE, 0, [])).await;
    other.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn frames_that_mean_nothing_to_a_client_are_ignored() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let id = peer.receive().await.id;
    for kind in [0, REQUEST, 4, 255] {
        for id in [0, id, 2, 77] {
            peer.send(Frame::new(id, kind, 0xff, *b"whatever")).await;
        }
    }
    for unknown in [0, 2, 77, u32::MAX] {
        peer.send(Frame::failure(unknown, 5, "nobody asked")).await;
        peer.send(Frame::message(unknown, &chunk(0))).await;
    }
    let reply = Frame::reply(id, &EchoResponse { payload: b"still".to_vec() });
    peer.send(Frame { flags: 0xff, ..reply }).await;
    assert_eq!(echo.await.unwrap().unwrap().payload, b"still");
}

#[tokio::test(start_paused = true)]
async fn replies_are_understood_wherever_they_are_cut() {
    let payload = EchoResponse { payload: b"reply".to_vec() };
    let wire = [Frame::reply(1, &payload).to_bytes(), Frame::failure(3, 5, "no").to_bytes()];
    let wire = wire.concat();
    for cut in 1..wire.len() {
        let (_client, conformance, mut peer) = played_server(ClientConfig::default());
        let first = tokio::spawn(conformance.echo(echo_request([])).into_future());
        peer.receive().await;
        let second = tokio::spawn(conformance.echo(echo_request([])).into_future());
        peer.receive().await;
        peer.send_bytes(&wire[..cut]).await;
        settle().await;
        peer.send_bytes(&wire[cut..]).await;
        assert_eq!(first.await.unwrap().unwrap(), payload, "cut at {cut}");
        assert_eq!(code(second.await.unwrap()), Code::NotFound, "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_away_ends_all_pending_calls_with_the_cause() {
    let wire = Frame::reply(99, &EchoResponse { payload: vec![0; 20] }).to_bytes();
    for cut in 0..wire.len() {
        let (client, conformance, mut peer) = played_server(ClientConfig::default());
        let unary = tokio::spawn(conformance.echo(echo_request([])).into_future());
        let mut replies = conformance.generate(generate_request()).await.unwrap();
        let (mut requests, reply) = conformance.collect().await.unwrap();
        let ids: BTreeSet<_> =
            [peer.receive().await.id, peer.receive().await.id, peer.receive().await.id].into();
        assert_eq!(ids.len(), 3);
        peer.send_bytes(&wire[..cut]).await;
        drop(peer);
        for status in [
            unary.await.unwrap().unwrap_err(),
            replies.recv().await.unwrap_err(),
            reply.await.unwrap_err(),
            requests.send(chunk(0)).await.unwrap_err(),
            conformance.echo(echo_request([])).await.unwrap_err(),
        ] {
            assert_eq!(status.code(), Code::Unavailable);
            let is_as_it_was = match cut {
                0 => matches!(cause(&status), ConnectionError::ClosedByServer),
                _ => matches!(cause(&status), ConnectionError::Truncated),
            };
            assert!(is_as_it_was, "cut at {cut}: {status:?}");
        }
        client.closed().await;
        assert_eq!(client.calls_in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn late_frames_of_dropped_calls_are_ignored() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let unary = tokio::spawn(conformance.echo(echo_request([])).into_future());
    let unary_id = peer.receive().await.id;
    unary.abort();
    let replies = conformance.generate(generate_request()).await.unwrap();
    let stream_id = peer.receive().await.id;
    drop(replies);
    settle().await;
    assert_eq!(client.calls_in_flight(), 0);
    peer.send(Frame::reply(unary_id, &EchoResponse::default())).await;
    for sequence in 0..2000 {
        peer.send(Frame::message(stream_id, &chunk(sequence))).await;
    }
    peer.send(Frame::end(stream_id)).await;
    let echo = tokio::spawn(conformance.echo(echo_request([])).into_future());
    answer_echo(&mut peer).await;
    echo.await.unwrap().unwrap();
}
