//! Messages to frames: encoded once, straight into the frame.

use super::chunk::FrameBytes;
use crate::{
    Status,
    proto::{
        frame::{Flags, FrameType, HEADER_LEN, Header, MAX_DATA_LEN},
        message::FrameData,
    },
};

/// Frames up to this many bytes are put together on the stack, as most are. It is cleared for each.
const STACK_FRAME_LEN: usize = 256;

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
        if len > STACK_FRAME_LEN {
            return hand_on(FrameBytes::Large(self.to_vec()));
        }
        let mut stack = [0; STACK_FRAME_LEN];
        stack[..HEADER_LEN].copy_from_slice(&self.header.to_bytes());
        self.data.encode(&mut &mut stack[HEADER_LEN..len]);
        hand_on(FrameBytes::Small(&stack[..len]))
    }

    /// Encodes the frame into a buffer of its own.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend_from_slice(&self.header.to_bytes());
        self.data.encode(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_put_together_on_the_stack(len: usize) -> bool {
        let data = vec![0; len - HEADER_LEN];
        let frame = Frame::new(FrameType::Data, Flags::NONE, 1, &data[..]).expect("it is short");
        frame.encode(|bytes| matches!(bytes, FrameBytes::Small(bytes) if bytes.len() == len))
    }

    #[test]
    fn only_short_frames_are_put_together_on_the_stack() {
        assert!(is_put_together_on_the_stack(STACK_FRAME_LEN));
        assert!(!is_put_together_on_the_stack(STACK_FRAME_LEN + 1));
    }
}
