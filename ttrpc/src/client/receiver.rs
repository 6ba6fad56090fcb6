//! A client's receiver: reads frames and hands them to their calls.
//!
//! It stands rightmost in the order of waits (see [`transport`](crate::transport)): it waits for
//! the socket, and for the consumer of a full stream as long as that one moves. It never waits for
//! the sender, nor for a lock that is held longer than a few instructions.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use tokio::io::AsyncRead;

use super::{call::Call, connection::Connection};
use crate::{
    ConnectionError, Status,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header, MAX_DATA_LEN},
        message::decode_response,
        payload,
        stream::Kind,
        table::{ClientEvent, ClientTable},
    },
    snapshot::ReceiverWait,
    transport::{
        inbox::{Arrivals, InboxLimits},
        lock,
        reader::{FrameReader, ReadEnd},
    },
};

/// Reads until the connection ends, and says why it did.
pub(super) async fn run(connection: &Connection, io: impl AsyncRead + Unpin) -> ConnectionError {
    let mut reader = FrameReader::new(io);
    let mut series = Series::default();
    loop {
        let decoded = match reader.try_next() {
            Some(decoded) => decoded,
            None => {
                series.end(connection);
                match next_frame(connection, &mut reader).await {
                    Ok(decoded) => decoded,
                    Err(reason) => return reason,
                }
            }
        };
        match decoded {
            Decoded::Frame(header) if series.take(connection, header, reader.decoder().data()) => {}
            Decoded::Frame(header) => {
                series.end(connection);
                series.stream = receive(connection, header, reader.decoder()).await;
            }
            Decoded::Oversized(header) => {
                series.end(connection);
                refuse_oversized(connection, header);
            }
        }
    }
}

/// Messages of one stream that lie one behind the other in what was read. They change nothing in
/// the table, so that only the first of them has to be looked up there.
#[derive(Debug, Default)]
struct Series {
    stream: Option<(u32, Arc<Call>)>,
    arrivals: Arrivals,
}

impl Series {
    /// Takes a frame that goes on with the series.
    fn take(&mut self, connection: &Connection, header: Header, data: &[u8]) -> bool {
        let is_message = header.frame_type == FrameType::Data && header.flags == Flags::NONE;
        match &self.stream {
            Some((stream_id, call)) if is_message && *stream_id == header.stream_id => {
                call.inbox.gather(&mut self.arrivals, data, limits(connection))
            }
            _ => false,
        }
    }

    /// Hands over what was taken.
    fn end(&mut self, connection: &Connection) {
        if let Some((_, call)) = self.stream.take() {
            call.inbox.push_all(&mut self.arrivals, &connection.stalls);
        }
    }
}

/// The next frame from the socket; or, when the sender has failed and all that had arrived is read,
/// its error.
async fn next_frame<R: AsyncRead + Unpin>(
    connection: &Connection,
    reader: &mut FrameReader<R>,
) -> Result<Decoded, ConnectionError> {
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

/// Acts on one frame. Only a message whose stream's inbox is full is waited with. Gives back the
/// stream of a message that others may follow.
async fn receive(
    connection: &Connection,
    header: Header,
    decoder: &mut Decoder,
) -> Option<(u32, Arc<Call>)> {
    let event = match lock(&connection.table).as_mut() {
        Some(table) => table.receive(header),
        None => ClientEvent::Ignore,
    };
    match event {
        ClientEvent::Response(call) => end_with_response(connection, &call, decoder),
        ClientEvent::Data(call, event) => {
            if event.has_message && !deliver(connection, &call, decoder) {
                let waiting = deliver_in_time(connection, header.stream_id, &call, decoder);
                if !Box::pin(waiting).await {
                    return None;
                }
            }
            if !event.remote_closed {
                return Some((header.stream_id, call));
            }
            call.close_remote();
        }
        ClientEvent::Violation(call, violation) => {
            call.fail(Status::internal(format!("the server broke the protocol: {violation}")));
        }
        ClientEvent::Ignore => {}
    }
    None
}

fn end_with_response(connection: &Connection, call: &Call, decoder: &mut Decoder) {
    let response = match decoder.take_long_data() {
        Some(data) => decode_response(&data).map(|result| result.map(|part| data.slice_ref(part))),
        None => decode_response(decoder.data()).map(|result| result.map(payload::copy)),
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

fn limits(connection: &Connection) -> InboxLimits {
    let config = &connection.config;
    InboxLimits::new(config.stream_inbox_messages, config.stream_inbox_bytes)
}

/// Puts a message into its stream's inbox; `false` if there is no room for it now.
fn deliver(connection: &Connection, call: &Call, decoder: &mut Decoder) -> bool {
    let has_room = call.inbox.has_room(decoder.data().len(), limits(connection));
    if has_room {
        let long_data = decoder.take_long_data();
        call.inbox.push(decoder.payload(&long_data), &connection.stalls);
    }
    has_room
}

/// The same when there is room, or `false`: a consumer that stands still loses its stream.
async fn deliver_in_time(
    connection: &Connection,
    stream_id: u32,
    call: &Call,
    decoder: &mut Decoder,
) -> bool {
    let _held_up = connection.waits.hold_up(ReceiverWait::Stream(stream_id));
    let (bytes, limits) = (decoder.data().len(), limits(connection));
    let (stalls, stall_timeout) = (&connection.stalls, connection.config.stall_timeout);
    if call.inbox.wait_for_room(bytes, limits, stalls, stall_timeout, &|| false).await {
        return deliver(connection, call, decoder);
    }
    lock(&connection.table).as_mut().map(|table| table.remove(stream_id));
    call.fail(Status::resource_exhausted(
        "the stream's messages were not taken in time and its inbox is full",
    ));
    false
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
