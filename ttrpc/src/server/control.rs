//! The service `ttrpc.control.v1.Control`, through which a client cancels its calls.
//!
//! The receiver acts on its calls itself: they need neither a task nor a permit, and so work on a server whose limits are
//! exhausted by the calls that they cancel. It reads them in their turn: one that comes after a Request that waits to be
//! admitted waits with it, for `stall_timeout` at most.

use prost::Message;

use crate::server::call::{reasons::Refusal, shared::Connection, state::Call};
use crate::{
    Status,
    contain::contain,
    observer::EndCause,
    proto::{
        control::{CANCEL, CancelRequest, MAX_CANCEL_LEN, MAX_CANCELLED, SERVICE},
        frame::{Flags, Header},
        message::RequestDecoder,
    },
};

/// Fields of a Request that are decoded: those of one that has more are not looked at.
const MAX_FIELDS: usize = 4096;

/// Acts on a call of the service, which has been refused as no service, fallback or limit has seen it.
///
/// # Errors
/// The refusal of any other call, and that of the service.
pub(in crate::server) fn serve(
    connection: &Connection,
    Header { stream_id, flags, .. }: Header,
    mut decoder: RequestDecoder<'_>,
    refusal: Refusal,
) -> Result<(), Refusal> {
    if !connection.server.config.cancellable
        || !matches!(refusal.cause, EndCause::Unimplemented | EndCause::Shutdown)
        || !decoder.advance(MAX_FIELDS).is_ok_and(|is_whole| is_whole)
        || !decoder.request().names().is_ok_and(|names| names == (SERVICE, CANCEL))
    {
        return Err(refusal);
    }
    if flags.contains(Flags::REMOTE_OPEN) {
        let message = format!("method {SERVICE}/{CANCEL} is unary and was called as a stream");
        return Err(Refusal::violation(message));
    }
    connection.queue.streams(|table| table.refuse(stream_id, flags));
    cancel(connection, decoder.request().payload)
}

/// Cancels the calls that a request of [`Cancel`](crate::proto::control::CANCEL) names, as if their client had gone. Nothing is
/// sent for them any more. An id of which no call is open, over or never made, is nothing to do.
///
/// # Errors
/// INVALID_ARGUMENT if the payload is no such request, RESOURCE_EXHAUSTED if it names too many.
fn cancel(connection: &Connection, payload: &[u8]) -> Result<(), Refusal> {
    let too_many = || Refusal::limit(format!("more than {MAX_CANCELLED} calls to cancel at once"));
    if payload.len() > MAX_CANCEL_LEN {
        return Err(too_many());
    }
    let decoded = CancelRequest::decode(payload);
    let ids = decoded.map_err(|error| Refusal::violation(error.to_string()))?.stream_id;
    if ids.len() > MAX_CANCELLED {
        return Err(too_many());
    }
    let status = Status::cancelled("the client has given the call up");
    let given_up = Refusal { cause: EndCause::GivenUp, status };
    for id in ids {
        if let Some(call) = connection.queue.streams(|table| table.remove(id)) {
            let _ = contain(|| Call::taken_out(&call, &given_up));
        }
    }
    Ok(())
}
