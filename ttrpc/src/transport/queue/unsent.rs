//! Which Requests had not begun to be written when their connection ended.
//!
//! Only such a call may be made again on another connection: the peer cannot have seen it. Requests are written in
//! the order of their stream ids, so one number says which they are: the first of them. While the sender writes, its
//! whole batch counts as begun. While it waits for a writer that takes no more, the rest of its batch counts as
//! unsent; once the queue is closed, a sender that goes on drops that rest instead of writing it. After a socket's
//! failed write, too, the rest counts as unsent: a socket that fails has taken nothing of that write. Any other
//! stream, such as TLS, may have passed on what it was offered before it failed, so all of the batch counts as begun
//! then.
//!
//! Only a queue of which that is asked ([`Queue::keep_unsent`], [`Queue::follow_requests`]) notes anything.

use std::collections::VecDeque;

use super::{Queue, QueueState};
use crate::{
    proto::frame::FrameType,
    transport::{frames::Chunk, lock},
};

/// What a queue notes of Requests that have not begun to be written.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// The first one in the batch is noted while the sender is not writing.
    is_followed: bool,
    /// The first one of all is noted when the queue is closed: a call that was not sent may be made on another connection.
    pub(super) is_kept: bool,
    /// The first one in the batch of a sender that is not writing.
    in_batch: Option<u32>,
    /// The first one of all when the queue was closed.
    at_close: Option<u32>,
}

impl Unsent {
    /// The sender has taken a batch, and begins to write it; or it has failed, and this is what it has taken.
    pub(super) fn note_taken(&mut self, failed: Option<&VecDeque<Chunk>>) {
        self.in_batch = failed.filter(|_| self.is_followed).and_then(|batch| first(batch, 0));
    }

    /// The sender is about to write on. Returns whether it may: else the rest of its batch counts as unsent.
    pub(super) fn resume(&mut self) -> bool {
        if self.at_close.is_some() {
            return false;
        }
        self.in_batch = None;
        true
    }
}

impl<T> Queue<T> {
    /// Notes from now on which Requests have not begun to be written, for [`Queue::is_unsent`].
    pub(crate) fn keep_unsent(&self) {
        let unsent = &mut lock(&self.state).unsent;
        unsent.is_followed = true;
        unsent.is_kept = true;
    }

    /// Knows from now on which Requests have begun to be written, for [`Queue::withdraw`].
    pub(crate) fn follow_requests(&self) {
        lock(&self.state).unsent.is_followed = true;
    }

    /// Returns whether the queue was closed before the Request of this stream, which was pushed, began to be written.
    pub(crate) fn is_unsent(&self, stream_id: u32) -> bool {
        self.first_unsent().is_some_and(|first| stream_id >= first)
    }

    /// Returns the first Request that had not begun to be written when the queue was closed; none did that came after it.
    pub(crate) fn first_unsent(&self) -> Option<u32> {
        lock(&self.state).unsent.at_close
    }

    /// The sender writes nothing until it looks at the queue again, or never again, and nobody can have seen the rest. So many bytes of the batch's first chunk
    /// are written.
    pub(in crate::transport) fn note_paused(&self, batch: &VecDeque<Chunk>, written: usize) {
        let mut state = lock(&self.state);
        if state.unsent.is_followed && !state.is_closed {
            state.unsent.in_batch = first(batch, written);
        }
    }
}

impl<T> QueueState<T> {
    /// The queue is about to be closed.
    pub(super) fn note_unsent(&mut self) {
        if self.unsent.is_kept {
            self.unsent.at_close = self.first_unbegun();
        }
    }

    /// Returns whether the Request of this stream, which was pushed, has begun to be written, as far as that is followed.
    pub(super) fn has_begun(&self, stream_id: u32) -> bool {
        self.unsent.is_followed
            && !self.is_closed
            && self.first_unbegun().is_none_or(|first| stream_id < first)
    }

    fn first_unbegun(&self) -> Option<u32> {
        let queued = || first(&self.chunks.0, self.gate.partially_written());
        self.unsent.in_batch.or_else(queued)
    }
}

/// Returns the stream of the first Request that begins after so many bytes of the first chunk.
fn first<'a>(chunks: impl IntoIterator<Item = &'a Chunk>, written: usize) -> Option<u32> {
    let mut skip = written;
    chunks.into_iter().find_map(|chunk| {
        let from = std::mem::take(&mut skip);
        let mut unbegun = chunk.headers().filter(|(start, _)| *start >= from);
        let request = unbegun.find(|(_, header)| header.frame_type == FrameType::Request);
        request.map(|(_, header)| header.stream_id)
    })
}
