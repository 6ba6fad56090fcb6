//! The ready queue, its runners and its receiver, in the orders in which shuttle has their tasks run; see
//! [`transport`](crate::transport)'s.
//!
//! Each task of shuttle has a thread of its own, so a handler that blocks its thread blocks nothing else. What is
//! shown here is that whoever is needed is called; which threads of a runtime come is for the tests with one.

use std::{pin::pin, sync::Arc};

use shuttle::{
    future::{block_on, yield_now},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    ServerConfig,
    server::{
        opened_calls::OpenedCalls,
        tests::{idle_connection, unary_call},
    },
    transport::{
        interleavings::{LONG, join, poll_once, try_all},
        limiter::Load,
    },
};

/// Runners that may be scheduled at a time.
const MAX_RUNNERS: usize = 2;

/// A ready queue whose outgoing queue has room for one frame, and how many of its calls have ended.
#[derive(Clone)]
struct Model {
    queue: Arc<ReadyQueue>,
    ended: Arc<AtomicUsize>,
    /// The receiver begins the calls itself, as on a runtime of one thread.
    is_single: bool,
}

impl Model {
    fn new(is_single: bool) -> Self {
        let config = ServerConfig { send_queue_frames: 1, ..ServerConfig::default() };
        let (_server, connection) = idle_connection(config);
        let state = Mutex::default();
        let queue = ReadyQueue { connection, max_runners: MAX_RUNNERS, state };
        Model { queue: Arc::new(queue), ended: Arc::default(), is_single }
    }

    /// Adds a call that was just read, or begins it, when it is its turn.
    async fn add(&self, handler: impl Future<Output = ()> + Send + 'static) {
        if !self.is_single {
            return self.push_read_at(Instant::now(), handler);
        }
        let connection = self.queue.connection();
        if connection.is_full() {
            let _ = connection.has_room().await;
        }
        let mut call = Some(self.call(handler));
        poll_fn(|cx| {
            call.take().into_iter().for_each(|call| self.queue.begin(call, cx));
            Poll::Ready(())
        })
        .await;
    }

    fn push_read_at(&self, read_at: Instant, handler: impl Future<Output = ()> + Send + 'static) {
        self.queue.push(self.call(handler), std::iter::empty(), read_at);
    }

    fn call(&self, handler: impl Future<Output = ()> + Send + 'static) -> BoxedCall {
        let ended = self.ended.clone();
        BoxedCall::new(async move {
            handler.await;
            ended.fetch_add(1, SeqCst);
        })
    }

    /// Runs the receiver, and then waits until no task of the queue is left: all of its calls have ended.
    fn run(self, calls: usize, receiver: impl Future<Output = ()>) {
        let others = Arc::strong_count(&self.queue);
        block_on(self.queue.drive(pin!(receiver)));
        while Arc::strong_count(&self.queue) > others {
            thread::yield_now();
        }
        assert_eq!(self.ended.load(SeqCst), calls);
        let state = lock(&self.queue.state);
        assert!(state.calls.is_empty() && !state.is_offered && !state.is_held);
        assert_eq!(state.scheduled, 0);
    }
}

/// Waits for room in the outgoing queue, has it for a while and gives it back, as a reply does that is written.
async fn take_room(connection: &Connection) {
    if let Ok(room) = connection.queue.reserve(1).await {
        yield_now().await;
        drop(room);
    }
}

#[test]
fn a_call_ends_however_long_those_before_it_wait() {
    for (is_single, are_read_together) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        try_all(move || {
            let model = Model::new(is_single);
            let last = CancellationToken::new();
            model.clone().run(3, async {
                let ends = last.clone();
                model.add(async move { ends.cancelled().await }).await;
                if !are_read_together {
                    yield_now().await;
                }
                let ends = last.clone();
                let second = async move {
                    match is_single {
                        true => ends.cancelled().await,
                        false => block_on(ends.cancelled()),
                    }
                };
                model.add(second).await;
                yield_now().await;
                model.add(async move { last.cancel() }).await;
            });
        });
    }
}

#[test]
fn calls_that_are_late_end_while_more_of_them_come() {
    let model = || {
        let model = Model::new(false);
        model.clone().run(CALLS_PER_LOOK + 3, async {
            let read_at = Instant::now() - 2 * LATE;
            for _ in 0..CALLS_PER_LOOK + 3 {
                model.push_read_at(read_at, async {});
            }
        });
    };
    try_all(model);
}

