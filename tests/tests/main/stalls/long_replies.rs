//! Long replies that wait for room: no call begins and no frame is acted on while as many wait as may, and everybody has
//! a turn.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use tokio::{
    io::duplex,
    sync::Notify,
    time::{sleep, timeout},
};
use ttrpc::{
    Context, ServerConfig, Status, async_trait,
    server::{self, Routes, StreamReceiver},
    snapshot::{CallSnapshot, CallWait, ReceiverWait},
};
use ttrpc_tests::{
    conformance::*,
    harness::{
        code::{RESOURCE_EXHAUSTED, UNAVAILABLE},
        *,
    },
    wire::{Frame, Peer, REMOTE_CLOSED, REMOTE_OPEN, RESPONSE},
};

use super::long_frames::{LONG, ROOM, call_for_long};

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

/// A call that had to wait for its place may find no room when it has that: the reply of the call before it.
#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_its_place_begins_when_there_is_room() {
    let begun = Arc::new(AtomicUsize::new(0));
    let routes =
        Routes::new("test.Slow").unary("Call", &begun, |begun: &AtomicUsize, _, Empty {}| {
            Box::pin(async {
                begun.fetch_add(1, SeqCst);
                sleep(Duration::from_secs(1)).await;
                Ok(Chunk { payload: vec![7; 10_000], ..chunk(0) })
            })
        });
    let config = ServerConfig::default().max_calls_per_connection(1).send_queue_frames(1);
    let (here, there) = duplex(4096);
    let server =
        TestServer::start_with(config, |builder| builder.add_service(Handmade(routes)).io(there));
    let mut peer = Peer::new(here);
    let calls = [1, 3].map(|id| Frame::unary(id, "test.Slow", "Call", &Empty {}).to_bytes());
    peer.send_bytes(&calls.concat()).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(begun.load(SeqCst), 1, "one has begun");
    let connection = server.handle.snapshot().connections.remove(0);
    assert_eq!(
        connection.calls.iter().map(|call| call.wait).collect::<Vec<_>>(),
        [CallWait::Capacity]
    );
    for id in [1, 3] {
        let reply = peer.receive().await;
        assert_eq!((reply.id, reply.code()), (id, 0));
    }
}

/// While as many wait as may, the connection is not read: its client does not read.
#[tokio::test(start_paused = true)]
async fn no_frame_is_acted_on_while_as_many_long_replies_wait_as_may() {
    let config = ServerConfig::default().send_queue_bytes(ROOM).reply_bytes_per_connection(1);
    let (server, mut peer) = played_client_over(config, 4096);
    for id in [1, 3] {
        peer.send(call_for_long(id)).await;
    }
    settle().await;
    peer.send(call(5, "Echo", &echo_request(*b"short"))).await;
    settle().await;
    let snapshot = server.handle.snapshot();
    let connection = &snapshot.connections[0];
    let held_up = connection.receiver.as_ref().map(|held_up| &held_up.by);
    assert_eq!(held_up, Some(&ReceiverWait::SendQueue));
    assert_eq!(
        connection.calls.len(),
        1,
        "the first is answered, the third has been read no further"
    );
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(peer.receive().await.id);
    }
    assert_eq!(answers, [1, 3, 5]);
    server.is_idle().await;
}

/// The limit that all connections share counts where a connection has a reply that waits.
#[tokio::test(start_paused = true)]
async fn long_replies_of_all_connections_that_wait_are_as_many_as_may() {
    const CONNECTIONS: usize = 4;
    let config = ServerConfig::default()
        .send_queue_bytes(ROOM)
        .reply_bytes_per_connection(4 * LONG)
        .reply_bytes(LONG);
    let (here, there): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| duplex(4096)).unzip();
    let server = TestServer::start(config, there);
    let mut peers: Vec<_> = here.into_iter().map(Peer::new).collect();
    for peer in &mut peers {
        for nth in 0..20 {
            peer.send(call_for_long(2 * nth + 1)).await;
        }
        settle().await;
    }
    sleep(Duration::from_secs(60)).await;
    let begun = server.service.calls_total() as usize;
    assert_eq!(begun, 2 * CONNECTIONS, "of each, one is being written and one waits");
    for peer in &mut peers {
        for _ in 0..20 {
            assert_eq!(peer.receive().await.code(), 0);
        }
    }
    server.is_idle().await;
}

