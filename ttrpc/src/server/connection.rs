//! A server's connection: what its receiver, its sender and its handlers share, and its life.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use tokio::{sync::oneshot, task::AbortHandle, time::Instant};
use tracing::Instrument;

use super::{
    Shared,
    backlog::Backlog,
    call::Call,
    gate::{Gate, Load},
    peer::Peer,
    receiver,
};
use crate::{
    Code, Status,
    proto::{
        frame::{Flags, FrameType, MAX_DATA_LEN},
        message::{FrameData, encode_status},
        table::ServerTable,
    },
    snapshot::{CallWait, ConnectionSnapshot, Fill, ReceiverWait, merge_calls},
    transport::{
        encode::Frame,
        lock,
        queue::{Closed, FrameBytes, Queue, Room},
        spawn,
        stall::Stalls,
        waits::Waits,
        writer,
    },
};

/// Bytes of a Request that is let in for the sake of its connection, see [`Connection::force_only_call`].
const SHORT_REQUEST: usize = 4 << 10;

/// Shared by the connection's receiver, its sender and its handlers.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) server: Arc<Shared>,
    pub(super) peer: Peer,
    /// Nothing is attached to frames: their stream ids are known.
    pub(super) queue: Queue<()>,
    pub(super) table: Mutex<ServerTable<Arc<Call>>>,
    /// Counts calls, with the bytes of their Requests.
    pub(super) calls: Gate,
    /// Counts bytes in the inboxes of streams: apart from the calls, so that streams which nobody
    /// reads take no call's place.
    pub(super) inboxes: Gate,
    pub(super) stalls: Stalls,
    pub(super) waits: Waits,
    id: u64,
    accepted: Instant,
}

impl Connection {
    /// Queues the last frame of a call, or a refusal of the receiver's, waiting for room. A connection
    /// that has ended drops it.
    pub(super) async fn send(&self, frame: Vec<u8>, call: Option<&Call>) {
        if let Ok(room) = self.reserve(frame.len(), call).await {
            room.push(FrameBytes::Large(frame), None, || true);
        }
    }

    /// Queues a frame if there is room now. `false` if there is none.
    pub(super) fn try_send<D: FrameData>(&self, frame: &Frame<D>) -> bool {
        match self.queue.try_reserve(frame.len()) {
            Ok(Some(room)) => {
                frame.encode(|bytes| room.push(bytes, None, || true));
                true
            }
            Ok(None) => false,
            Err(Closed) => true,
        }
    }

