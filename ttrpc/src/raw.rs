//! Messages that stay encoded.

use std::mem;

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, encode_key, skip_field},
};

/// A message that stays encoded, for proxies, recorders, and types that are known at run time.
///
/// It goes wherever a message goes: as request and reply of a call, as message of a stream, on both sides.
/// Its encoding is its bytes, whatever they are.
///
/// ```
/// # use ttrpc::{Client, Raw, Status};
/// # async fn example(client: &Client, service: String, method: String) -> Result<(), Status> {
/// let request = Raw::from(&b"\x0a\x03Ann"[..]);
/// let Raw(reply) = client.unary(service, method, request).await?;
/// # let _: bytes::Bytes = reply; Ok(()) }
/// ```
///
/// Received bytes are copied once, unless they are a large part of a long frame. Those stay a part of their read
/// buffer, and keep at most sixteen times their length alive. Short messages of a stream share up to 32 KiB, which any
/// of them keeps alive. Sent bytes are copied into their frame.
///
/// A message type that has no `Default`, such as prost-reflect's `DynamicMessage`, is decoded from the
/// bytes: `DynamicMessage::decode(descriptor, reply.0)`, and encoded into them:
/// `Raw(message.encode_to_vec().into())`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw(pub Bytes);

/// The successful end of a call whose kind is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawEnd {
    /// With a Response: the one reply, be it empty. Some servers end a stream of replies so, with a
    /// last message or an empty one that means nothing.
    Reply(Raw),
    /// With the end of the stream of replies.
    Closed,
}

impl From<Bytes> for Raw {
    fn from(bytes: Bytes) -> Self {
        Raw(bytes)
    }
}

impl From<Vec<u8>> for Raw {
    fn from(bytes: Vec<u8>) -> Self {
        Raw(bytes.into())
    }
}

impl From<&'static [u8]> for Raw {
    fn from(bytes: &'static [u8]) -> Self {
        Raw(Bytes::from_static(bytes))
    }
}

/// To merge is to append, as protobuf's encoding has it.
impl Message for Raw {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn merge(&mut self, mut buf: impl Buf) -> Result<(), DecodeError> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        if self.0.is_empty() {
            self.0 = bytes;
        } else {
            self.append(|all| all.extend_from_slice(&bytes));
        }
        Ok(())
    }

    /// For a `Raw` that is a field of another message.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.append(|all| {
            encode_key(tag, wire_type, all);
            skip_field(wire_type, tag, &mut Copying { from: buf, to: all }, ctx)
        })
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Raw {
    fn append<R>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut all = Vec::from(mem::take(&mut self.0));
        let result = append(&mut all);
        self.0 = all.into();
        result
    }
}

/// Copies what is read from a buffer.
struct Copying<'a, B> {
    from: &'a mut B,
    to: &'a mut Vec<u8>,
}

impl<B: Buf> Buf for Copying<'_, B> {
    fn remaining(&self) -> usize {
        self.from.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.from.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.to.put(self.from.take(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = &[0xff, 0, 1];

    #[derive(Clone, PartialEq, Message)]
    struct Holder {
        #[prost(message, optional, tag = "1")]
        raw: Option<Raw>,
        #[prost(string, tag = "2")]
        text: String,
    }

    #[test]
    fn raw_bytes_pass_whatever_they_are_and_are_shared() {
        let bytes = Bytes::copy_from_slice(BYTES);
        let raw = Raw::decode(bytes.clone()).unwrap();
        assert_eq!(raw.0.as_ptr(), bytes.as_ptr());
        assert_eq!((raw.encode_to_vec(), raw.encoded_len()), (BYTES.to_vec(), 3));
        assert_eq!(Raw::from(bytes), raw);
        assert_eq!(Raw::decode(&[][..]).unwrap(), Raw::default());
    }

    #[test]
    fn raw_messages_merge_by_concatenation() {
        let mut raw = Raw::from(BYTES);
        raw.merge(&b"more"[..]).unwrap();
        assert_eq!(raw, Raw::from([BYTES, b"more"].concat()));
        raw.clear();
        assert_eq!(raw, Raw::default());
    }

    #[test]
    fn raw_field_keeps_fields_of_every_wire_type() {
        // A varint, 64 bits, a string, a group with a varint in it, 32 bits.
        let fields = [
            &[0x08, 0x96, 0x01][..],
            &[0x11, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x1a, 2, b'h', b'i'],
            &[0x23, 0x08, 0x05, 0x24],
            &[0x2d, 1, 2, 3, 4],
        ]
        .concat();
        let holder = Holder { raw: Some(fields.into()), text: "behind".to_owned() };
        assert_eq!(Holder::decode(&holder.encode_to_vec()[..]), Ok(holder.clone()));
        let cut = Holder { raw: Some(Raw::from(&[0x1a, 9, b'h'][..])), text: String::new() };
        assert!(Holder::decode(&cut.encode_to_vec()[..]).is_err());
    }
}
