//! Writing a lone frame in the task that pushes it.
//!
//! With one call at a time on a connection, waking the sender's task takes longer than all that it does then. So the
//! sender leaves its writer in the queue while it waits for frames. A task that pushes a frame which no other is about
//! to join takes the writer, writes to the socket what that takes at once, and puts the writer back. It waits for
//! nothing, and holds no lock while it writes. What is left of the frame goes to the sender, before all that was
//! pushed meanwhile.

use std::task::Waker;

use super::{Queue, QueueState, Room, SenderState};
use crate::transport::{io::Writer, lock};

/// The writer of a sender that waits for frames, in the hand of another task.
pub(super) struct Lent {
    waker: Waker,
    writer: Writer,
}

impl<T> QueueState<T> {
    /// The writer, if the sender waits for frames and has a socket. The frame that is written with it counts as a
    /// batch.
    pub(super) fn lend_writer(&mut self) -> Option<Lent> {
        match &mut self.sender {
            SenderState::Idle { waker: Some(_), writer } if writer.is_socket() => {}
            _ => return None,
        }
        let SenderState::Idle { waker: Some(waker), writer } =
            std::mem::replace(&mut self.sender, SenderState::Writing)
        else {
            return None;
        };
        self.batches_taken += 1;
        Some(Lent { waker, writer })
    }
}

impl<T> Queue<T> {
    /// Writes a frame, which takes this much room, and gives the writer back.
    pub(super) fn write_lone(&self, lent: Lent, frame: &[u8], room: Room) {
        let Lent { waker, writer } = lent;
        // The sender meets an error again, and tells of it.
        let written = writer.try_write(frame).unwrap_or(0);
        if written > 0 {
            self.note_write();
        }
        let mut state;
        if written == frame.len() {
            self.release_written(room);
            state = self.end_batch(lock(&self.state));
        } else {
            state = lock(&self.state);
            // It goes with the sender's next batch.
            state.batches_taken -= 1;
            state.chunks.push_first(frame, room);
            state.first_written = written;
        }
        if let SenderState::Gone = state.sender {
            return;
        }
        if state.chunks.is_empty() && !state.is_closed {
            state.become_idle(waker, writer);
            return;
        }
        state.sender = SenderState::Idle { waker: None, writer };
        drop(state);
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::{Context, Poll, Wake},
    };

    use tokio::io::empty;

    use super::{
        super::{Claim, FrameBytes},
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
        fn poll<F: Future>(self: &Arc<Self>, sender: &mut Pin<&mut F>) -> Poll<F::Output> {
            sender.as_mut().poll(&mut Context::from_waker(&self.clone().into()))
        }

        fn was_woken(&self) -> bool {
            self.0.swap(0, Relaxed) > 0
        }
    }

    fn push(queue: &Queue<()>, stream_id: u32, is_lone: bool) {
        let mut frame = [0; LEN];
        let (frame_type, flags) = (FrameType::Request, Flags::NONE);
        let header = Header { data_len: DATA_LEN as u32, stream_id: 0, frame_type, flags };
        frame[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        let room = queue.try_reserve(LEN).expect("it is open").expect("it has room");
        let pushed = room
            .push_or_write(FrameBytes::Small(&mut frame), |()| Some(Claim { stream_id, is_lone }));
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
        let (queue, task) = (Queue::new(10, 1000, ()), Arc::new(Task::default()));
        let socket = FakeSocket::with_room(LEN);
        let mut sender = Sender::new(socket.writer(), &queue);
        assert!(task.poll(&mut pin!(sender.run())).is_pending());
        assert!(!socket.is_dropped());
        drop(sender);
        assert!(socket.is_dropped());
        push(&queue, 1, true);
        assert_eq!(socket.len(), 0);
    }
}
