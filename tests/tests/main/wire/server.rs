//! A server seen from the other side of the wire: frames that it answers, refuses and ignores.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokio::task::yield_now;
use ttrpc::ServerConfig;
use ttrpc_tests::{
    conformance::*,
    harness::{code::*, *},
    wire::{DATA, Frame, REMOTE_CLOSED, REMOTE_OPEN, REQUEST, RESPONSE, Request, header},
};

/// The one frame that answers this one.
async fn answer(peer: &mut Played, frame: Frame) -> Frame {
    peer.send(frame).await;
    peer.receive().await
}

async fn expect_refusal(peer: &mut Played, frame: Frame, code: i32) {
    let (id, shown) = (frame.id, format!("{:?}", (frame.id, frame.kind, frame.flags)));
    let answer = answer(peer, frame).await;
    assert_eq!((answer.id, answer.kind, answer.flags), (id, RESPONSE, 0), "to {shown}");
    assert_eq!(answer.code(), code, "to {shown}: {:?}", answer.as_response());
}

#[tokio::test(start_paused = true)]
async fn a_unary_request_gets_one_response_without_flags() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let frame = answer(&mut peer, call(1, "Echo", &echo_request(*b"hi"))).await;
    assert_eq!((frame.id, frame.kind, frame.flags), (1, RESPONSE, 0));
    assert_eq!(frame.as_response().status, None);
    assert_eq!(payload_of::<EchoResponse>(&frame).payload, b"hi");
    assert!(peer.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn an_empty_reply_is_a_response_of_no_bytes() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let frame = answer(&mut peer, call(1, "Release", &key("k"))).await;
    assert_eq!(frame, Frame::new(1, RESPONSE, 0, []));
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_is_answered_on_its_id_and_the_connection_lives() {
    let (server, mut peer) = played_client(ServerConfig::default());
    expect_echo(&mut peer, 5).await;
    for id in [0, 2, 6, u32::MAX - 1, 5, 3, 1] {
        expect_refusal(&mut peer, call(id, "Echo", &echo_request([])), INVALID_ARGUMENT).await;
    }
    let malformed = Frame::new(7, REQUEST, 0, [0xff; 9]);
    expect_refusal(&mut peer, malformed, INVALID_ARGUMENT).await;
    let not_utf8 = Frame::new(9, REQUEST, 0, [0x0a, 1, 0xff]);
    expect_refusal(&mut peer, not_utf8, INVALID_ARGUMENT).await;
    let bad_payload = Request {
        service: SERVICE.to_owned(),
        method: "Echo".to_owned(),
        payload: vec![0xff; 3],
        ..Request::default()
    };
    let bad_payload = Frame::new(11, REQUEST, 0, prost_bytes(&bad_payload));
    expect_refusal(&mut peer, bad_payload, INVALID_ARGUMENT).await;
    expect_echo(&mut peer, 13).await;
    expect_echo(&mut peer, u32::MAX).await;
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_metadata_are_no_text_is_refused_and_counts_no_longer() {
    let (server, mut peer) = played_client(ServerConfig::default());
    // The only pair's key.
    let pair = [5 << 3 | 2, 3, 0x0a, 1, 0xff];
    let data = [&call(1, "Echo", &echo_request(*b"hi")).data[..], &pair].concat();
    expect_refusal(&mut peer, Frame::new(1, REQUEST, 0, data), INVALID_ARGUMENT).await;
    server.is_idle().await;
}

fn prost_bytes(message: &impl ttrpc::prost::Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// A later version of the protocol, or another implementation of protobuf, may have such fields.
#[tokio::test(start_paused = true)]
async fn unknown_groups_in_a_request_and_its_metadata_are_skipped() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let group = |tag: u8, content: &[u8]| [&[tag << 3 | 3], content, &[tag << 3 | 4]].concat();
    let nested = group(9, &[&[8, 5][..], &group(5, b"\x0a\x02hi"), &[0x12, 0]].concat());
    let request = call(1, "Echo", &echo_request(*b"hi")).data;
    // A pair whose key and value are `a` and `b`, and which has a group as well.
    let pair = [b"\x0a\x01a\x12\x01b", &nested[..]].concat();
    let pair = [&[5 << 3 | 2, pair.len() as u8], &pair[..]].concat();
    for (id, data) in (1..).step_by(2).zip([
        [&nested[..], &request].concat(),
        [&request[..], &nested].concat(),
        [&pair[..], &nested, &request, &pair].concat(),
    ]) {
        let frame = answer(&mut peer, Frame::new(id, REQUEST, 0, data)).await;
        assert_eq!((frame.id, frame.code()), (id, 0), "{:?}", frame.as_response());
        assert_eq!(payload_of::<EchoResponse>(&frame).payload, b"hi");
    }
    // Whose end is missing, of another one, or behind too many.
    let deep = [[9 << 3 | 3].repeat(1000), [9 << 3 | 4].repeat(1000)].concat();
    let long = group(9, &[8, 1].repeat(100_000));
    for (id, group) in (7..).step_by(2).zip([&nested[..3], &group(9, &[4 << 3 | 4]), &deep, &long])
    {
        let data = [&request[..], group].concat();
        expect_refusal(&mut peer, Frame::new(id, REQUEST, 0, data), INVALID_ARGUMENT).await;
    }
    expect_echo(&mut peer, 101).await;
}

#[tokio::test(start_paused = true)]
async fn data_for_a_stream_that_does_not_exist_is_refused_on_its_id() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    for id in [0, 1, 2, 99, u32::MAX] {
        expect_refusal(&mut peer, Frame::message(id, &chunk(0)), INVALID_ARGUMENT).await;
        expect_refusal(&mut peer, Frame::end(id), INVALID_ARGUMENT).await;
    }
    expect_echo(&mut peer, 1).await;
    expect_refusal(&mut peer, Frame::message(1, &chunk(0)), INVALID_ARGUMENT).await;
    expect_echo(&mut peer, 3).await;
}

#[tokio::test(start_paused = true)]
async fn data_on_a_unary_call_is_refused_and_ends_the_call_alone() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(call(1, "Wait", &key("a"))).await;
    peer.send(call(3, "Wait", &key("b"))).await;
    server.has_begun(2).await;
    expect_refusal(&mut peer, Frame::message(1, &chunk(0)), INVALID_ARGUMENT).await;
    eventually("its handler is dropped", || server.service.calls_cancelled() == 1).await;
    peer.send(call(5, "Release", &key("b"))).await;
    let mut ids = [peer.receive().await.id, peer.receive().await.id];
    ids.sort();
    assert_eq!(ids, [3, 5]);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_reused_id_of_a_live_call_ends_it_with_the_refusal() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(call(1, "Wait", &key("a"))).await;
    server.has_begun(1).await;
    expect_refusal(&mut peer, call(1, "Wait", &key("a")), INVALID_ARGUMENT).await;
    expect_echo(&mut peer, 3).await;
    assert!(peer.is_quiet().await, "the call is not answered twice");
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn data_after_remote_closed_is_refused_and_ends_the_stream() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(open_stream(1, "Hold")).await;
    peer.send(Frame::end(1)).await;
    server.has_begun(1).await;
    expect_refusal(&mut peer, Frame::message(1, &chunk(0)), INVALID_ARGUMENT).await;
    server.is_idle().await;
    expect_echo(&mut peer, 3).await;
    assert!(peer.is_quiet().await);
}

