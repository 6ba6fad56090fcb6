//! The service that the two sides of a connection use for themselves: `docs/internals/extensions.md` describes it for other
//! implementations.

/// The full name of the service.
pub(crate) const SERVICE: &str = "ttrpc.control.v1.Control";

/// The method that says which calls their client has given up.
pub(crate) const CANCEL: &str = "Cancel";

/// Streams that one call of it may name. A client sends fewer, a server refuses more with RESOURCE_EXHAUSTED.
pub(crate) const MAX_CANCELLED: usize = 1024;

/// The longest request that is decoded: as many ids, each in the longest encoding of a field of its own.
pub(crate) const MAX_CANCEL_LEN: usize = MAX_CANCELLED * 6;

/// The request of [`CANCEL`]. One id is encoded as if the field were not repeated.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CancelRequest {
    #[prost(uint32, repeated, packed = "false", tag = "1")]
    pub(crate) stream_id: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn ids_are_fields_of_their_own_and_are_taken_packed_as_well() {
        let request = CancelRequest { stream_id: vec![3, 300] };
        let bytes = [0x08, 3, 0x08, 0xac, 0x02];
        assert_eq!(request.encode_to_vec(), bytes);
        assert_eq!(CancelRequest::decode(&[0x0a, 3, 3, 0xac, 0x02][..]), Ok(request));
        let longest = CancelRequest { stream_id: vec![u32::MAX; MAX_CANCELLED] };
        assert_eq!(longest.encoded_len(), MAX_CANCEL_LEN);
    }
}
