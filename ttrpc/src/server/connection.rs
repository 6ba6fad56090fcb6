//! A server's connection: what its receiver, its sender and its handlers share, and its life.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::{sync::oneshot, task::AbortHandle, time::Instant};
use tracing::Instrument;

use super::{
    Peer, Shared,
    call::{Call, ReplyRoom},
    ready_queue::ReadyQueue,
    receiver,
};
use crate::{
    Code, Status,
    proto::{
        frame::{Flags, FrameType, MAX_DATA_LEN},
        message::encode_status,
        table::ServerTable,
    },
    snapshot::{CallWait, ConnectionSnapshot, Fill, QueueSnapshot, ReceiverWait, merge_calls},
    transport::{
        chunk::FrameBytes,
        encode::Frame,
        limiter::{Closed, Limiter, Load, Overshoot},
        lock,
        queue::Queue,
        registry::Registry,
        spawn,
        stall::Patience,
        writer,
    },
};

/// Shared by the connection's receiver, its sender and its handlers.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) server: Arc<Shared>,
    pub(super) peer: Peer,
    /// The outgoing queue and the calls that may still be answered.
    pub(super) queue: Queue<ServerTable<Arc<Call>>>,
    /// Counts calls, with what their Requests cost.
    pub(super) calls: Limiter,
    /// Counts what is in the inboxes of streams: apart from the calls, so that streams which nobody
    /// reads take no call's place.
    pub(super) inboxes: Limiter,
    /// Counts the bytes of replies that wait for room in the queue.
    pub(super) replies: Limiter,
    pub(super) patience: Patience,
    pub(super) registry: Registry,
    pub(super) id: u64,
    accepted: Instant,
}

impl Connection {
    /// Waits for room for a frame of a call, or of the receiver.
    pub(super) async fn reserve(
        &self,
        len: usize,
        call: Option<&Call>,
    ) -> Result<ReplyRoom<'_>, Closed> {
        if let Some(room) = self.queue.try_reserve(len)? {
            return Ok(room);
        }
        let _waiting = call.map(|call| self.registry.enter(call.info(), CallWait::Room));
        let _held_up = call.is_none().then(|| self.registry.hold_up(ReceiverWait::Room));
        self.queue.reserve(len).await
    }

    /// Sends a Response that carries a failure, for whoever has taken the call out of the table or
    /// refuses it; waits for room. A connection that has ended drops it.
    pub(super) async fn send_status(&self, stream_id: u32, status: &Status, call: Option<&Call>) {
        let data = encode_failure(status);
        let frame = Frame::new(FrameType::Response, Flags::NONE, stream_id, &data[..]);
        let frame = frame.expect("a status is cut to what a frame may hold").to_vec();
        if let Ok(room) = self.reserve(frame.len(), call).await {
            room.push(FrameBytes::Large(frame), |_| Some(stream_id));
        }
    }

    /// A condition that holds while it is the client who holds handlers up, since it does not read: their
    /// time does not count then.
    pub(super) fn is_unread(&self) -> impl Fn() -> bool {
        let is_stuck = self.queue.is_stuck();
        move || self.replies.is_full() || is_stuck()
    }

    /// What the connection is doing at this moment.
    pub(super) fn snapshot(&self) -> ConnectionSnapshot {
        let open: Vec<_> = self.queue.streams(|table| table.handles().cloned().collect());
        let limit = self.server.config.max_calls_per_connection;
        ConnectionSnapshot {
            id: self.id,
            peer: self.peer.clone(),
            age: self.accepted.elapsed(),
            calls_in_flight: Fill { used: self.calls.load().count, limit },
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(open.iter().map(|call| call.snapshot()), self.registry.callers()),
        }
    }

    /// Waits until the server closes. It wakes its task when the server begins to drain as well.
    async fn closed(&self) {
        let lifecycle = &self.server.lifecycle;
        let mut draining = pin!(lifecycle.draining());
        let mut is_waiting = false;
        poll_fn(|cx| {
            // The connection's task alone polls this, so it takes its place among those who wait once.
            // From then on it looks at a flag, whatever else has woken it.
            if is_waiting && lifecycle.is_running() {
                return Poll::Pending;
            }
            is_waiting = true;
            draining.as_mut().poll(cx)
        })
        .await;
        Box::pin(lifecycle.closing()).await;
    }

    /// Waits until every call is answered, answers written.
    pub(super) async fn answered(&self) {
        self.calls.at_most(Load::cost(usize::MAX)).await;
        self.queue.flushed().await;
    }
}