#[tokio::test(start_paused = true)]
async fn unknown_frame_types_and_responses_are_ignored() {
    let (server, mut peer) = played_client(ServerConfig::default());
    peer.send(call(1, "Wait", &key("a"))).await;
    for kind in [0, RESPONSE, 4, 17, 255] {
        for id in [0, 1, 2, 99] {
            peer.send(Frame::new(id, kind, 0xff, *b"whatever")).await;
            peer.send(Frame::new(id, kind, 0, [])).await;
        }
    }
    assert!(peer.is_quiet().await);
    assert_eq!(server.service.calls_cancelled(), 0);
    expect_echo(&mut peer, 3).await;
}

#[tokio::test(start_paused = true)]
async fn frames_that_are_ignored_leave_other_tasks_their_turns() {
    const FRAMES: usize = 6000;
    let (_server, mut peer) = played_client_over(ServerConfig::default(), 64 << 10);
    expect_echo(&mut peer, 1).await;
    let mut flood = Frame::new(3, 99, 0, []).to_bytes().repeat(FRAMES);
    flood.extend(call(3, "Echo", &echo_request([])).to_bytes());
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let counting = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Relaxed);
            yield_now().await;
        }
    });
    peer.send_bytes(&flood).await;
    let before = turns.load(Relaxed);
    assert_eq!(peer.receive().await.id, 3);
    let turns = turns.load(Relaxed) - before;
    counting.abort();
    assert!(turns >= FRAMES / 256, "{turns} turns for {FRAMES} frames");
}

