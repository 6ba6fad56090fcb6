//! A stream ends exactly once, and nothing of it is left in any table, on whatever path it ends.

use std::time::Duration;

use ttrpc::{ClientConfig, Code, ServerConfig, Status};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{Frame, REMOTE_CLOSED},
};

use super::nothing_is_left;

const SOON: Duration = Duration::from_millis(20);

fn code<T>(result: Result<T, Status>) -> Code {
    result.map(drop).expect_err("the call fails").code()
}

#[tokio::test(start_paused = true)]
async fn unary_calls_leave_nothing_on_any_path() {
    let (server, client, conformance) = connected_by_default();
    conformance.echo(echo_request([])).await.unwrap();
    nothing_is_left(&server, &client).await;

    let fail = FailRequest { code: 5, message: String::new(), detail: Vec::new() };
    assert_eq!(code(conformance.fail(fail).await), Code::NotFound);
    nothing_is_left(&server, &client).await;

    assert_eq!(code(conformance.panic(Empty {}).await), Code::Internal);
    nothing_is_left(&server, &client).await;

    let wait = conformance.wait(key("a")).timeout(SOON).await;
    assert_eq!(code(wait), Code::DeadlineExceeded);
    nothing_is_left(&server, &client).await;

    let wait = tokio::spawn(conformance.wait(key("b")).into_future());
    eventually("it is sent", || client.calls_in_flight() == 1).await;
    wait.abort();
    eventually("it is forgotten", || client.calls_in_flight() == 0).await;
    // The server is not told; its handler ends in its own time.
    conformance.release(key("b")).await.unwrap();
    nothing_is_left(&server, &client).await;

    assert_eq!(
        code(conformance.echo(echo_request(vec![0; MAX_DATA_LEN])).await),
        Code::ResourceExhausted
    );
    nothing_is_left(&server, &client).await;
}