/// A client that reads steadily is none that does not read, however many long replies wait for it.
#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_nothing_is_found_out_while_long_replies_are_read() {
    is_found_out(SERVICE, "Hold").await;
}

/// It waits for room most of the time, and could take something in between.
#[tokio::test(start_paused = true)]
async fn a_handler_that_only_sends_is_found_out_while_its_messages_are_read() {
    is_found_out("test.OnlySends", "Send").await;
}

/// The first stream calls this method, whose handler takes nothing. Calls behind it ask for long replies.
async fn is_found_out(service: &str, method: &str) {
    let config = ServerConfig::default()
        .send_queue_bytes(ROOM)
        .reply_bytes_per_connection(2 * LONG)
        .stream_inbox_messages(1);
    let only_sends = Routes::new("test.OnlySends").bidi_streaming(
        "Send",
        &Arc::new(()),
        |_, _ctx, requests: StreamReceiver<Chunk>, mut replies| {
            Box::pin(async move {
                let _requests = requests;
                loop {
                    replies.send(Chunk { payload: vec![7; LONG], ..chunk(0) }).await?;
                }
            })
        },
    );
    let (here, there) = duplex(4096);
    let _server = TestServer::start_with(config, |builder| {
        builder.add_service(Handmade(only_sends)).io(there)
    });
    let mut peer = Peer::new(here);
    peer.send(Frame::request(1, REMOTE_OPEN, service, method, &Empty {})).await;
    for nth in 1..40 {
        peer.send(call_for_long(2 * nth + 1)).await;
    }
    let (mut reader, mut writer) = tokio::io::split(peer.into_inner());
    // The second message has no room.
    let messages: Vec<_> =
        (0..2).flat_map(|nth| Frame::message(1, &chunk(nth)).to_bytes()).collect();
    let writing = tokio::spawn(async move {
        tokio::io::AsyncWriteExt::write_all(&mut writer, &messages).await.expect("it is read");
        writer
    });
    let mut has_failed = false;
    // The messages are behind all the calls.
    for _ in 0..200 {
        sleep(Duration::from_millis(200)).await;
        let (id, data) = read_frame(&mut reader).await;
        if id == 1 && data.len() < LONG {
            assert_eq!(Frame::new(id, RESPONSE, 0, data).code(), RESOURCE_EXHAUSTED);
            has_failed = true;
            break;
        }
    }
    assert!(has_failed, "it holds the connection up for as long as replies are read");
    drop(writing.await);
}

/// What it keeps waits for room as long as nobody polls it, and it awaits a call that comes behind its messages.
#[tokio::test(start_paused = true)]
async fn a_handler_that_keeps_a_message_unsent_is_found_out_though_everything_is_read() {
    let config = ServerConfig::default().send_queue_bytes(2 * ROOM).stream_inbox_messages(1);
    let called = Arc::new(Notify::new());
    let keeps = Routes::new("test.Keeps")
        .bidi_streaming("Exchange", &called, |called, _ctx, requests, mut replies| {
            Box::pin(async move {
                let _requests: StreamReceiver<Chunk> = requests;
                let long = Chunk { payload: vec![7; LONG], ..chunk(0) };
                let mut sending = pin!(replies.send(long));
                poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx).is_pending())).await;
                called.notified().await;
                sending.await
            })
        })
        .unary("Call", &called, |called, _ctx, _: Empty| {
            Box::pin(async move {
                called.notify_one();
                Ok(Empty {})
            })
        });
    let (here, there) = duplex(4096);
    let _server =
        TestServer::start_with(config, |builder| builder.add_service(Handmade(keeps)).io(there));
    let mut peer = Peer::new(here);
    for id in [1, 3] {
        peer.send(call_for_long(id)).await;
    }
    peer.send(Frame::request(5, REMOTE_OPEN, "test.Keeps", "Exchange", &Empty {})).await;
    settle().await;
    for id in [1, 3] {
        let answer = peer.receive().await;
        assert_eq!((answer.id, answer.code()), (id, 0));
    }
    for nth in 0..2 {
        peer.send(Frame::message(5, &chunk(nth))).await;
    }
    peer.send(Frame::unary(7, "test.Keeps", "Call", &Empty {})).await;
    for (id, code) in [(5, RESOURCE_EXHAUSTED), (7, 0)] {
        let answer = peer.receive().await;
        assert_eq!((answer.id, answer.code()), (id, code));
    }
}