#[tokio::test(start_paused = true)]
async fn unknown_flags_are_ignored() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let echo = Frame { flags: 0xf8, ..call(1, "Echo", &echo_request([])) };
    assert_eq!(answer(&mut peer, echo).await.code(), 0);
    peer.send(Frame { flags: 0xf8 | REMOTE_OPEN, ..open_stream(3, "Collect") }).await;
    peer.send(Frame { flags: 0xf8, ..Frame::message(3, &chunk(0)) }).await;
    let end = answer(&mut peer, Frame { flags: 0xfd, ..Frame::end(3) }).await;
    assert_eq!(payload_of::<CollectResponse>(&end).chunks, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_served_is_unimplemented_in_the_words_of_containerds_implementation() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let frame = answer(&mut peer, Frame::unary(1, "a.b.C", "Echo", &Empty {})).await;
    let status = frame.as_response().status.expect("it failed");
    assert_eq!((status.code, &status.message[..]), (UNIMPLEMENTED, "service a.b.C"));
    let frame = answer(&mut peer, call(3, "Nope", &Empty {})).await;
    let status = frame.as_response().status.expect("it failed");
    assert_eq!((status.code, &status.message[..]), (UNIMPLEMENTED, "method Nope"));
    // A stream that was refused is dropped in silence until the client closes it.
    expect_refusal(&mut peer, open_stream(5, "Nope"), UNIMPLEMENTED).await;
    peer.send(Frame::message(5, &chunk(0))).await;
    peer.send(Frame::end(5)).await;
    assert!(peer.is_quiet().await);
    expect_echo(&mut peer, 7).await;
}

#[tokio::test(start_paused = true)]
async fn a_call_of_the_wrong_kind_is_refused() {
    let (server, mut peer) = played_client(ServerConfig::default());
    expect_refusal(&mut peer, open_stream(1, "Echo"), INVALID_ARGUMENT).await;
    for (id, method) in [(3, "Collect"), (5, "Generate"), (7, "Exchange")] {
        expect_refusal(&mut peer, call(id, method, &Empty {}), INVALID_ARGUMENT).await;
    }
    // Remote closed says of a unary call what is true of it anyway.
    let echo = Frame { flags: REMOTE_CLOSED, ..call(9, "Echo", &echo_request([])) };
    assert_eq!(answer(&mut peer, echo).await.code(), 0);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn frames_are_understood_wherever_they_are_cut() {
    let wire = [
        call(1, "Echo", &echo_request(*b"one")).to_bytes(),
        open_stream(3, "Collect").to_bytes(),
        Frame::message(3, &chunk(0)).to_bytes(),
        Frame::end(3).to_bytes(),
    ]
    .concat();
    for cut in 1..wire.len() {
        let (_server, mut peer) = played_client(ServerConfig::default());
        peer.send_bytes(&wire[..cut]).await;
        settle().await;
        peer.send_bytes(&wire[cut..]).await;
        let mut answers = [peer.receive().await, peer.receive().await];
        answers.sort_by_key(|answer| answer.id);
        assert_eq!(payload_of::<EchoResponse>(&answers[0]).payload, b"one", "cut at {cut}");
        assert_eq!(payload_of::<CollectResponse>(&answers[1]).chunks, 1, "cut at {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_comes_byte_by_byte_is_understood() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    for byte in call(1, "Echo", &echo_request(*b"slow")).to_bytes() {
        peer.send_bytes(&[byte]).await;
        settle().await;
    }
    assert_eq!(payload_of::<EchoResponse>(&peer.receive().await).payload, b"slow");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_inside_a_frame_leaves_nothing_behind() {
    let frame = call(3, "Echo", &echo_request(*b"cut")).to_bytes();
    for cut in 0..frame.len() {
        let (server, mut peer) = played_client(ServerConfig::default());
        peer.send(call(1, "Wait", &key("a"))).await;
        peer.send_bytes(&frame[..cut]).await;
        server.has_begun(1).await;
        drop(peer);
        eventually("the handler is cancelled", || server.service.calls_cancelled() == 1).await;
        assert_eq!(server.service.calls_total(), 1, "half a Request starts nothing");
        server.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn fields_of_later_versions_are_skipped() {
    let (_server, mut peer) = played_client(ServerConfig::default());
    let mut frame = call(1, "Echo", &echo_request(*b"x"));
    // Field 99 as a varint and field 100 as bytes.
    frame.data.extend([0x98, 0x06, 0x01, 0xa2, 0x06, 2, 1, 2]);
    assert_eq!(answer(&mut peer, frame).await.code(), 0);
    peer.send_bytes(&header(0, 3, DATA, 0)).await;
    assert_eq!(peer.receive().await.code(), INVALID_ARGUMENT);
}
