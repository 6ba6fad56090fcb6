//! What is made of locks and atomics by hand, in all the orders in which shuttle has its threads run.
//!
//! Shuttle finds a thread that waits for ever, and prints the schedule of a run that fails. It runs one
//! thread at a time, so it tries orders of steps and not the reorderings of weak memory.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use shuttle::{
    Config, Runner,
    future::block_on,
    scheduler::{RandomScheduler, Schedule, Scheduler, Task, TaskId},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread::{JoinHandle, spawn},
};
use tokio::io::AsyncWrite;

use super::{
    fake_socket::FakeSocket,
    frames::Chunk,
    inbox::Inbox,
    io::{WriteHalf, Writer},
    limiter::{Closed, Limiter, Load, Oversubscribe},
    lock,
    messages::Batch,
    queue::{PushDecision, Queue},
    stall::StallBudget,
    wait_until,
    wire::Sender,
};
use crate::{proto::payload::Payload, sync::Mutex};

/// Runs a model with as many schedules as `TTRPC_INTERLEAVINGS` says, all drawn at random from one seed.
pub(crate) fn try_all(model: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("TTRPC_INTERLEAVINGS");
    let schedules = schedules.map_or(5000, |text| text.parse().expect("a number"));
    Runner::new(Bursts::new(schedules), Config::default()).run(model);
}

/// Draws each step's thread at random. In every other schedule most steps are those of the thread that made
/// the last one: else one that stands still while others get far would be too rare to be met.
struct Bursts {
    random: RandomScheduler,
    is_on: bool,
}

impl Bursts {
    /// A thread makes so many steps at a time, on average.
    const STEPS: u64 = 16;

    fn new(schedules: usize) -> Self {
        Bursts { random: RandomScheduler::new(schedules), is_on: false }
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.is_on = !self.is_on;
        self.random.new_execution()
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let goes_on = |id: &TaskId| !is_yielding && runnable.iter().any(|task| task.id() == *id);
        let current_goes_on = current.filter(goes_on);
        if self.is_on && current_goes_on.is_some() && self.next_u64() % Self::STEPS != 0 {
            return current_goes_on;
        }
        self.random.next_task(runnable, current, is_yielding)
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next_u64()
    }
}

pub(crate) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    // All of them begin before the first one is waited for.
    let threads: Vec<_> = threads.into_iter().collect();
    for thread in threads {
        thread.join().expect("the thread does not panic");
    }
}

/// A limiter of this many, of which one is taken.
fn limiter(count: usize) -> Arc<Limiter> {
    Arc::new(Limiter::new(Load { count, cost: 1000 }, Oversubscribe::AnyLast))
}

/// Polls a future once, and gives it up if it is not done.
pub(crate) async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn a_limiter_lets_everybody_in_and_no_more_than_may_be() {
    try_all(|| {
        let (limiter, inside) = (limiter(2), Arc::new(AtomicUsize::new(0)));
        join((0..4).map(|_| {
            let (limiter, inside) = (limiter.clone(), inside.clone());
            spawn(move || {
                let permit = block_on(limiter.acquire(Load::one(1))).expect("it is open");
                assert!(inside.fetch_add(1, SeqCst) < 2);
                inside.fetch_sub(1, SeqCst);
                drop(permit);
            })
        }));
        assert_eq!(limiter.load(), Load::default());
        assert!(limiter.try_acquire(Load::one(1)).is_some(), "nobody is left in line");
    });
}

#[test]
fn a_waiter_that_gives_up_leaves_its_place_and_what_it_was_granted() {
    try_all(|| {
        let limiter = limiter(1);
        let held = limiter.try_acquire(Load::one(1)).expect("there is room").into_load();
        let gives_up = limiter.clone();
        let waits = limiter.clone();
        let releases = limiter.clone();
        join([
            spawn(move || drop(block_on(poll_once(gives_up.acquire(Load::one(1)))))),
            spawn(move || drop(block_on(waits.acquire(Load::one(1))))),
            spawn(move || releases.release(held)),
        ]);
        assert_eq!(limiter.load(), Load::default());
        assert!(limiter.try_acquire(Load::one(1)).is_some(), "nobody is left in line");
    });
}

