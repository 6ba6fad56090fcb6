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

use bytes::BufMut;
use prost::{
    Message,
    encoding::{
        DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint,
        encoded_len_varint, key_len, skip_field,
    },
};
use prost_types::Any;

use crate::{Metadata, Status};

/// What can be the data of a frame.
pub trait FrameData {
    /// Bytes that [`FrameData::encode`] writes.
    fn encoded_len(&self) -> usize;

    /// Writes the data.
    ///
    /// # Panics
    /// If `buf` has less room than [`FrameData::encoded_len`] says.
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
    /// A pair of metadata has fields that no version knows of, too many to be skipped.
    #[error("a pair of metadata has too many fields")]
    TooManyFields,
    /// A field is a group, which this protocol has none of.
    #[error("a field is a group")]
    Group,
    /// There are more pairs of metadata than the receiver takes.
    #[error("there are more than {0} pairs of metadata")]
    TooManyPairs(usize),
}

/// The most details of a status that are decoded; those behind them are dropped. An empty detail takes
/// two bytes on the wire and fifty in memory.
pub const MAX_DETAILS: usize = 1024;

/// Fields that a pair of metadata may have, unknown ones included: an honest one has two.
const MAX_PAIR_FIELDS: usize = 16;

/// What a pair of metadata costs beside its bytes: two strings.
const PAIR_COST: usize = 2 * size_of::<String>();

/// What a string that is not empty costs beside its bytes: what allocation adds.
const STRING_COST: usize = 16;

/// A decoded Request that borrows everything from its frame.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Full protobuf name of the service, `containerd.task.v2.Task` for example.
    pub service: &'a str,
    /// Bare name of the method, `State` for example.
    pub method: &'a str,
    /// The encoded request message.
    pub payload: &'a [u8],
    /// Nanoseconds from now until the deadline: 0 for none, negative if it has passed already.
    pub timeout_nano: i64,
    /// The call's metadata.
    pub metadata: EncodedMetadata<'a>,
}

impl<'a> Request<'a> {
    /// Decodes the data of a Request frame. Unknown fields are skipped.
    ///
    /// # Errors
    /// If the bytes are not a protobuf message of this shape.
    pub fn decode(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut decoder = RequestDecoder::new(data, usize::MAX);
        loop {
            if let Some(request) = decoder.advance(usize::MAX)? {
                return Ok(request);
            }
        }
    }
}

/// Metadata that has been found in a Request and not been decoded.
#[derive(Clone, Copy, Debug)]
pub struct EncodedMetadata<'a> {
    /// The Request, from its first pair on.
    data: &'a [u8],
    pairs: usize,
    cost: usize,
}

impl EncodedMetadata<'_> {
    /// The number of pairs.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// What the decoded pairs cost to keep, in bytes of memory.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Decodes the pairs, in order.
    ///
    /// # Errors
    /// [`Malformed::NotUtf8`].
    pub fn decode(&self) -> Result<Metadata, Malformed> {
        let mut metadata = Metadata::with_capacity(self.pairs);
        let mut data = self.data;
        while metadata.len() < self.pairs {
            let (tag, wire_type) = decode_key(&mut data)?;
            if (tag, wire_type) == (5, WireType::LengthDelimited) {
                let (key, value) = decode_key_value(take_bytes(&mut data)?)?;
                let (key, value) = (std::str::from_utf8(key)?, std::str::from_utf8(value)?);
                metadata.push_received(key.to_owned(), value.to_owned());
            } else {
                skip_field(wire_type, tag, &mut data, DecodeContext::default())?;
            }
        }
        Ok(metadata)
    }
}

/// Decodes a Request in steps, so that a peer's Request of millions of fields keeps no task from
/// giving others their turn.
#[derive(Debug)]
pub struct RequestDecoder<'a> {
    rest: &'a [u8],
    request: Request<'a>,
    max_pairs: usize,
}

impl<'a> RequestDecoder<'a> {
    /// Decodes this data of a Request frame, with no more than so many pairs of metadata.
    pub fn new(data: &'a [u8], max_pairs: usize) -> Self {
        let metadata = EncodedMetadata { data, pairs: 0, cost: 0 };
        let request = Request { service: "", method: "", payload: &[], timeout_nano: 0, metadata };
        RequestDecoder { rest: data, request, max_pairs }
    }