/// Streams of long messages, each with one that waits, hold more than the limit at any time. A call that waited until
/// they hold less would wait for ever.
#[tokio::test(start_paused = true)]
async fn a_call_begins_in_turn_however_many_long_messages_wait() {
    let (here, there) = duplex(4096);
    let _server = TestServer::start(endless_streams(), [there]);
    short_calls_pass_endless_streams(&mut Peer::new(here), 4 * STREAMS).await;
}

/// The same of a handler that has begun, and goes on after a wait.
#[tokio::test(start_paused = true)]
async fn a_handler_that_has_waited_goes_on_in_turn_however_many_long_messages_wait() {
    let (here, there) = duplex(4096);
    let _server =
        TestServer::start_with(endless_streams(), |builder| builder.intercept(Yields).io(there));
    short_calls_pass_endless_streams(&mut Peer::new(here), 4 * STREAMS).await;
}

/// Has every handler wait once.
struct Yields;

#[async_trait]
impl server::Interceptor for Yields {
    async fn intercept(&self, ctx: &mut Context, next: server::Next<'_>) -> Result<(), Status> {
        tokio::task::yield_now().await;
        next.run(ctx).await
    }
}

const STREAMS: u32 = 8;

fn endless_streams() -> ServerConfig {
    ServerConfig::default().send_queue_bytes(ROOM).reply_bytes_per_connection(1)
}

/// Each stream and each call has its first answer before so many frames of others.
async fn short_calls_pass_endless_streams(peer: &mut Played, frames: u32) {
    let endless = GenerateRequest { count: u64::MAX, size: LONG as u32, ..Default::default() };
    for nth in 0..STREAMS {
        let id = 2 * nth + 1;
        peer.send(Frame::request(id, REMOTE_CLOSED, SERVICE, "Generate", &endless)).await;
        frame_of(id, peer, frames).await;
    }
    for nth in STREAMS..STREAMS + 4 {
        let id = 2 * nth + 1;
        peer.send(call(id, "Echo", &echo_request(*b"short"))).await;
        let answer = frame_of(id, peer, frames).await;
        assert_eq!((answer.kind, answer.code()), (RESPONSE, 0));
    }
}

/// The next frame with this id, one of the next so many.
async fn frame_of(id: u32, peer: &mut Played, frames: u32) -> Frame {
    for _ in 0..frames {
        let frame = peer.receive().await;
        if frame.id == id {
            return frame;
        }
    }
    panic!("call {id} has not begun in its turn")
}

