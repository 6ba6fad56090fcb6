//! A client's streams seen from the other side of the wire: messages and ends.

use ttrpc::{ClientConfig, Code, Status};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame, NO_DATA, REMOTE_CLOSED, RESPONSE},
};

fn code<T>(result: Result<T, Status>) -> Code {
    result.map(drop).expect_err("the call fails").code()
}

fn generate_request() -> GenerateRequest {
    GenerateRequest::default()
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_requests_is_closed_by_a_frame_of_its_own() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, reply) = conformance.collect().await.unwrap();
    let id = peer.receive().await.id;
    requests.send(chunk(0)).await.unwrap();
    requests.send(chunk(9)).await.unwrap();
    requests.finish();
    // A message that encodes to nothing is a message all the same.
    assert_eq!(peer.receive().await, Frame::new(id, DATA, 0, []));
    assert_eq!(peer.receive().await, Frame::message(id, &chunk(9)));
    assert_eq!(peer.receive().await, Frame::new(id, DATA, REMOTE_CLOSED | NO_DATA, []));
    peer.send(Frame::reply(id, &CollectResponse { chunks: 2, bytes: 0, in_order: true })).await;
    assert_eq!(reply.await.unwrap().chunks, 2);
    assert!(peer.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn every_way_to_end_a_stream_of_replies_is_understood() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let ends = |id| {
        [
            // What to send, the last messages that this brings, and the failure.
            (Frame::new(id, DATA, REMOTE_CLOSED | NO_DATA, []), 0, None),
            (Frame::new(id, RESPONSE, 0, []), 0, None),
            (Frame::reply(id, &chunk(1)), 1, None),
            (Frame { flags: REMOTE_CLOSED, ..Frame::message(id, &chunk(1)) }, 1, None),
            (Frame::new(id, DATA, REMOTE_CLOSED, []), 1, None),
            (Frame::failure(id, 5, "gone"), 0, Some(Code::NotFound)),
        ]
    };
    for index in 0..ends(0).len() {
        let mut replies = conformance.generate(generate_request()).await.unwrap();
        let id = peer.receive().await.id;
        peer.send(Frame::message(id, &chunk(0))).await;
        let (end, last, failure) = ends(id)[index].clone();
        peer.send(end.clone()).await;
        for _ in 0..1 + last {
            assert!(replies.recv().await.unwrap().is_some(), "at {end:?}");
        }
        match failure {
            Some(expected) => assert_eq!(code(replies.recv().await), expected),
            None => assert_eq!(replies.recv().await, Ok(None), "at {end:?}"),
        }
        assert_eq!(replies.recv().await, Ok(None), "a stream ends once");
        assert_eq!(client.calls_in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn no_data_is_no_message_and_an_empty_one_is() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let mut replies = conformance.generate(generate_request()).await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::new(id, DATA, NO_DATA, [])).await;
    peer.send(Frame::new(id, DATA, 0, [])).await;
    peer.send(Frame::message(id, &chunk(5))).await;
    assert_eq!(replies.recv().await, Ok(Some(chunk(0))));
    assert_eq!(replies.recv().await, Ok(Some(chunk(5))));
}

#[tokio::test(start_paused = true)]
async fn either_side_of_an_exchange_may_close_first() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, mut replies) = conformance.exchange().await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::end(id)).await;
    assert_eq!(replies.recv().await, Ok(None));
    requests.send(chunk(1)).await.expect("this side is open");
    assert_eq!(peer.receive().await, Frame::message(id, &chunk(1)));
    drop(requests);
    assert_eq!(peer.receive().await, Frame::end(id));

    let (requests, mut replies) = conformance.exchange().await.unwrap();
    let id = peer.receive().await.id;
    requests.finish();
    assert_eq!(peer.receive().await, Frame::end(id));
    peer.send(Frame::message(id, &chunk(2))).await;
    peer.send(Frame::end(id)).await;
    assert_eq!(replies.recv().await, Ok(Some(chunk(2))));
    assert_eq!(replies.recv().await, Ok(None));
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_may_end_a_stream_of_requests_early() {
    let (client, conformance, mut peer) = played_server(ClientConfig::default());
    let (mut requests, reply) = conformance.collect().await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::failure(id, 9, "enough")).await;
    settle().await;
    let error = requests.send(chunk(0)).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::FailedPrecondition, "enough"));
    assert_eq!(reply.await.unwrap_err().message(), "enough");
    drop(requests);
    assert!(peer.is_quiet().await, "nothing more is sent on a stream that is over");

    let (mut requests, reply) = conformance.collect().await.unwrap();
    let id = peer.receive().await.id;
    peer.send(Frame::reply(id, &CollectResponse::default())).await;
    settle().await;
    assert_eq!(code(requests.send(chunk(0)).await), Code::Cancelled, "it did not fail");
    reply.await.expect("the reply is the server's");
    assert_eq!(client.calls_in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn messages_of_several_streams_that_arrive_together_are_told_apart() {
    let (_client, conformance, mut peer) = played_server(ClientConfig::default());
    let mut first = conformance.generate(generate_request()).await.unwrap();
    let mut second = conformance.generate(generate_request()).await.unwrap();
    let ids = [peer.receive().await.id, peer.receive().await.id];
    let mut bytes = Vec::new();
    for (index, sequence) in [(0, 1), (0, 2), (1, 3), (0, 4), (1, 5), (1, 6)] {
        bytes.extend(Frame::message(ids[index], &chunk(sequence)).to_bytes());
    }
    peer.send_bytes(&bytes).await;
    for (stream, sequences) in [(&mut first, [1, 2, 4]), (&mut second, [3, 5, 6])] {
        for sequence in sequences {
            assert_eq!(stream.recv().await.unwrap().unwrap().sequence, sequence);
        }
    }
}
