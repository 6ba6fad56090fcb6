//! A server's receiver: reads frames and acts on them.
//!
//! It waits for the socket, for room in the outgoing queue, and for handlers as long as they move
//! (see [`transport`](crate::transport)).

use std::{sync::Arc, time::Duration};

use tokio::{io::AsyncRead, time::Instant};

use super::{
    backlog::Backlog,
    call::{Admission, Admitted, Call, Head},
    connection::Connection,
    gate::Load,
    routes::Method,
};
use crate::{
    Status,
    proto::{
        codec::{Decoded, Decoder},
        frame::{Flags, FrameType, Header, MAX_DATA_LEN},
        message::Request,
        stream::{DataEvent, Kind},
        table::ServerEvent,
    },
    snapshot::ReceiverWait,
    transport::{
        inbox::{self, InboxLimits},
        lock,
        queue::Closed,
        reader::FrameReader,
    },
};

/// Reads until the client goes away.
pub(super) async fn run(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    io: impl AsyncRead + Unpin,
) {
    let mut reader = FrameReader::new(io);
    while let Ok(decoded) = reader.next().await {
        if wait_for_room(connection).await.is_err() {
            return;
        }
        let (stream_id, failure) = match decoded {
            Decoded::Frame(header) => {
                (header.stream_id, receive(connection, backlog, header, &mut reader).await)
            }
            Decoded::Oversized(header) => (header.stream_id, receive_oversized(connection, header)),
        };
        if let Some(status) = failure {
            Box::pin(connection.send_status(stream_id, &status, None)).await;
        }
    }
}

/// Nothing is acted on while the outgoing queue is full: a peer that does not read is not read.
/// Only the sender makes room, and it waits for the peer alone.
async fn wait_for_room(connection: &Connection) -> Result<(), Closed> {
    if connection.queue.is_full() {
        let _held_up = connection.waits.hold_up(ReceiverWait::Room);
        return Box::pin(connection.queue.has_room()).await;
    }
    Ok(())
}

/// Acts on one frame. Gives back the status with which its stream is refused or ends.
async fn receive<R: AsyncRead + Unpin>(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    header: Header,
    reader: &mut FrameReader<R>,
) -> Option<Status> {
    let event = lock(&connection.table).receive(header);
    match event {
        ServerEvent::Open => open(connection, backlog, header, reader).await.err(),
        ServerEvent::Data(call, event) => {
            deliver(connection, &call, event, reader.decoder()).await.err()
        }
        ServerEvent::Refuse(violation, ended) => {
            let status = Status::invalid_argument(violation.to_string());
            tracing::warn!(
                stream_id = header.stream_id,
                "the client broke the protocol: {violation}"
            );
            end(ended, &status);
            Some(status)
        }
        ServerEvent::Ignore => None,
    }
}

/// Somebody has taken the call out of the table, since it failed with this status.
fn end(call: Option<Arc<Call>>, status: &Status) {
    if let Some(call) = call {
        call.note_end(status.code());
        call.cancel();
    }
}

/// Opens a stream, or refuses it.
async fn open<R: AsyncRead + Unpin>(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    header: Header,
    reader: &mut FrameReader<R>,
) -> Result<(), Status> {
    let arrived = reader.read_at();
    let decoder = reader.decoder();
    let opened = match admit(connection, header, decoder).await {
        Ok(admission) => start(admission, connection, backlog, header, decoder, arrived),
        Err(status) => Err(status),
    };
    if let Err(status) = &opened {
        tracing::debug!(stream_id = header.stream_id, "call refused: {status}");
        lock(&connection.table).refuse(header.stream_id, header.flags);
    }
    opened
}

/// Lets the call in, waiting for others to leave if it must. What cannot be called does not wait.
async fn admit<'a>(
    connection: &'a Connection,
    header: Header,
    decoder: &Decoder,
) -> Result<Admission<'a>, Status> {
    let load = Load { calls: 1, bytes: decoder.data().len() };
    if !connection.try_enter_call(load) {
        parse(connection, header, decoder.data())?;
        if !Box::pin(connection.enter_call(load)).await {
            return Err(Status::resource_exhausted(
                "too many calls are in flight and none of them ends",
            ));
        }
    }
    Ok(Admission { connection, load })
}

/// Has the handler begin.
fn start(
    admission: Admission<'_>,
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    header: Header,
    decoder: &mut Decoder,
    arrived: Instant,
) -> Result<(), Status> {
    let long_data = decoder.take_long_data();
    let data = decoder.payload(&long_data);
    let (request, service, method) = parse(connection, header, data.bytes())?;
    let timeout = match request.timeout_nano {
        0 => None,
        nanos => Some(u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| too_late())?),
    };
    // The time that the call has waited to be admitted is part of its time.
    let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(too_late());
    }
    let head = Head {
        stream_id: header.stream_id,
        service,
        method: method.name,
        metadata: request.metadata,
        timeout,
        started: arrived,
        deadline,
    };
    let call = Arc::new(Call::new(connection.clone(), head, method.kind));
    let admitted = Admitted { call, admission, flags: header.flags, backlog };
    (method.start)(admitted, data.part(request.payload))
}

