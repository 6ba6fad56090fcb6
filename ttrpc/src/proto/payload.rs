//! The bytes of a message on their way into prost.

use std::cell::RefCell;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

/// Bytes up to this many are copied into a chunk that they share.
const SHORT: usize = 256;

/// Length of such a chunk: what one of them that is kept may keep alive.
const CHUNK_LEN: usize = 1 << 10;

/// Data up to this many bytes is kept alive by any part of it.
pub(crate) const SHARED_LEN: usize = 16 << 10;

/// A field of longer data keeps that alive if it is at least one of so many parts of it, and is copied else.
const MIN_FIELD_FRACTION: usize = 8;

/// A payload is shared if it is at least half of its frame. What is kept of its fields keeps the whole frame.
const MIN_PAYLOAD_FRACTION: usize = 2;

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

/// Encodes a message into the thread's shared chunk if it is short.
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
/// is a copy more; here it is a reference where the frame's data is shared, and the field no small part of it.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    bytes: &'a [u8],
    /// The data that contains `bytes`.
    shared: Option<&'a Bytes>,
}

impl<'a> Payload<'a> {
    /// Returns a payload that lies in a buffer which goes on to be used.
    pub fn borrowed(bytes: &'a [u8]) -> Self {
        Payload { bytes, shared: None }
    }

    /// Returns a part of bytes that can be shared.
    pub fn shared(bytes: &'a [u8], data: &'a Bytes) -> Self {
        Payload { bytes, shared: Some(data) }
    }

    /// Returns a part of this payload.
    ///
    /// # Panics
    /// If the bytes are shared and `part` does not lie in them.
    pub fn part(self, part: &'a [u8]) -> Self {
        Payload { bytes: part, ..self }
    }

    /// Returns what has not been read yet.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes, to be kept: shared, or copied.
    pub fn to_bytes(self) -> Bytes {
        match self.to_share(self.bytes.len(), MIN_PAYLOAD_FRACTION) {
            Some(data) => data.slice_ref(self.bytes),
            None => copy(self.bytes),
        }
    }

    /// The shared data, unless a part of this length would keep much more alive.
    fn to_share(self, len: usize, parts: usize) -> Option<&'a Bytes> {
        self.shared.filter(|data| data.len() <= SHARED_LEN || len >= data.len() / parts)
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
        match self.to_share(len, MIN_FIELD_FRACTION) {
            Some(data) => data.slice_ref(taken),
            None => copy(taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far one lies after the other.
    fn distance(first: &Bytes, second: &Bytes) -> usize {
        (second.as_ptr() as usize).wrapping_sub(first.as_ptr() as usize)
    }

    #[test]
    fn short_bytes_share_a_chunk_until_it_is_full_and_long_ones_have_their_own() {
        let kept: Vec<_> = (0..CHUNK_LEN / SHORT + 1).map(|_| copy(&[7; SHORT])).collect();
        for pair in kept.windows(2).take(CHUNK_LEN / SHORT - 1) {
            assert_eq!(distance(&pair[0], &pair[1]), SHORT);
        }
        assert_eq!(CHUNK.with_borrow(BytesMut::capacity), CHUNK_LEN - SHORT, "a chunk has begun");
        assert_eq!(copy(&[8; SHORT + 1]), [8; SHORT + 1][..]);
        assert_eq!(CHUNK.with_borrow(BytesMut::capacity), CHUNK_LEN - SHORT, "not of the chunk");
        assert!(kept.iter().all(|bytes| *bytes == [7; SHORT][..]));
    }

    /// Else few bytes that a program keeps of each Request could keep megabytes that it does not see.
    #[test]
    fn a_small_part_of_long_data_is_copied() {
        for (data_len, len, is_shared_payload, is_shared_field) in [
            (SHARED_LEN, 1, true, true),
            (SHARED_LEN + 1, 1, false, false),
            (1 << 20, 1 << 19, true, true),
            (1 << 20, (1 << 19) - 1, false, true),
            (1 << 20, 1 << 17, false, true),
            (1 << 20, (1 << 17) - 1, false, false),
        ] {
            let data = Bytes::from(vec![7; data_len]);
            let mut payload = Payload::shared(&data, &data);
            let part = payload.part(&data[10..10 + len]);
            payload.advance(10);
            let (part, field) = (part.to_bytes(), payload.copy_to_bytes(len));
            for (bytes, is_shared) in [(part, is_shared_payload), (field, is_shared_field)] {
                assert_eq!(bytes, data[..len]);
                let address = data.as_ptr().wrapping_add(10);
                assert_eq!(bytes.as_ptr() == address, is_shared, "{len} of {data_len}");
            }
        }
    }

    #[test]
    fn messages_are_encoded_likewise() {
        // The message of a `bytes` field takes two or three bytes more.
        let message = |len: usize| vec![7_u8; len];
        let len = SHORT - 3;
        let kept: Vec<_> = (0..CHUNK_LEN / SHORT + 1).map(|_| encode(&message(len))).collect();
        assert_eq!(kept[0].len(), SHORT);
        for pair in kept.windows(2).take(CHUNK_LEN / SHORT - 1) {
            assert_eq!(distance(&pair[0], &pair[1]), SHORT);
        }
        assert_eq!(CHUNK.with_borrow(BytesMut::capacity), CHUNK_LEN - SHORT, "a chunk has begun");
        assert_eq!(encode(&message(len + 1)), message(len + 1).encode_to_vec());
        assert_eq!(CHUNK.with_borrow(BytesMut::capacity), CHUNK_LEN - SHORT, "not of the chunk");
        assert!(kept.iter().all(|bytes| *bytes == message(len).encode_to_vec()));
    }
}
