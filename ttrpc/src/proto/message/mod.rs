//! Request, Response and Status on the wire (package `ttrpc`, and `google.rpc.Status`).
//!
//! ```text
//! Request  { string service = 1; string method = 2; bytes payload = 3; int64 timeout_nano = 4;
//!            repeated KeyValue metadata = 5; }
//! Response { google.rpc.Status status = 1; bytes payload = 2; }
//! KeyValue { string key = 1; string value = 2; }
//! ```
//!
//! Written by hand on top of prost's wire primitives, so that a payload is encoded straight into its
//! frame, without a buffer of its own, and decoded without a copy in between.

mod request;
mod status;
mod unknown;

use bytes::BufMut;
use prost::{
    Message,
    encoding::{
        DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint,
        encoded_len_varint, key_len, skip_field,
    },
};

pub use request::{EncodedMetadata, Request, RequestDecoder, RequestParts};
pub use status::{MAX_DETAILS, encode_status};
use status::{StatusMessage, merge_status};

use crate::Status;

/// Data of a frame, to be encoded.
pub trait FrameData {
    /// Bytes that [`FrameData::encode`] writes.
    fn encoded_len(&self) -> usize;

    /// Writes the data to the start of `buf`, which is what follows it afterwards.
    ///
    /// # Panics
    /// If `buf` is shorter than [`FrameData::encoded_len`] says.
    fn encode(&self, buf: &mut &mut [u8]);

    /// Returns the encoded data.
    fn to_vec(&self) -> Vec<u8> {
        let mut data = vec![0; self.encoded_len()];
        self.encode(&mut &mut data[..]);
        data
    }
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

    fn encode(&self, buf: &mut &mut [u8]) {
        self.message.encode_raw(buf);
    }
}

impl FrameData for &[u8] {
    fn encoded_len(&self) -> usize {
        self.len()
    }

    fn encode(&self, buf: &mut &mut [u8]) {
        buf.put_slice(self);
    }
}

/// A message of any type, so that the code of its data exists once and not for each type of a program.
pub(crate) trait DynMessage: Send + Sync {
    fn dyn_encoded_len(&self) -> usize;

    fn dyn_encode(&self, buf: &mut &mut [u8]);
}

impl<M: Message> DynMessage for M {
    fn dyn_encoded_len(&self) -> usize {
        self.encoded_len()
    }

    fn dyn_encode(&self, buf: &mut &mut [u8]) {
        self.encode_raw(buf);
    }
}

/// The data of a Data frame, and with `is_response` that of a successful Response.
pub(crate) struct DynData<'a> {
    message: &'a dyn DynMessage,
    len: usize,
    is_response: bool,
}

impl<'a> DynData<'a> {
    /// Computes the message's length, once.
    pub(crate) fn of_message(message: &'a dyn DynMessage) -> Self {
        DynData { message, len: message.dyn_encoded_len(), is_response: false }
    }

    pub(crate) fn of_response(message: &'a dyn DynMessage) -> Self {
        DynData { is_response: true, ..DynData::of_message(message) }
    }
}

impl FrameData for DynData<'_> {
    fn encoded_len(&self) -> usize {
        if self.is_response { non_empty_len(2, self.len) } else { self.len }
    }

    fn encode(&self, buf: &mut &mut [u8]) {
        if self.is_response && self.len > 0 {
            put_key(2, self.len, buf);
        }
        self.message.dyn_encode(buf);
    }
}

/// The first byte of an encoded `status`, field 1 of a Response.
const STATUS_KEY: u8 = delimited_key(1);

/// Returns whether the data of a Response begins with a status, as that of a failure does.
pub(crate) fn begins_with_status(data: &[u8]) -> bool {
    data.first() == Some(&STATUS_KEY)
}

