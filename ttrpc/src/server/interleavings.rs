//! How calls start and end, and how a server does, in the orders in which shuttle has its threads run; see
//! [`transport`](crate::transport)'s.

use std::{future::Future, mem, pin::pin, sync::Arc};

use shuttle::{
    future::{block_on, yield_now},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread::{self, spawn},
};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::server::{
    call::{
        handler::{Context, boxed},
        shared::Connection,
        state::CallEnd,
    },
    connection::open::OpenConnection,
    shutdown::Lifecycle,
    tests::{idle_connection, start, unary_call},
};
use crate::{
    ServerConfig, Status,
    observer::EndCause,
    transport::{
        interleavings::{LONG, join, poll_once, try_all},
        limiter::Load,
        lock,
    },
};

#[test]
fn a_token_fires_whenever_it_was_asked_for() {
    let model = || {
        let end = Arc::new(CallEnd::default());
        let fires = end.clone();
        let asks = [CallEnd::token, CallEnd::graceful_token].map(|ask| {
            let end = end.clone();
            spawn(move || block_on(ask(&end).cancelled()))
        });
        join(asks.into_iter().chain([spawn(move || fires.fire())]));
        assert!(end.is_over() && end.is_graceful());
    };
    try_all(model);
}

#[test]
fn a_handler_that_begins_hears_of_the_end() {
    let model = || {
        let end = Arc::new(CallEnd::default());
        let (fires, begins) = (end.clone(), end.clone());
        let handler = move || {
            if !begins.is_over() {
                block_on(begins.token().cancelled());
            }
        };
        join([spawn(handler), spawn(move || fires.fire())]);
        assert!(end.is_over(), "a call that is over does not begin");
    };
    try_all(model);
}

#[test]
fn a_server_that_is_shut_down_while_it_starts_does_not_run() {
    let model = || {
        let lifecycle = Arc::new(Lifecycle::default());
        let (starts, drains, waits) = (lifecycle.clone(), lifecycle.clone(), lifecycle.clone());
        join([
            spawn(move || {
                starts.start();
            }),
            spawn(move || drains.drain(Instant::now())),
            spawn(move || block_on(waits.draining())),
        ]);
        assert!(!lifecycle.is_running.load(SeqCst));
    };
    try_all(model);
}

#[test]
fn a_server_that_drains_has_seen_a_connection_or_refuses_it() {
    let model = || {
        let (_server, connection) = idle_connection(ServerConfig::default());
        let shared = connection.server.clone();
        shared.lifecycle.start();
        let permit = block_on(shared.connection_permit());
        let opens = spawn(move || OpenConnection::new(connection, permit, oneshot::channel().0));
        shared.lifecycle.drain(Instant::now());
        let has_seen = lock(&shared.connections).len() == 1;
        let is_open = opens.join().expect("it does not panic").is_ok();
        assert!(has_seen || !is_open);
    };
    try_all(model);
}

/// A connection of which a model's receiver starts calls. Its queue has room for one frame.
#[derive(Clone)]
struct Model {
    connection: Arc<Connection>,
    calls: usize,
    ended: Arc<AtomicUsize>,
    all_have_ended: CancellationToken,
}

impl Model {
    fn new(calls: usize) -> Self {
        let config = ServerConfig {
            send_queue_frames: 1,
            answer_late_calls: false,
            ..ServerConfig::default()
        };
        let (_server, connection) = idle_connection(config);
        let (ended, all_have_ended) = Default::default();
        Model { connection, calls, ended, all_have_ended }
    }

    /// Starts a call as the receiver does.
    fn start(&self, stream_id: u32, handler: impl Future<Output = ()> + Send + 'static) {
        let Model { connection, calls, ended, all_have_ended } = self.clone();
        let call = unary_call(connection.clone(), stream_id);
        let handler = boxed(move |ctx: Context, ()| async move {
            handler.await;
            if ended.fetch_add(1, SeqCst) + 1 == calls {
                all_have_ended.cancel();
            }
            // Nothing is sent: the server answers no late calls.
            ctx.set_failure_cause(EndCause::DeadlineHere);
            Err::<(), _>(Status::deadline_exceeded("it is too late"))
        });
        start(call, handler);
    }

