//! Messages of a stream, packed: small ones lie back to back.

use std::{collections::VecDeque, mem};

use bytes::Bytes;

use super::{coop::CoopBudget, limiter::Load};
use crate::proto::{
    frame::{Flags, FrameType, HEADER_LEN, Header},
    payload::{Payload, SHARED_LEN},
};

/// Bytes after which a chunk is full.
pub(crate) const CHUNK_LEN: usize = SHARED_LEN;

/// Cost of a message in an inbox in addition to its bytes, at most: its entry there or its header, and what allocation
/// adds. A peer that sends very short messages would else cost many times what the limits on bytes
/// say.
const MESSAGE_COST: usize = 64;

/// Returns the cost of a message of this many bytes while it is in an inbox.
pub(crate) fn message_cost(bytes: usize) -> usize {
    Fill::one(bytes).cost()
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fill {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Fill {
    /// A limit. Both parts are clamped, see [`Load::limit`].
    pub(crate) fn limit(messages: usize, bytes: usize) -> Self {
        let Load { count, cost } = Load::limit(messages, bytes);
        Fill { messages: count, bytes: cost }
    }

    pub(super) fn one(bytes: usize) -> Self {
        Fill { messages: 1, bytes }
    }

    pub(super) fn cost(self) -> usize {
        self.bytes + self.messages * MESSAGE_COST
    }

    pub(super) fn add(&mut self, other: Fill) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    pub(super) fn remove(&mut self, other: Fill) {
        self.messages -= other.messages;
        self.bytes -= other.bytes;
    }

    /// So many messages of a chunk of frames of this length.
    pub(super) fn of_frames(messages: usize, len: usize) -> Self {
        Fill { messages, bytes: len - messages * HEADER_LEN }
    }

    /// Returns whether a message of this many bytes may come to what is there. One that is longer than the
    /// limit may come to nothing, else it could never be received.
    pub(super) fn has_room(self, bytes: usize, limits: Fill) -> bool {
        self.messages == 0
            || (self.messages < limits.messages && self.bytes.saturating_add(bytes) <= limits.bytes)
    }

    /// Returns the capacity that is left.
    pub(super) fn free(self, limits: Fill) -> Fill {
        let messages = limits.messages.checked_sub(self.messages);
        let bytes = limits.bytes.checked_sub(self.bytes);
        // Over either limit there is no capacity, not even for an empty message.
        let free = messages.zip(bytes).map(|(messages, bytes)| Fill { messages, bytes });
        free.unwrap_or_default()
    }

    /// Counts a message of this many bytes if there is capacity for it here.
    pub(crate) fn take_room(&mut self, bytes: usize) -> bool {
        let has_room = self.messages > 0 && bytes <= self.bytes;
        if has_room {
            self.messages -= 1;
            self.bytes -= bytes;
        }
        has_room
    }

    /// The fill at which a receiver that has a message of this many bytes is to be woken: there is
    /// capacity, and where the inbox is large, capacity for more than one message.
    pub(super) fn wake_at(bytes: usize, limits: Fill) -> Self {
        let messages = (limits.messages - limits.messages / 4).min(limits.messages - 1);
        Fill { messages, bytes: limits.bytes.saturating_sub(bytes) }
    }

    pub(super) fn is_within(self, other: Fill) -> bool {
        self.messages == 0 || (self.messages <= other.messages && self.bytes <= other.bytes)
    }
}

/// The messages in an inbox, in order.
#[derive(Debug, Default)]
pub(super) struct Messages(VecDeque<MessageChunk>);

#[derive(Debug)]
pub(super) enum MessageChunk {
    /// The only message that is there, or a long one.
    One(Bytes),
    /// So many small ones, as frames that lie back to back. Of their headers only the lengths count.
    Many(Vec<u8>, usize),
}

impl MessageChunk {
    fn fill(&self) -> Fill {
        match self {
            MessageChunk::One(message) => Fill::one(message.len()),
            MessageChunk::Many(frames, count) => Fill::of_frames(*count, frames.len()),
        }
    }
}

impl Messages {
    pub(super) fn push(&mut self, message: Payload<'_>) {
        let bytes = message.bytes();
        let frame_len = HEADER_LEN + bytes.len();
        match self.0.back_mut() {
            Some(MessageChunk::Many(frames, count)) if frames.len() + frame_len <= CHUNK_LEN => {
                push_frame(frames, bytes);
                *count += 1;
            }
            Some(_) if frame_len <= CHUNK_LEN => {
                let mut frames = Vec::with_capacity(frame_len);
                push_frame(&mut frames, bytes);
                self.0.push_back(MessageChunk::Many(frames, 1));
            }
            _ => self.0.push_back(MessageChunk::One(message.to_bytes())),
        }
    }

    /// Adds so many messages, at least one, that lie in frames back to back, in no more than [`CHUNK_LEN`] bytes.
    pub(super) fn push_frames(&mut self, frames: Vec<u8>, count: usize) {
        debug_assert!(frames.len() <= CHUNK_LEN);
        self.0.push_back(MessageChunk::Many(frames, count));
    }

    /// The first message, with those that lie in one chunk with it.
    pub(super) fn pop(&mut self) -> Option<MessageChunk> {
        self.0.pop_front()
    }

    /// Drops all; returns how much that was.
    pub(super) fn clear(&mut self) -> Fill {
        let mut fill = Fill::default();
        mem::take(&mut self.0).iter().for_each(|chunk| fill.add(chunk.fill()));
        fill
    }
}

fn push_frame(frames: &mut Vec<u8>, message: &[u8]) {
    let data_len = message.len() as u32;
    let header = Header { data_len, stream_id: 0, frame_type: FrameType::Data, flags: Flags::NONE };
    frames.extend_from_slice(&header.to_bytes());
    frames.extend_from_slice(message);
}

/// Messages that the consumer has taken out of the inbox together and has not used yet.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    frames: Bytes,
    /// Bytes at the start that have been used.
    used: usize,
    /// Messages after these.
    left: usize,
    /// The consumer's.
    pub(super) budget: CoopBudget,
}

impl Batch {
    pub(super) fn fill(&self) -> Fill {
        Fill::of_frames(self.left, self.frames.len() - self.used)
    }

    /// Takes the messages of a chunk, when all others have been used.
    pub(super) fn refill(&mut self, frames: Vec<u8>, count: usize) {
        (self.frames, self.used, self.left) = (frames.into(), 0, count);
    }

    /// The next message.
    pub(super) fn next(&mut self) -> Option<Payload<'_>> {
        let rest = &self.frames[self.used..];
        let header = Header::from_bytes(rest.first_chunk()?);
        let frame_len = HEADER_LEN + header.data_len as usize;
        self.used += frame_len;
        self.left -= 1;
        Some(Payload::shared(&rest[HEADER_LEN..frame_len], &self.frames))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// All messages have been used: keeps nothing of them.
    pub(super) fn release(&mut self) {
        (self.frames, self.used, self.left) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(messages: usize) -> Fill {
        Fill::limit(messages, 1000)
    }

    #[test]
    fn a_receiver_is_woken_for_a_quarter_of_a_large_inbox_and_for_one_message_of_a_small_one() {
        assert_eq!(Fill::wake_at(10, limits(100)), Fill { messages: 75, bytes: 990 });
        assert_eq!(Fill::wake_at(10, limits(3)), Fill { messages: 2, bytes: 990 });
        assert_eq!(Fill::wake_at(2000, limits(1)), Fill { messages: 0, bytes: 0 });
    }

    #[test]
    fn a_fill_is_within_another_in_messages_and_in_bytes() {
        let fill = |messages, bytes| Fill { messages, bytes };
        assert!(fill(0, 0).is_within(fill(0, 0)) && fill(2, 5).is_within(fill(2, 5)));
        assert!(!fill(3, 5).is_within(fill(2, 5)) && !fill(2, 6).is_within(fill(2, 5)));
    }

    #[test]
    fn short_messages_share_chunks_up_to_their_length_and_long_ones_have_their_own() {
        let mut messages = Messages::default();
        let longest = CHUNK_LEN - HEADER_LEN;
        for len in [10, longest - HEADER_LEN, 0, 1, longest + 1, longest] {
            messages.push(Payload::borrowed(&vec![0; len]));
        }
        let chunks = messages.0.iter().map(|chunk| {
            (matches!(chunk, MessageChunk::Many(..)), chunk.fill().messages, chunk.fill().bytes)
        });
        let long = (false, 1, longest + 1);
        let chunks: Vec<_> = chunks.collect();
        assert_eq!(
            chunks,
            [
                (false, 1, 10),
                (true, 2, longest - HEADER_LEN),
                (true, 1, 1),
                long,
                (true, 1, longest)
            ]
        );
    }

    #[test]
    fn what_is_free_has_room_for_messages_until_either_limit_is_reached() {
        let mut free = Fill { messages: 1, bytes: 970 }.free(limits(3));
        assert_eq!(free, Fill { messages: 2, bytes: 30 });
        assert!(!free.take_room(31));
        assert!(free.take_room(30) && free.take_room(0));
        assert!(!free.take_room(0), "it would be the fourth");
        for fill in [Fill { messages: 4, bytes: 0 }, Fill { messages: 1, bytes: 1001 }] {
            assert!(!fill.free(limits(3)).take_room(0), "{fill:?} is over a limit");
        }
    }

    #[test]
    fn a_batch_gives_the_messages_of_its_frames() {
        let mut frames = Vec::new();
        for message in [&b"one"[..], b"", b"three"] {
            push_frame(&mut frames, message);
        }
        let mut batch = Batch::default();
        batch.refill(frames, 3);
        assert_eq!(batch.fill(), Fill { messages: 3, bytes: 8 });
        for (message, left) in [(&b"one"[..], 5), (b"", 5), (b"three", 0)] {
            assert_eq!(batch.next().expect("there are three").bytes(), message);
            assert_eq!(batch.fill().bytes, left);
        }
        assert!(batch.is_empty() && batch.next().is_none());
    }
}
