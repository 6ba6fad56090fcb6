//! The dispatcher, leaders and those that replace them, in the orders in which shuttle has their tasks run; see
//! [`transport`](crate::transport)'s.
//!
//! Each task of shuttle has a thread of its own, so a handler that blocks its thread blocks nothing else. What is
//! shown here is that whoever is needed is called; which threads of a runtime come is for the tests with one.

use std::{mem, pin::pin, sync::Weak};

use shuttle::{
    future::{block_on, yield_now},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    ServerConfig,
    proto::frame::{Flags, FrameType},
    server::{
        dispatcher::Dispatcher,
        tests::{idle_connection, unary_call},
    },
    transport::{
        encode::Frame,
        fake_socket::FakeSocket,
        interleavings::{LONG, join, poll_once, try_all},
        limiter::Load,
        sender::Sender,
    },
};

/// A connection of which a model's receiver opens calls.
#[derive(Clone)]
struct Model {
    connection: Arc<Connection>,
    /// The receiver's task has the handlers begin, as on a runtime of one thread.
    is_single: bool,
    /// A handler is about to block its thread.
    blocks: CancellationToken,
    ended: Arc<AtomicUsize>,
    all_have_ended: CancellationToken,
}

impl Model {
    /// The outgoing queue has room for so many frames.
    fn new(is_single: bool, frames: usize) -> Self {
        let config = ServerConfig { send_queue_frames: frames, ..ServerConfig::default() };
        let (_server, connection) = idle_connection(config);
        let (blocks, all_have_ended) = Default::default();
        Model { connection, is_single, blocks, ended: Arc::default(), all_have_ended }
    }

    /// Runs the receiver to its end, and so many calls to theirs.
    fn run<F: Future<Output = ()> + Send + 'static>(
        self,
        calls: usize,
        receive: impl FnOnce(Receiver) -> F,
    ) {
        let dispatcher = Dispatcher::new(self.connection.clone(), self.is_single);
        let receiving = receive(Receiver { model: self.clone(), dispatcher, next_id: 1, calls });
        let is_over = CancellationToken::new();
        let ends = is_over.clone();
        let future = Box::pin(async move {
            receiving.await;
            ends.cancel();
        });
        let mut leaders = Weak::new();
        let watchdog = if self.is_single {
            spawn(future);
            None
        } else {
            // It has no thread of its own here.
            self.connection.handover.set_watched(true);
            let led = Led::new(self.connection.clone(), future);
            spawn(Leader { led: led.clone(), number: 0 });
            leaders = Arc::downgrade(&led);
            let blocks = self.blocks.clone();
            Some(thread::spawn(move || look_after(&led, &blocks)))
        };
        block_on(self.all_have_ended.cancelled());
        block_on(is_over.cancelled());
        assert_eq!(self.ended.load(SeqCst), calls);
        self.blocks.cancel();
        join(watchdog);
        while leaders.strong_count() > 0 {
            thread::yield_now();
        }
        // The end of the connection, which its calls refer to.
        drop(self.connection.queue.streams(mem::take));
    }
}

/// Replaces the leader when a handler blocks its thread, and now and then when none does.
fn look_after(led: &Arc<Led>, blocks: &CancellationToken) {
    let replace_leader = || {
        let leader = loop {
            match led.look(None) {
                Sight::Polls => {}
                Sight::Waits(_) => break None,
                Sight::Runs(handler) => {
                    if let Some(leader) = led.replace_leader(handler) {
                        break Some(leader);
                    }
                }
            }
            thread::yield_now();
        };
        leader.map(spawn);
        // The next calls begin in leaders all the same.
        led.connection.handover.calls_for_tasks.store(0, Relaxed);
    };
    for _ in 0..2 {
        replace_leader();
        thread::yield_now();
    }
    block_on(blocks.cancelled());
    replace_leader();
}

struct Receiver {
    model: Model,
    dispatcher: Dispatcher,
    next_id: u32,
    /// All that there are.
    calls: usize,
}

impl Receiver {
    /// Has a call begin, behind which more has been read, when it is its turn.
    async fn add(&mut self, handler: impl Future<Output = ()> + Send + 'static) {
        let connection = self.model.connection.clone();
        if connection.is_full() {
            self.wait(async { drop(connection.has_room().await) }).await;
        }
        let Model { ended, all_have_ended, .. } = self.model.clone();
        let calls = self.calls;
        let future = BoxedCall::new(async move {
            handler.await;
            if ended.fetch_add(1, SeqCst) + 1 == calls {
                all_have_ended.cancel();
            }
        });
        self.dispatcher.prepare(1);
        self.dispatcher.open(unary_call(connection, self.next_id), future);
        self.next_id += 2;
        self.dispatcher.begin().await;
    }