    /// Waits until every call has ended and its task is gone, and ends the connection, to which its calls refer.
    fn end(self) {
        block_on(self.all_have_ended.cancelled());
        drop(self.connection.queue.streams(mem::take));
        while Arc::strong_count(&self.connection) > 1 {
            thread::yield_now();
        }
    }
}

/// Waits for capacity in the outgoing queue, has it for a while and returns it.
async fn take_room(connection: &Connection) {
    if let Ok(room) = connection.queue.reserve(1).await {
        yield_now().await;
        drop(room);
    }
}

#[test]
fn a_call_starts_when_its_stream_is_open() {
    try_all(|| {
        let model = Model::new(3);
        for stream_id in [1, 3, 5] {
            let connection = model.connection.clone();
            model.start(stream_id, async move {
                assert!(connection.queue.streams(|table| table.remove(stream_id)).is_some());
            });
        }
        model.end();
    });
}

#[test]
fn calls_end_that_find_the_outgoing_queue_full_as_they_start() {
    try_all(|| {
        let model = Model::new(4);
        for stream_id in [1, 3, 5, 7] {
            if model.connection.is_full() {
                drop(block_on(model.connection.wait_for_capacity()));
            }
            let connection = model.connection.clone();
            model.start(stream_id, async move { take_room(&connection).await });
        }
        assert!(!model.connection.queue.is_closed());
        model.end();
    });
}

/// What is full when the first call comes.
#[derive(Clone, Copy, PartialEq)]
enum Full {
    /// As many replies of the connection wait as may.
    Replies,
    /// As many replies of all connections wait as may; some are of this one.
    AllReplies,
    /// The queue, and it stays so until as many replies wait as may.
    Queue,
}

/// Has too many replies wait: a long one that waits behind a frame that is being written. Fires `is_full` when
/// that is so, and sets `is_written` before the long one gets room.
async fn wait_with_a_long_reply(
    connection: &Connection,
    full: Full,
    is_full: CancellationToken,
    is_written: &AtomicBool,
) {
    let room = |len| connection.queue.reserve(len);
    let short = room(1).await.expect("it is open");
    let written = room(LONG).await.expect("it is open");
    let mut reply = pin!(room(LONG));
    assert!(poll_once(reply.as_mut()).await.is_none());
    if full == Full::Queue {
        is_full.cancel();
        yield_now().await;
    }
    let (own, all) = (&connection.limits().replies, &connection.server.replies);
    let (of_own, of_all) = match full {
        Full::AllReplies => (Load::cost(1), Load::cost(all.limit().cost)),
        Full::Replies | Full::Queue => (Load::cost(own.limit().cost), Load::cost(1)),
    };
    own.force(of_own);
    all.force(of_all);
    drop(short);
    is_full.cancel();
    yield_now().await;
    is_written.store(true, SeqCst);
    drop(written);
    let room = reply.await;
    own.release(of_own);
    all.release(of_all);
    yield_now().await;
    drop(room);
}

/// Starts some calls while too many replies wait. The receiver looks whether that is so, or has looked before it was.
fn calls_behind_replies(full: Full, receiver_looks: bool) {
    let model = Model::new(3);
    let (is_full, is_written) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let connection = model.connection.clone();
    let (tells, writes) = (is_full.clone(), is_written.clone());
    let beside = thread::spawn(move || {
        block_on(wait_with_a_long_reply(&connection, full, tells, &writes));
    });
    block_on(is_full.cancelled());
    for stream_id in [1, 3, 5] {
        if receiver_looks && model.connection.is_full() {
            drop(block_on(model.connection.wait_for_capacity()));
        }
        let (connection, is_written) = (model.connection.clone(), is_written.clone());
        model.start(stream_id, async move {
            assert!(is_written.load(SeqCst), "it begins while too many replies wait");
            take_room(&connection).await;
        });
    }
    join([beside]);
    model.end();
}

#[test]
fn calls_that_too_many_replies_hold_back_begin_when_these_have_room() {
    for full in [Full::Replies, Full::AllReplies, Full::Queue] {
        for receiver_looks in [false, true] {
            try_all(move || calls_behind_replies(full, receiver_looks));
        }
    }
}
