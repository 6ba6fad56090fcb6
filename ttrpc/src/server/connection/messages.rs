//! Frames that open no stream: messages go to the inboxes of their streams, and what breaks the protocol or is too long is
//! refused.
//!
//! The receiver waits here for handlers that take messages, while they make progress.

use std::time::Duration;

use tokio::task::{coop::consume_budget, yield_now};

use crate::server::{
    call::{reasons::Refusal, shared::Connection, state::Call},
    connection::request::Failure,
};
use crate::{
    proto::{
        codec::Decoded,
        frame::{FrameType, Header, MAX_DATA_LEN},
        stream::DataEvent,
        table::ServerEvent,
    },
    snapshot::ReceiverWait,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    trace,
    transport::{
        io::ReadHalf,
        limiter::Load,
        messages::message_cost,
        stall::{InboxLimit::Shared, PARTS, stalled},
        violations::Violations,
        wire::{FrameReader, hung_up},
    },
};

/// A handler that waits for capacity, to be polled again or for a thread may take no messages for so many parts of a time without
/// progress, ten times as many as one that does not. Not for ever: it may keep such a wait without polling it, or go from
/// one to the next.
const EXCUSED_PARTS: u32 = 10 * PARTS;

/// Acts on a frame that opens no stream. One whose data is too long was skipped: its stream is refused, or ends.
pub(super) async fn receive<R: ReadHalf>(
    connection: &Connection,
    decoded: Decoded,
    reader: &mut FrameReader<R>,
    violations: &mut Violations,
) -> Result<(), Failure> {
    let (Decoded::Frame(header) | Decoded::Oversized(header)) = decoded;
    let is_too_long = matches!(decoded, Decoded::Oversized(_));
    let too_long = || {
        let len = header.data_len;
        Refusal::limit(format!("a frame of {len} bytes is longer than {MAX_DATA_LEN}"))
    };
    let (refusal, ended) = match connection.queue.streams(|table| table.receive(header)) {
        ServerEvent::Data(call, _) if is_too_long => return fail(connection, &call, too_long()),
        ServerEvent::Data(call, event) => return deliver(connection, &call, event, reader).await,
        ServerEvent::Open if is_too_long => {
            connection.queue.streams(|table| table.refuse(header.stream_id, header.flags));
            (too_long(), None)
        }
        ServerEvent::Refuse(_, ended) if is_too_long => (too_long(), ended),
        ServerEvent::Refuse(violation, ended) => {
            violations.note(header.stream_id, violation);
            connection.violated(violation);
            (Refusal::violation(violation.to_string()), ended)
        }
        // No Request opens a stream that the receiver's own look has not found to do so.
        ServerEvent::Open | ServerEvent::Ignore => {
            // Nothing waits for what is ignored, however much of it comes at once.
            consume_budget().await;
            return Ok(());
        }
    };
    if let Some(call) = ended {
        call.taken_out(&refusal);
    } else if header.frame_type == FrameType::Request {
        let unread = Header { data_len: 0, ..header };
        connection.refused(unread, ("", ""), reader.read_at(), false, &refusal);
    }
    Err(refusal.into())
}

/// Puts a message into its stream's inbox. A handler that takes none loses its stream.
async fn deliver<R: ReadHalf>(
    connection: &Connection,
    call: &Call,
    event: DataEvent,
    reader: &mut FrameReader<R>,
) -> Result<(), Failure> {
    let (decoder, io) = reader.parts();
    let (inbox, bytes) = (call.inbox(), decoder.data().len());
    let load = Load::cost(message_cost(bytes));
    if event.has_message {
        call.count_received(bytes);
        let mut is_admitted = inbox.has_capacity(bytes, inbox_limits(connection))
            && connection.inbox_limits().try_acquire(load).is_some();
        if !is_admitted && !inbox.is_closed() {
            match Box::pin(wait_for_handler(connection, call, bytes, io)).await {
                Err(Failure::Refused(refusal)) => {
                    let failed = fail(connection, call, refusal);
                    if let Err(Failure::Refused(refusal)) = &failed {
                        let (stream_id, reason) = (call.head.stream_id, refusal.status.message());
                        trace::warn!(stream_id, "a stream fails: {reason}");
                    }
                    return failed;
                }
                admitted => admitted?,
            }
            is_admitted = true;
        }
        let long_data = decoder.take_long_data();
        let message = decoder.payload(&long_data);
        if is_admitted && !inbox.push(message, &connection.limits().patience) {
            connection.release_messages(load.cost);
        }
    }
    if event.remote_closed {
        inbox.end(Ok(()), false);
    }
    Ok(())
}

/// Ends a call of which a message cannot be delivered.
fn fail(connection: &Connection, call: &Call, refusal: Refusal) -> Result<(), Failure> {
    if !call.take_end(&refusal) {
        return Ok(());
    }
    connection.release_messages(call.inbox().end(Err(refusal.status.clone()), true));
    Err(refusal.into())
}

fn inbox_limits(connection: &Connection) -> Load {
    let config = &connection.server.config;
    Load::limit(config.stream_inbox_messages, config.stream_inbox_bytes)
}

/// Waits until a message is admitted to its stream's inbox, while handlers take others.
async fn wait_for_handler(
    connection: &Connection,
    call: &Call,
    bytes: usize,
    io: &mut impl ReadHalf,
) -> Result<(), Failure> {
    let (limits, patience) = (inbox_limits(connection), &connection.limits().patience);
    // The client does not read: it is not the handlers who do not move.
    let is_unread = connection.queue.is_stuck();
    let excused = AtomicU32::new(0);
    let is_excused = || call.end.has_waits() && excused.fetch_add(1, SeqCst) < EXCUSED_PARTS;
    let is_paused = || is_unread() || is_excused();
    let wait = async {
        if !call.inbox().has_capacity(bytes, limits) {
            let _held_up = connection.stall(ReceiverWait::Stream(call.head.stream_id));
            let capacity = call.inbox().wait_for_capacity(bytes, limits, patience, &is_paused);
            if !capacity.await {
                let full = "the stream's inbox is full and its handler takes nothing";
                return Err(Refusal::limit(full).into());
            }
        }
        let (limits, load) = (connection.inbox_limits(), Load::cost(message_cost(bytes)));
        if limits.try_acquire(load).is_some() {
            return Ok(());
        }
        let has_stalled = !call.end.has_waits() && call.inbox().has_stalled(patience);
        let whole = connection.server.config.stall_timeout;
        let wait = patience.begin(Shared, false, if has_stalled { Duration::ZERO } else { whole });
        let admitted = tokio::select! {
            biased;
            admitted = limits.acquire(load) => admitted,
            // A handler that was just woken runs first.
            () = yield_now(), if has_stalled && wait.time.is_zero() => None,
            _ = stalled(wait.time, &|| 0, &is_paused), if has_stalled => None,
        };
        if admitted.is_some() {
            return Ok(());
        }
        patience.note_timeout(wait);
        Err(Refusal::limit("too many bytes wait for handlers that take none").into())
    };
    tokio::select! {
        biased;
        result = wait => result,
        () = hung_up(io) => Err(Failure::Gone),
    }
}