    /// The Request as far as it has been decoded.
    pub fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// Decodes up to so many fields more; returns the Request once it is whole. Unknown fields are
    /// skipped.
    ///
    /// # Errors
    /// If the bytes are not a protobuf message of this shape, or it has too many pairs of metadata.
    pub fn advance(&mut self, max_fields: usize) -> Result<Option<Request<'a>>, Malformed> {
        let (data, request) = (&mut self.rest, &mut self.request);
        for _ in 0..max_fields {
            if data.is_empty() {
                return Ok(Some(*request));
            }
            let field = *data;
            let (tag, wire_type) = decode_key(data)?;
            match (tag, wire_type) {
                (1, WireType::LengthDelimited) => request.service = take_str(data)?,
                (2, WireType::LengthDelimited) => request.method = take_str(data)?,
                (3, WireType::LengthDelimited) => request.payload = take_bytes(data)?,
                (4, WireType::Varint) => request.timeout_nano = decode_varint(data)? as i64,
                (5, WireType::LengthDelimited) => {
                    let metadata = &mut request.metadata;
                    if metadata.pairs == 0 {
                        metadata.data = field;
                    }
                    let (key, value) = decode_key_value(take_bytes(data)?)?;
                    if metadata.pairs == self.max_pairs {
                        return Err(Malformed::TooManyPairs(self.max_pairs));
                    }
                    metadata.pairs += 1;
                    metadata.cost += PAIR_COST + string_cost(key) + string_cost(value);
                }
                _ => skip(wire_type, tag, data)?,
            }
        }
        Ok(None)
    }
}

fn string_cost(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { STRING_COST + bytes.len() }
}

/// A Request about to be encoded.
#[derive(Debug)]
pub struct RequestParts<'a, M> {
    /// Full protobuf name of the service.
    pub service: &'a str,
    /// Bare name of the method.
    pub method: &'a str,
    /// The request message; `None` for a stream that opens without one.
    pub payload: Option<&'a M>,
    /// Nanoseconds until the deadline, 0 for none.
    pub timeout_nano: i64,
    /// The call's metadata.
    pub metadata: &'a Metadata,
}

impl<M: Message> FrameData for RequestParts<'_, M> {
    fn encoded_len(&self) -> usize {
        let metadata: usize = (self.metadata.iter())
            .map(|(key, value)| delimited_len(5, key_value_len(key, value)))
            .sum();
        non_empty_len(1, self.service.len())
            + non_empty_len(2, self.method.len())
            + non_empty_len(3, self.payload.map_or(0, M::encoded_len))
            + if self.timeout_nano == 0 {
                0
            } else {
                key_len(4) + encoded_len_varint(self.timeout_nano as u64)
            }
            + metadata
    }

    fn encode(&self, buf: &mut impl BufMut) {
        put_non_empty(1, self.service.as_bytes(), buf);
        put_non_empty(2, self.method.as_bytes(), buf);
        if let Some(payload) = self.payload {
            put_message(3, payload, buf);
        }
        if self.timeout_nano != 0 {
            encode_key(4, WireType::Varint, buf);
            encode_varint(self.timeout_nano as u64, buf);
        }
        for (key, value) in self.metadata.iter() {
            encode_key(5, WireType::LengthDelimited, buf);
            encode_varint(key_value_len(key, value) as u64, buf);
            put_non_empty(1, key.as_bytes(), buf);
            put_non_empty(2, value.as_bytes(), buf);
        }
    }
}

/// A decoded Response: the payload of a success, or the status of a failure, with no more than
/// [`MAX_DETAILS`] details.
///
/// # Errors
/// If the bytes are not a protobuf message of this shape.
pub fn decode_response(mut data: &[u8]) -> Result<Result<&[u8], Status>, Malformed> {
    let (mut status, mut payload) = (StatusMessage::default(), &[][..]);
    while !data.is_empty() {
        let (tag, wire_type) = decode_key(&mut data)?;
        match (tag, wire_type) {
            (1, WireType::LengthDelimited) => merge_status(&mut status, take_bytes(&mut data)?)?,
            (2, WireType::LengthDelimited) => payload = take_bytes(&mut data)?,
            _ => skip_field(wire_type, tag, &mut data, DecodeContext::default())?,
        }
    }
    if status.code == 0 {
        return Ok(Ok(payload));
    }
    Ok(Err(Status::received(status.code, status.message, status.details)))
}

/// A successful Response with this payload. Its status is left out, which means OK.
#[derive(Debug)]
pub struct ResponseParts<'a, M>(pub &'a M);

impl<M: Message> FrameData for ResponseParts<'_, M> {
    fn encoded_len(&self) -> usize {
        non_empty_len(2, self.0.encoded_len())
    }

    fn encode(&self, buf: &mut impl BufMut) {
        put_message(2, self.0, buf);
    }
}

/// A message of a stream: the data of a Data frame.
#[derive(Debug)]
pub struct DataParts<'a, M>(pub &'a M);

