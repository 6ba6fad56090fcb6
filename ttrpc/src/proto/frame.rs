//! The frame header: ten bytes before the data of every frame.
//!
//! ```text
//! bytes 0..4   data length, u32 big-endian, without these ten bytes
//! bytes 4..8   stream id, u32 big-endian; odd for streams that a client opens
//! byte  8      frame type
//! byte  9      flags; their meaning depends on the type
//! ```

use std::fmt;

/// Bytes in a frame header.
pub const HEADER_LEN: usize = 10;

/// The most bytes of data that one frame may carry: 4 MiB (protocol specification, "Message frame").
pub const MAX_DATA_LEN: usize = 4 << 20;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// 0x01: a client opens a stream.
    Request,
    /// 0x02: a server ends a stream.
    Response,
    /// 0x03: a message on a stream, from either side.
    Data,
    /// Any other value. Such frames are ignored, so that later versions may add types.
    Unknown(u8),
}

impl FrameType {
    /// Returns the type's byte on the wire.
    pub fn to_byte(self) -> u8 {
        match self {
            FrameType::Request => 1,
            FrameType::Response => 2,
            FrameType::Data => 3,
            FrameType::Unknown(byte) => byte,
        }
    }

    /// Returns the type that a byte on the wire stands for.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            1 => FrameType::Request,
            2 => FrameType::Response,
            3 => FrameType::Data,
            other => FrameType::Unknown(other),
        }
    }
}

/// A frame's flags. They are said from the receiver's point of view: `remote closed` tells the
/// receiver that its remote is done. Bits without a name are kept and ignored.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag set: a unary Request, any Response, a Data frame in the middle of a stream.
    pub const NONE: Flags = Flags(0);
    /// Nothing more comes from the sender of this frame on this stream.
    pub const REMOTE_CLOSED: Flags = Flags(0x01);
    /// On a Request: the client will send Data on this stream.
    pub const REMOTE_OPEN: Flags = Flags(0x02);
    /// The frame carries no message, which is not the same as an empty message.
    pub const NO_DATA: Flags = Flags(0x04);
    /// The end of one side of a stream: closed, and no message with it.
    pub const END: Flags = Flags(0x01 | 0x04);

    /// Returns whether every flag of `other` is set.
    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether a Request with these flags opens a stream, of requests or of replies.
    pub(crate) fn open_a_stream(self) -> bool {
        self.contains(Flags::REMOTE_OPEN) || self.contains(Flags::REMOTE_CLOSED)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({:#04x})", self.0)
    }
}

/// A decoded frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of data that follow the header. On a received header this is what the peer announced,
    /// which may be more than [`MAX_DATA_LEN`].
    pub data_len: u32,
    /// The stream that the frame belongs to.
    pub stream_id: u32,
    /// The frame's type.
    pub frame_type: FrameType,
    /// The frame's flags.
    pub flags: Flags,
}

impl Header {
    /// Returns the header as it goes over the wire.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        // As two numbers: read again as wholes, at once, after they were written field by field, they would
        // have to wait for the processor's store buffer.
        let lengths = (u64::from(self.data_len) << 32) + u64::from(self.stream_id);
        let kinds = (u16::from(self.frame_type.to_byte()) << 8) + u16::from(self.flags.0);
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&lengths.to_be_bytes());
        bytes[8..].copy_from_slice(&kinds.to_be_bytes());
        bytes
    }

    /// Writes a stream id into an encoded frame.
    ///
    /// # Panics
    /// If `frame` is shorter than a header.
    pub fn set_stream_id(frame: &mut [u8], id: u32) {
        frame[4..8].copy_from_slice(&id.to_be_bytes());
    }

    /// Reads a header. Any ten bytes are a header; whether the frame makes sense is for the
    /// stream [`table`](super::table) to say.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let [l0, l1, l2, l3, s0, s1, s2, s3, frame_type, flags] = *bytes;
        Header {
            data_len: u32::from_be_bytes([l0, l1, l2, l3]),
            stream_id: u32::from_be_bytes([s0, s1, s2, s3]),
            frame_type: FrameType::from_byte(frame_type),
            flags: Flags(flags),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_print_as_their_byte() {
        assert_eq!(format!("{:?}", Flags::END), "Flags(0x05)");
    }
}
