//! Fields of protobuf messages, on top of prost's primitives. Empty ones are not written, as proto3 has it.

use bytes::BufMut;
use prost::{
    Message,
    encoding::{
        WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len,
    },
};

use super::{FrameData, Malformed, Measured};

/// Bytes of a length-delimited field.
pub(super) fn delimited_len(tag: u32, len: usize) -> usize {
    // Most lengths are one byte.
    let len_len = if len < 0x80 { 1 } else { encoded_len_varint(len as u64) };
    key_len(tag) + len_len + len
}

/// Bytes of a length-delimited field that is not written if it is empty.
pub(super) fn non_empty_len(tag: u32, len: usize) -> usize {
    if len == 0 { 0 } else { delimited_len(tag, len) }
}

/// Bytes of a number.
pub(super) fn varint_len(tag: u32, number: u64) -> usize {
    if number == 0 { 0 } else { key_len(tag) + encoded_len_varint(number) }
}

/// The key of a length-delimited field, which is one byte for the tags of this protocol.
pub(super) const fn delimited_key(tag: u8) -> u8 {
    assert!(tag < 16, "its key is longer");
    tag << 3 | WireType::LengthDelimited as u8
}

/// Begins a length-delimited field, whose tag is below 16.
pub(super) fn put_key(tag: u8, len: usize, buf: &mut impl BufMut) {
    match u8::try_from(len) {
        // Most lengths are one byte as well.
        Ok(len @ ..0x80) => buf.put_slice(&[delimited_key(tag), len]),
        _ => put_long_key(tag, len, buf),
    }
}

fn put_long_key(tag: u8, len: usize, buf: &mut impl BufMut) {
    buf.put_u8(delimited_key(tag));
    encode_varint(len as u64, buf);
}

pub(super) fn put_non_empty(tag: u8, bytes: &[u8], buf: &mut impl BufMut) {
    if !bytes.is_empty() {
        put_key(tag, bytes.len(), buf);
        buf.put_slice(bytes);
    }
}

pub(super) fn put_message(tag: u8, message: &Measured<'_, impl Message>, buf: &mut impl BufMut) {
    let len = message.encoded_len();
    if len > 0 {
        put_key(tag, len, buf);
        message.encode(buf);
    }
}

pub(super) fn put_varint(tag: u32, number: u64, buf: &mut impl BufMut) {
    if number != 0 {
        encode_key(tag, WireType::Varint, buf);
        encode_varint(number, buf);
    }
}

/// Takes the key of a field: its tag and its wire type.
pub(super) fn take_key(data: &mut &[u8]) -> Result<(u32, WireType), Malformed> {
    match **data {
        // All fields of this protocol but two have such a key.
        [key @ 8..0x80, ref rest @ ..] if key & 7 == WireType::LengthDelimited as u8 => {
            *data = rest;
            Ok((u32::from(key >> 3), WireType::LengthDelimited))
        }
        _ => take_any_key(data),
    }
}

fn take_any_key(data: &mut &[u8]) -> Result<(u32, WireType), Malformed> {
    Ok(decode_key(data)?)
}

/// Takes the bytes of a length-delimited field, after its key.
pub(super) fn take_bytes<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    if let [len @ ..0x80, ref rest @ ..] = **data
        && let Some((taken, rest)) = rest.split_at_checked(len.into())
    {
        *data = rest;
        return Ok(taken);
    }
    take_long_bytes(data)
}

fn take_long_bytes<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let len = usize::try_from(decode_varint(data)?).unwrap_or(usize::MAX);
    let (taken, rest) = data.split_at_checked(len).ok_or(Malformed::Truncated)?;
    *data = rest;
    Ok(taken)
}

pub(super) fn take_str<'a>(data: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    Ok(std::str::from_utf8(take_bytes(data)?)?)
}
