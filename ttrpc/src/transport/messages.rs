//! Messages of a stream, packed: small ones lie back to back.

use std::{collections::VecDeque, mem, vec};

use bytes::Bytes;

use super::{limiter::clamp, turn::Turn};
use crate::proto::payload::{Payload, SHARED_LEN};

/// Bytes after which a chunk is full.
pub(super) const CHUNK_LEN: usize = SHARED_LEN;

/// What a message in an inbox costs beside its bytes, at most: its entry there, and what allocation
/// adds. A peer that sends very short messages would else cost many times what the limits on bytes
/// say.
const MESSAGE_COST: usize = 64;

/// What a message of this many bytes costs while it is in an inbox.
pub(crate) fn message_cost(bytes: usize) -> usize {
    Fill::one(bytes).cost()
}

/// How much an inbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboxLimits {
    messages: usize,
    bytes: usize,
}

impl InboxLimits {
    /// Both limits are clamped, see [`clamp`].
    pub(crate) fn new(messages: usize, bytes: usize) -> Self {
        InboxLimits {
            messages: clamp(messages, u64::BITS - Fill::BYTES_BITS),
            bytes: clamp(bytes, Fill::BYTES_BITS),
        }
    }
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fill {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Fill {
    /// Bits of a packed fill that count bytes; the others count messages.
    const BYTES_BITS: u32 = 40;

    pub(super) fn one(bytes: usize) -> Self {
        Fill { messages: 1, bytes }
    }

    pub(super) fn cost(self) -> usize {
        self.bytes + self.messages * MESSAGE_COST
    }

    fn plus(self, other: Fill) -> Fill {
        Fill { messages: self.messages + other.messages, bytes: self.bytes + other.bytes }
    }

    /// Both counts in one word, so that they change in one step.
    pub(super) fn pack(self) -> u64 {
        ((self.messages as u64) << Fill::BYTES_BITS) + self.bytes as u64
    }

    pub(super) fn unpack(packed: u64) -> Self {
        let bytes = packed & ((1 << Fill::BYTES_BITS) - 1);
        Fill { messages: (packed >> Fill::BYTES_BITS) as usize, bytes: bytes as usize }
    }

    /// Whether a message of this many bytes may come to what is there. One that is longer than the
    /// limit may come to nothing, else it could never be received.
    pub(super) fn has_room(self, bytes: usize, limits: InboxLimits) -> bool {
        self.messages == 0
            || (self.messages < limits.messages && self.bytes + bytes <= limits.bytes)
    }

    /// The fill at which a receiver that has a message of this many bytes is to be woken: there is
    /// room, and where the inbox is large, room for more than one message.
    pub(super) fn wake_at(bytes: usize, limits: InboxLimits) -> Self {
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
    /// Small ones, back to back, with their lengths.
    Many(Vec<u8>, Vec<u32>),
}

impl MessageChunk {
    fn fill(&self) -> Fill {
        match self {
            MessageChunk::One(message) => Fill::one(message.len()),
            MessageChunk::Many(bytes, lens) => Fill { messages: lens.len(), bytes: bytes.len() },
        }
    }
}

impl Messages {
    pub(super) fn push(&mut self, message: Payload<'_>) {
        let bytes = message.bytes();
        match self.0.back_mut() {
            Some(MessageChunk::Many(chunk, lens)) if chunk.len() + bytes.len() <= CHUNK_LEN => {
                chunk.extend_from_slice(bytes);
                lens.push(bytes.len() as u32);
            }
            Some(_) if bytes.len() <= CHUNK_LEN => {
                self.0.push_back(MessageChunk::Many(bytes.to_vec(), vec![bytes.len() as u32]));
            }
            _ => self.0.push_back(MessageChunk::One(message.to_bytes())),
        }
    }

    /// Adds all that was gathered, which is at least one message.
    pub(super) fn push_all(&mut self, gathered: Gathered) {
        self.0.push_back(MessageChunk::Many(gathered.bytes, gathered.lens));
    }

    /// The first message, with those that lie in one chunk with it.
    pub(super) fn pop(&mut self) -> Option<MessageChunk> {
        self.0.pop_front()
    }

    /// Drops all; returns how much that was.
    pub(super) fn clear(&mut self) -> Fill {
        mem::take(&mut self.0).iter().map(MessageChunk::fill).fold(Fill::default(), Fill::plus)
    }
}

/// Small messages of one stream that were read together and go into its inbox together, so that its
/// lock is taken once for all of them.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    lens: Vec<u32>,
}

impl Gathered {
    /// Adds a message. `false` if it is too long, or has no room behind those in the inbox.
    pub(super) fn add(&mut self, bytes: &[u8], inbox: Fill, limits: InboxLimits) -> bool {
        let is_short = self.bytes.len() + bytes.len() <= CHUNK_LEN;
        let is_added = is_short && inbox.plus(self.fill()).has_room(bytes.len(), limits);
        if is_added {
            self.bytes.extend_from_slice(bytes);
            self.lens.push(bytes.len() as u32);
        }
        is_added
    }

    pub(super) fn fill(&self) -> Fill {
        Fill { messages: self.lens.len(), bytes: self.bytes.len() }
    }
}

/// Messages that the consumer has taken out of the inbox together and has not used yet.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Bytes,
    /// Bytes at the start that have been used.
    used: usize,
    /// Lengths of the messages behind these.
    lens: vec::IntoIter<u32>,
    /// The consumer's.
    pub(super) turn: Turn,
}

impl Batch {
    pub(super) fn fill(&self) -> Fill {
        Fill { messages: self.lens.len(), bytes: self.bytes.len() - self.used }
    }