/// Returns a decoded Response: the payload of a success, or the status of a failure, with no more than
/// [`MAX_DETAILS`] details.
///
/// # Errors
/// If the bytes are not a protobuf message of this shape.
pub fn decode_response(mut data: &[u8]) -> Result<Result<&[u8], Status>, Malformed> {
    let (mut status, mut payload) = (None, &[][..]);
    while !data.is_empty() {
        let (tag, wire_type) = take_key(&mut data)?;
        match (tag, wire_type) {
            (1, WireType::LengthDelimited) => {
                merge_status(status.get_or_insert_default(), take_bytes(&mut data)?)?;
            }
            (2, WireType::LengthDelimited) => payload = take_bytes(&mut data)?,
            _ => skip_field(wire_type, tag, &mut data, DecodeContext::default())?,
        }
    }
    match status {
        Some(StatusMessage { code, message, details }) if code != 0 => {
            Ok(Err(Status::received(code, message, details)))
        }
        _ => Ok(Ok(payload)),
    }
}

/// A successful Response with this payload. Its status is left out, which means OK.
#[derive(Debug)]
pub struct ResponseParts<'a, M>(pub Measured<'a, M>);

impl<M: Message> FrameData for ResponseParts<'_, M> {
    fn encoded_len(&self) -> usize {
        non_empty_len(2, self.0.encoded_len())
    }

    fn encode(&self, buf: &mut &mut [u8]) {
        put_message(2, &self.0, buf);
    }
}

// Fields, on top of prost's primitives. Empty ones are not written, as proto3 has it. What most fields of this protocol are is
// inlined: a call has some twenty.
// Taking a field always is: left to the compiler, it is a function of its own in some builds, 200 instructions a call.

/// Bytes of a length-delimited field.
#[inline]
fn delimited_len(tag: u32, len: usize) -> usize {
    // Most lengths are one byte.
    let len_len = if len < 0x80 { 1 } else { encoded_len_varint(len as u64) };
    key_len(tag) + len_len + len
}

/// Bytes of a length-delimited field that is not written if it is empty.
#[inline]
fn non_empty_len(tag: u32, len: usize) -> usize {
    if len == 0 { 0 } else { delimited_len(tag, len) }
}

/// Bytes of a number.
#[inline]
fn varint_len(tag: u32, number: u64) -> usize {
    if number == 0 { 0 } else { key_len(tag) + encoded_len_varint(number) }
}

/// The key of a length-delimited field, which is one byte for the tags of this protocol.
const fn delimited_key(tag: u8) -> u8 {
    assert!(tag < 16, "its key is longer");
    tag << 3 | WireType::LengthDelimited as u8
}

/// Begins a length-delimited field, whose tag is below 16.
#[inline]
fn put_key(tag: u8, len: usize, buf: &mut &mut [u8]) {
    match u8::try_from(len) {
        // Most lengths are one byte as well.
        Ok(len @ ..0x80) => buf.put_slice(&[delimited_key(tag), len]),
        _ => put_long_key(tag, len, buf),
    }
}

fn put_long_key(tag: u8, len: usize, buf: &mut &mut [u8]) {
    buf.put_u8(delimited_key(tag));
    encode_varint(len as u64, buf);
}

#[inline]
fn put_non_empty(tag: u8, bytes: &[u8], buf: &mut &mut [u8]) {
    if !bytes.is_empty() {
        put_key(tag, bytes.len(), buf);
        buf.put_slice(bytes);
    }
}

#[inline]
fn put_message(tag: u8, message: &Measured<'_, impl Message>, buf: &mut &mut [u8]) {
    let len = message.encoded_len();
    if len > 0 {
        put_key(tag, len, buf);
        message.encode(buf);
    }
}

#[inline]
fn put_varint(tag: u32, number: u64, buf: &mut &mut [u8]) {
    if number != 0 {
        encode_key(tag, WireType::Varint, buf);
        encode_varint(number, buf);
    }
}

/// Takes the key of a field: its tag and its wire type.
#[inline(always)]
fn take_key(data: &mut &[u8]) -> Result<(u32, WireType), Malformed> {
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
#[inline(always)]
fn take_bytes<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
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

fn take_str<'a>(data: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    Ok(std::str::from_utf8(take_bytes(data)?)?)
}
