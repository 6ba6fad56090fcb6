//! Replies that a client does not read, of handlers that have waited first and go on together: how many
//! the server holds, and that nobody else notices.
//!
//! The replies count themselves: how many are alive at a time, and how many have been encoded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    sync::{Mutex, Semaphore},
    time::{Instant, sleep},
};
use ttrpc::{
    Server, ServerConfig,
    prost::{
        DecodeError, Message,
        bytes::{Buf, BufMut},
        encoding::{DecodeContext, WireType, encoded_len_varint},
    },
    server::Routes,
};
use ttrpc_tests::{
    conformance::*,
    harness::{code::RESOURCE_EXHAUSTED, *},
    wire::{Frame, Peer, REMOTE_CLOSED, RESPONSE, Request},
};

const STALL: Duration = Duration::from_secs(1);

/// Bytes of a reply.
const REPLY: usize = 64 << 10;

/// Calls whose handlers wait and then reply together.
const CALLS: usize = 200;

/// Replies that the queue holds, and those that may wait for room there.
const QUEUED: usize = 4;
const WAITING: usize = 4;

const SERVICE: &str = "test.Replies";

/// What the replies of one server count.
#[derive(Debug, Default)]
struct Counts {
    made: AtomicUsize,
    alive: AtomicUsize,
    most_alive: AtomicUsize,
    encoded: AtomicUsize,
}

/// A reply of [`REPLY`] bytes that is counted.
#[derive(Debug, Default)]
struct Reply(Arc<Counts>);

impl Reply {
    fn new(counts: &Arc<Counts>) -> Self {
        counts.made.fetch_add(1, SeqCst);
        let alive = counts.alive.fetch_add(1, SeqCst) + 1;
        counts.most_alive.fetch_max(alive, SeqCst);
        Reply(counts.clone())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, SeqCst);
    }
}

/// The bytes of a message whose first field is as long as makes it [`REPLY`] bytes.
impl Message for Reply {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.0.encoded.fetch_add(1, SeqCst);
        let payload = REPLY - 1 - encoded_len_varint(REPLY as u64);
        ttrpc::prost::encoding::bytes::encode(1, &vec![7; payload], buf);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        REPLY
    }

    fn clear(&mut self) {}
}

/// What the handlers share.
#[derive(Debug)]
struct Handlers {
    counts: Arc<Counts>,
    begun: AtomicUsize,
    /// A permit for each handler that may go on.
    go_on: Semaphore,
    /// Of the program: held by handlers of the method `Lock` while they wait for a permit of `unlock`.
    lock: Mutex<()>,
    unlock: Semaphore,
}

impl Handlers {
    async fn wait(&self) {
        self.begun.fetch_add(1, SeqCst);
        self.go_on.acquire().await.expect("it is never closed").forget();
    }
}

fn routes(handlers: &Arc<Handlers>) -> Routes {
    Routes::new(SERVICE)
        .unary("Reply", handlers, |handlers, _ctx, (): ()| {
            Box::pin(async move {
                handlers.wait().await;
                Ok(Reply::new(&handlers.counts))
            })
        })
        .server_streaming("Stream", handlers, |handlers, _ctx, (): (), mut replies| {
            Box::pin(async move {
                handlers.wait().await;
                replies.send(Reply::new(&handlers.counts)).await
            })
        })
        .unary("Short", handlers, |handlers, _ctx, (): ()| {
            Box::pin(async move {
                handlers.wait().await;
                Ok(())
            })
        })
        .unary("Lock", handlers, |handlers, _ctx, (): ()| {
            Box::pin(async move {
                let _guard = handlers.lock.lock().await;
                handlers.unlock.acquire().await.expect("it is never closed").forget();
                Ok(())
            })
        })
}

/// A server with one connection for each peer, each with room for the replies said above.
fn start<const N: usize>(
    config: impl FnOnce(ServerConfig) -> ServerConfig,
) -> (TestServer, Arc<Handlers>, [Played; N]) {
    let handlers = Arc::new(Handlers {
        counts: Arc::default(),
        begun: AtomicUsize::new(0),
        go_on: Semaphore::new(0),
        lock: Mutex::default(),
        unlock: Semaphore::new(0),
    });
    let defaults = ServerConfig::default()
        .send_queue_bytes(QUEUED * (REPLY + 100))
        .reply_bytes_per_connection(WAITING * (REPLY + 100));
    let mut peers = Vec::new();
    let server = TestServer::start_with(config(defaults), |builder| {
        (0..N).fold(builder.add_service(Handmade(routes(&handlers))), |builder, _| {
            let (here, there) = duplex(4096);
            peers.push(Peer::new(here));
            builder.io(there)
        })
    });
    let peers = peers.try_into().expect("there are as many as that");
    (server, handlers, peers)
}

