//! What the sender of a queue does, and who has its writer.

use std::{mem, task::Waker};

use super::{Queue, QueueState};
use crate::transport::{io::Writer, lock};

/// What the sender does, and where its writer is.
pub(super) enum SenderState {
    /// The sender's task has the writer and writes, or is about to; or another task writes a lone frame.
    Writing,
    /// The sender waits for frames. The first push takes the waker.
    Idle { waker: Option<Waker>, writer: Writer },
    /// The sender has ended.
    Gone,
}

impl SenderState {
    /// Whether there is nothing to write.
    pub(super) fn waits_for_frames(&self) -> bool {
        matches!(self, SenderState::Idle { waker: Some(_), .. })
    }

    /// Takes the waker of a sender that waits for frames.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        match self {
            SenderState::Idle { waker, .. } => waker.take(),
            SenderState::Writing | SenderState::Gone => None,
        }
    }
}

impl std::fmt::Debug for SenderState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SenderState::Writing => "Writing",
            SenderState::Idle { .. } => "Idle",
            SenderState::Gone => "Gone",
        })
    }
}

impl<T> QueueState<T> {
    /// The sender's task goes on: it has its writer again, if no other task has it. Returns the waker of a sender that
    /// nobody has woken.
    pub(super) fn reclaim_writer(&mut self, writer: &mut Option<Writer>) -> Option<Waker> {
        if writer.is_some() {
            return None;
        }
        match mem::replace(&mut self.sender, SenderState::Writing) {
            SenderState::Idle { waker, writer: parked } => {
                *writer = Some(parked);
                waker
            }
            SenderState::Writing | SenderState::Gone => None,
        }
    }

    /// There is nothing to write, and nobody does.
    pub(super) fn become_idle(&mut self, waker: Waker, writer: Writer) {
        self.sender = SenderState::Idle { waker: Some(waker), writer };
        self.chunks.release_idle_memory();
        self.withdrawn = Vec::new();
    }
}

impl<T> Queue<T> {
    /// The sender has ended. Its writer is dropped, wherever it is.
    pub(in crate::transport) fn retire_sender(&self) {
        let mut state = lock(&self.state);
        let before = mem::replace(&mut state.sender, SenderState::Gone);
        drop(state);
        drop(before);
    }
}