#[test]
fn a_newcomer_never_overtakes_a_waiter() {
    try_all(|| {
        let limiter = limiter(2);
        let held = limiter.try_acquire(Load::one(1)).expect("there is room").into_load();
        let (releases, comes) = (limiter.clone(), limiter.clone());
        let mut others = None;
        block_on(async {
            // There is capacity for one, which the newcomer would take.
            let mut waiting = pin!(limiter.acquire(Load { count: 2, cost: 2 }));
            let mut permit = None;
            // The others begin when it stands in line, and it keeps what it is granted.
            poll_fn(|cx| {
                let polled = waiting.as_mut().poll(cx);
                if others.is_none() {
                    assert!(polled.is_pending());
                    let (releases, comes) = (releases.clone(), comes.clone());
                    others = Some([
                        spawn(move || releases.release(held)),
                        spawn(move || assert!(comes.try_acquire(Load::one(1)).is_none())),
                    ]);
                }
                polled.map(|granted| permit = Some(granted))
            })
            .await;
            join(others.take().expect("they have begun"));
            assert!(matches!(permit, Some(Ok(_))));
        });
    });
}

#[test]
fn a_wait_until_less_is_in_flight_ends() {
    try_all(|| {
        let limiter = limiter(3);
        let take = || limiter.try_acquire(Load::one(1)).expect("there is room").into_load();
        let (first, second) = (take(), take());
        let release = |load| {
            let limiter = limiter.clone();
            spawn(move || limiter.release(load))
        };
        let watches = limiter.clone();
        let watcher = spawn(move || {
            block_on(watches.at_most(Load::default()));
            assert_eq!(watches.load(), Load::default());
        });
        join([release(first), release(second), watcher]);
    });
}

#[test]
fn a_limiter_that_closes_tells_those_who_wait() {
    try_all(|| {
        let limiter = limiter(1);
        let _held = limiter.try_acquire(Load::one(1)).expect("there is room");
        let waiters = (0..2).map(|_| {
            let limiter = limiter.clone();
            spawn(move || {
                assert_eq!(block_on(limiter.acquire(Load::one(1))).err(), Some(Closed));
            })
        });
        let closes = limiter.clone();
        join(waiters.chain([spawn(move || closes.close())]));
    });
}