/// Reads a Request, and finds the service and the method that it calls.
fn parse<'a>(
    connection: &'a Connection,
    header: Header,
    data: &'a [u8],
) -> Result<(Request<'a>, &'static str, &'a Method), Status> {
    let server = &connection.server;
    if !server.lifecycle.is_running() {
        return Err(Status::unavailable("the server is shutting down"));
    }
    let request = Request::decode(data)
        .map_err(|error| Status::invalid_argument(format!("the Request is malformed: {error}")))?;
    let (service, method) = server.services.find(request.service, request.method)?;
    check_flags(method, request.service, header.flags)?;
    Ok((request, service, method))
}

fn too_late() -> Status {
    Status::deadline_exceeded("the call's deadline passed before it was started")
}

/// Whether a Request with these flags can call the method.
fn check_flags(method: &Method, service: &str, flags: Flags) -> Result<(), Status> {
    let is_stream = flags.contains(Flags::REMOTE_OPEN) || flags.contains(Flags::REMOTE_CLOSED);
    let wrong = match method.kind {
        Kind::Unary if flags.contains(Flags::REMOTE_OPEN) => "is unary and was called as a stream",
        Kind::ServerStreaming | Kind::ClientStreaming | Kind::Bidirectional if !is_stream => {
            "is a stream and was called as unary"
        }
        _ => return Ok(()),
    };
    Err(Status::invalid_argument(format!("method {service}/{} {wrong}", method.name)))
}

/// Puts a message into its stream's inbox; a handler that stands still loses its stream.
async fn deliver(
    connection: &Connection,
    call: &Arc<Call>,
    event: DataEvent,
    decoder: &mut Decoder,
) -> Result<(), Status> {
    if event.has_message
        && let Err(status) = push(connection, call, decoder).await
    {
        let ended = lock(&connection.table).remove(call.stream_id);
        if ended.is_none() {
            return Ok(());
        }
        connection.leave_inbox(call.inbox().fail(status.clone()));
        end(ended, &status);
        return Err(status);
    }
    if event.remote_closed {
        call.inbox().end(None, Ok(()), || {});
    }
    Ok(())
}

async fn push(
    connection: &Connection,
    call: &Arc<Call>,
    decoder: &mut Decoder,
) -> Result<(), Status> {
    let bytes = decoder.data().len();
    if !call.inbox().has_room(bytes, inbox_limits(connection)) {
        Box::pin(wait_for_consumer(connection, call, bytes)).await?;
    }
    let inbox = call.inbox();
    if inbox.is_closed() {
        return Ok(());
    }
    if !connection.enter_inbox(inbox::cost(bytes)).await {
        return Err(Status::resource_exhausted("too many bytes wait for handlers that take none"));
    }
    let long_data = decoder.take_long_data();
    if !inbox.push(decoder.payload(&long_data), &connection.stalls) {
        connection.leave_inbox(inbox::cost(bytes));
    }
    Ok(())
}

fn inbox_limits(connection: &Connection) -> InboxLimits {
    let config = &connection.server.config;
    InboxLimits::new(config.stream_inbox_messages, config.stream_inbox_bytes)
}

/// Waits until the inbox has room for a message of this many bytes, as long as the handler moves.
async fn wait_for_consumer(
    connection: &Connection,
    call: &Call,
    bytes: usize,
) -> Result<(), Status> {
    let _held_up = connection.waits.hold_up(ReceiverWait::Stream(call.stream_id));
    let (limits, stalls) = (inbox_limits(connection), &connection.stalls);
    let is_paused = || connection.queue.is_full();
    let stall_timeout = connection.stall_timeout();
    if call.inbox().wait_for_room(bytes, limits, stalls, stall_timeout, &is_paused).await {
        return Ok(());
    }
    tracing::warn!(stream_id = call.stream_id, "a stream fails: its handler takes nothing");
    Err(Status::resource_exhausted("the stream's inbox is full and its handler takes nothing"))
}

/// A frame whose data is too long was skipped. Gives back the status with which its stream is refused
/// or ends.
fn receive_oversized(connection: &Connection, header: Header) -> Option<Status> {
    if let FrameType::Unknown(_) | FrameType::Response = header.frame_type {
        return None;
    }
    let mut table = lock(&connection.table);
    let ended = match table.receive(header) {
        ServerEvent::Ignore => return None,
        ServerEvent::Open => {
            table.refuse(header.stream_id, header.flags);
            None
        }
        ServerEvent::Data(..) => table.remove(header.stream_id),
        ServerEvent::Refuse(_, ended) => ended,
    };
    drop(table);
    let status = Status::resource_exhausted(format!(
        "a frame of {} bytes is longer than {MAX_DATA_LEN}",
        header.data_len
    ));
    end(ended, &status);
    Some(status)
}