/// Calls the method so often, with ids from 1, until every handler waits.
async fn call_many(peer: &mut Played, handlers: &Handlers, method: &str) {
    let begun = handlers.begun.load(SeqCst);
    for id in ids() {
        peer.send(Frame::request(id, REMOTE_CLOSED, SERVICE, method, &Empty {})).await;
    }
    eventually("the handlers begin", || handlers.begun.load(SeqCst) == begun + CALLS).await;
}

fn ids() -> impl Iterator<Item = u32> {
    (0..CALLS as u32).map(|index| 2 * index + 1)
}

/// Reads the answers of all these calls; returns how many are good and how many are refused.
async fn answers(peer: &mut Played) -> (usize, usize) {
    let mut codes = Vec::new();
    for _ in 0..CALLS {
        codes.push(peer.receive().await.code());
    }
    let count = |wanted| codes.iter().filter(|code| **code == wanted).count();
    (count(0), count(RESOURCE_EXHAUSTED))
}

#[tokio::test(start_paused = true)]
async fn replies_that_a_client_does_not_read_wait_few_at_a_time_and_not_encoded() {
    let (server, handlers, [mut peer]) = start(|config| config);
    call_many(&mut peer, &handlers, "Reply").await;
    handlers.go_on.add_permits(CALLS);
    settle().await;
    let counts = &handlers.counts;
    assert_eq!(counts.encoded.load(SeqCst), QUEUED, "only what has room is encoded");
    assert_eq!(counts.most_alive.load(SeqCst), WAITING, "the others are not made");
    // When nothing is read the handlers go on, so that they let go of what they hold, and what they
    // reply is dropped.
    let start = Instant::now();
    eventually("the handlers go on", || counts.made.load(SeqCst) == CALLS).await;
    assert!(start.elapsed() < STALL + STALL / 4, "{:?}", start.elapsed());
    assert!(counts.most_alive.load(SeqCst) <= WAITING + 1, "one more is made and dropped");
    assert_eq!(answers(&mut peer).await, (QUEUED + WAITING, CALLS - QUEUED - WAITING));
    server.is_idle().await;
    assert_eq!(counts.alive.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn replies_to_a_client_that_reads_are_not_lost_however_many_handlers_go_on_together() {
    let (server, handlers, [mut peer]) = start(|config| config);
    call_many(&mut peer, &handlers, "Reply").await;
    handlers.go_on.add_permits(CALLS);
    for _ in 0..CALLS {
        // A client that takes its time for each, many times the stall timeout for all.
        sleep(STALL / 2).await;
        assert_eq!(peer.receive().await.code(), 0);
    }
    assert_eq!(handlers.counts.most_alive.load(SeqCst), WAITING);
    server.is_idle().await;
}

/// It reads, though no frame ends for longer than the stall timeout.
#[tokio::test(start_paused = true)]
async fn replies_to_a_client_that_takes_long_for_each_are_not_lost() {
    let (server, handlers, [mut peer]) = start(|config| config);
    call_many(&mut peer, &handlers, "Reply").await;
    handlers.go_on.add_permits(CALLS);
    let (mut there, (mut slow, here)) = (peer.into_inner(), duplex(4096));
    let reading = tokio::spawn(async move {
        let mut part = [0; REPLY / 8];
        while let Ok(len @ 1..) = there.read(&mut part).await {
            slow.write_all(&part[..len]).await.expect("the test reads on");
            sleep(STALL / 8).await;
        }
    });
    assert_eq!(answers(&mut Peer::new(here)).await, (CALLS, 0));
    reading.abort();
    server.is_idle().await;
}

/// Those that wait are short, and so is the reply of a call that comes then.
#[tokio::test(start_paused = true)]
async fn no_call_begins_while_as_many_short_replies_wait_as_may() {
    let (server, handlers, [mut peer]) = start(|config| config);
    call_many(&mut peer, &handlers, "Reply").await;
    // One for the call that comes then.
    handlers.go_on.add_permits(CALLS + 1);
    settle().await;
    peer.send(Frame::unary(1001, SERVICE, "Short", &Empty {})).await;
    settle().await;
    assert_eq!(handlers.begun.load(SeqCst), CALLS);
    let mut ids = Vec::new();
    for _ in 0..CALLS + 1 {
        let answer = peer.receive().await;
        assert_eq!(answer.code(), 0);
        ids.push(answer.id);
    }
    let place = ids.iter().position(|id| *id == 1001).expect("it is answered");
    assert!(place < CALLS / 2, "it begins in turn, and not when all others have replied: {place}");
    server.is_idle().await;
}

/// A handler whose reply waits for room needs no turn: others may stand in that line before it, and wait for the room
/// that it has been granted.
#[tokio::test(start_paused = true)]
async fn replies_to_a_client_that_reads_on_wait_for_no_timer() {
    let (server, handlers, [mut peer]) = start(|config| config);
    call_many(&mut peer, &handlers, "Reply").await;
    handlers.go_on.add_permits(CALLS);
    settle().await;
    let start = Instant::now();
    assert_eq!(answers(&mut peer).await, (CALLS, 0));
    assert!(start.elapsed() < STALL / 4, "{:?}", start.elapsed());
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn short_replies_all_wait_for_a_client_that_does_not_read() {
    let (server, handlers, [mut peer]) = start(|config| config.send_queue_frames(4));
    call_many(&mut peer, &handlers, "Short").await;
    handlers.go_on.add_permits(CALLS);
    sleep(10 * STALL).await;
    assert_eq!(answers(&mut peer).await, (CALLS, 0));
    server.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_streams_that_a_client_does_not_read_wait_few_at_a_time() {
    let (server, handlers, [mut peer]) = start(|config| config);
    call_many(&mut peer, &handlers, "Stream").await;
    handlers.go_on.add_permits(CALLS);
    settle().await;
    let counts = &handlers.counts;
    assert_eq!(counts.encoded.load(SeqCst), QUEUED);
    assert_eq!(counts.most_alive.load(SeqCst), WAITING);
    sleep(2 * STALL).await;
    assert!(counts.most_alive.load(SeqCst) <= WAITING + 1);
    let mut ends = [0; 2];
    while ends[0] + ends[1] < CALLS {
        let frame = peer.receive().await;
        if frame.kind == RESPONSE {
            assert_eq!(frame.code(), RESOURCE_EXHAUSTED);
            ends[1] += 1;
        } else if frame.flags & REMOTE_CLOSED != 0 {
            ends[0] += 1;
        }
    }
    assert_eq!(ends, [QUEUED + WAITING, CALLS - QUEUED - WAITING]);
    server.is_idle().await;
}

/// Of the whole server, more than one connection's share is held by the connections together, but each
/// gets a reply in.
#[tokio::test(start_paused = true)]
async fn replies_of_all_connections_together_are_bounded_and_each_connection_has_one() {
    let (server, handlers, mut peers) =
        start::<4>(|config| config.reply_bytes(2 * WAITING * (REPLY + 100)));
    for peer in &mut peers {
        call_many(peer, &handlers, "Reply").await;
        handlers.go_on.add_permits(CALLS);
        sleep(2 * STALL).await;
    }
    let alive = handlers.counts.alive.load(SeqCst);
    assert_eq!(alive, 2 * WAITING + 2, "two are full, and two have one each");
    for peer in &mut peers {
        let (good, refused) = answers(peer).await;
        assert!(good > QUEUED && good + refused == CALLS);
    }
    server.is_idle().await;
}

/// A handler that waits while it holds a lock of the program's, and then as many others as fill all
/// that replies may take.
async fn hold_up_the_lock(peer: &mut Played, handlers: &Handlers, time: Option<Duration>) {
    let mut locking = Frame::unary(1001, SERVICE, "Lock", &Empty {});
    let timeout_nano = time.map_or(0, |time| time.as_nanos() as i64);
    locking.data = Request { timeout_nano, ..locking.as_request() }.encode_to_vec();
    call_many(peer, handlers, "Reply").await;
    peer.send(locking).await;
    eventually("it has the lock", || handlers.lock.try_lock().is_err()).await;
    handlers.go_on.add_permits(CALLS);
    settle().await;
    handlers.unlock.add_permits(1);
    settle().await;
    assert!(handlers.lock.try_lock().is_err(), "it waits for its turn");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_held_up_holds_up_other_connections_for_a_bounded_time() {
    let (_server, handlers, [mut unread, mut other]) = start(|config| config);
    let start = Instant::now();
    hold_up_the_lock(&mut unread, &handlers, None).await;
    handlers.unlock.add_permits(1);
    other.send(Frame::unary(1, SERVICE, "Lock", &Empty {})).await;
    assert_eq!(other.receive().await.code(), 0);
    assert!(start.elapsed() < STALL + STALL / 4, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_held_up_is_dropped_at_its_deadline() {
    let (_server, handlers, [mut peer]) = start(|config| config.stall_timeout(100 * STALL));
    let start = Instant::now();
    hold_up_the_lock(&mut peer, &handlers, Some(STALL)).await;
    drop(handlers.lock.lock().await);
    assert!(start.elapsed() < STALL + STALL / 4, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_held_up_is_dropped_at_the_end_of_its_connection() {
    let (server, handlers, [mut peer]) = start(|config| config.stall_timeout(100 * STALL));
    hold_up_the_lock(&mut peer, &handlers, None).await;
    drop(peer);
    settle().await;
    assert!(handlers.lock.try_lock().is_ok());
    server.is_idle().await;
    assert_eq!(handlers.counts.alive.load(SeqCst), 0);
}

fn long() -> Chunk {
    Chunk { sequence: 0, payload: vec![0; 900] }
}

/// A reply whose deadline passes as it waits leaves capacity, but the client has read nothing.
#[tokio::test(start_paused = true)]
async fn handlers_resume_after_one_stall_timeout_although_replies_that_wait_are_given_up() {
    for deadlines in [0, 4, 12] {
        let config = ServerConfig {
            send_queue_frames: 1,
            reply_bytes_per_connection: 1000,
            ..ServerConfig::default()
        };
        let resumed = Arc::<Mutex<Option<Instant>>>::default();
        let routes = Routes::new("test.Unread")
            .unary("First", &resumed, |_, _, _: Empty| {
                Box::pin(async {
                    sleep(STALL / 100).await;
                    Ok(long())
                })
            })
            .unary("Long", &resumed, |_, _, _: Empty| {
                Box::pin(async {
                    sleep(STALL / 10).await;
                    Ok(long())
                })
            })
            .unary("Short", &resumed, |_, _, _: Empty| {
                Box::pin(async {
                    sleep(STALL / 20).await;
                    Ok(Empty {})
                })
            })
            .unary("Resumes", &resumed, |resumed, _, _: Empty| {
                Box::pin(async move {
                    sleep(STALL / 5).await;
                    *resumed.lock().await = Some(Instant::now());
                    Ok(Empty {})
                })
            });
        let (here, there) = duplex(64);
        let server = Server::builder().config(config).add_service(Handmade(routes)).io(there);
        let serving = tokio::spawn(server.serve());
        let mut peer = Peer::new(here);
        let start = Instant::now();
        let call = |id, method| Frame::unary(id, "test.Unread", method, &Empty {});
        for (id, method) in [(1, "First"), (3, "Long"), (5, "Long"), (7, "Long")] {
            peer.send(call(id, method)).await;
        }
        for nth in 0..deadlines {
            let mut frame = call(9 + 2 * nth, "Short");
            let timeout_nano = (STALL * (nth + 1) * 9 / 10).as_nanos() as i64;
            frame.data = Request { timeout_nano, ..frame.as_request() }.encode_to_vec();
            peer.send(frame).await;
        }
        peer.send(call(101, "Resumes")).await;
        sleep(60 * STALL).await;
        let resumed = resumed.lock().await.expect("it has resumed") - start;
        assert!(resumed <= STALL / 5 + STALL, "{deadlines} deadlines: {resumed:?}");
        for _ in 0..4 + deadlines + 1 {
            peer.receive().await;
        }

        // It reads again. The same replies now wait as long as before.
        sleep(3600 * STALL).await;
        for (id, method) in [(103, "First"), (105, "Long"), (107, "Long"), (109, "Long")] {
            peer.send(call(id, method)).await;
        }
        sleep(STALL / 2).await;
        for _ in 0..4 {
            assert_eq!(peer.receive().await.code(), 0, "{deadlines} deadlines");
        }
        serving.abort();
    }
}