#[tokio::test(start_paused = true)]
async fn streams_of_replies_leave_nothing_on_any_path() {
    let (server, client, conformance) = connected_by_default();
    let request = GenerateRequest { count: 3, ..GenerateRequest::default() };
    let slow = GenerateRequest { count: 100, interval_micros: 10_000, ..request };

    let mut replies = conformance.generate(request).await.unwrap();
    while replies.recv().await.unwrap().is_some() {}
    nothing_is_left(&server, &client).await;

    let failing = GenerateRequest { fail_code: 5, ..request };
    let mut replies = conformance.generate(failing).await.unwrap();
    for _ in 0..3 {
        assert!(replies.recv().await.unwrap().is_some());
    }
    assert_eq!(code(replies.recv().await), Code::NotFound);
    assert_eq!(replies.recv().await, Ok(None));
    nothing_is_left(&server, &client).await;

    let mut replies = conformance.generate(slow).timeout(SOON).await.unwrap();
    let failure = loop {
        match replies.recv().await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!(failure.code(), Code::DeadlineExceeded);
    assert_eq!(replies.recv().await, Ok(None));
    nothing_is_left(&server, &client).await;

    let mut replies = conformance.generate(slow).await.unwrap();
    replies.recv().await.unwrap();
    drop(replies);
    assert_eq!(client.calls_in_flight(), 0);
    nothing_is_left(&server, &client).await;
}

#[tokio::test(start_paused = true)]
async fn streams_of_requests_leave_nothing_on_any_path() {
    let (server, client, conformance) = connected_by_default();
    let (mut requests, reply) = conformance.collect().await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    requests.finish();
    assert_eq!(reply.await.unwrap().chunks, 1);
    nothing_is_left(&server, &client).await;

    let (mut requests, reply) = conformance.hold().timeout(SOON).await.unwrap();
    requests.send(chunk(0)).await.unwrap();
    assert_eq!(code(reply.await), Code::DeadlineExceeded);
    drop(requests);
    nothing_is_left(&server, &client).await;

    // Both ends dropped, in either order.
    let (requests, reply) = conformance.collect().await.unwrap();
    drop((requests, reply));
    nothing_is_left(&server, &client).await;
    let (requests, reply) = conformance.collect().await.unwrap();
    settle().await;
    drop(reply);
    drop(requests);
    nothing_is_left(&server, &client).await;

    // Only the reply is dropped: the server is still given the rest.
    let (mut requests, reply) = conformance.collect().await.unwrap();
    settle().await;
    drop(reply);
    requests.send(chunk(0)).await.unwrap();
    requests.finish();
    nothing_is_left(&server, &client).await;
    assert_eq!(server.service.calls_cancelled(), 1, "only the one with the deadline");
}

#[tokio::test(start_paused = true)]
async fn exchanges_leave_nothing_on_any_path() {
    let (server, client, conformance) = connected_by_default();
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    requests.send(chunk(1)).await.unwrap();
    assert_eq!(replies.recv().await, Ok(Some(chunk(1))));
    requests.finish();
    assert_eq!(replies.recv().await, Ok(None));
    drop(replies);
    nothing_is_left(&server, &client).await;

    let (requests, mut replies) = conformance.exchange().timeout(SOON).await.unwrap();
    assert_eq!(code(replies.recv().await), Code::DeadlineExceeded);
    drop((requests, replies));
    nothing_is_left(&server, &client).await;

    let (mut requests, replies) = conformance.exchange().await.unwrap();
    settle().await;
    drop(replies);
    requests.send(chunk(1)).await.unwrap();
    requests.finish();
    nothing_is_left(&server, &client).await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_send_leaves_nothing() {
    let (server, client, conformance) = connected_by_default();
    // The server ends the stream at the first message that does not decode.
    let (mut requests, reply) =
        client.client_streaming::<Vec<u8>, Empty>(SERVICE, "Collect").await.unwrap();
    requests.send(vec![0xff; 10]).await.unwrap();
    let status = reply.await.unwrap_err();
    assert_eq!(requests.send(vec![1]).await, Err(status));
    drop(requests);
    nothing_is_left(&server, &client).await;
    drop(conformance);
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_leaves_nothing() {
    let (server, client, conformance) = connected_by_default();
    let wait = tokio::spawn(conformance.wait(key("a")).into_future());
    let upload = conformance.collect().await.unwrap();
    let exchange = conformance.exchange().await.unwrap();
    server.has_begun(3).await;
    client.close();
    nothing_is_left(&server, &client).await;
    assert_eq!(code(wait.await.unwrap()), Code::Unavailable);
    drop((upload, exchange));
    assert_eq!(server.service.calls_cancelled(), 3);
    eventually("the connection is closed", || server.handle.connections() == 0).await;
    server.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_served_stream_answers_exactly_once_whatever_ends_it_first() {
    // A deadline, a protocol violation and the handler's own end, all at the same moment.
    for millis in [9, 10, 11] {
        let (server, mut peer) = played_client(ServerConfig::default());
        let frame = call(1, "Sleep", &SleepRequest { millis: 10 });
        let request = ttrpc_tests::wire::Request { timeout_nano: 10_000_000, ..frame.as_request() };
        let data = ttrpc::prost::Message::encode_to_vec(&request);
        peer.send(Frame { data, ..frame }).await;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        peer.send(call(3, "Release", &key("a"))).await;
        let mut ids = vec![peer.receive().await.id, peer.receive().await.id];
        ids.sort();
        assert_eq!(ids, [1, 3]);
        assert!(peer.is_quiet().await, "the call is answered once");
        server.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_takes_only_the_first_end_of_a_stream() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let frame = peer.receive().await;
    assert_eq!(frame.flags, REMOTE_CLOSED);
    peer.send(Frame::end(frame.id)).await;
    peer.send(Frame::failure(frame.id, 5, "too late")).await;
    peer.send(Frame::message(frame.id, &chunk(1))).await;
    settle().await;
    assert_eq!(replies.recv().await, Ok(None));
    assert_eq!(replies.recv().await, Ok(None));
    assert_eq!(client.calls_in_flight(), 0);
}

/// The stream has left the client's table with its last frame, whose message waits for room.
#[tokio::test(start_paused = true)]
async fn a_stream_whose_last_message_is_held_up_hears_of_the_connections_end() {
    let config = ClientConfig { stream_inbox_messages: 1, ..ClientConfig::default() };
    let (client, conformance, mut peer) = played_server(config);
    let mut replies = conformance.generate(GenerateRequest::default()).await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::message(id, &chunk(0))).await;
    peer.send(Frame { flags: REMOTE_CLOSED, ..Frame::message(id, &chunk(1)) }).await;
    settle().await;
    client.close();
    assert_eq!(replies.recv().await, Ok(Some(chunk(0))));
    assert_eq!(replies.recv().await.unwrap_err().code(), Code::Unavailable);
}
