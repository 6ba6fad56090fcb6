//! Messages to frames: encoded once, straight into the frame.

use std::cell::Cell;

use super::chunk::{self, FrameBytes, SHARED_FRAME_LEN};
use crate::{
    Status,
    proto::{
        frame::{Flags, FrameType, HEADER_LEN, Header, MAX_DATA_LEN},
        message::FrameData,
    },
};

/// Frames up to this many bytes are put together on the stack, as most are. It is cleared for each.
const STACK_FRAME_LEN: usize = 256;

thread_local! {
    /// Longer ones that are copied from here too are put together in this buffer.
    static MEDIUM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A frame that is known to fit, not yet encoded.
pub(crate) struct Frame<D> {
    header: Header,
    data: D,
}

impl<D: FrameData> Frame<D> {
    /// # Errors
    /// RESOURCE_EXHAUSTED if the data is longer than a frame may be.
    pub(crate) fn new(
        frame_type: FrameType,
        flags: Flags,
        stream_id: u32,
        data: D,
    ) -> Result<Self, Status> {
        let data_len = data.encoded_len();
        if data_len > MAX_DATA_LEN {
            return Err(Status::resource_exhausted(format!(
                "a message of {data_len} bytes is longer than a frame may be ({MAX_DATA_LEN} bytes)"
            )));
        }
        let header = Header { data_len: data_len as u32, stream_id, frame_type, flags };
        Ok(Frame { header, data })
    }

    /// Bytes of the frame, header included.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.header.data_len as usize
    }

    /// Encodes the frame and hands it on.
    pub(crate) fn encode<R>(&self, hand_on: impl FnOnce(FrameBytes<'_>) -> R) -> R {
        let len = self.len();
        if len > SHARED_FRAME_LEN {
            let mut bytes = chunk::buffer(len..=2 * len);
            self.append_to(&mut bytes);
            return hand_on(FrameBytes::Large(bytes));
        }
        if len > STACK_FRAME_LEN {
            // Not borrowed meanwhile: to encode a message is the program's. A thread that is ending has none.
            let mut medium = MEDIUM.try_with(Cell::take).unwrap_or_default();
            medium.clear();
            self.append_to(&mut medium);
            let handed_on = hand_on(FrameBytes::Small(&mut medium));
            let _ = MEDIUM.try_with(|kept| kept.set(medium));
            return handed_on;
        }
        let mut stack = [0; STACK_FRAME_LEN];
        stack[..HEADER_LEN].copy_from_slice(&self.header.to_bytes());
        self.data.encode(&mut &mut stack[HEADER_LEN..len]);
        hand_on(FrameBytes::Small(&mut stack[..len]))
    }

    /// Encodes the frame into a buffer of its own.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        bytes.reserve_exact(self.len());
        bytes.extend_from_slice(&self.header.to_bytes());
        self.data.encode(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_to_be_copied(len: usize) -> bool {
        let data = vec![7; len - HEADER_LEN];
        let frame = Frame::new(FrameType::Data, Flags::NONE, 1, &data[..]).expect("it is short");
        let expected = [&frame.header.to_bytes()[..], &data].concat();
        frame.encode(|bytes| match bytes {
            FrameBytes::Small(bytes) => bytes == expected,
            FrameBytes::Large(bytes) => {
                assert!(bytes == expected);
                false
            }
        })
    }

    #[test]
    fn frames_that_share_a_chunk_are_put_together_elsewhere_and_longer_ones_in_their_own() {
        for len in [STACK_FRAME_LEN, STACK_FRAME_LEN + 1, SHARED_FRAME_LEN, 2 * STACK_FRAME_LEN] {
            assert!(is_to_be_copied(len), "{len} bytes");
        }
        assert!(!is_to_be_copied(SHARED_FRAME_LEN + 1));
    }
}
