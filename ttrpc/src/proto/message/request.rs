//! Requests, and the metadata in them.

use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_varint, skip_field},
};

use super::{
    FrameData, Malformed, Measured, delimited_len, non_empty_len, put_key, put_message,
    put_non_empty, put_varint, take_bytes, take_key, unknown::skip, varint_len,
};
use crate::{
    Metadata,
    proto::heap::{HEAP_HEADER, heap_cost},
};

/// Fields that a Request may have beyond the pairs of metadata that are allowed, unknown ones included: an honest
/// one has four. A frame may have two million.
const MAX_FIELDS: usize = 4096;

/// Fields that a pair of metadata may have, unknown ones included: an honest one has two.
const MAX_PAIR_FIELDS: usize = 16;

/// Cost of a pair of metadata besides its bytes: two strings.
const PAIR_COST: usize = 2 * size_of::<String>();

/// A decoded Request that borrows everything from its frame.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Full protobuf name of the service, `containerd.task.v2.Task` for example; see [`Request::names`].
    pub service: &'a [u8],
    /// Bare name of the method, `State` for example.
    pub method: &'a [u8],
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
        assert!(decoder.advance(usize::MAX)?, "no frame has so many fields");
        Ok(decoder.request)
    }

    /// Returns the names of service and method. A receiver that compares bytes with the names that it knows need
    /// not ask whether they are UTF-8.
    ///
    /// # Errors
    /// [`Malformed::NotUtf8`].
    pub fn names(&self) -> Result<(&'a str, &'a str), Malformed> {
        Ok((std::str::from_utf8(self.service)?, std::str::from_utf8(self.method)?))
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
    /// Returns the number of pairs.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Returns the cost of the decoded pairs, in bytes of memory.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Decodes the pairs, in order.
    ///
    /// # Errors
    /// [`Malformed::NotUtf8`].
    pub fn decode(&self) -> Result<Metadata, Malformed> {
        if self.pairs == 0 { Ok(Metadata::new()) } else { self.decode_pairs() }
    }

    fn decode_pairs(&self) -> Result<Metadata, Malformed> {
        let mut metadata = Metadata::with_capacity(self.pairs);
        let mut data = self.data;
        while metadata.len() < self.pairs {
            let (tag, wire_type) = take_key(&mut data)?;
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

/// Decodes a Request in steps, so that a task yields to others during a Request of millions of fields.
#[derive(Debug)]
pub struct RequestDecoder<'a> {
    rest: &'a [u8],
    request: Request<'a>,
    max_pairs: usize,
    /// Fields that may still come.
    fields_left: usize,
}

impl<'a> RequestDecoder<'a> {
    /// Decodes this data of a Request frame, with no more than so many pairs of metadata, and 4,096 fields
    /// more.
    pub fn new(data: &'a [u8], max_pairs: usize) -> Self {
        let metadata = EncodedMetadata { data, pairs: 0, cost: 0 };
        let request =
            Request { service: &[], method: &[], payload: &[], timeout_nano: 0, metadata };
        let fields_left = max_pairs.saturating_add(MAX_FIELDS);
        RequestDecoder { rest: data, request, max_pairs, fields_left }
    }

    /// Returns the Request as far as it has been decoded.
    pub fn request(&self) -> &Request<'a> {
        &self.request
    }

    /// Decodes up to so many fields more; returns whether the Request is whole. Unknown fields are skipped.
    ///
    /// # Errors
    /// If the bytes are not a protobuf message of this shape, or it has too many pairs of metadata or other
    /// fields.
    pub fn advance(&mut self, max_fields: usize) -> Result<bool, Malformed> {
        let (data, request) = (&mut self.rest, &mut self.request);
        let fields = max_fields.min(self.fields_left);
        for _ in 0..fields {
            if data.is_empty() {
                return Ok(true);
            }
            let field = *data;
            match take_key(data)? {
                (1, WireType::LengthDelimited) => request.service = take_bytes(data)?,
                (2, WireType::LengthDelimited) => request.method = take_bytes(data)?,
                (3, WireType::LengthDelimited) => request.payload = take_bytes(data)?,
                (4, WireType::Varint) => request.timeout_nano = decode_varint(data)? as i64,
                (5, WireType::LengthDelimited) => {
                    let metadata = &mut request.metadata;
                    if metadata.pairs == 0 {
                        metadata.data = field;
                        metadata.cost = HEAP_HEADER;
                    }
                    let (key, value) = decode_key_value(take_bytes(data)?)?;
                    if metadata.pairs == self.max_pairs {
                        return Err(Malformed::TooManyPairs(self.max_pairs));
                    }
                    metadata.pairs += 1;
                    metadata.cost += PAIR_COST + heap_cost(key.len()) + heap_cost(value.len());
                }
                (tag, wire_type) => skip(wire_type, tag, data, &mut self.fields_left)?,
            }
        }
        // What lies in groups has been counted.
        self.fields_left = self.fields_left.saturating_sub(fields);
        match self.fields_left {
            0 if data.is_empty() => Ok(true),
            0 => Err(Malformed::TooManyFields),
            _ => Ok(false),
        }
    }
}

/// A Request about to be encoded.
#[derive(Debug)]
pub struct RequestParts<'a, M> {
    /// Full protobuf name of the service.
    pub service: &'a str,
    /// Bare name of the method.
    pub method: &'a str,
    /// The request message; `None` for a stream that opens without one.
    pub payload: Option<Measured<'a, M>>,
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
            + non_empty_len(3, self.payload.as_ref().map_or(0, Measured::encoded_len))
            + varint_len(4, self.timeout_nano as u64)
            + metadata
    }

    fn encode(&self, buf: &mut &mut [u8]) {
        put_non_empty(1, self.service.as_bytes(), buf);
        put_non_empty(2, self.method.as_bytes(), buf);
        if let Some(payload) = &self.payload {
            put_message(3, payload, buf);
        }
        put_varint(4, self.timeout_nano as u64, buf);
        for (key, value) in self.metadata.iter() {
            put_key(5, key_value_len(key, value), buf);
            put_non_empty(1, key.as_bytes(), buf);
            put_non_empty(2, value.as_bytes(), buf);
        }
    }
}

fn decode_key_value(mut data: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (mut key, mut value) = (&[][..], &[][..]);
    let mut fields_left = MAX_PAIR_FIELDS;
    while fields_left > 0 {
        fields_left -= 1;
        if data.is_empty() {
            return Ok((key, value));
        }
        let (tag, wire_type) = take_key(&mut data)?;
        match (tag, wire_type) {
            (1, WireType::LengthDelimited) => key = take_bytes(&mut data)?,
            (2, WireType::LengthDelimited) => value = take_bytes(&mut data)?,
            _ => skip(wire_type, tag, &mut data, &mut fields_left)?,
        }
    }
    Err(Malformed::TooManyFields)
}

fn key_value_len(key: &str, value: &str) -> usize {
    non_empty_len(1, key.len()) + non_empty_len(2, value.len())
}