    /// Takes the messages of a chunk, when all others have been used.
    pub(super) fn refill(&mut self, bytes: Vec<u8>, lens: Vec<u32>) {
        (self.bytes, self.used, self.lens) = (bytes.into(), 0, lens.into_iter());
    }

    /// The next message.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Payload<'_>> {
        let len = self.lens.next()? as usize;
        let message = &self.bytes[self.used..][..len];
        self.used += len;
        Some(Payload::shared(message, &self.bytes))
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lens.as_slice().is_empty()
    }

    /// All messages have been used: keeps nothing of them.
    pub(super) fn release(&mut self) {
        (self.bytes, self.used, self.lens) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(messages: usize) -> InboxLimits {
        InboxLimits::new(messages, 1000)
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
        for len in [10, CHUNK_LEN - 1, 1, 1, CHUNK_LEN + 1, CHUNK_LEN] {
            messages.push(Payload::borrowed(&vec![0; len]));
        }
        let chunks = messages.0.iter().map(|chunk| {
            (matches!(chunk, MessageChunk::Many(..)), chunk.fill().messages, chunk.fill().bytes)
        });
        let long = (false, 1, CHUNK_LEN + 1);
        let chunks: Vec<_> = chunks.collect();
        assert_eq!(
            chunks,
            [(false, 1, 10), (true, 2, CHUNK_LEN), (true, 1, 1), long, (true, 1, CHUNK_LEN)]
        );
    }

    #[test]
    fn messages_are_gathered_as_long_as_they_are_short_and_have_room_behind_the_others() {
        let mut gathered = Gathered::default();
        let large = InboxLimits::new(100, 1 << 20);
        assert!(gathered.add(&[0; CHUNK_LEN - 1], Fill::default(), large));
        assert!(gathered.add(&[0], Fill::default(), large));
        assert!(!gathered.add(&[0], Fill::default(), large));
        assert_eq!(gathered.fill(), Fill { messages: 2, bytes: CHUNK_LEN });

        let mut gathered = Gathered::default();
        assert!(gathered.add(&[0], Fill::one(10), limits(2)));
        assert!(!gathered.add(&[0], Fill::one(10), limits(2)), "it would be the third");
    }
}
