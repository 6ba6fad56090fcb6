//! The status of a failure, in a Response.

use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_varint, skip_field},
};
use prost_types::Any;

use super::{
    FrameData, Malformed, Measured, non_empty_len, put_message, take_bytes, take_key, take_str,
};
use crate::Status;

/// The most details of a status that are decoded; those after them are dropped. An empty detail takes
/// two bytes on the wire and fifty in memory.
pub const MAX_DETAILS: usize = 1024;

/// Returns the data of a Response that carries a failure.
pub fn encode_status(status: &Status) -> Vec<u8> {
    let message = StatusMessage {
        code: status.raw_code(),
        message: status.message().to_owned(),
        details: status.details().to_vec(),
    };
    let message = Measured::new(&message);
    let mut data = vec![0; non_empty_len(1, message.encoded_len())];
    put_message(1, &message, &mut &mut data[..]);
    data
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusMessage {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) details: Vec<Any>,
}

/// Decodes what is found of a status into what there is of it, as protobuf merges messages.
pub(super) fn merge_status(status: &mut StatusMessage, mut data: &[u8]) -> Result<(), Malformed> {
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
