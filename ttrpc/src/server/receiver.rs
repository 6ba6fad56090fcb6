//! A server's receiver: reads frames and acts on them.
//!
//! It waits for the socket, for room in the outgoing queue, and for handlers as long as they move
//! (see [`transport`](crate::transport)).

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
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
        payload::Payload,
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

/// Reads until the client goes away, or the server drains and has nothing to say to it any more.
pub(super) async fn run(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    io: impl AsyncRead + Unpin,
) {
    let mut reader = FrameReader::new(io);
    while let Some(decoded) = next_frame(connection, &mut reader).await {
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

/// The next frame. `None` when there is none, or when the server drains and every call is answered;
/// that is asked only here, where no call waits to be let in.
async fn next_frame<R: AsyncRead + Unpin>(
    connection: &Connection,
    reader: &mut FrameReader<R>,
) -> Option<Decoded> {
    let mut next = pin!(reader.next());
    let mut answered = None;
    poll_fn(|cx| {
        if let Poll::Ready(next) = next.as_mut().poll(cx) {
            return Poll::Ready(next.ok());
        }
        if connection.server.lifecycle.is_running() {
            return Poll::Pending;
        }
        let answered = answered.get_or_insert_with(|| Box::pin(connection.answered()));
        answered.as_mut().poll(cx).map(|()| None)
    })
    .await
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
    let opened = try_open(connection, backlog, header, reader.decoder(), arrived).await;
    if let Err(status) = &opened {
        tracing::debug!(stream_id = header.stream_id, "call refused: {status}");
        lock(&connection.table).refuse(header.stream_id, header.flags);
    }
    opened
}

async fn try_open(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    header: Header,
    decoder: &mut Decoder,
    arrived: Instant,
) -> Result<(), Status> {
    if !connection.server.lifecycle.is_running() {
        return Err(Status::unavailable("the server is shutting down"));
    }
    let long_data = decoder.take_long_data();
    if start(connection, backlog, header, decoder.payload(&long_data), arrived, None)? {
        return Ok(());
    }
    Box::pin(open_in_turn(connection, backlog, header, decoder, long_data, arrived)).await
}

/// Opens a stream that has to wait until its call is let in.
async fn open_in_turn(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    header: Header,
    decoder: &Decoder,
    long_data: Option<Bytes>,
    arrived: Instant,
) -> Result<(), Status> {
    let data = decoder.payload(&long_data);
    let load = load_of(data);
    if !connection.enter_call(load).await {
        return Err(Status::resource_exhausted(
            "too many calls are in flight and none of them ends",
        ));
    }
    let admission = Admission { connection, load };
    start(connection, backlog, header, data, arrived, Some(admission)).map(drop)
}

fn load_of(request: Payload<'_>) -> Load {
    Load { calls: 1, bytes: request.bytes().len() }
}

/// Has the call's handler begin; `false` if it has first to wait to be let in. What cannot be served is
/// refused before, so that it neither waits nor counts.
fn start(
    connection: &Arc<Connection>,
    backlog: &Arc<Backlog>,
    header: Header,
    data: Payload<'_>,
    arrived: Instant,
    admission: Option<Admission<'_>>,
) -> Result<bool, Status> {
    let request = Request::decode(data.bytes())
        .map_err(|error| Status::invalid_argument(format!("the Request is malformed: {error}")))?;
    let (service, method) = connection.server.services.find(request.service, request.method)?;
    check_flags(method, service, header.flags)?;
    let timeout = match request.timeout_nano {
        0 => None,
        nanos => Some(u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| too_late())?),
    };
    let load = load_of(data);
    let enter = || connection.try_enter_call(load).then(|| Admission { connection, load });
    let Some(admission) = admission.or_else(enter) else { return Ok(false) };
    // The time that the call has waited to be let in is part of its time.
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
    (method.start)(admitted, data.part(request.payload))?;
    Ok(true)
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