/// The same where several threads run handlers. Which of them is late is not known, so they come at last.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_and_handlers_have_their_turns_on_several_threads() {
    for yields in [false, true] {
        let (here, there) = duplex(64 << 10);
        let config = endless_streams().stall_timeout(PATIENCE);
        let _server = TestServer::start_with(config, |builder| {
            (if yields { builder.intercept(Yields) } else { builder }).io(there)
        });
        let mut peer = Peer::new(here);
        let passed = timeout(PATIENCE, short_calls_pass_endless_streams(&mut peer, u32::MAX));
        passed.await.expect("each has its turn");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn few_calls_for_long_replies_begin_on_several_threads_before_those_before_them_are_read() {
    const THREADS: u64 = 4;
    const CALLS: u32 = 40;
    const WAITING: usize = 3;
    let config = patient_server().send_queue_bytes(ROOM).reply_bytes_per_connection(WAITING * LONG);
    let (server, mut peer) = played_client_over(config, 64 << 10);
    for nth in 0..CALLS {
        peer.send(call_for_long(2 * nth + 1)).await;
    }
    for read in 0..CALLS {
        let begun = server.service.calls_total();
        // One is in the pipe and one in the queue, each thread may have begun one while there was room for another,
        // and one begins in turn.
        let most = WAITING as u64 - 1 + THREADS + 3;
        assert!(begun - u64::from(read) <= most, "{begun} have begun, {read} are read");
        assert_eq!(peer.receive().await.code(), 0);
    }
    server.is_idle().await;
}

/// A connection whose receiver waits until long replies have capacity. Of four calls that arrive together, at least one
/// has not begun.
async fn all_waits_behind_long_replies() -> (TestServer, Played) {
    let config = ServerConfig::default().send_queue_bytes(ROOM).reply_bytes_per_connection(1);
    let (server, mut peer) = played_client_over(config, 4096);
    let short = |id| call(id, "Echo", &echo_request(*b"short"));
    let calls = [call_for_long(1), call_for_long(3), short(5), short(7)];
    peer.send_bytes(&calls.map(|call| call.to_bytes()).concat()).await;
    server.has_begun(2).await;
    let connection = || server.handle.snapshot().connections.remove(0);
    let waits_for_room = |call: &CallSnapshot| call.wait == CallWait::Capacity;
    eventually("a reply waits", || connection().calls.iter().any(waits_for_room)).await;
    peer.send(short(9)).await;
    let held_up = || connection().receiver.map(|held_up| held_up.by);
    eventually("the receiver waits", || held_up() == Some(ReceiverWait::SendQueue)).await;
    let (begun, in_flight) = (server.service.calls_total(), connection().calls_in_flight.used);
    // One reply waits, and the calls that have been admitted and have not begun.
    assert!(begun < 4 && in_flight as u64 <= 1 + 4 - begun, "{begun} have begun of {in_flight}");
    (server, peer)
}

async fn its_calls_end_with_their_connection((server, peer): (TestServer, Played)) {
    let begun = server.service.calls_total();
    drop(peer);
    server.is_idle().await;
    eventually("it ends", || server.handle.connections() == 0).await;
    assert_eq!(server.service.calls_total(), begun);
}

/// What the server answers while it drains, in the order of ids.
async fn answers_of_a_server_that_drains(
    (server, mut peer): (TestServer, Played),
) -> Vec<(u32, i32)> {
    let draining = server.handle.shutdown(PATIENCE);
    let mut answers = Vec::new();
    while let Some(frame) = peer.try_receive().await {
        answers.push((frame.id, frame.code()));
    }
    answers.sort_unstable();
    draining.await;
    answers
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_behind_long_replies_end_with_their_connection() {
    its_calls_end_with_their_connection(all_waits_behind_long_replies().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_that_wait_behind_long_replies_end_with_their_connection_on_a_runtime_of_several_threads()
 {
    its_calls_end_with_their_connection(all_waits_behind_long_replies().await).await;
}

/// The answers of a server that drains while calls wait behind long replies: those that were admitted are served.
const ANSWERS: [(u32, i32); 5] = [(1, 0), (3, 0), (5, 0), (7, 0), (9, UNAVAILABLE)];

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_that_a_draining_server_has_admitted_behind_long_replies_are_served_on_several_threads()
 {
    let answers = answers_of_a_server_that_drains(all_waits_behind_long_replies().await).await;
    assert_eq!(answers, ANSWERS);
}
