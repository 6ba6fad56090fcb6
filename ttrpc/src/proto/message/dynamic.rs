//! Data of frames with a message of any type. Its code exists once, and not for each type of a program.

use prost::Message;

use super::{FrameData, non_empty_len, put_key};

/// Data that is encoded into the place that it has in its frame.
pub(crate) trait EncodeInto {
    fn len_in_frame(&self) -> usize;

    /// # Panics
    /// If `buf` is shorter than [`EncodeInto::len_in_frame`] says.
    fn encode_into(&self, buf: &mut &mut [u8]);
}

impl<D: FrameData> EncodeInto for D {
    fn len_in_frame(&self) -> usize {
        self.encoded_len()
    }

    fn encode_into(&self, buf: &mut &mut [u8]) {
        self.encode(buf);
    }
}

/// A message of any type.
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

impl EncodeInto for DynData<'_> {
    fn len_in_frame(&self) -> usize {
        if self.is_response { non_empty_len(2, self.len) } else { self.len }
    }

    fn encode_into(&self, buf: &mut &mut [u8]) {
        if self.is_response && self.len > 0 {
            put_key(2, self.len, buf);
        }
        self.message.dyn_encode(buf);
    }
}