#[test]
fn a_call_begins_when_its_stream_is_open() {
    let model = || {
        let model = Model::new(false);
        let connection = model.queue.connection.clone();
        model.clone().run(3, async {
            let mut opened = OpenedCalls::new(model.queue.clone(), false);
            // Its runner may come for the next ones.
            model.add(async {}).await;
            yield_now().await;
            for stream_id in [1, 3] {
                let call = unary_call(connection.clone(), stream_id);
                let (connection, ended) = (connection.clone(), model.ended.clone());
                let future = async move {
                    assert!(connection.queue.streams(|table| table.remove(stream_id)).is_some());
                    ended.fetch_add(1, SeqCst);
                };
                opened.add(call, BoxedCall::new(future));
            }
            opened.hand_on();
        });
    };
    try_all(model);
}

/// Reads some calls in two turns, each of which replies, while others take the room for replies, too.
fn calls_that_reply(is_single: bool, beside: impl FnOnce(&Connection) + Send + 'static) {
    let model = Model::new(is_single);
    let connection = model.queue.connection.clone();
    let beside = thread::spawn(move || beside(&connection));
    model.clone().run(5, async {
        for calls in [3, 2] {
            for _ in 0..calls {
                let connection = model.queue.connection.clone();
                model.add(async move { take_room(&connection).await }).await;
            }
            yield_now().await;
        }
    });
    join([beside]);
}

#[test]
fn calls_end_that_were_held_back_while_the_outgoing_queue_was_full() {
    for is_single in [false, true] {
        try_all(move || {
            calls_that_reply(is_single, |connection| block_on(take_room(connection)));
        });
    }
}

#[test]
fn calls_end_that_were_held_back_when_the_connection_ended() {
    for is_single in [false, true] {
        let model = move || {
            calls_that_reply(is_single, |connection| {
                let _never_written = block_on(connection.queue.reserve(1));
                thread::yield_now();
                connection.queue.close();
            });
        };
        try_all(model);
    }
}

/// What is full when the first call comes.
#[derive(Clone, Copy, PartialEq)]
enum Full {
    /// As many replies of the connection wait as may.
    Replies,
    /// The same of all connections; some are of this one.
    AllReplies,
    /// The queue, and it stays so until as many replies wait as may.
    Queue,
}

/// Has too many replies wait: a long one that stands in line behind a frame that is being written. Fires `is_full` when
/// that is so, and sets `is_written` before the long one gets room, or the connection ends.
async fn wait_with_a_long_reply(
    connection: &Connection,
    full: Full,
    is_full: CancellationToken,
    is_written: &AtomicBool,
    ends: bool,
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
    let (own, all) = (connection.replies(), &connection.server.replies);
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
    let mut written = Some(written);
    match ends {
        true => connection.queue.close(),
        false => drop(written.take()),
    }
    let room = reply.await;
    own.release(of_own);
    all.release(of_all);
    yield_now().await;
    drop(room);
}

/// Reads some calls in two turns while too many replies wait.
fn calls_behind_replies(is_single: bool, full: Full, ends: bool) {
    let model = Model::new(is_single);
    let (is_full, is_written) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let connection = model.queue.connection.clone();
    let (tells, writes) = (is_full.clone(), is_written.clone());
    let beside = thread::spawn(move || {
        block_on(wait_with_a_long_reply(&connection, full, tells, &writes, ends));
    });
    model.clone().run(5, async {
        is_full.cancelled().await;
        for calls in [3, 2] {
            for _ in 0..calls {
                let (connection, is_written) = (model.queue.connection.clone(), is_written.clone());
                let call = async move {
                    assert!(is_written.load(SeqCst), "it begins while too many replies wait");
                    take_room(&connection).await;
                };
                model.add(call).await;
            }
            yield_now().await;
        }
    });
    join([beside]);
}

#[test]
fn calls_that_too_many_replies_hold_back_begin_when_these_have_room() {
    for is_single in [false, true] {
        for full in [Full::Replies, Full::AllReplies, Full::Queue] {
            try_all(move || calls_behind_replies(is_single, full, false));
        }
    }
}

#[test]
fn calls_that_too_many_replies_hold_back_begin_when_the_connection_ends() {
    for is_single in [false, true] {
        try_all(move || calls_behind_replies(is_single, Full::Replies, true));
    }
}
