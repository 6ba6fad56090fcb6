//! Request, Response and Status on the wire (package `ttrpc`, and `google.rpc.Status`).
//!
//! ```text
//! Request  { string service = 1; string method = 2; bytes payload = 3; int64 timeout_nano = 4;
//!            repeated KeyValue metadata = 5; }
//! Response { google.rpc.Status status = 1; bytes payload = 2; }
//! KeyValue { string key = 1; string value = 2; }
//! ```
//!
//! Written by hand on top of prost's wire primitives, so that a payload is encoded once, straight
//! into its frame, and decoded without a copy in between.

mod fields;
mod request;
mod response;

use bytes::BufMut;
use prost::Message;

pub use request::{EncodedMetadata, Request, RequestDecoder, RequestParts};
pub(crate) use response::begins_with_status;
pub use response::{MAX_DETAILS, ResponseParts, decode_response, encode_status};

/// Data of a frame, to be encoded.
pub trait FrameData {
    /// Bytes that [`FrameData::encode`] writes.
    fn encoded_len(&self) -> usize;

    /// Writes the data.
    ///
    /// # Panics
    /// If `buf` is shorter than [`FrameData::encoded_len`] says.
    fn encode(&self, buf: &mut impl BufMut);
}

/// Why the data of a frame is not the message that it should be.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// A field reaches past the end of the data.
    #[error("a field is longer than the message")]
    Truncated,
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    NotUtf8(#[from] std::str::Utf8Error),
    /// Anything else that protobuf does not allow.
    #[error(transparent)]
    Protobuf(#[from] prost::DecodeError),
    /// A Request, or a pair of its metadata, has fields that no version knows of, too many to be skipped.
    #[error("a Request or a pair of its metadata has too many fields")]
    TooManyFields,
    /// An unknown group is not closed as it was opened, or has more groups in it than are looked through.
    #[error("a group is not closed as it was opened, or is nested too deeply")]
    Group,
    /// There are more pairs of metadata than the receiver takes.
    #[error("there are more than {0} pairs of metadata")]
    TooManyPairs(usize),
}

/// A message and its encoded length, for which the whole message is walked through: once. By itself it is
/// the data of a Data frame.
#[derive(Debug)]
pub struct Measured<'a, M> {
    message: &'a M,
    len: usize,
}

impl<'a, M: Message> Measured<'a, M> {
    /// Computes the message's length.
    pub fn new(message: &'a M) -> Self {
        Measured { message, len: message.encoded_len() }
    }
}

impl<M: Message> FrameData for Measured<'_, M> {
    fn encoded_len(&self) -> usize {
        self.len
    }

    fn encode(&self, buf: &mut impl BufMut) {
        self.message.encode_raw(buf);
    }
}

impl FrameData for &[u8] {
    fn encoded_len(&self) -> usize {
        self.len()
    }

    fn encode(&self, buf: &mut impl BufMut) {
        buf.put_slice(self);
    }
}
