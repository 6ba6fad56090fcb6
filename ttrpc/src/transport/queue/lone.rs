//! Writing a lone frame in the task that pushes it.
//!
//! With one call at a time on a connection, waking the sender's task takes longer than all that it does then. So the
//! sender leaves its writer in the queue while it waits for frames. A task that pushes a frame which no other is about
//! to join takes the writer, writes to the socket what that takes at once, and puts the writer back. It waits for
//! nothing, and holds no lock while it writes. What is left of the frame goes to the sender, before all that was
//! pushed meanwhile.

use std::{io, mem, task::Waker};

use super::{Queue, QueueState, Room, sender_state::SenderState};
use crate::{
    contain::wake_all,
    transport::{io::Writer, lock},
};

/// The writer of a sender that waits for frames, in the hand of another task.
pub(super) struct Lent {
    waker: Waker,
    writer: Writer,
}

impl<T> QueueState<T> {
    /// The writer, if the sender waits for frames and has a socket. The frame that is written with it counts as a
    /// batch.
    pub(super) fn lend_writer(&mut self) -> Option<Lent> {
        match mem::replace(&mut self.sender, SenderState::Writing) {
            SenderState::Idle { waker: Some(waker), writer } if writer.is_socket() => {
                self.batches_taken += 1;
                Some(Lent { waker, writer })
            }
            other => {
                self.sender = other;
                None
            }
        }
    }

    /// What a task could not write goes with the sender's next batch. A queue that is closed has none, and drops it.
    fn hand_on(&mut self, frame: &[u8], room: Room, written: io::Result<usize>) {
        self.batches_taken -= 1;
        if !self.is_closed {
            self.chunks.push_first(frame, room);
            self.rest = Some(written);
        }
    }
}

impl<T> Queue<T> {
    /// Writes a frame, which takes this much room, and gives the writer back.
    pub(super) fn write_lone(&self, lent: Lent, frame: &[u8], room: Room) {
        let Lent { waker, writer } = lent;
        let written = match writer.try_write(frame) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        };
        if matches!(written, Ok(1..)) {
            self.note_write();
        }
        let is_whole = matches!(written, Ok(len) if len == frame.len());
        let mut state = lock(&self.state);
        let flushed = if is_whole {
            state.end_batch()
        } else {
            state.hand_on(frame, room, written);
            Vec::new()
        };
        let has_work = state.is_closed || !state.chunks.is_empty();
        let (unused_writer, sender) = match state.sender {
            SenderState::Gone => (Some(writer), None),
            _ if has_work => {
                state.sender = SenderState::Idle { waker: None, writer };
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
        if is_whole {
            self.release_written(room);
        }
        wake_all(flushed);
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

    use tokio::io::empty;

    use super::{
        super::{Claim, FrameBytes, PushPermit},
        *,
    };
    use crate::{
        Connection,
        proto::frame::{Flags, FrameType, HEADER_LEN, Header},
        transport::{fake_socket::FakeSocket, limiter::Load, sender::Sender},
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

    fn push(queue: &Queue<()>, stream_id: u32, is_lone: bool) {
        let room = queue.try_reserve(LEN).expect("it is open").expect("it has room");
        push_into(room, stream_id, is_lone);
    }

    fn push_into(room: PushPermit<'_, ()>, stream_id: u32, is_lone: bool) {
        let claim = |_: &mut ()| Some(Claim { stream_id, is_lone });
        let pushed = room.push_or_write(FrameBytes::Small(&mut frame()), claim);
        assert_eq!(pushed, Some(stream_id));
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
            // Nothing of it is left behind for the next batch.
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

    /// A peer that reads is told from one that does not by these.
    #[test]
    fn a_lone_frame_moves_the_queue_as_far_as_it_is_written() {
        for room in [0, 1, LEN] {
            // There is room for one frame.
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

    /// Else the descriptor would stay open for as long as a call is held.
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
}