    /// Waits for room for a frame of a call, or of the receiver.
    pub(super) async fn reserve(
        &self,
        len: usize,
        call: Option<&Call>,
    ) -> Result<Room<'_, ()>, Closed> {
        if let Some(room) = self.queue.try_reserve(len)? {
            return Ok(room);
        }
        let _waiting = call.map(|call| self.waits.enter(call.info(), CallWait::Room));
        let _held_up = call.is_none().then(|| self.waits.hold_up(ReceiverWait::Room));
        self.queue.reserve(len).await
    }

    /// Queues a Response that carries a failure, waiting for room.
    pub(super) async fn send_status(&self, stream_id: u32, status: &Status, call: Option<&Call>) {
        let mut data = encode_failure(status);
        if data.len() > MAX_DATA_LEN {
            data = encode_status(&Status::new(
                Code::ResourceExhausted,
                "the call failed with a status that is longer than a frame may be",
            ));
        }
        let frame = Frame::new(FrameType::Response, Flags::NONE, stream_id, &data[..]);
        self.send(frame.expect("it is short enough").to_vec(), call).await;
    }

    /// Lets a call in as [`Connection::enter_call`] does, if it need not wait.
    pub(super) fn try_enter_call(&self, load: Load) -> bool {
        let (own, all) = (&self.calls, &self.server.calls);
        own.try_enter(load)
            && (self.force_only_call(load) || or_leave(own, load, all.try_enter(load)))
    }

    /// Lets a call in, at the connection's gate and at the server's, waiting for others to leave.
    pub(super) async fn enter_call(&self, load: Load) -> bool {
        let (own, all) = (&self.calls, &self.server.calls);
        self.pass(own, load).await
            && (self.force_only_call(load) || or_leave(own, load, self.pass(all, load).await))
    }

    /// The only call of a connection passes the server's gate even when others have filled it, if its
    /// Request is short: a few clients that hold every place do not shut the others out.
    fn force_only_call(&self, load: Load) -> bool {
        let is_only_call = load.bytes <= SHORT_REQUEST && self.calls.load().calls == 1;
        if is_only_call {
            self.server.calls.force(load);
        }
        is_only_call
    }

    /// Lets a message into an inbox, at the connection's gate and at the server's.
    pub(super) async fn enter_inbox(&self, bytes: usize) -> bool {
        let load = Load { calls: 0, bytes };
        let (own, all) = (&self.inboxes, &self.server.inboxes);
        let has_entered = own.try_enter(load) && or_leave(own, load, all.try_enter(load));
        let waiting =
            async { self.pass(own, load).await && or_leave(own, load, self.pass(all, load).await) };
        has_entered || Box::pin(waiting).await
    }

    /// Time during which the client does not read what it is sent does not count against handlers.
    async fn pass(&self, gate: &Gate, load: Load) -> bool {
        if gate.try_enter(load) {
            return true;
        }
        let _held_up = self.waits.hold_up(ReceiverWait::Admission);
        gate.enter(load, self.stall_timeout(), &|| self.queue.is_full()).await
    }

    /// Counts a message that came with its Request, which has been let in.
    pub(super) fn force_inbox(&self, bytes: usize) {
        self.inboxes.force(Load { calls: 0, bytes });
        self.server.inboxes.force(Load { calls: 0, bytes });
    }

    /// Takes back what [`Connection::enter_call`] let in.
    pub(super) fn leave_call(&self, load: Load) {
        self.calls.leave(load);
        self.server.calls.leave(load);
    }

    /// Takes back what [`Connection::enter_inbox`] let in or [`Connection::force_inbox`] counted.
    pub(super) fn leave_inbox(&self, bytes: usize) {
        if bytes > 0 {
            self.inboxes.leave(Load { calls: 0, bytes });
            self.server.inboxes.leave(Load { calls: 0, bytes });
        }
    }

    pub(super) fn stall_timeout(&self) -> Duration {
        self.server.config.stall_timeout
    }

    /// What the connection is doing at this moment.
    pub(super) fn snapshot(&self) -> ConnectionSnapshot {
        let open: Vec<_> = lock(&self.table).handles().cloned().collect();
        let limit = self.server.config.max_calls_per_connection;
        ConnectionSnapshot {
            id: self.id,
            peer: self.peer.clone(),
            age: self.accepted.elapsed(),
            calls_in_flight: Fill { used: self.calls.load().calls, limit },
            queue: self.queue.snapshot(self.waits.total()),
            receiver: self.waits.receiver(),
            calls: merge_calls(open.iter().map(|call| call.snapshot()), self.waits.callers()),
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
        self.calls.no_calls().await;
        self.queue.flushed().await;
    }
}

/// What the server's gate has not let in leaves the connection's as well.
fn or_leave(own: &Gate, load: Load, has_entered: bool) -> bool {
    if !has_entered {
        own.leave(load);
    }
    has_entered
}

/// The data of a Response that carries a failure. One of code 0 would be a success.
fn encode_failure(status: &Status) -> Vec<u8> {
    match status.raw_code() {
        0 => encode_status(&Status::unknown(format!(
            "the handler failed with a status of code OK: {}",
            status.message()
        ))),
        _ => encode_status(status),
    }
}

/// Serves one connection until the client goes away, or the server has drained or closes. It returns the
/// permit that was taken for it.
pub(super) fn serve(server: Arc<Shared>, connection: crate::Connection, id: u64) {
    let crate::Connection { mut reader, mut writer, peer } = connection;
    let span = tracing::debug_span!("connection", id, %peer);
    let config = &server.config;
    let connection = Arc::new(Connection {
        peer,
        queue: Queue::new(config.send_queue_frames, config.send_queue_bytes),
        table: Mutex::default(),
        calls: Gate::new(Load {
            calls: config.max_calls_per_connection,
            bytes: config.request_bytes_per_connection,
        }),
        inboxes: Gate::new(Load { calls: 0, bytes: config.inbox_bytes_per_connection }),
        stalls: Stalls::default(),
        waits: Waits::default(),
        id,
        accepted: Instant::now(),
        server,
    });
    let sending = connection.clone();
    let (signal, mut ended) = oneshot::channel();
    let mut sender = spawn(async move {
        // A client that cannot be written to has gone away; there is nobody to be told.
        let written = writer::run(&mut writer, &sending.queue, |_, _| {}, &mut ended).await;
        if let Err(error) = written {
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
        let backlog = Arc::<Backlog>::default();
        let receiver = pin!(receiver::run(&connection, &backlog, reader));
        tokio::select! {
            biased;
            () = connection.closed() => {}
            _ = &mut sender => {}
            () = backlog.around(receiver) => {}
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
        let table = mem::take(&mut *lock(&connection.table));
        for call in table.into_handles() {
            call.note_end(Code::Cancelled);
            call.cancel();
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