    /// Waits for something.
    async fn wait(&mut self, wait: impl Future<Output = ()>) {
        self.dispatcher.let_sender_go();
        wait.await;
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
            let model = Model::new(is_single, 1);
            let (last, blocks) = (CancellationToken::new(), model.blocks.clone());
            model.run(3, |mut receiver| async move {
                let ends = last.clone();
                receiver.add(async move { ends.cancelled().await }).await;
                if !are_read_together {
                    receiver.wait(yield_now()).await;
                }
                let ends = last.clone();
                let second = async move {
                    if is_single {
                        return ends.cancelled().await;
                    }
                    blocks.cancel();
                    block_on(ends.cancelled());
                };
                receiver.add(second).await;
                receiver.add(async move { last.cancel() }).await;
                receiver.wait(yield_now()).await;
            });
        });
    }
}

#[test]
fn a_call_begins_when_its_stream_is_open() {
    for is_single in [false, true] {
        try_all(move || {
            let model = Model::new(is_single, 1);
            let connection = model.connection.clone();
            model.run(3, |mut receiver| async move {
                for stream_id in [1, 3, 5] {
                    let connection = connection.clone();
                    let handler = async move {
                        let opened = connection.queue.streams(|table| table.remove(stream_id));
                        assert!(opened.is_some());
                    };
                    receiver.add(handler).await;
                }
            });
        });
    }
}

/// The client waits for a reply before it does what the next handler waits for.
#[test]
fn a_reply_is_written_while_the_handler_behind_it_blocks_its_thread() {
    try_all(|| {
        let model = Model::new(false, 10);
        let (connection, blocks) = (model.connection.clone(), model.blocks.clone());
        let sending = connection.clone();
        let socket = FakeSocket::default();
        let sender = thread::spawn({
            let writer = socket.writer();
            move || drop(block_on(Sender::new(writer, &sending.queue).run()))
        });
        let (written, replied) = (connection.clone(), CancellationToken::new());
        model.run(2, |mut receiver| async move {
            let replies = replied.clone();
            let replies = async move {
                let frame = Frame::new(FrameType::Response, Flags::NONE, 1, &[][..]);
                let frame = frame.expect("it is short");
                let room = connection.queue.try_reserve(frame.len()).expect("it is open");
                let room = room.expect("there is room");
                frame.encode(|bytes| room.push(bytes, |_| Some(1)));
                replies.cancel();
            };
            receiver.add(replies).await;
            let waits = async move {
                blocks.cancel();
                block_on(replied.cancelled());
                block_on(written.queue.flushed());
                assert_eq!(socket.stream_ids(), [1]);
                written.queue.close();
            };
            receiver.add(waits).await;
            receiver.wait(yield_now()).await;
        });
        join([sender]);
    });
}

/// Reads some calls in two turns, each of which replies, while others take the room for replies, too.
fn calls_that_reply(is_single: bool, beside: impl FnOnce(&Connection) + Send + 'static) {
    let model = Model::new(is_single, 1);
    let connection = model.connection.clone();
    let beside = thread::spawn(move || beside(&connection));
    model.run(5, |mut receiver| async move {
        for calls in [3, 2] {
            for _ in 0..calls {
                let connection = receiver.model.connection.clone();
                receiver.add(async move { take_room(&connection).await }).await;
            }
            receiver.wait(yield_now()).await;
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
    is_written.store(true, Relaxed);
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
    let model = Model::new(is_single, 1);
    let (is_full, is_written) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let connection = model.connection.clone();
    let (tells, writes) = (is_full.clone(), is_written.clone());
    let beside = thread::spawn(move || {
        block_on(wait_with_a_long_reply(&connection, full, tells, &writes, ends));
    });
    model.run(5, |mut receiver| async move {
        receiver.wait(is_full.cancelled()).await;
        for calls in [3, 2] {
            for _ in 0..calls {
                let (connection, is_written) =
                    (receiver.model.connection.clone(), is_written.clone());
                let call = async move {
                    assert!(is_written.load(Relaxed), "it begins while too many replies wait");
                    take_room(&connection).await;
                };
                receiver.add(call).await;
            }
            receiver.wait(yield_now()).await;
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
