//! A server's streams seen from the other side of the wire: openings, messages, ends.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use ttrpc::{ServerConfig, proto::frame::MAX_DATA_LEN, server::Routes};
use ttrpc_tests::{
    conformance::*,
    harness::{code::*, *},
    wire::{DATA, Frame, NO_DATA, Peer, REMOTE_CLOSED, REMOTE_OPEN, REQUEST, RESPONSE},
};

#[tokio::test(start_paused = true)]
async fn a_stream_of_replies_ends_with_a_frame_of_its_own() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let request = GenerateRequest { count: 3, ..GenerateRequest::default() };
    peer.send(Frame::request(1, REMOTE_CLOSED, SERVICE, "Generate", &request)).await;
    // The first chunk encodes to nothing and is a message all the same.
    assert_eq!(peer.receive().await, Frame::new(1, DATA, 0, []));
    assert_eq!(peer.receive().await, Frame::message(1, &chunk(1)));
    assert_eq!(peer.receive().await, Frame::message(1, &chunk(2)));
    assert_eq!(peer.receive().await, Frame::new(1, DATA, REMOTE_CLOSED | NO_DATA, []));
    assert!(peer.is_quiet().await);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_replies_that_fails_ends_with_a_response() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let request = GenerateRequest { count: 2, fail_code: 5, ..GenerateRequest::default() };
    peer.send(Frame::request(1, REMOTE_CLOSED, SERVICE, "Generate", &request)).await;
    assert_eq!(peer.receive().await.kind, DATA);
    assert_eq!(peer.receive().await.kind, DATA);
    let end = peer.receive().await;
    assert_eq!((end.kind, end.flags, end.code()), (RESPONSE, 0, 5));
    assert!(peer.is_quiet().await);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_requests_may_open_with_and_without_no_data() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    // The opening's flags, and how many messages the opening itself brings.
    let openings = [(REMOTE_OPEN, &[][..], 0), (REMOTE_OPEN | NO_DATA, &[], 0)];
    let with_message = [(REMOTE_OPEN, &[8, 0][..], 1)];
    for (index, (flags, payload, brings)) in openings.into_iter().chain(with_message).enumerate() {
        let id = 2 * index as u32 + 1;
        let mut opening = open_stream(id, "Collect");
        opening.flags = flags;
        if !payload.is_empty() {
            opening.data.extend([0x1a, payload.len() as u8]);
            opening.data.extend(payload);
        }
        peer.send(opening).await;
        peer.send(Frame::message(id, &chunk(brings))).await;
        peer.send(Frame::end(id)).await;
        let reply: CollectResponse = payload_of(&peer.receive().await);
        assert_eq!((reply.chunks, reply.in_order), (brings + 1, true), "with flags {flags:#x}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_requests_that_opens_closed_is_empty() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    peer.send(Frame { flags: REMOTE_CLOSED, ..open_stream(1, "Collect") }).await;
    assert_eq!(payload_of::<CollectResponse>(&peer.receive().await).chunks, 0);
    peer.send(Frame { flags: REMOTE_CLOSED | NO_DATA, ..open_stream(3, "Exchange") }).await;
    assert_eq!(peer.receive().await, Frame::end(3));
}

#[tokio::test(start_paused = true)]
async fn a_method_that_takes_one_request_takes_it_from_a_frame_of_its_own_too() {
    let (server, mut peer) = played_client(ServerConfig::default());
    let request = GenerateRequest { count: 1, ..GenerateRequest::default() };
    peer.send(open_stream(1, "Generate")).await;
    peer.send(Frame::message(1, &request)).await;
    peer.send(Frame::end(1)).await;
    assert_eq!(peer.receive().await, Frame::message(1, &chunk(0)));
    assert_eq!(peer.receive().await, Frame::end(1));
    // The empty request is one too; an end without a request is none.
    peer.send(Frame { flags: REMOTE_CLOSED, ..open_stream(3, "Generate") }).await;
    assert_eq!(peer.receive().await, Frame::end(3));
    peer.send(open_stream(5, "Generate")).await;
    peer.send(Frame::end(5)).await;
    assert_eq!(peer.receive().await.code(), INVALID_ARGUMENT);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn only_no_data_means_no_message() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    // What is sent, and how many messages it is.
    let frames = |id| {
        [
            (Frame::new(id, DATA, 0, []), 1),
            (Frame::new(id, DATA, NO_DATA, []), 0),
            (Frame::new(id, DATA, NO_DATA, *b"ignored"), 0),
            (Frame::message(id, &chunk(1)), 1),
        ]
    };
    let ends = |id| {
        [
            (Frame::new(id, DATA, REMOTE_CLOSED | NO_DATA, []), 0),
            (Frame::new(id, DATA, REMOTE_CLOSED, []), 1),
            (Frame { flags: REMOTE_CLOSED, ..Frame::message(id, &chunk(2)) }, 1),
        ]
    };
    for index in 0..ends(0).len() {
        let id = 2 * index as u32 + 1;
        peer.send(open_stream(id, "Collect")).await;
        let mut expected = 0;
        for (frame, messages) in frames(id).into_iter().chain([ends(id)[index].clone()]) {
            peer.send(frame).await;
            expected += messages;
        }
        let reply: CollectResponse = payload_of(&peer.receive().await);
        assert_eq!(reply.chunks, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_exchange_goes_both_ways_until_the_client_closes() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(open_stream(1, "Exchange")).await;
    for sequence in 0..5 {
        peer.send(Frame::message(1, &chunk(sequence))).await;
        assert_eq!(peer.receive().await, Frame::message(1, &chunk(sequence)));
    }
    assert!(peer.is_quiet().await);
    peer.send(Frame::end(1)).await;
    assert_eq!(peer.receive().await, Frame::end(1));
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_an_early_end_is_dropped_in_silence() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(open_stream(1, "Collect")).await;
    peer.send(Frame::new(1, DATA, 0, [0xff])).await;
    let end = peer.receive().await;
    assert_eq!((end.kind, end.code()), (RESPONSE, INVALID_ARGUMENT));
    server.is_idle().await;
    for sequence in 0..2000 {
        peer.send(Frame::message(1, &chunk(sequence))).await;
    }
    peer.send(Frame::end(1)).await;
    assert!(peer.is_quiet().await);
    // Whoever goes on after the close breaks the protocol.
    peer.send(Frame::message(1, &chunk(0))).await;
    assert_eq!(peer.receive().await.code(), INVALID_ARGUMENT);
    expect_echo(&mut peer, 3).await;
}

/// A client that takes the stream for open sends on until the refusal comes. An answer to each of these frames would
/// be more than one end of the stream.
#[tokio::test(start_paused = true)]
async fn what_comes_behind_a_refused_opening_is_dropped_in_silence() {
    let (server, mut peer) = played_client(ServerConfig::default().max_calls_per_connection(1));
    peer.send(call(1, "Wait", &key("a"))).await;
    server.has_begun(1).await;
    let too_long = Frame::new(9, REQUEST, REMOTE_OPEN, vec![0; MAX_DATA_LEN + 1]);
    for (opening, code) in [
        (open_stream(3, "None"), UNIMPLEMENTED),
        // After a wait for its place, and at once from then on.
        (open_stream(5, "Collect"), RESOURCE_EXHAUSTED),
        (open_stream(7, "Collect"), RESOURCE_EXHAUSTED),
        (too_long, RESOURCE_EXHAUSTED),
    ] {
        let id = opening.id;
        peer.send(opening).await;
        peer.send(Frame::message(id, &chunk(0))).await;
        let refusal = peer.receive().await;
        assert_eq!((refusal.id, refusal.code()), (id, code));
        peer.send(Frame::message(id, &chunk(1))).await;
        peer.send(Frame::end(id)).await;
        assert!(peer.is_quiet().await, "the opening of {id}");
    }
    server.service.release("a");
    assert_eq!(peer.receive().await.id, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_answer_before_the_stream_of_requests_is_closed() {
    let routes = Routes::new("test.Early")
        .client_streaming("Reply", &Arc::new(()), |_, _ctx, _requests| {
            let _: &ttrpc::server::StreamReceiver<Chunk> = &_requests;
            Box::pin(async { Ok(chunk(7)) })
        })
        .bidi_streaming("End", &Arc::new(()), |_, _ctx, _requests, _replies| {
            let _: &ttrpc::server::StreamReceiver<Chunk> = &_requests;
            let _: &ttrpc::server::StreamSender<Chunk> = &_replies;
            Box::pin(async { Ok(()) })
        });
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = ttrpc::Server::builder().add_service(Handmade(routes)).io(there).build().unwrap();
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    peer.send(Frame::request(1, REMOTE_OPEN, "test.Early", "Reply", &Empty {})).await;
    assert_eq!(payload_of::<Chunk>(&peer.receive().await), chunk(7));
    peer.send(Frame::request(3, REMOTE_OPEN, "test.Early", "End", &Empty {})).await;
    assert_eq!(peer.receive().await, Frame::end(3));
    for id in [1, 3] {
        peer.send(Frame::message(id, &chunk(0))).await;
        peer.send(Frame::end(id)).await;
    }
    assert!(peer.is_quiet().await);
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_requests_is_over_for_its_handler_behind_a_message_that_does_not_decode() {
    let routes = Routes::new("test.Over").client_streaming(
        "Read",
        &Arc::new(()),
        |_, _ctx, mut requests| {
            Box::pin(async move {
                let requests: &mut ttrpc::server::StreamReceiver<Chunk> = &mut requests;
                assert_eq!(requests.recv().await, Ok(Some(chunk(1))));
                requests.recv().await.expect_err("it does not decode");
                assert_eq!(requests.recv().await, Ok(None));
                Ok(chunk(7))
            })
        },
    );
    let (here, there) = tokio::io::duplex(PIPE_LEN);
    let server = ttrpc::Server::builder().add_service(Handmade(routes)).io(there).build().unwrap();
    let serving = tokio::spawn(server.serve());
    let mut peer = Peer::new(here);
    let undecodable = Frame::new(1, DATA, 0, [0xff]);
    let opening = Frame::request(1, REMOTE_OPEN, "test.Over", "Read", &Empty {});
    for frame in [opening, Frame::message(1, &chunk(1)), undecodable, Frame::message(1, &chunk(2))]
    {
        peer.send(frame).await;
    }
    assert_eq!(payload_of::<Chunk>(&peer.receive().await), chunk(7));
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_in_whatever_way_takes_its_handlers_with_it() {
    for half_close in [false, true] {
        let (server, mut peer) = played_client(ServerConfig::default());
        peer.send(call(1, "Wait", &key("a"))).await;
        peer.send(open_stream(3, "Hold")).await;
        peer.send(open_stream(5, "Exchange")).await;
        let generate = GenerateRequest { count: u64::MAX, ..GenerateRequest::default() };
        peer.send(Frame::request(7, REMOTE_CLOSED, SERVICE, "Generate", &generate)).await;
        server.has_begun(4).await;
        let mut io = peer.into_inner();
        if half_close {
            io.shutdown().await.unwrap();
        } else {
            drop(io);
        }
        eventually("all handlers end", || server.service.calls_cancelled() == 4).await;
        server.is_idle().await;
        server.ended().await;
    }
}
