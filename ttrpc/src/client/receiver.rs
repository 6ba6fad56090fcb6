//! A client's receiver: reads frames and hands them to their calls.
//!
//! It stands rightmost in the order of waits (see [`transport`](crate::transport)): it waits for
//! the socket, and for the consumer of a full stream as long as that one moves. It never waits for
//! the sender, nor for a lock that is held longer than a few instructions.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use bytes::Bytes;
use tokio::io::AsyncRead;

use super::{call::Call, connection::Connection};
use crate::{
    ConnectionError, Status,
    proto::{
        codec::{Decoded, Decoder},
        frame::{FrameType, Header, MAX_DATA_LEN},
        message::decode_response,
        payload::Payload,
        stream::{DataEvent, Kind},
        table::{ClientEvent, ClientTable},
    },
    snapshot::ReceiverWait,
    transport::{
        inbox::InboxLimits,
        lock,
        reader::{FrameReader, ReadEnd},
    },
};

/// Reads until the connection ends, and says why it did.
pub(super) async fn run(connection: &Connection, io: impl AsyncRead + Unpin) -> ConnectionError {
    let mut reader = FrameReader::new(io);
    loop {
        match next_frame(connection, &mut reader).await {
            Ok(Decoded::Frame(header)) => {
                receive(connection, header, reader.decoder()).await;
            }
            Ok(Decoded::Oversized(header)) => refuse_oversized(connection, header),
            Err(reason) => return reason,
        }
    }
}

/// The next frame; or, when the sender has failed and all that had arrived is read, its error.
async fn next_frame<R: AsyncRead + Unpin>(
    connection: &Connection,
    reader: &mut FrameReader<R>,
) -> Result<Decoded, ConnectionError> {
    if let Some(decoded) = reader.try_next() {
        return Ok(decoded);
    }
    let mut next = pin!(reader.next());
    let mut write_error = pin!(connection.write_error.wait());
    poll_fn(|cx| {
        if let Poll::Ready(next) = next.as_mut().poll(cx) {
            return Poll::Ready(next.map_err(|end| match end {
                ReadEnd::Eof => ConnectionError::ClosedByServer,
                ReadEnd::Truncated => ConnectionError::Truncated,
                ReadEnd::Failed(error) => ConnectionError::Read(Arc::new(error)),
            }));
        }
        write_error.as_mut().poll(cx).map(|error| Err(error.clone()))
    })
    .await
}

/// Acts on one frame.
async fn receive(connection: &Connection, header: Header, decoder: &mut Decoder) {
    let event = match lock(&connection.table).as_mut() {
        Some(table) => table.receive(header),
        None => ClientEvent::Ignore,
    };
    match event {
        ClientEvent::Response(call) => end_with_response(connection, &call, decoder),
        ClientEvent::Data(call, event) => {
            let long_data = decoder.take_long_data();
            let message = event.has_message.then(|| decoder.payload(&long_data));
            deliver(connection, header.stream_id, &call, event, message).await;
        }
        ClientEvent::Violation(call, violation) => {
            call.fail(Status::internal(format!("the server broke the protocol: {violation}")));
        }
        ClientEvent::Ignore => {}
    }
}

fn end_with_response(connection: &Connection, call: &Call, decoder: &mut Decoder) {
    let response = match decoder.take_long_data() {
        Some(data) => decode_response(&data).map(|result| result.map(|part| data.slice_ref(part))),
        None => decode_response(decoder.data()).map(|result| result.map(Bytes::copy_from_slice)),
    };
    let result = response.unwrap_or_else(|error| {
        Err(Status::internal(format!("the server's Response is malformed: {error}")))
    });
    match call.kind() {
        Kind::Unary => call.answer(result, &connection.queue),
        Kind::ClientStreaming => call.end(result.map(Some)),
        // An empty Response ends a stream of replies, one with a payload brings a last one.
        Kind::ServerStreaming | Kind::Bidirectional => {
            call.end(result.map(|payload| Some(payload).filter(|payload| !payload.is_empty())));
        }
    }
}

/// Puts a message into its stream's inbox; a consumer that stands still loses its stream.
async fn deliver(
    connection: &Connection,
    stream_id: u32,
    call: &Call,
    event: DataEvent,
    message: Option<Payload<'_>>,
) {
    if let Some(message) = message
        && !push(connection, stream_id, call, message).await
    {
        lock(&connection.table).as_mut().map(|table| table.remove(stream_id));
        call.fail(Status::resource_exhausted(
            "the stream's messages were not taken in time and its inbox is full",
        ));
        return;
    }
    if event.remote_closed {
        call.close_remote();
    }
}

/// `false` if the inbox is full and its consumer does not move.
async fn push(connection: &Connection, stream_id: u32, call: &Call, message: Payload<'_>) -> bool {
    let config = &connection.config;
    let limits = InboxLimits::new(config.stream_inbox_messages, config.stream_inbox_bytes);
    let (stalls, stall_timeout) = (&connection.stalls, config.stall_timeout);
    let bytes = message.bytes().len();
    if !call.inbox.has_room(bytes, limits) {
        let _held_up = connection.waits.hold_up(ReceiverWait::Stream(stream_id));
        if !call.inbox.wait_for_room(bytes, limits, stalls, stall_timeout, || false).await {
            return false;
        }
    }
    call.inbox.push(message, stalls);
    true
}

fn refuse_oversized(connection: &Connection, header: Header) {
    if let FrameType::Unknown(_) | FrameType::Request = header.frame_type {
        return;
    }
    let mut table = lock(&connection.table);
    let Some(call) =
        table.as_mut().and_then(|table: &mut ClientTable<_>| table.remove(header.stream_id))
    else {
        return;
    };
    drop(table);
    call.fail(Status::resource_exhausted(format!(
        "the server sent {} bytes in one frame, the limit is {MAX_DATA_LEN}",
        header.data_len
    )));
}
