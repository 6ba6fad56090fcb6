//! The bytes of a message on their way into prost.

use std::cell::RefCell;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

/// Bytes up to this many are copied into a chunk that they share.
const SHORT: usize = 256;

/// Length of such a chunk: what one of them that is kept may keep alive.
const CHUNK_LEN: usize = 1 << 10;

thread_local! {
    /// The rest of the present chunk.
    static CHUNK: RefCell<BytesMut> = RefCell::default();
}

/// Copies bytes. Short ones share an allocation of a kibibyte with others; most of them are decoded
/// and dropped at once, and the chunk is used again.
pub(crate) fn copy(bytes: &[u8]) -> Bytes {
    if bytes.len() > SHORT {
        return Bytes::copy_from_slice(bytes);
    }
    CHUNK.with_borrow_mut(|chunk| {
        if chunk.capacity() < bytes.len() {
            chunk.reserve(CHUNK_LEN);
        }
        chunk.extend_from_slice(bytes);
        chunk.split().freeze()
    })
}

/// Encodes a message, likewise.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    if len > SHORT {
        return message.encode_to_vec().into();
    }
    // Not borrowed meanwhile: to encode a message is the program's.
    let mut chunk = CHUNK.take();
    if chunk.capacity() < len {
        chunk.reserve(CHUNK_LEN);
    }
    // Into a slice, which is cheaper than into what may grow.
    chunk.resize(len, 0);
    message.encode_raw(&mut &mut chunk[..]);
    let encoded = chunk.split().freeze();
    CHUNK.with_borrow_mut(|rest| *rest = chunk);
    encoded
}

/// The bytes of a message, to be decoded.
///
/// prost takes a field of bytes out of its buffer as [`Bytes`] before it stores it. From a slice that
/// is a copy more; here it is a reference where the frame's data is shared.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// What `bytes` is a part of.
    shared: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// A payload that lies in a buffer which goes on to be used.
    pub fn borrowed(bytes: &'a [u8]) -> Self {
        Payload { bytes, shared: None }
    }

    /// A part of bytes that can be shared.
    pub fn shared(bytes: &'a [u8], data: &'a Bytes) -> Self {
        Payload { bytes, shared: Some(data) }
    }

    /// A part of this payload.
    ///
    /// # Panics
    /// If the bytes are shared and `part` does not lie in them.
    pub fn part(self, part: &'a [u8]) -> Self {
        Payload { bytes: part, ..self }
    }

    /// What has not been read yet.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes, to be kept: shared, or copied.
    pub fn to_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.bytes.len())
    }
}

impl Buf for Payload<'_> {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes = &self.bytes[count..];
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let (taken, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        match self.shared {
            Some(data) => data.slice_ref(taken),
            None => copy(taken),
        }
    }
}