/// The data of a Response that carries a failure, no longer than a frame may be. One of code 0 would
/// be a success.
pub(super) fn encode_failure(status: &Status) -> Vec<u8> {
    let data = match status.raw_code() {
        0 => encode_status(&Status::unknown(format!(
            "the handler failed with a status of code OK: {}",
            status.message()
        ))),
        _ => encode_status(status),
    };
    if data.len() <= MAX_DATA_LEN {
        return data;
    }
    encode_status(&Status::new(
        Code::ResourceExhausted,
        "the call failed with a status that is longer than a frame may be",
    ))
}

/// Serves one connection until the client goes away, or the server has drained or closes. It returns the
/// permit that was taken for it.
pub(super) fn serve(server: Arc<Shared>, connection: crate::Connection, id: u64) {
    let crate::Connection { mut reader, mut writer, peer } = connection;
    let span = tracing::debug_span!("connection", id, %peer);
    let config = &server.config;
    let connection = Arc::new(Connection {
        peer,
        queue: Queue::new(
            config.send_queue_frames,
            config.send_queue_bytes,
            ServerTable::default(),
        ),
        calls: Limiter::new(
            Load {
                count: config.max_calls_per_connection,
                cost: config.request_bytes_per_connection,
            },
            Overshoot::Last,
        ),
        inboxes: Limiter::new(
            Load { count: 1, cost: config.inbox_bytes_per_connection },
            Overshoot::Last,
        ),
        replies: Limiter::new(
            Load { count: 1, cost: config.reply_bytes_per_connection },
            Overshoot::Alone,
        ),
        patience: Patience::default(),
        registry: Registry::default(),
        id,
        accepted: Instant::now(),
        server,
    });
    let sending = connection.clone();
    let (signal, mut ended) = oneshot::channel();
    let mut sender = spawn(async move {
        // A client that cannot be written to has gone away; there is nobody to be told.
        if let Err(error) = writer::run(&mut writer, &sending.queue, &mut ended).await {
            tracing::debug!(connection = id, "writing to the client failed: {error}");
        }
    });
    let mut owner = ConnectionOwner {
        signal: Some(signal),
        sender: sender.abort_handle(),
        registration: Registration::new(connection),
    };
    // A task is as large as the largest thing that it may ever wait for. So that an idle connection
    // is small, what seldom has to be waited for is boxed when it has.
    let receiving = async move {
        // Dropped before the connection is taken off the list.
        let reader = &mut reader;
        let connection = owner.registration.connection.clone();
        tracing::debug!("connection accepted");
        let ready_queue = ReadyQueue::new(connection.clone());
        let receiver = pin!(receiver::run(&connection, &ready_queue, reader));
        tokio::select! {
            biased;
            () = connection.closed() => {}
            _ = &mut sender => {}
            () = ready_queue.drive(receiver) => {}
        }
        owner.end();
        // Its end is seen only when the writer is shut down: the program may exit then.
        if !sender.is_finished() {
            let _ = sender.await;
        }
    };
    spawn(receiving.instrument(span));
}

/// Ends a connection in whatever way it ends: its handlers are cancelled, its sender shuts the writer
/// down, whoever waits for room is told, and it is taken off its server's list.
struct ConnectionOwner {
    /// Dropped to tell the sender that the connection has ended.
    signal: Option<oneshot::Sender<()>>,
    sender: AbortHandle,
    /// Dropped last, and even if what is told panics.
    registration: Registration,
}

impl ConnectionOwner {
    /// Ends everything but the sender, which shuts the writer down in a bounded time.
    fn end(&mut self) {
        if self.signal.take().is_none() {
            return;
        }
        let connection = &self.registration.connection;
        connection.queue.close();
        tracing::debug!(duration = ?connection.accepted.elapsed(), "connection ended");
        for call in connection.queue.streams(mem::take).into_handles() {
            call.taken_out(Code::Cancelled);
        }
    }
}

impl Drop for ConnectionOwner {
    fn drop(&mut self) {
        self.end();
        self.sender.abort();
    }
}

/// A connection that is on its server's list, with its permit to be open.
struct Registration {
    connection: Arc<Connection>,
    key: usize,
}

impl Registration {
    fn new(connection: Arc<Connection>) -> Self {
        let key = lock(&connection.server.connections).insert(Arc::downgrade(&connection));
        Registration { connection, key }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let server = &self.connection.server;
        lock(&server.connections).remove(self.key);
        server.connection_permits.add_permits(1);
        server.connection_ended.notify_waiters();
    }
}
