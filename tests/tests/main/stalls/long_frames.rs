//! Frames that take long to write, and short ones that come behind them: those do not wait for the long ones that
//! wait for room.

use std::time::Duration;

use tokio::{task::JoinHandle, time::sleep};
use ttrpc::{ClientConfig, ServerConfig, Status};
use ttrpc_tests::{
    conformance::*,
    harness::*,
    wire::{DATA, Frame, REMOTE_CLOSED, REQUEST, RESPONSE},
};

/// Bytes of a payload whose frame is long.
const LONG: usize = 1 << 20;

/// Room for one long frame at a time.
const ROOM: usize = LONG + 100;

/// A call for a long reply.
fn call_for_long(id: u32) -> Frame {
    call(id, "Echo", &EchoRequest { payload: Vec::new(), response_size: LONG as u32 })
}

type Calling = JoinHandle<Result<EchoResponse, Status>>;

fn echo(conformance: &ConformanceClient, payload: &[u8]) -> Calling {
    tokio::spawn(conformance.echo(echo_request(payload)).into_future())
}

fn is_long(frame: &Frame) -> bool {
    frame.data.len() > LONG
}

#[tokio::test(start_paused = true)]
async fn a_short_request_passes_long_ones_that_wait_for_room() {
    let config = ClientConfig::default().send_queue_bytes(ROOM);
    let (_client, conformance, mut peer) = played_server_over(config, 4096);
    let long: Vec<_> = (0..4).map(|_| echo(&conformance, &[7; LONG])).collect();
    settle().await;
    let short = echo(&conformance, b"short");
    settle().await;
    let mut frames = Vec::new();
    for _ in 0..5 {
        frames.push(peer.receive().await);
    }
    let are_long: Vec<_> = frames.iter().map(is_long).collect();
    assert_eq!(are_long, [true, false, true, true, true], "behind the one that is being written");
    let ids: Vec<_> = frames.iter().map(|frame| frame.id).collect();
    assert_eq!(ids, [1, 3, 5, 7, 9], "the long ones had none while they waited");
    for frame in frames {
        let EchoRequest { payload, .. } = EchoRequest::decode_from(&frame.as_request().payload);
        peer.send(Frame::reply(frame.id, &EchoResponse { payload })).await;
    }
    assert_eq!(short.await.unwrap().unwrap().payload, b"short");
    for call in long {
        assert_eq!(call.await.unwrap().unwrap().payload.len(), LONG);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_reply_passes_long_ones_that_wait_for_room() {
    let config = ServerConfig::default().send_queue_bytes(ROOM);
    let (server, mut peer) = played_client_over(config, 4096);
    for id in [1, 3, 5, 7] {
        peer.send(call_for_long(id)).await;
    }
    settle().await;
    peer.send(call(9, "Echo", &echo_request(*b"short"))).await;
    settle().await;
    let mut answers = Vec::new();
    for _ in 0..5 {
        let answer = peer.receive().await;
        assert_eq!(answer.code(), 0);
        answers.push(answer.id);
    }
    assert_eq!(answers, [1, 9, 3, 5, 7]);
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_message_of_a_stream_passes_long_ones_of_other_streams() {
    let config = ClientConfig::default().send_queue_bytes(ROOM);
    let (_client, conformance, mut peer) = played_server_over(config, 4096);
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(conformance.collect().await.unwrap());
        assert_eq!(peer.receive().await.kind, REQUEST);
    }
    let (mut short, _reply) = streams.pop().expect("there are four");
    let mut sending = Vec::new();
    for (mut requests, reply) in streams {
        let long = Chunk { payload: vec![7; LONG], ..chunk(0) };
        sending.push(tokio::spawn(
            async move { requests.send(long).await.map(|()| (requests, reply)) },
        ));
    }
    settle().await;
    short.send(chunk(1)).await.expect("it does not wait");
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(peer.receive().await.id);
    }
    assert_eq!(ids, [1, 7, 3, 5]);
    for sent in sending {
        let (_requests, _reply) = sent.await.unwrap().expect("it is sent");
    }
}

/// Messages of one stream stay in their order, whatever their lengths.
#[tokio::test(start_paused = true)]
async fn a_short_message_passes_no_long_one_of_its_own_stream() {
    let config = ClientConfig::default().send_queue_bytes(ROOM);
    let (_client, conformance, mut peer) = played_server_over(config, 4096);
    let (mut requests, _reply) = conformance.collect().await.unwrap();
    let sending = tokio::spawn(async move {
        for sequence in 0..10 {
            let payload = vec![7; if sequence % 3 == 2 { 0 } else { LONG }];
            requests.send(Chunk { sequence, payload }).await?;
        }
        requests.finish();
        Ok::<(), Status>(())
    });
    assert_eq!(peer.receive().await.kind, REQUEST);
    for sequence in 0..10 {
        let frame = peer.receive().await;
        assert_eq!((frame.kind, frame.flags), (DATA, 0));
        assert_eq!(Chunk::decode_from(&frame.data).sequence, sequence);
    }
    assert_eq!(peer.receive().await, Frame::end(1));
    sending.await.unwrap().expect("all is sent");
}

/// Else a client that reads nothing would have the server hold a long reply for each of its calls.
#[tokio::test(start_paused = true)]
async fn no_call_begins_while_as_many_long_replies_wait_as_may() {
    const CALLS: u32 = 40;
    const WAITING: usize = 3;
    let config =
        ServerConfig::default().send_queue_bytes(ROOM).reply_bytes_per_connection(WAITING * LONG);
    let (server, mut peer) = played_client_over(config, 4096);
    for nth in 0..CALLS {
        peer.send(call_for_long(2 * nth + 1)).await;
    }
    // Time changes nothing of it.
    sleep(Duration::from_secs(60)).await;
    assert_eq!(server.service.calls_total() as usize, 1 + WAITING, "one is being written");
    for _ in 0..CALLS {
        assert_eq!(peer.receive().await.code(), 0);
    }
    server.is_idle().await;
}

/// Streams of long messages, each with one that waits, hold more than the limit at any time. A call that waited until
/// they hold less would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_call_begins_in_turn_however_many_long_messages_wait() {
    const STREAMS: u32 = 8;
    let config = ServerConfig::default().send_queue_bytes(ROOM).reply_bytes_per_connection(1);
    let (_server, mut peer) = played_client_over(config, 4096);
    let endless = GenerateRequest { count: u64::MAX, size: LONG as u32, ..Default::default() };
    for nth in 0..STREAMS {
        let id = 2 * nth + 1;
        peer.send(Frame::request(id, REMOTE_CLOSED, SERVICE, "Generate", &endless)).await;
        frame_of(id, &mut peer, STREAMS).await;
    }
    let short = 2 * STREAMS + 1;
    peer.send(call(short, "Echo", &echo_request(*b"short"))).await;
    let answer = frame_of(short, &mut peer, STREAMS).await;
    assert_eq!((answer.kind, answer.code()), (RESPONSE, 0));
}

/// The next frame with this id, which comes before each of so many streams has had several turns.
async fn frame_of(id: u32, peer: &mut Played, streams: u32) -> Frame {
    for _ in 0..4 * streams {
        let frame = peer.receive().await;
        if frame.id == id {
            return frame;
        }
    }
    panic!("call {id} has not begun in its turn")
}