#[test]
fn a_limiter_is_not_stalled_behind_a_release() {
    try_all(|| {
        let limiter = limiter(1);
        let held = limiter.try_acquire(Load::one(1)).expect("there is room").into_load();
        let (releases, stalls) = (limiter.clone(), limiter.clone());
        let mut waiting = pin!(limiter.acquire(Load::one(1)));
        // It stands in line, so that the release is noticed.
        block_on(poll_fn(|cx| {
            assert!(waiting.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        }));
        join([spawn(move || releases.release(held)), spawn(move || stalls.note_stall(0))]);
        assert!(!limiter.is_stalled());
    });
}

/// Takes from a queue as a sender does.
struct Takes {
    batch: VecDeque<Chunk>,
    writer: Option<Writer>,
}

impl Default for Takes {
    fn default() -> Self {
        Takes { batch: VecDeque::new(), writer: Some(FakeSocket::default().writer()) }
    }
}

impl Takes {
    /// `false` once the queue is closed.
    fn take<T>(&mut self, queue: &Queue<T>) -> bool {
        block_on(queue.take(&mut self.batch, &mut self.writer)).is_some()
    }
}

#[test]
fn a_queue_brings_every_frame_to_its_sender_in_the_order_of_the_pushes() {
    const FRAMES: usize = 2;
    try_all(|| {
        let queue = Arc::new(Queue::new(2, 1000, Vec::new()));
        let producers = (0..2).map(|_| {
            let queue = queue.clone();
            spawn(move || {
                for _ in 0..FRAMES {
                    let room = block_on(queue.reserve(10)).expect("it is open");
                    let claim = |pushed: &mut Vec<u32>| {
                        let id = 2 * pushed.len() as u32 + 1;
                        pushed.push(id);
                        Some(id.into())
                    };
                    assert!(room.push(&mut vec![0; 10], claim).is_queued());
                }
            })
        });
        let sends = queue.clone();
        let sender = spawn(move || {
            let (mut sent, mut takes) = (Vec::new(), Takes::default());
            while sent.len() < 2 * FRAMES {
                assert!(takes.take(&sends), "it is open");
                for chunk in takes.batch.drain(..) {
                    sent.extend(chunk.headers().map(|(_, header)| header.stream_id));
                    sends.release(chunk);
                }
            }
            assert_eq!(sent, sends.streams(|pushed| pushed.clone()));
        });
        join(producers.chain([sender]));
    });
}

#[test]
fn a_flush_ends_when_what_was_queued_is_written() {
    try_all(|| {
        let queue = Arc::new(Queue::new(2, 1000, ()));
        let pushes = queue.clone();
        let producer = spawn(move || {
            for _ in 0..3 {
                let room = block_on(pushes.reserve(10)).expect("it is open");
                let _ = room.push(&mut vec![0; 10], |()| Some(1.into()));
                block_on(pushes.flushed());
                assert_eq!(pushes.fill().0, Load::default());
            }
        });
        let sends = queue.clone();
        let sender = spawn(move || {
            let mut takes = Takes::default();
            while takes.take(&sends) {
                takes.batch.drain(..).for_each(|chunk| sends.release(chunk));
            }
        });
        join([producer]);
        queue.close();
        join([sender]);
    });
}

#[test]
fn a_queue_that_closes_tells_its_sender_and_those_who_wait_for_room() {
    try_all(|| {
        let queue = Arc::new(Queue::new(1, 1000, ()));
        let (pushes, sends, flushes, closes) =
            (queue.clone(), queue.clone(), queue.clone(), queue.clone());
        join([
            spawn(move || {
                while let Ok(room) = block_on(pushes.reserve(10)) {
                    let _ = room.push(&mut vec![0; 10], |()| Some(1.into()));
                }
            }),
            // It takes frames, and frees no room.
            spawn(move || {
                let mut takes = Takes::default();
                while takes.take(&sends) {
                    takes.batch.clear();
                }
            }),
            spawn(move || block_on(flushes.flushed())),
            spawn(move || closes.close()),
        ]);
    });
}

/// Pushes a frame of ten bytes as a lone one, with the next stream id. `false` once the queue is closed.
fn push_lone(queue: &Queue<Vec<u32>>) -> bool {
    let Ok(room) = block_on(queue.reserve(10)) else { return false };
    let claim = |pushed: &mut Vec<u32>| {
        let stream_id = 2 * pushed.len() as u32 + 1;
        pushed.push(stream_id);
        Some(PushDecision { stream_id, is_only: true })
    };
    room.push(&mut vec![0; 10], claim).is_queued()
}

/// Bytes of a frame that a socket takes at once which is empty, nearly full or full.
const ROOMS: [usize; 3] = [10, 7, 0];

#[test]
fn lone_frames_are_whole_and_in_order_whoever_writes_them() {
    const FRAMES: usize = 2;
    for room in ROOMS {
        try_all(move || {
            let (queue, socket) =
                (Arc::new(Queue::new(2, 1000, Vec::new())), FakeSocket::with_room(room));
            let (sends, writer) = (queue.clone(), socket.writer());
            let sender = spawn(move || {
                block_on(Sender::new(writer, &sends).run()).expect("it takes all");
            });
            join((0..2).map(|_| {
                let queue = queue.clone();
                spawn(move || assert!((0..FRAMES).all(|_| push_lone(&queue))))
            }));
            block_on(queue.flushed());
            let pushed = queue.streams(|pushed| pushed.clone());
            assert_eq!((pushed.len(), socket.stream_ids()), (2 * FRAMES, pushed));
            assert_eq!(queue.fill().0, Load::default());
            queue.close();
            join([sender]);
        });
    }
}

#[test]
fn a_flush_ends_when_lone_frames_are_written_by_whomever() {
    for room in ROOMS {
        try_all(move || {
            let (queue, socket) =
                (Arc::new(Queue::new(2, 1000, Vec::new())), FakeSocket::with_room(room));
            let (sends, writer) = (queue.clone(), socket.writer());
            let sender = spawn(move || {
                block_on(Sender::new(writer, &sends).run()).expect("it takes all");
            });
            let flush = |queue: &Queue<Vec<u32>>, socket: &FakeSocket| {
                let pushed = queue.streams(|pushed| pushed.len());
                block_on(queue.flushed());
                assert!(socket.len() >= pushed * 10);
            };
            let pushes = |frames| {
                let (queue, socket) = (queue.clone(), socket.clone());
                spawn(move || {
                    for _ in 0..frames {
                        assert!(push_lone(&queue));
                    }
                    flush(&queue, &socket);
                })
            };
            join([pushes(2), pushes(1), pushes(0)]);
            queue.close();
            join([sender]);
        });
    }
}

#[test]
fn a_sender_has_its_writer_again_when_the_queue_is_closed() {
    for room in ROOMS {
        try_all(move || {
            let (queue, socket) =
                (Arc::new(Queue::new(2, 1000, Vec::new())), FakeSocket::with_room(room));
            let (pushes, sends, closes) = (queue.clone(), queue.clone(), queue.clone());
            let writer = socket.writer();
            join([
                spawn(move || while push_lone(&pushes) {}),
                spawn(move || {
                    let mut sender = Sender::new(writer, &sends);
                    block_on(sender.run()).expect("it takes all");
                    block_on(sender.closed_writer());
                }),
                spawn(move || closes.close()),
            ]);
            assert!(socket.is_dropped());
        });
    }
}

#[test]
fn a_writer_goes_with_its_sender_whoever_has_it() {
    for room in ROOMS {
        try_all(move || {
            let (queue, socket) =
                (Arc::new(Queue::new(9, 1000, Vec::new())), FakeSocket::with_room(room));
            let (pushes, sends, writer) = (queue.clone(), queue.clone(), socket.writer());
            // The program's may ask for a snapshot then.
            let looks = queue.clone();
            socket.when_dropped(move || _ = looks.fill());
            join([
                spawn(move || assert!((0..2).all(|_| push_lone(&pushes)))),
                spawn(move || {
                    // As a runtime that shuts down drops its task.
                    _ = block_on(poll_once(Sender::new(writer, &sends).run()));
                }),
            ]);
            assert!(socket.is_dropped());
        });
    }
}

/// Bytes of a frame that is long, which has room and a line of its own.
pub(crate) const LONG: usize = (128 << 10) + 1;

/// Reserves room for a frame of so many bytes and pushes a short one, as a message does that has become
/// shorter meanwhile.
async fn push(queue: &Queue<Vec<u32>>, len: usize) -> Result<(), Closed> {
    let room = queue.reserve(len).await?;
    let _ = room.push(&mut vec![0; 10], |pushed| {
        let id = 2 * pushed.len() as u32 + 1;
        pushed.push(id);
        Some(id.into())
    });
    Ok(())
}

#[test]
fn a_queue_has_capacity_for_frames_of_each_kind_as_theirs_are_written() {
    const FRAMES: usize = 2;
    try_all(|| {
        let queue = Arc::new(Queue::new(1, 1000, Vec::new()));
        let producers = [10, LONG].map(|len| {
            let queue = queue.clone();
            spawn(move || {
                for _ in 0..FRAMES {
                    block_on(push(&queue, len)).expect("it is open");
                }
            })
        });
        let sends = queue.clone();
        let sender = spawn(move || {
            let (mut sent, mut takes) = (Vec::new(), Takes::default());
            while sent.len() < 2 * FRAMES {
                assert!(takes.take(&sends), "it is open");
                for chunk in takes.batch.drain(..) {
                    sent.extend(chunk.headers().map(|(_, header)| header.stream_id));
                    sends.release(chunk);
                }
            }
            assert_eq!(sent, sends.streams(|pushed| pushed.clone()));
        });
        join(producers.into_iter().chain([sender]));
        assert_eq!(queue.fill().0, Load::default());
    });
}

#[test]
fn a_short_frame_has_capacity_while_long_ones_wait() {
    try_all(|| {
        let queue = Arc::new(Queue::new(1, 1000, ()));
        let is_written = block_on(queue.reserve(LONG)).expect("it is open");
        let [long, other, short] = [LONG, LONG, 10].map(|len| {
            let queue = queue.clone();
            spawn(move || drop(block_on(queue.reserve(len)).expect("it is open")))
        });
        join([short]);
        drop(is_written);
        join([long, other]);
        assert_eq!(queue.fill().0, Load::default());
    });
}

#[test]
fn a_queue_that_closes_tells_those_who_wait_in_either_line() {
    try_all(|| {
        let queue = Arc::new(Queue::new(1, 1000, Vec::new()));
        let producers = [10, LONG, LONG].map(|len| {
            let queue = queue.clone();
            spawn(move || while block_on(push(&queue, len)).is_ok() {})
        });
        let (looks, looks_for_long, sends, closes) =
            (queue.clone(), queue.clone(), queue.clone(), queue.clone());
        let others = [
            // On behalf of calls that are held back.
            spawn(move || _ = block_on(looks.wait_for_short_capacity())),
            spawn(move || _ = block_on(looks_for_long.wait_for_long_capacity())),
            // It takes frames, and frees no room.
            spawn(move || {
                let mut takes = Takes::default();
                while takes.take(&sends) {
                    takes.batch.clear();
                }
            }),
            spawn(move || closes.close()),
        ];
        join(producers.into_iter().chain(others));
    });
}

/// Adds two messages of a byte together.
fn push_two(inbox: &Inbox, messages: [u8; 2], patience: &StallBudget) {
    let frame = |byte| [0, 0, 0, 1, 0, 0, 0, 1, 3, 0, byte];
    inbox.push_frames(&messages.map(frame).concat(), Load { count: 2, cost: 2 }, patience);
}

#[test]
fn an_inbox_brings_every_message_to_its_consumer_and_then_the_end() {
    try_all(|| {
        let patience = Arc::new(StallBudget::new(std::time::Duration::from_secs(1)));
        let inbox = Arc::new(Inbox::default());
        let (pushes, dates) = (inbox.clone(), patience.clone());
        let producer = spawn(move || {
            assert!(pushes.push(Payload::borrowed(&[0]), &dates));
            push_two(&pushes, [1, 2], &dates);
            pushes.end(Ok(()), false);
        });
        let mut batch = Batch::default();
        let mut taken = Vec::new();
        while let Some(message) = block_on(poll_fn(|cx| {
            inbox.poll_take(&mut batch, cx, &patience, |message| message.to_bytes())
        }))
        .expect("a good end")
        {
            taken.extend_from_slice(&message);
        }
        assert_eq!(taken, [0, 1, 2]);
        join([producer]);
    });
}

#[test]
fn an_inbox_that_is_emptied_wakes_who_waits_for_room() {
    try_all(|| {
        let patience = Arc::new(StallBudget::new(std::time::Duration::from_secs(1)));
        let inbox = Arc::new(Inbox::default());
        inbox.push(Payload::borrowed(b"message"), &patience);
        let waits = inbox.clone();
        let receiver = spawn(move || {
            let has_capacity = || waits.awaits_capacity(1, Load::limit(1, 100));
            block_on(wait_until(&waits.changed, &has_capacity));
        });
        let mut batch = Batch::default();
        let taken = block_on(poll_fn(|cx| {
            inbox.poll_take(&mut batch, cx, &patience, |message| message.to_bytes())
        }));
        assert_eq!(taken, Ok(Some(Bytes::from_static(b"message"))));
        join([receiver]);
    });
}

#[test]
fn an_inbox_whose_consumer_goes_away_counts_nothing() {
    try_all(|| {
        let patience = Arc::new(StallBudget::new(std::time::Duration::from_secs(1)));
        let inbox = Arc::new(Inbox::default());
        let (pushes, dates) = (inbox.clone(), patience.clone());
        let producer = spawn(move || {
            pushes.push(Payload::borrowed(b"message"), &dates);
            push_two(&pushes, [1, 2], &dates);
            pushes.push(Payload::borrowed(b"message"), &dates);
        });
        let mut batch = Batch::default();
        let _ = block_on(poll_once(poll_fn(|cx| {
            inbox.poll_take(&mut batch, cx, &patience, |message| message.to_bytes())
        })));
        inbox.abandon(&mut batch);
        join([producer]);
        assert_eq!(inbox.fill().0, Load::default());
    });
}

/// Takes a frame and a half at a time, and nothing in between. As a stream that wraps another one, it may fail when it has
/// passed that on.
struct Narrow {
    taken: Arc<Mutex<usize>>,
    is_full: bool,
    writes_left: usize,
}

impl AsyncWrite for Narrow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_full = !self.is_full;
        if !self.is_full {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let len = bytes.len().min(15);
        *lock(&self.taken) += len;
        self.writes_left -= 1;
        Poll::Ready(if self.writes_left > 0 {
            Ok(len)
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl WriteHalf for Narrow {}

/// Else a call that its server has seen could be made again on another connection.
#[test]
fn of_a_request_that_counts_as_unsent_not_a_byte_is_written() {
    for writes in [usize::MAX, 2] {
        try_all(move || write_requests(writes));
    }
}

/// Writes Requests until the queue is closed, or in so many writes, of which the last one fails.
fn write_requests(writes_left: usize) {
    let (queue, taken) = (Arc::new(Queue::new(10, 1000, 0)), Arc::new(Mutex::new(0)));
    queue.keep_unsent();
    let producers = (0..2).map(|_| {
        let queue = queue.clone();
        spawn(move || {
            for _ in 0..2 {
                let Ok(room) = block_on(queue.reserve(10)) else { return };
                let mut request = vec![0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
                let _ = room.push(&mut request, |pushed: &mut u32| {
                    *pushed += 1;
                    Some((2 * *pushed - 1).into())
                });
            }
        })
    });
    let (sends, writer) =
        (queue.clone(), Narrow { taken: taken.clone(), is_full: false, writes_left });
    let sender = spawn(move || {
        if block_on(Sender::new(Box::new(writer), &sends).run()).is_err() {
            sends.close();
        }
    });
    let closes = queue.clone();
    join(producers.chain([sender, spawn(move || closes.close())]));
    // Requests are written in the order of their ids: this is the last one of which a byte was.
    let frames_begun = lock(&taken).div_ceil(10) as u32;
    let last_begun = (2 * frames_begun).checked_sub(1);
    let first_unsent = queue.first_unsent();
    assert!(first_unsent.is_none_or(|first| last_begun.is_none_or(|last| last < first)));
}
