//! Decides which task writes to the socket, and when.
//!
//! The sender's task takes all frames that are queued, and writes them with one system call. Two rules decide when:
//!
//! - *It gives way while the queue grows* ([`StepBack`]): tasks that are scheduled after it may be about to push frames, each
//!   of which costs a system call less if it joins the batch.
//! - *A lone frame is written by the task that pushes it* ([`Queue::write_inline`]). With one call at a time on a
//!   connection, waking the sender takes longer than all that it does then: 15 % of the call's instructions. So the sender parks
//!   its writer here while it waits for frames. A task that pushes a frame which no other is about to join borrows the
//!   writer, writes what the socket takes at once, and returns it. It waits for nothing, and holds no lock while it
//!   writes. The sender writes the rest of the frame first.

use std::{
    future::poll_fn,
    io, mem,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{Capacity, Queue, Wakers};
use crate::{
    contain::wake_all,
    transport::{io::Writer, lock},
};

/// For how long the sender gives way, not counting the last time: what a few hundred calls take.
const MAX_STEP_BACK: Duration = Duration::from_micros(300);

/// The sender's looks at the queue before one batch.
#[derive(Default)]
pub(super) struct StepBack {
    /// The frames that were queued at the last look.
    frames: usize,
    /// When the sender gave way for the first time.
    since: Option<Instant>,
}

impl StepBack {
    /// Returns whether the sender gives way once more, with so many frames queued.
    pub(super) fn is_due(&mut self, frames: usize) -> bool {
        let has_grown = frames > self.frames;
        self.frames = frames;
        has_grown && self.since.get_or_insert_with(Instant::now).elapsed() <= MAX_STEP_BACK
    }
}

/// The place of the connection's writer.
#[derive(Default)]
enum WriterSlot {
    /// The sender's task, which writes or is about to; or another task, for a lone frame.
    #[default]
    Taken,
    /// Parked: the sender waits for frames. The first push takes the waker.
    Parked { waker: Option<Waker>, writer: Writer },
    /// Nobody: the sender has ended.
    Gone,
}

/// The writer of a sender that waits for frames, in the hand of another task.
pub(super) struct BorrowedWriter {
    waker: Waker,
    writer: Writer,
}

/// The part of a queue's state that says who writes, and what has been written. At first the sender has its writer.
#[derive(Default)]
pub(super) struct Gate {
    slot: WriterSlot,
    /// The first chunk is a lone frame that its task could not write whole: so many of its bytes are written, or none can
    /// be.
    partial_inline_write: Option<io::Result<usize>>,
    /// Batches that the sender has taken, lone frames that others have, and those of both that are written.
    batches_taken: u64,
    batches_written: u64,
    /// Tasks that wait until a batch is written, see [`Queue::flushed`].
    flush_waiters: Wakers,
    /// Writes to the socket so far, of whatever length.
    pub(super) writes: u64,
}

impl Gate {
    /// Returns whether nobody writes, nor is about to.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.slot, WriterSlot::Parked { waker: Some(_), .. })
    }

    /// Takes the waker of a sender that waits for frames.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        match &mut self.slot {
            WriterSlot::Parked { waker, .. } => waker.take(),
            WriterSlot::Taken | WriterSlot::Gone => None,
        }
    }

    /// The sender waits for frames.
    pub(super) fn park(&mut self, waker: Waker, writer: Writer) {
        self.slot = WriterSlot::Parked { waker: Some(waker), writer };
    }

    /// Returns a parked writer to the sender, which goes on. Returns the waker of a sender that nobody has woken.
    pub(super) fn reclaim(&mut self, writer: &mut Option<Writer>) -> Option<Waker> {
        if writer.is_some() {
            return None;
        }
        match mem::replace(&mut self.slot, WriterSlot::Taken) {
            WriterSlot::Parked { waker, writer: parked } => {
                *writer = Some(parked);
                waker
            }
            WriterSlot::Taken | WriterSlot::Gone => None,
        }
    }

    /// Lends the writer for a lone frame, if it is parked and a socket. The frame counts as a batch.
    pub(super) fn borrow_writer(&mut self) -> Option<BorrowedWriter> {
        match mem::replace(&mut self.slot, WriterSlot::Taken) {
            WriterSlot::Parked { waker: Some(waker), writer } if writer.is_socket() => {
                self.batches_taken += 1;
                Some(BorrowedWriter { waker, writer })
            }
            other => {
                self.slot = other;
                None
            }
        }
    }

    /// Returns how many bytes of the first chunk are written already.
    pub(super) fn partially_written(&self) -> usize {
        self.partial_inline_write.as_ref().map_or(0, |written| *written.as_ref().unwrap_or(&0))
    }

    /// Counts the batch that the sender takes. Returns how many bytes of its first chunk are written already.
    pub(super) fn begin_batch(&mut self) -> io::Result<usize> {
        let partial = self.partial_inline_write.take();
        // The rest of a lone frame had a number of its own, and so has what was pushed meanwhile.
        self.batches_taken += 1 + u64::from(partial.is_some());
        partial.unwrap_or(Ok(0))
    }

    /// Notes that the batch that was taken last is written. Returns the wakers of those that may wait for that.
    pub(super) fn end_batch(&mut self) -> Wakers {
        self.batches_written = self.batches_taken;
        mem::take(&mut self.flush_waiters)
    }

    /// Ends all waits. Returns the wakers.
    pub(super) fn close(&mut self) -> Wakers {
        self.partial_inline_write = None;
        let mut wakers = mem::take(&mut self.flush_waiters);
        wakers.extend(self.take_waker());
        wakers
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("is_idle", &self.is_idle()).finish_non_exhaustive()
    }
}