impl<M: Message> FrameData for DataParts<'_, M> {
    fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }

    fn encode(&self, buf: &mut impl BufMut) {
        self.0.encode(buf).expect("the caller has made room");
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

/// The data of a Response that carries a failure.
pub fn encode_status(status: &Status) -> Vec<u8> {
    let message = StatusMessage {
        code: status.raw_code(),
        message: status.message().to_owned(),
        details: status.details().to_vec(),
    };
    let mut data = Vec::with_capacity(delimited_len(1, message.encoded_len()));
    encode_key(1, WireType::LengthDelimited, &mut data);
    encode_varint(message.encoded_len() as u64, &mut data);
    message.encode(&mut data).expect("a vector grows");
    data
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// Decodes what is found of a status into what there is of it, as protobuf merges messages.
fn merge_status(status: &mut StatusMessage, mut data: &[u8]) -> Result<(), Malformed> {
    while !data.is_empty() {
        let (tag, wire_type) = decode_key(&mut data)?;
        match (tag, wire_type) {
            (1, WireType::Varint) => status.code = decode_varint(&mut data)? as i32,
            (2, WireType::LengthDelimited) => status.message = take_str(&mut data)?.to_owned(),
            (3, WireType::LengthDelimited) if status.details.len() < MAX_DETAILS => {
                status.details.push(Any::decode(take_bytes(&mut data)?)?);
            }
            _ => skip_field(wire_type, tag, &mut data, DecodeContext::default())?,
        }
    }
    Ok(())
}

fn decode_key_value(mut data: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (mut key, mut value) = (&[][..], &[][..]);
    for _ in 0..MAX_PAIR_FIELDS {
        if data.is_empty() {
            return Ok((key, value));
        }
        let (tag, wire_type) = decode_key(&mut data)?;
        match (tag, wire_type) {
            (1, WireType::LengthDelimited) => key = take_bytes(&mut data)?,
            (2, WireType::LengthDelimited) => value = take_bytes(&mut data)?,
            _ => skip(wire_type, tag, &mut data)?,
        }
    }
    Err(Malformed::TooManyFields)
}

/// Skips an unknown field, in a time that does not depend on what is in it.
fn skip(wire_type: WireType, tag: u32, data: &mut &[u8]) -> Result<(), Malformed> {
    match wire_type {
        WireType::StartGroup | WireType::EndGroup => Err(Malformed::Group),
        _ => Ok(skip_field(wire_type, tag, data, DecodeContext::default())?),
    }
}

fn take_bytes<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let len = usize::try_from(decode_varint(data)?).unwrap_or(usize::MAX);
    let (taken, rest) = data.split_at_checked(len).ok_or(Malformed::Truncated)?;
    *data = rest;
    Ok(taken)
}

fn take_str<'a>(data: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    Ok(std::str::from_utf8(take_bytes(data)?)?)
}

/// Bytes of a length-delimited field, left out when empty as proto3 does.
fn non_empty_len(tag: u32, len: usize) -> usize {
    if len == 0 { 0 } else { delimited_len(tag, len) }
}

fn delimited_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

fn key_value_len(key: &str, value: &str) -> usize {
    non_empty_len(1, key.len()) + non_empty_len(2, value.len())
}

fn put_non_empty(tag: u32, bytes: &[u8], buf: &mut impl BufMut) {
    if !bytes.is_empty() {
        encode_key(tag, WireType::LengthDelimited, buf);
        encode_varint(bytes.len() as u64, buf);
        buf.put_slice(bytes);
    }
}

