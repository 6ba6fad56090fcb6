//! Messages to frames: encoded once, straight into the frame.

use std::cell::Cell;

use super::chunk::{FrameBytes, SHARED_FRAME_LEN};
use crate::{
    Status,
    proto::{
        buffer_pool,
        frame::{Flags, FrameType, HEADER_LEN, Header, MAX_DATA_LEN},
        message::FrameData,
    },
};

thread_local! {
    /// Where frames are encoded that are copied into a shared chunk. Its length is that of the longest one so far.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A frame that is shorter would show the peer what was encoded here before.
const WRONG_LEN: &str = "a message's `encoded_len` is the length of its encoding";

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

    /// Encodes the frame and passes it to `push`.
    pub(crate) fn encode<R>(&self, push: impl FnOnce(FrameBytes<'_>) -> R) -> R {
        let len = self.len();
        if len > SHARED_FRAME_LEN {
            let mut bytes = buffer_pool::take(len..=2 * len);
            bytes.resize(len, 0);
            self.write_to(&mut bytes);
            return push(FrameBytes::Large(bytes));
        }
        // Taken meanwhile: encoding a message runs the program's code. A thread that is ending has none.
        let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        self.write_to(&mut scratch[..len]);
        let pushed = push(FrameBytes::Small(&mut scratch[..len]));
        let _ = SCRATCH.try_with(|kept| kept.set(scratch));
        pushed
    }

    /// Encodes the frame into a buffer of its own.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.write_to(&mut bytes);
        bytes
    }

    /// Encodes the frame into so many bytes as it has: for all callers the code of an encoded message is one.
    fn write_to(&self, bytes: &mut [u8]) {
        let (header, mut data) = bytes.split_at_mut(HEADER_LEN);
        header.copy_from_slice(&self.header.to_bytes());
        self.data.encode(&mut data);
        assert!(data.is_empty(), "{WRONG_LEN}");
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
    fn frames_that_share_a_chunk_are_encoded_elsewhere_and_longer_ones_in_buffers_of_their_own() {
        for len in [256, 257, SHARED_FRAME_LEN, 512] {
            assert!(is_to_be_copied(len), "{len} bytes");
        }
        assert!(!is_to_be_copied(SHARED_FRAME_LEN + 1));
    }
}
