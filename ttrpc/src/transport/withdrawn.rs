//! Frames that are not written after all: those of calls that were given up, and of a connection that has ended.

use std::{
    collections::{BTreeSet, VecDeque},
    mem,
};

use super::frames::{Capacity, Chunk, Chunks};
use crate::proto::frame::{FrameType, HEADER_LEN, Header};

impl Chunk {
    /// Drops the frames that start at `from` or after it and for which `is_dropped` says so.
    fn drop_frames(&mut self, from: usize, mut is_dropped: impl FnMut(Header) -> bool) {
        let (mut start, mut end) = (0, 0);
        while let Some(header) = self.header_at(start) {
            let len = HEADER_LEN + header.data_len as usize;
            if start < from || !is_dropped(header) {
                if end < start {
                    self.bytes.copy_within(start..start + len, end);
                }
                end += len;
            }
            start += len;
        }
        self.bytes.truncate(end);
    }
}

impl Chunks {
    /// Drops the frames of streams in `withdrawn` whose Request has not begun to be written: from the sender's `batch`, whose
    /// first `written` bytes have, and from what is queued after it. Returns the capacity that this frees.
    pub(super) fn drop_withdrawn(
        &mut self,
        batch: &mut VecDeque<Chunk>,
        written: usize,
        withdrawn: &BTreeSet<u32>,
    ) -> Capacity {
        // Of streams whose Request is dropped; Requests lie in the order of their ids.
        let mut dropped = Vec::new();
        drop_frames([batch, &mut self.0], written, |header| {
            let id = header.stream_id;
            if header.frame_type == FrameType::Request && withdrawn.contains(&id) {
                dropped.push(id);
            }
            dropped.binary_search(&id).is_ok()
        })
    }
}

/// Drops the frames that `is_dropped` names, but for those that have begun with the first `written` bytes. Returns the capacity
/// of chunks that are gone with all their frames. A frame that shares its chunk with others keeps its capacity until that is
/// written.
pub(super) fn drop_frames<'a>(
    queues: impl IntoIterator<Item = &'a mut VecDeque<Chunk>>,
    written: usize,
    mut is_dropped: impl FnMut(Header) -> bool,
) -> Capacity {
    let (mut from, mut freed) = (written, Capacity::default());
    for chunks in queues {
        chunks.retain_mut(|chunk| {
            chunk.drop_frames(mem::take(&mut from), &mut is_dropped);
            if chunk.bytes.is_empty() {
                freed += chunk.capacity;
            }
            !chunk.bytes.is_empty()
        });
    }
    freed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{
        frames::{
            SHARED_FRAME_LEN,
            tests::{ids, push, short},
        },
        limiter::Load,
    };

    #[test]
    fn withdrawn_streams_go_with_all_their_frames_unless_their_request_has_begun() {
        use FrameType::{Data, Request};
        let mut chunks = Chunks::default();
        push(&mut chunks, Request, 1, 4);
        push(&mut chunks, Request, 3, 4);
        push(&mut chunks, Data, 1, 4);
        push(&mut chunks, Data, 3, 4);
        let mut batch = VecDeque::new();
        std::mem::swap(&mut chunks.0, &mut batch);
        push(&mut chunks, Data, 3, SHARED_FRAME_LEN);
        push(&mut chunks, Data, 1, 4);
        push(&mut chunks, Request, 5, 4);
        push(&mut chunks, Request, 7, 4);

        // The first byte of the Request of stream 1 is written.
        let freed = chunks.drop_withdrawn(&mut batch, 1, &[1, 3, 7].into());
        let gone = short(Load::one(HEADER_LEN + SHARED_FRAME_LEN));
        assert_eq!(freed, gone, "of the chunk that is gone");
        assert_eq!(ids(&batch), [(Request, 1), (Data, 1)]);
        assert_eq!(ids(chunks.0.iter()), [(Data, 1), (Request, 5)]);
        let kept = short(Load { count: 4, cost: 4 * 14 });
        assert_eq!(batch[0].capacity, kept, "freed with the chunk");
    }
}
