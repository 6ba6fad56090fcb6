//! Fields of protobuf messages, on top of prost's primitives. Empty ones are not written, as proto3 has it.

use bytes::BufMut;
use prost::{
    Message,
    encoding::{WireType, decode_varint, encode_key, encode_varint, encoded_len_varint, key_len},
};

use super::{FrameData, Malformed, Measured};

/// Bytes of a length-delimited field.
pub(super) fn delimited_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

/// The same, 0 if it is empty.
pub(super) fn non_empty_len(tag: u32, len: usize) -> usize {
    if len == 0 { 0 } else { delimited_len(tag, len) }
}

/// Bytes of a number.
pub(super) fn varint_len(tag: u32, number: u64) -> usize {
    if number == 0 { 0 } else { key_len(tag) + encoded_len_varint(number) }
}

/// Begins a length-delimited field.
pub(super) fn put_key(tag: u32, len: usize, buf: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, buf);
    encode_varint(len as u64, buf);
}

pub(super) fn put_non_empty(tag: u32, bytes: &[u8], buf: &mut impl BufMut) {
    if !bytes.is_empty() {
        put_key(tag, bytes.len(), buf);
        buf.put_slice(bytes);
    }
}

pub(super) fn put_message(tag: u32, message: &Measured<'_, impl Message>, buf: &mut impl BufMut) {
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

pub(super) fn take_bytes<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let len = usize::try_from(decode_varint(data)?).unwrap_or(usize::MAX);
    let (taken, rest) = data.split_at_checked(len).ok_or(Malformed::Truncated)?;
    *data = rest;
    Ok(taken)
}

pub(super) fn take_str<'a>(data: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    Ok(std::str::from_utf8(take_bytes(data)?)?)
}
