//! A server's receiver: reads frames and acts on them.
//!
//! It waits for the socket, for capacity in the outgoing queue, and for handlers while they make progress
//! (see [`transport`](crate::transport)).

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::task::coop::consume_budget;

use crate::server::{
    call::{
        reasons::{EndReason, Refusal},
        shared::Connection,
        state::Call,
    },
    connection::request::{Failure, open},
};
use crate::{
    proto::{
        codec::Decoded,
        frame::{FrameType, Header, MAX_DATA_LEN},
        stream::DataEvent,
        table::{RequestIds, ServerEvent},
    },
    snapshot::ReceiverWait,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    trace,
    transport::{
        io::ReadHalf,
        limiter::{Closed, Load},
        messages::message_cost,
        stall::PARTS,
        violations::Violations,
        wire::{FrameReader, ReadEnd, hung_up},
    },
};

/// A handler that waits for capacity, to be polled again or for a thread may take no messages for so many parts of a time without
/// progress, ten times as many as one that does not. Not for ever: it may keep such a wait without polling it, or go from
/// one to the next.
const EXCUSED_PARTS: u32 = 10 * PARTS;

/// Reads until the client goes away, or the server drains and every call is answered. Returns why the
/// connection ends.
pub(in crate::server) async fn run(connection: &Arc<Connection>, io: impl ReadHalf) -> EndReason {
    let mut reader = FrameReader::new(io);
    let mut ids = RequestIds::default();
    let mut violations = Violations::of("client");
    loop {
        let decoded = match reader.try_next() {
            Some(decoded) => decoded,
            None => match next_frame(connection, &mut reader).await {
                Ok(decoded) => decoded,
                Err(reason) => return reason,
            },
        };
        while connection.starts.are_due() {
            // Before others run: the calls that are left came then.
            reader.read_at();
            connection.starts.give_way().await;
            if reader.is_hung_up() {
                return EndReason::closed_by_client();
            }
        }
        if connection.is_full() && wait_for_queue(connection).await.is_err() {
            return EndReason::closed_here();
        }
        let (Decoded::Frame(header) | Decoded::Oversized(header)) = decoded;
        // Looked at here, where no lock is needed for it.
        let opens = header.frame_type == FrameType::Request && ids.use_id(header.stream_id).is_ok();
        let acted = match decoded {
            Decoded::Frame(_) if opens => open(connection, header, &mut reader).await,
            _ => receive(connection, decoded, &mut reader, &mut violations).await,
        };
        match acted {
            Ok(()) => {}
            Err(Failure::Gone) => return EndReason::closed_by_client(),
            Err(Failure::Refused(refusal)) => {
                Box::pin(connection.send_status(header.stream_id, &refusal, None)).await;
            }
        }
    }
}

/// The next frame; or why there is none: the client has gone, or the server drains and every call is
/// answered. That is asked only here, where no call waits to be admitted.
async fn next_frame<R: ReadHalf>(
    connection: &Connection,
    reader: &mut FrameReader<R>,
) -> Result<Decoded, EndReason> {
    let mut next = pin!(reader.next());
    let mut answered = None;
    poll_fn(|cx| {
        if let Poll::Ready(next) = next.as_mut().poll(cx) {
            return Poll::Ready(next.map_err(|end| match end {
                ReadEnd::Eof => EndReason::closed_by_client(),
                ReadEnd::Truncated => EndReason::failed("the client's bytes end within a frame"),
                ReadEnd::Failed(error) => EndReason::failed(error),
            }));
        }
        connection.starts.receiver_waits();
        if connection.server.lifecycle.is_running.load(SeqCst) {
            return Poll::Pending;
        }
        let answered = answered.get_or_insert_with(|| Box::pin(connection.answered()));
        answered.as_mut().poll(cx).map(|()| Err(EndReason::closed_here()))
    })
    .await
}

/// Nothing is acted on while the outgoing queue is full or too many replies wait: a peer that does not read is not read.
/// Only the sender frees capacity, and it waits for the peer alone.
async fn wait_for_queue(connection: &Connection) -> Result<(), Closed> {
    let _held_up = connection.stall(ReceiverWait::SendQueue);
    Box::pin(connection.wait_for_capacity()).await
}

/// Acts on a frame that opens no stream. One whose data is too long was skipped: its stream is refused, or ends.
async fn receive<R: ReadHalf>(
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
        call.taken_out(refusal.outcome());
    } else if header.frame_type == FrameType::Request {
        let unread = Header { data_len: 0, ..header };
        connection.refused(unread, ("", ""), reader.read_at(), false, refusal.outcome());
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
    if !call.take_end(refusal.outcome()) {
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
        if limits.try_acquire(load).is_none() && limits.acquire(load).await.is_none() {
            return Err(Refusal::limit("too many bytes wait for handlers that take none").into());
        }
        Ok(())
    };
    tokio::select! {
        biased;
        result = wait => result,
        () = hung_up(io) => Err(Failure::Gone),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        mem,
        sync::{OnceLock, Weak},
        task::{Context, Waker},
    };

    use async_trait::async_trait;
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;
    use crate::{
        Metadata, Raw, RawEnd, Server, ServerConfig, Status,
        observer::{CallInfo, Observer},
        proto::{
            frame::Flags,
            message::{FrameData, Measured, RequestParts},
        },
        server::{Context as CallContext, Fallback, FallbackCall, tests::idle_connection_of},
    };

    struct Replies;

    #[async_trait]
    impl Fallback for Replies {
        async fn call(&self, _: &CallContext, _: FallbackCall) -> Result<RawEnd, Status> {
            Ok(RawEnd::Reply(Raw::default()))
        }
    }

    /// Takes all capacity of the outgoing queue when a call begins, as replies of other threads may.
    struct TakesCapacity(Arc<OnceLock<Weak<Connection>>>);

    impl Observer for TakesCapacity {
        fn call_begun(&self, _: &CallInfo<'_>) {
            let connection = self.0.get().and_then(Weak::upgrade).expect("a call of its has come");
            if let Ok(Some(room)) = connection.queue.try_reserve(1) {
                mem::forget(room);
            }
        }
    }

    fn request(stream_id: u32) -> Vec<u8> {
        let parts = RequestParts {
            service: "a.B",
            method: "C",
            payload: None::<Measured<'_, Raw>>,
            timeout_nano: 0,
            metadata: &Metadata::new(),
        };
        let data = parts.to_vec();
        let (data_len, frame_type) = (data.len() as u32, FrameType::Request);
        let header = Header { data_len, stream_id, frame_type, flags: Flags::NONE };
        [&header.to_bytes()[..], &data].concat()
    }

    #[tokio::test]
    async fn a_call_that_has_been_admitted_is_open_while_the_receiver_waits_for_capacity() {
        let connected = Arc::<OnceLock<_>>::default();
        let config = ServerConfig { send_queue_frames: 1, ..ServerConfig::default() };
        let server = Server::builder().config(config).fallback(Replies);
        let (server, connection) =
            idle_connection_of(server.observe(TakesCapacity(connected.clone())));
        let shared = &server.shared;
        shared.lifecycle.start();
        connected.set(Arc::downgrade(&connection)).expect("it is set once");

        let (here, mut there) = duplex(1 << 10);
        there.write_all(&[request(1), request(3)].concat()).await.expect("it is open");
        let mut io = crate::Connection::new(here).reader;
        let mut receiver = pin!(run(&connection, &mut io));
        assert!(receiver.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(connection.queue.streams(|table| table.contains(1) && !table.contains(3)));
        // The end of the connection, which its calls refer to.
        drop(connection.queue.streams(mem::take));
    }
}
