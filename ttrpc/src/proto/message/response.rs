//! Responses, and the statuses in them.

use bytes::BufMut;
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_varint, skip_field},
};
use prost_types::Any;

use super::{
    FrameData, Malformed, Measured,
    fields::{
        delimited_key, delimited_len, non_empty_len, put_message, take_bytes, take_key, take_str,
    },
};
use crate::Status;

/// The most details of a status that are decoded; those after them are dropped. An empty detail takes
/// two bytes on the wire and fifty in memory.
pub const MAX_DETAILS: usize = 1024;

/// The first byte of an encoded `status`, field 1 of a Response.
const STATUS_KEY: u8 = delimited_key(1);

/// Returns whether the data of a Response begins with a status, as that of a failure does.
pub(crate) fn begins_with_status(data: &[u8]) -> bool {
    data.first() == Some(&STATUS_KEY)
}

/// A decoded Response: the payload of a success, or the status of a failure, with no more than
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

    fn encode(&self, buf: &mut impl BufMut) {
        put_message(2, &self.0, buf);
    }
}

/// The data of a Response that carries a failure.
pub fn encode_status(status: &Status) -> Vec<u8> {
    let message = StatusMessage {
        code: status.raw_code(),
        message: status.message().to_owned(),
        details: status.details().to_vec(),
    };
    let message = Measured::new(&message);
    let mut data = Vec::with_capacity(delimited_len(1, message.encoded_len()));
    put_message(1, &message, &mut data);
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
        let (tag, wire_type) = take_key(&mut data)?;
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
