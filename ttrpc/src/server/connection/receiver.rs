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

use crate::server::{
    call::{reasons::EndReason, shared::Connection},
    connection::{
        messages::receive,
        request::{Failure, open},
    },
};
use crate::{
    proto::{codec::Decoded, frame::FrameType, table::RequestIds},
    snapshot::ReceiverWait,
    sync::atomic::Ordering::SeqCst,
    transport::{
        io::ReadHalf,
        limiter::Closed,
        violations::Violations,
        wire::{FrameReader, ReadEnd},
    },
};

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
            frame::{Flags, Header},
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
