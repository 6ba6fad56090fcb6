//! Messages of a stream, packed: small ones lie back to back.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{coop::CoopBudget, limiter::Load};
use crate::proto::{
    frame::{Flags, FrameType, HEADER_LEN, Header},
    payload::{Payload, SHARED_LEN},
};

/// Bytes after which a run of messages is full.
pub(crate) const RUN_LEN: usize = SHARED_LEN;

/// Cost of a message in an inbox in addition to its bytes, at most: its entry there or its header, and what allocation
/// adds. A peer that sends very short messages would else cost many times what the limits on bytes
/// say.
const MESSAGE_COST: usize = 64;

/// Returns the cost of a message of this many bytes while it is in an inbox.
pub(crate) fn message_cost(bytes: usize) -> usize {
    cost(Load::one(bytes))
}

/// Returns the cost of messages whose load is their number and their bytes.
pub(super) fn cost(load: Load) -> usize {
    load.cost + load.count * MESSAGE_COST
}

/// Returns whether a message of this many bytes may come to what is there. One that is longer than the
/// limit may come to nothing, else it could never be received.
pub(crate) fn fits(fill: Load, bytes: usize, limits: Load) -> bool {
    fill.count == 0 || (fill.count < limits.count && fill.cost.saturating_add(bytes) <= limits.cost)
}

/// The messages in an inbox, in order.
#[derive(Debug, Default)]
pub(super) struct Messages(pub(super) VecDeque<Run>);

/// Messages that a consumer takes together.
#[derive(Debug)]
pub(super) enum Run {
    /// The only message that is there, or a long one.
    One(Bytes),
    /// So many small ones, as frames that lie back to back. Of their headers only the lengths count.
    Many(Vec<u8>, usize),
}

impl Run {
    pub(super) fn load(&self) -> Load {
        match self {
            Run::One(message) => Load::one(message.len()),
            Run::Many(frames, count) => {
                Load { count: *count, cost: frames.len() - count * HEADER_LEN }
            }
        }
    }
}

impl Messages {
    pub(super) fn push(&mut self, message: Payload<'_>) {
        let bytes = message.bytes();
        let frame_len = HEADER_LEN + bytes.len();
        match self.0.back_mut() {
            Some(Run::Many(frames, count)) if frames.len() + frame_len <= RUN_LEN => {
                push_frame(frames, bytes);
                *count += 1;
            }
            Some(_) if frame_len <= RUN_LEN => {
                let mut frames = Vec::with_capacity(frame_len);
                push_frame(&mut frames, bytes);
                self.0.push_back(Run::Many(frames, 1));
            }
            _ => self.0.push_back(Run::One(message.to_bytes())),
        }
    }
}

fn push_frame(frames: &mut Vec<u8>, message: &[u8]) {
    let data_len = message.len() as u32;
    let header = Header { data_len, stream_id: 0, frame_type: FrameType::Data, flags: Flags::NONE };
    frames.extend_from_slice(&header.to_bytes());
    frames.extend_from_slice(message);
}

/// A run of messages that the consumer has taken out of the inbox and has not used yet.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// One message, or frames.
    bytes: Bytes,
    has_frames: bool,
    /// Bytes at the start that have been used.
    used: usize,
    /// Messages after these.
    left: usize,
    /// The consumer's.
    pub(super) budget: CoopBudget,
}

impl Batch {
    /// Takes the messages of a run, when all others have been used.
    pub(super) fn refill(&mut self, run: Run) {
        (self.bytes, self.has_frames, self.left) = match run {
            Run::One(message) => (message, false, 1),
            Run::Many(frames, count) => (frames.into(), true, count),
        };
        self.used = 0;
    }

    /// Takes the next message, which has to be there.
    pub(super) fn next(&mut self) -> Payload<'_> {
        self.left -= 1;
        if !self.has_frames {
            self.used = self.bytes.len();
            return Payload::shared(&self.bytes, &self.bytes);
        }
        let rest = &self.bytes[self.used..];
        let header = Header::from_bytes(rest.first_chunk().expect("a message is left"));
        let frame_len = HEADER_LEN + header.data_len as usize;
        self.used += frame_len;
        Payload::shared(&rest[HEADER_LEN..frame_len], &self.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Messages that have not been used.
    pub(super) fn load(&self) -> Load {
        let headers = if self.has_frames { self.left * HEADER_LEN } else { 0 };
        Load { count: self.left, cost: self.bytes.len() - self.used - headers }
    }

    /// All messages have been used: keeps nothing of them.
    pub(super) fn release(&mut self) {
        (self.bytes, self.used) = (Bytes::new(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_share_runs_up_to_their_length_and_long_ones_have_their_own() {
        let mut messages = Messages::default();
        let longest = RUN_LEN - HEADER_LEN;
        for len in [10, longest - HEADER_LEN, 0, 1, longest + 1, longest] {
            messages.push(Payload::borrowed(&vec![0; len]));
        }
        let runs = messages.0.iter().map(|run| {
            let Load { count, cost } = run.load();
            (matches!(run, Run::Many(..)), count, cost)
        });
        assert_eq!(
            runs.collect::<Vec<_>>(),
            [
                (false, 1, 10),
                (true, 2, longest - HEADER_LEN),
                (true, 1, 1),
                (false, 1, longest + 1),
                (true, 1, longest)
            ]
        );
    }

    #[test]
    fn messages_fit_until_either_limit_is_reached_and_any_fits_into_nothing() {
        let limits = Load { count: 3, cost: 1000 };
        let fill = Load { count: 1, cost: 970 };
        assert!(fits(fill, 30, limits) && !fits(fill, 31, limits));
        assert!(fits(Load::default(), 5000, limits));
        for fill in [Load { count: 3, cost: 0 }, Load { count: 1, cost: 1001 }] {
            assert!(!fits(fill, 0, limits), "{fill:?} is at a limit");
        }
    }

    #[test]
    fn a_batch_gives_the_messages_of_its_frames() {
        let mut frames = Vec::new();
        for message in [&b"one"[..], b"", b"three"] {
            push_frame(&mut frames, message);
        }
        let mut batch = Batch::default();
        batch.refill(Run::Many(frames, 3));
        for message in [&b"one"[..], b"", b"three"] {
            assert!(!batch.is_empty());
            assert_eq!(batch.next().bytes(), message);
        }
        assert!(batch.is_empty());
    }
}
