//! Frames that take long to write, and short ones that come behind them: those do not wait for the long ones that
//! wait for room.

use std::time::Duration;

use tokio::{
    io::duplex,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use ttrpc::{ClientConfig, ServerConfig, Status};
use ttrpc_tests::{
    conformance::*,
    harness::{code::DEADLINE_EXCEEDED, *},
    wire::{DATA, Frame, Peer, REQUEST, Request},
};

/// Bytes of a payload whose frame is long.
pub(super) const LONG: usize = 1 << 20;

/// Room for one long frame at a time.
pub(super) const ROOM: usize = LONG + 100;

/// A call for a long reply.
pub(super) fn call_for_long(id: u32) -> Frame {
    call(id, "Echo", &EchoRequest { payload: Vec::new(), response_size: LONG as u32 })
}

/// What must come without a wait.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(1), future).await.expect("it does not wait")
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
    assert_eq!(soon(short).await.unwrap().unwrap().payload, b"short");
    for call in long {
        assert_eq!(soon(call).await.unwrap().unwrap().payload.len(), LONG);
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
    soon(short.send(chunk(1))).await.expect("the stream is open");
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(peer.receive().await.id);
    }
    assert_eq!(ids, [1, 7, 3, 5]);
    for sent in sending {
        let (_requests, _reply) = soon(sent).await.unwrap().expect("it is sent");
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
    soon(sending).await.unwrap().expect("all is sent");
}

#[tokio::test(start_paused = true)]
async fn a_long_reply_that_waits_for_room_gives_way_to_a_status_at_its_deadline() {
    const LIMIT: Duration = Duration::from_millis(100);
    let config = ServerConfig::default().send_queue_bytes(ROOM);
    let (server, mut peer) = played_client_over(config, 4096);
    for id in [1, 3, 5] {
        let frame = call_for_long(id);
        let timeout_nano = LIMIT.as_nanos() as i64;
        let request = Request { timeout_nano, ..frame.as_request() };
        peer.send(Frame { data: ttrpc::prost::Message::encode_to_vec(&request), ..frame }).await;
    }
    sleep(2 * LIMIT).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = peer.receive().await;
        answers.push((answer.id, answer.code()));
    }
    answers[1..].sort_unstable();
    assert_eq!(answers, [(1, 0), (3, DEADLINE_EXCEEDED), (5, DEADLINE_EXCEEDED)]);
    server.is_idle().await;
}

/// A caller that goes away while it waits for room leaves the line to the others.
#[tokio::test(start_paused = true)]
async fn a_long_call_that_is_dropped_while_it_waits_holds_up_no_other() {
    let config = ClientConfig::default().send_queue_bytes(ROOM);
    let (_client, conformance, mut peer) = played_server_over(config, 4096);
    let calls: Vec<_> = (0..4).map(|_| echo(&conformance, &[7; LONG])).collect();
    settle().await;
    calls[1].abort();
    calls[2].abort();
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(answer_echo(&mut peer).await);
    }
    assert_eq!(ids, [1, 3]);
    for (nth, call) in calls.into_iter().enumerate() {
        match (nth, soon(call).await) {
            (1 | 2, Err(error)) => assert!(error.is_cancelled()),
            (_, reply) => assert_eq!(reply.unwrap().unwrap().payload.len(), LONG),
        }
    }
}

/// Callers and handlers that wait for long room do not outlive their connection.
#[tokio::test(start_paused = true)]
async fn a_long_call_that_waits_for_room_ends_with_its_connection() {
    let config = ClientConfig::default().send_queue_bytes(ROOM);
    let (_client, conformance, peer) = played_server_over(config, 4096);
    let calls: Vec<_> = (0..3).map(|_| echo(&conformance, &[7; LONG])).collect();
    settle().await;
    drop(peer);
    for call in calls {
        let status = soon(call).await.unwrap().unwrap_err();
        assert_eq!(status.code(), ttrpc::Code::Unavailable);
    }
    let (here, there) = duplex(4096);
    let config = ServerConfig::default().send_queue_bytes(ROOM);
    let server = TestServer::start(config, [there]);
    let mut peer = Peer::new(here);
    for id in [1, 3, 5] {
        peer.send(call_for_long(id)).await;
    }
    server.has_begun(3).await;
    drop(peer);
    let start = Instant::now();
    server.is_idle().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