fn put_message(tag: u32, message: &impl Message, buf: &mut impl BufMut) {
    let len = message.encoded_len();
    if len > 0 {
        encode_key(tag, WireType::LengthDelimited, buf);
        encode_varint(len as u64, buf);
        message.encode(buf).expect("the caller has made room");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same messages as prost would derive them, to compare with.
    #[derive(Clone, PartialEq, Message)]
    struct ReferenceRequest {
        #[prost(string, tag = "1")]
        service: String,
        #[prost(string, tag = "2")]
        method: String,
        #[prost(bytes = "vec", tag = "3")]
        payload: Vec<u8>,
        #[prost(int64, tag = "4")]
        timeout_nano: i64,
        #[prost(message, repeated, tag = "5")]
        metadata: Vec<ReferenceKeyValue>,
    }
    #[derive(Clone, PartialEq, Message)]
    struct ReferenceKeyValue {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }
    #[derive(Clone, PartialEq, Message)]
    struct ReferenceResponse {
        #[prost(message, tag = "1")]
        status: Option<StatusMessage>,
        #[prost(bytes = "vec", tag = "2")]
        payload: Vec<u8>,
    }

    fn reference_request(timeout_nano: i64) -> ReferenceRequest {
        let pair =
            |key: &str, value: &str| ReferenceKeyValue { key: key.into(), value: value.into() };
        ReferenceRequest {
            service: "pkg.Service".into(),
            method: "Method".into(),
            payload: prost_types::Timestamp { seconds: 7, nanos: 8 }.encode_to_vec(),
            timeout_nano,
            metadata: vec![pair("k", "1"), pair("k", ""), pair("", "x")],
        }
    }

    #[test]
    fn requests_are_written_as_prost_writes_them() {
        for timeout_nano in [0, 1, -1, i64::MAX] {
            let parts = RequestParts {
                service: "pkg.Service",
                method: "Method",
                payload: Some(&prost_types::Timestamp { seconds: 7, nanos: 8 }),
                timeout_nano,
                metadata: &Metadata::from_iter([("k", "1"), ("k", ""), ("", "x")]),
            };
            let mut data = Vec::new();
            parts.encode(&mut data);
            assert_eq!(data, reference_request(timeout_nano).encode_to_vec());
            assert_eq!(data.len(), parts.encoded_len());
        }
    }

    #[test]
    fn requests_are_read_as_prost_writes_them() {
        for timeout_nano in [0, 1, -1, i64::MAX] {
            let reference = reference_request(timeout_nano);
            let mut data = reference.encode_to_vec();
            data.extend([0x98, 0x06, 0x01]); // An unknown field, 99, with the value 1.
            let request = Request::decode(&data).unwrap();
            assert_eq!((request.service, request.method), ("pkg.Service", "Method"));
            assert_eq!(request.payload, reference.payload);
            assert_eq!(request.timeout_nano, timeout_nano);
            assert_eq!(request.metadata.pairs(), 3);
            let metadata = request.metadata.decode().unwrap();
            let pairs: Vec<_> = metadata.iter().collect();
            assert_eq!(pairs, [("k", "1"), ("k", ""), ("", "x")]);
        }
    }

    #[test]
    fn responses_agree_with_prost_both_ways() {
        let message = prost_types::Duration { seconds: 3, nanos: 0 };
        let reference = ReferenceResponse { status: None, payload: message.encode_to_vec() };
        let mut data = Vec::new();
        ResponseParts(&message).encode(&mut data);
        assert_eq!(data, reference.encode_to_vec());
        assert_eq!(data.len(), ResponseParts(&message).encoded_len());
        assert_eq!(decode_response(&data).unwrap(), Ok(&reference.payload[..]));

        let status = Status::with_raw_code(99, "no").with_message_detail(&message);
        let data = encode_status(&status);
        let reference = ReferenceResponse::decode(&data[..]).unwrap();
        assert_eq!(reference.status.unwrap().code, 99);
        assert_eq!(decode_response(&data).unwrap(), Err(status));
    }

    #[test]
    fn an_absent_status_and_a_status_of_code_zero_are_successes() {
        assert_eq!(decode_response(&[]).unwrap(), Ok(&[][..]));
        let reference = ReferenceResponse {
            status: Some(StatusMessage { message: "fine".into(), ..StatusMessage::default() }),
            payload: vec![1],
        };
        assert_eq!(decode_response(&reference.encode_to_vec()).unwrap(), Ok(&[1][..]));
    }

    #[test]
    fn requests_are_read_in_steps_and_no_further_than_to_too_many_pairs() {
        let data = reference_request(7).encode_to_vec();
        let mut decoder = RequestDecoder::new(&data, 3);
        let mut steps = 0;
        let request = loop {
            steps += 1;
            if let Some(request) = decoder.advance(1).unwrap() {
                break request;
            }
        };
        assert_eq!((steps, request.timeout_nano), (8, 7));
        assert_eq!(request.metadata.cost(), 3 * PAIR_COST + 4 * (STRING_COST + 1));

        let mut decoder = RequestDecoder::new(&data, 2);
        assert!(matches!(decoder.advance(100), Err(Malformed::TooManyPairs(2))));
    }

    #[test]
    fn a_status_has_no_more_details_than_are_kept() {
        let mut status = StatusMessage { code: 5, ..StatusMessage::default() };
        status.details = vec![Any::default(); MAX_DETAILS + 10];
        let reference = ReferenceResponse { status: Some(status), payload: vec![] };
        let decoded = decode_response(&reference.encode_to_vec()).unwrap().unwrap_err();
        assert_eq!((decoded.raw_code(), decoded.details().len()), (5, MAX_DETAILS));
    }

    #[test]
    fn rubbish_is_an_error_and_never_a_panic() {
        assert!(Request::decode(&[0xff; 12]).is_err());
        assert!(matches!(Request::decode(&[0x0a, 5, b'x']), Err(Malformed::Truncated)));
        assert!(matches!(Request::decode(&[0x0a, 1, 0xff]), Err(Malformed::NotUtf8(_))));
        assert!(decode_response(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
    }
}