impl<T> Queue<T> {
    /// Writes a lone frame, which takes this much capacity, and returns the writer. With `asks_first` it writes nothing to a
    /// socket whose peer has gone: TCP would take the frame, and a call that could be made on another connection would be
    /// lost. The receiver may not have seen that end: its runtime was busy, or was not driven.
    pub(super) fn write_inline(
        &self,
        borrowed: BorrowedWriter,
        frame: &[u8],
        capacity: Capacity,
        asks_first: bool,
    ) {
        let BorrowedWriter { waker, writer } = borrowed;
        let written = match asks_first && writer.has_lost_peer() {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => writer.try_write(frame),
        };
        let written = match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        };
        let is_whole = matches!(written, Ok(len) if len == frame.len());
        let mut state = lock(&self.state);
        if matches!(written, Ok(1..)) {
            state.gate.writes += 1;
        }
        let mut wakers = Wakers::new();
        if is_whole {
            wakers = state.gate.end_batch();
            wakers.extend(state.release(capacity));
        } else {
            state.gate.batches_taken -= 1;
            // A queue that is closed has no more batches.
            if !state.is_closed {
                state.chunks.push_first(frame, capacity);
                state.gate.partial_inline_write = Some(written);
            }
        }
        let has_work = state.is_closed || !state.chunks.0.is_empty();
        let (unused_writer, sender) = match state.gate.slot {
            WriterSlot::Gone => (Some(writer), None),
            _ if has_work => {
                state.gate.slot = WriterSlot::Parked { waker: None, writer };
                (None, Some(waker))
            }
            _ => {
                state.become_idle(waker, writer);
                (None, None)
            }
        };
        drop(state);
        drop(unused_writer);
        // First: what follows wakes the program's tasks.
        if let Some(sender) = sender {
            sender.wake();
        }
        wake_all(wakers);
    }

    /// Waits until every frame that is queued now has been written, and for none that comes later.
    pub(crate) async fn flushed(&self) {
        let mut last_batch = None;
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = lock(&self.state);
            let (has_chunks, is_closed) = (!state.chunks.0.is_empty(), state.is_closed);
            let gate = &mut state.gate;
            // What is queued goes with the next batch as a whole.
            let last_batch = *last_batch.get_or_insert(gate.batches_taken + u64::from(has_chunks));
            if is_closed || gate.batches_written >= last_batch {
                return Poll::Ready(());
            }
            if !gate.flush_waiters.iter().any(|waiter| waiter.will_wake(&waker)) {
                gate.flush_waiters.push(waker);
            }
            Poll::Pending
        })
        .await
    }

    /// Ends the sender. Its writer is dropped, wherever it is.
    pub(in crate::transport) fn retire_sender(&self) {
        let mut state = lock(&self.state);
        let before = mem::replace(&mut state.gate.slot, WriterSlot::Gone);
        drop(state);
        drop(before);
    }

    /// Waiting tasks of [`Queue::flushed`].
    #[cfg(test)]
    pub(super) fn flush_waiters(&self) -> usize {
        lock(&self.state).gate.flush_waiters.len()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
            mpsc,
        },
        task::{Context, Poll, Wake},
    };

    use tokio::{io::empty, time::advance};

    use super::{
        super::{PushDecision, PushPermit, Pushed},
        *,
    };
    use crate::{
        Connection,
        proto::frame::{Flags, FrameType, HEADER_LEN, Header},
        transport::{fake_socket::FakeSocket, limiter::Load, wire::Sender},
    };

    const DATA_LEN: usize = 20;
    const LEN: usize = HEADER_LEN + DATA_LEN;

    /// A sender's task: counts how often it was woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    impl Task {
        /// Polls the sender until it waits for others: one that gives way wakes itself.
        fn poll<F: Future>(self: &Arc<Self>, sender: &mut Pin<&mut F>) -> Poll<F::Output> {
            loop {
                self.was_woken();
                let polled = sender.as_mut().poll(&mut Context::from_waker(&self.clone().into()));
                if polled.is_ready() || !self.was_woken() {
                    return polled;
                }
            }
        }

        fn was_woken(&self) -> bool {
            self.0.swap(0, Relaxed) > 0
        }
    }

    fn frame() -> [u8; LEN] {
        let mut frame = [0; LEN];
        let (frame_type, flags) = (FrameType::Request, Flags::NONE);
        let header = Header { data_len: DATA_LEN as u32, stream_id: 0, frame_type, flags };
        frame[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        frame
    }

    fn push(queue: &Queue<()>, stream_id: u32, is_only: bool) {
        let room = queue.try_reserve(LEN).expect("it is open").expect("it has room");
        push_into(room, stream_id, is_only);
    }

    fn push_into(room: PushPermit<'_, ()>, stream_id: u32, is_only: bool) {
        let claim = |_: &mut ()| Some(PushDecision { stream_id, is_only });
        let pushed = room.push(&mut frame().to_vec(), claim);
        assert_eq!(pushed, Pushed::Queued(stream_id));
    }

    #[test]
    fn a_lone_frame_is_written_while_the_sender_sleeps() {
        let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
        let socket = FakeSocket::with_room(LEN);
        let mut sender = Sender::new(socket.writer(), &queue);
        let mut sender = pin!(sender.run());
        assert!(task.poll(&mut sender).is_pending());
        for id in [1, 3] {
            push(&queue, id, true);
        }
        assert!(!task.was_woken());
        assert_eq!((socket.stream_ids(), queue.fill().0), (vec![1, 3], Load::default()));
        // It is polled for another reason, and waits on.
        assert!(task.poll(&mut sender).is_pending());
        push(&queue, 5, true);
        assert!(!task.was_woken());
        push(&queue, 7, false);
        assert!(task.was_woken());
        assert!(task.poll(&mut sender).is_pending());
        assert_eq!(socket.stream_ids(), [1, 3, 5, 7]);
    }

    #[test]
    fn a_lone_frame_behind_others_is_left_to_the_sender() {
        let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
        let socket = FakeSocket::with_room(LEN);
        let mut sender = Sender::new(socket.writer(), &queue);
        let mut sender = pin!(sender.run());
        // The sender has not begun.
        push(&queue, 1, true);
        assert_eq!(socket.len(), 0);
        assert!(task.poll(&mut sender).is_pending());
        assert_eq!(socket.stream_ids(), [1]);
        // It was woken, and has not run yet.
        push(&queue, 3, false);
        push(&queue, 5, true);
        assert_eq!(socket.stream_ids(), [1]);
        assert!(task.poll(&mut sender).is_pending());
        assert_eq!(socket.stream_ids(), [1, 3, 5]);
    }

    #[test]
    fn a_stream_that_is_no_socket_is_left_to_the_sender() {
        let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
        let mut sender = Sender::new(Connection::new(empty()).writer, &queue);
        let mut sender = pin!(sender.run());
        assert!(task.poll(&mut sender).is_pending());
        push(&queue, 1, true);
        assert!(task.was_woken());
        assert_eq!(queue.unsent_requests(), [1]);
    }

    /// Else the first call after a restart of its server would be lost, though it could be made on another connection.
    #[test]
    fn nothing_is_written_to_a_socket_whose_peer_has_gone_where_it_may_be_sent_elsewhere() {
        for is_kept in [false, true] {
            let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
            if is_kept {
                queue.keep_unsent();
            }
            let socket = FakeSocket::with_room(LEN);
            let mut sender = Sender::new(socket.writer(), &queue);
            let mut sender = pin!(sender.run());
            assert!(task.poll(&mut sender).is_pending());
            socket.lose_peer();
            push(&queue, 1, true);
            let failed = task.poll(&mut sender).is_ready();
            queue.close();
            let seen = (socket.stream_ids(), failed, queue.first_unsent());
            assert_eq!(
                seen,
                if is_kept { (vec![], true, Some(1)) } else { (vec![1], false, None) }
            );
        }
    }

    #[test]
    fn what_a_full_socket_does_not_take_goes_before_all_else() {
        for room in [0, 1, HEADER_LEN, LEN - 1] {
            let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
            let socket = FakeSocket::with_room(room);
            let mut sender = Sender::new(socket.writer(), &queue);
            let mut sender = pin!(sender.run());
            assert!(task.poll(&mut sender).is_pending());
            push(&queue, 1, true);
            assert!(task.was_woken());
            assert_eq!((socket.len(), queue.fill().0), (room, Load::one(LEN)));
            push(&queue, 3, true);
            assert!(task.poll(&mut sender).is_pending());
            assert_eq!((socket.stream_ids(), queue.fill().0), (vec![1, 3], Load::default()));
            // Nothing of it is left for the next batch.
            push(&queue, 5, false);
            assert!(task.poll(&mut sender).is_pending());
            assert_eq!(socket.stream_ids(), [1, 3, 5]);
        }
    }

    /// Else a flush would wait for ever for a batch that is written already.
    #[test]
    fn a_flush_ends_with_what_was_pushed_while_a_lone_frame_was_written_in_part() {
        for room in [0, 1, LEN] {
            let (queue, task) = (Arc::new(Queue::new(10, 1000, ())), Arc::new(Task::default()));
            let socket = FakeSocket::with_room(room);
            let mut sender = Sender::new(socket.writer(), &queue);
            let mut sender = pin!(sender.run());
            assert!(task.poll(&mut sender).is_pending());
            let ((flushes, flush), pushes) = (mpsc::channel(), queue.clone());
            socket.meanwhile(move || {
                push(&pushes, 3, false);
                let mut flushed = Box::pin(async move { pushes.flushed().await });
                let mut context = Context::from_waker(Waker::noop());
                assert!(flushed.as_mut().poll(&mut context).is_pending());
                flushes.send(flushed).expect("the test goes on");
            });
            push(&queue, 1, true);
            let mut flushed = flush.try_recv().expect("it was written");
            assert!(task.was_woken());
            assert!(task.poll(&mut sender).is_pending());
            assert_eq!(socket.stream_ids(), [1, 3]);
            assert!(flushed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    }

    #[test]
    fn what_a_lone_frame_meets_is_the_senders_error() {
        let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
        let socket = FakeSocket::default();
        let mut sender = Sender::new(socket.writer(), &queue);
        let mut sender = pin!(sender.run());
        assert!(task.poll(&mut sender).is_pending());
        socket.fail(io::ErrorKind::TimedOut);
        push(&queue, 1, true);
        assert!(task.was_woken());
        let Poll::Ready(Err(error)) = task.poll(&mut sender) else { panic!("it has failed") };
        assert_eq!((error.kind(), socket.len()), (io::ErrorKind::TimedOut, 0));
    }

    /// These distinguish a peer that reads from one that does not.
    #[test]
    fn a_lone_frame_moves_the_queue_as_far_as_it_is_written() {
        for room in [0, 1, LEN] {
            // There is capacity for one frame.
            let (queue, task) = (Queue::new(1, 1000, ()), Arc::new(Task::default()));
            let socket = FakeSocket::with_room(room);
            let mut sender = Sender::new(socket.writer(), &queue);
            let mut sender = pin!(sender.run());
            assert!(task.poll(&mut sender).is_pending());
            let (is_moving, is_stuck) = (queue.is_moving(), queue.is_stuck());
            push(&queue, 1, true);
            let is_whole = room == LEN;
            assert_eq!((is_moving(), is_stuck()), (room > 0, !is_whole));
            if is_whole {
                let filled = queue.try_reserve(LEN).expect("it is open").expect("it has room");
                assert!(is_stuck(), "nothing has been written since");
                drop(filled);
                push(&queue, 3, true);
                let _filled = queue.try_reserve(LEN).expect("it is open").expect("it has room");
                assert!(!is_stuck(), "a frame has been written");
            }
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker of the program");
        }
    }

    /// Else nobody could write or close the connection any more, and the call would be lost.
    #[test]
    fn a_waker_that_panics_behind_a_lone_frame_harms_neither_its_task_nor_the_sender() {
        for has_more in [false, true] {
            let (queue, task) = (Arc::new(Queue::new(2, 1000, ())), Arc::new(Task::default()));
            let socket = FakeSocket::with_room(LEN);
            let mut sender = Sender::new(socket.writer(), &queue);
            let mut sender = pin!(sender.run());
            assert!(task.poll(&mut sender).is_pending());
            let room = queue.try_reserve(LEN).expect("it is open").expect("it has room");
            let ((tells, told), other) = (mpsc::channel(), queue.clone());
            socket.meanwhile(move || {
                let filled = other.try_reserve(LEN).expect("it is open").expect("it has room");
                if has_more {
                    push_into(filled, 3, false);
                } else {
                    mem::forget(filled);
                }
                let mut waits = Box::pin(async move { other.reserve(LEN).await.map(drop) });
                let panics = Arc::new(Panics).into();
                assert!(waits.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
                tells.send(waits).expect("the test goes on");
            });
            push_into(room, 1, true);
            let mut waits = told.try_recv().expect("it waits");
            let granted = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(granted.is_ready(), "the frame was written");
            assert_eq!(task.was_woken(), has_more);
            assert!(task.poll(&mut sender).is_pending());
            push(&queue, 5, true);
            let ids = [1, 3, 5].into_iter().filter(|id| has_more || *id != 3).collect::<Vec<_>>();
            assert_eq!(socket.stream_ids(), ids);
            queue.close();
            assert!(task.was_woken());
            assert!(task.poll(&mut sender).is_ready());
        }
    }

    #[test]
    fn a_call_that_is_given_up_is_not_written_unless_its_frame_has_begun() {
        for (room, written) in [(0, vec![]), (1, vec![1])] {
            let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
            let socket = FakeSocket::with_room(room);
            let mut sender = Sender::new(socket.writer(), &queue);
            let mut sender = pin!(sender.run());
            assert!(task.poll(&mut sender).is_pending());
            push(&queue, 1, true);
            queue.withdraw(|()| Some(1));
            assert!(task.poll(&mut sender).is_pending());
            assert_eq!((socket.stream_ids(), queue.fill().0), (written, Load::default()));
        }
    }

    /// Else the descriptor would stay open while a call is held.
    #[test]
    fn a_sender_that_is_dropped_takes_its_writer_with_it() {
        let (queue, task) = (Arc::new(Queue::new(10, 1000, ())), Arc::new(Task::default()));
        let socket = FakeSocket::with_room(LEN);
        let mut sender = Sender::new(socket.writer(), &queue);
        assert!(task.poll(&mut pin!(sender.run())).is_pending());
        let ((tells, told), looks) = (mpsc::channel(), queue.clone());
        socket.when_dropped(move || {
            tells.send(looks.state.try_lock().is_ok()).expect("the test goes on");
        });
        assert!(!socket.is_dropped());
        drop(sender);
        assert!(socket.is_dropped());
        assert_eq!(told.try_recv(), Ok(true), "nothing is locked meanwhile");
        push(&queue, 1, true);
        assert_eq!(socket.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_sender_gives_way_while_the_queue_grows_and_no_longer_than_it_may() {
        let mut steps = StepBack::default();
        assert!(steps.is_due(1) && steps.is_due(2));
        assert!(!steps.is_due(2), "nothing has come");
        let mut steps = StepBack::default();
        assert!(steps.is_due(1));
        advance(MAX_STEP_BACK).await;
        assert!(steps.is_due(2));
        advance(Duration::from_millis(1)).await;
        assert!(!steps.is_due(3));
    }
}
