//! A client's connection: what its callers, its sender and its receiver share.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::AsyncWrite,
    sync::{SetOnce, oneshot},
    task::AbortHandle,
    time::timeout,
};

use super::{call::Call, receiver};
use crate::{
    ClientConfig, ConnectionError, Status,
    proto::table::ClientTable,
    snapshot::{ClientSnapshot, QueueSnapshot, merge_calls},
    transport::{
        io::ReadHalf,
        limiter::{Limiter, Load, Overshoot},
        queue::Queue,
        registry::Registry,
        spawn,
        stall::Patience,
        writer,
    },
};

/// Shared by the callers, the sender and the receiver. Its parts are locked one at a time, each for
/// a few instructions.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) config: ClientConfig,
    /// The outgoing queue and the calls that the server may still answer.
    pub(super) queue: Queue<ClientTable<Arc<Call>>>,
    /// Calls in flight.
    pub(super) calls: Limiter,
    pub(super) patience: Patience,
    pub(super) registry: Registry,
    /// A call found that all stream ids have been used.
    is_spent: AtomicBool,
    closed: SetOnce<ConnectionError>,
    /// Set when the sender has failed and the receiver has had the time to find out why.
    pub(super) write_error: SetOnce<ConnectionError>,
}

impl Connection {
    fn new(config: ClientConfig, table: ClientTable<Arc<Call>>) -> Self {
        Connection {
            queue: Queue::new(config.send_queue_frames, config.send_queue_bytes, table),
            calls: Limiter::new(Load { count: config.max_calls, cost: 1 }, Overshoot::Last),
            patience: Patience::default(),
            registry: Registry::default(),
            is_spent: AtomicBool::new(false),
            closed: SetOnce::new(),
            write_error: SetOnce::new(),
            config,
        }
    }

    pub(super) async fn closed(&self) -> ConnectionError {
        self.closed.wait().await.clone()
    }

    pub(super) fn close_reason(&self) -> Option<ConnectionError> {
        self.closed.get().cloned()
    }

    pub(super) fn streams_open(&self) -> usize {
        self.queue.streams(|table| table.len())
    }

    /// What the connection is doing at this moment.
    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let unsent = self.queue.unsent_requests();
        let calls: Vec<_> =
            self.queue.streams(|table| table.iter().map(|(id, call)| (id, call.clone())).collect());
        let calls = calls
            .iter()
            .map(|(id, call)| call.snapshot(unsent.binary_search(id).is_err().then_some(*id)));
        ClientSnapshot {
            close_reason: self.close_reason(),
            queue: QueueSnapshot::new(&self.queue, self.registry.total()),
            receiver: self.registry.receiver(),
            calls: merge_calls(calls, self.registry.callers()),
        }
    }

    /// The status of a call that the connection's end took with it.
    pub(super) fn unavailable(&self) -> Status {
        let reason = self.close_reason().unwrap_or(ConnectionError::ClosedLocally);
        unavailable(reason)
    }

    /// The status of a call whose Request was not queued: the connection has ended, or has no stream
    /// id left. It goes on until its last call has ended, so that this one alone is lost.
    pub(super) fn no_id(&self) -> Status {
        if self.queue.streams(|table| table.is_spent()) {
            self.is_spent.store(true, SeqCst);
            self.end_if_spent();
            return unavailable(ConnectionError::IdsExhausted);
        }
        self.unavailable()
    }

    /// Ends a connection that has no stream id left, once its last call has ended.
    pub(super) fn end_if_spent(&self) {
        if self.is_spent.load(SeqCst) && self.queue.streams(|table| table.is_empty()) {
            self.end(ConnectionError::IdsExhausted);
        }
    }

    /// Ends the connection: every call that is pending is answered, at once, with the cause. The
    /// first cause counts.
    pub(super) fn end(&self, reason: ConnectionError) {
        if self.closed.set(reason).is_err() {
            return;
        }
        self.calls.close();
        // Nothing is queued, and so no call comes into the table, from here on.
        self.queue.close();
        let status = self.unavailable();
        for call in self.queue.streams(mem::take).into_handles() {
            call.lose_connection(&status);
        }
    }
}

fn unavailable(reason: ConnectionError) -> Status {
    Status::unavailable(reason.to_string()).with_source(reason)
}

/// Owns a connection's two tasks: they end when the last client and the last call are gone. The
/// sender's ends with the receiver's.
#[derive(Debug)]
pub(super) struct ConnectionOwner {
    connection: Arc<Connection>,
    receiver: AbortHandle,
}

impl ConnectionOwner {
    pub(super) fn spawn(io: crate::Connection, config: ClientConfig) -> Arc<Self> {
        ConnectionOwner::with_table(io, config, ClientTable::default())
    }

    fn with_table(
        io: crate::Connection,
        config: ClientConfig,
        table: ClientTable<Arc<Call>>,
    ) -> Arc<Self> {
        let connection = Arc::new(Connection::new(config, table));
        let (signal, ended) = oneshot::channel();
        spawn(run_sender(connection.clone(), io.writer, ended));
        let guard = EndGuard { connection: connection.clone(), _signal: signal };
        let receiver = spawn(run_receiver(guard, io.reader)).abort_handle();
        Arc::new(ConnectionOwner { connection, receiver })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn close(&self, reason: ConnectionError) {
        self.connection.end(reason);
        self.receiver.abort();
    }
}

impl Drop for ConnectionOwner {
    fn drop(&mut self) {
        self.close(ConnectionError::ClosedLocally);
    }
}

/// How long the receiver may go on after a write has failed.
const LAST_WORDS: Duration = Duration::from_millis(100);

async fn run_sender(
    connection: Arc<Connection>,
    writer: impl AsyncWrite + Unpin,
    mut ended: writer::Ended,
) {
    if let Err(error) = writer::run(writer, &connection.queue, &mut ended).await {
        // What the server has sent before it went away may still be in the socket, and so is its
        // end, even where the runtime has not seen it yet: the receiver takes both. Only if no end
        // comes, the server having closed one direction alone, the failed write ends the connection.
        if timeout(LAST_WORDS, ended).await.is_ok() {
            return;
        }
        let error = ConnectionError::Write(Arc::new(error));
        connection.write_error.set(error).expect("there is one sender, and it fails once");
    }
}

async fn run_receiver(guard: EndGuard, reader: impl ReadHalf) {
    let reason = receiver::run(&guard.connection, reader).await;
    guard.connection.end(reason);
}

/// Ends the connection when the receiver's task ends in whatever way, a runtime that shuts down
/// included.
struct EndGuard {
    connection: Arc<Connection>,
    /// Dropped behind the connection's end, to tell the sender, which shuts the writer down.
    _signal: oneshot::Sender<()>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.connection.end(ConnectionError::ClosedLocally);
    }
}

#[cfg(test)]
mod tests {
    use std::{error::Error, future::poll_fn, pin::Pin, task::Poll};

    use tokio::io::AsyncWriteExt;

    use super::{super::UnaryCall, *};
    use crate::{
        Code,
        proto::{
            codec::{Decoded, Decoder},
            frame::{Flags, FrameType, Header},
        },
    };

    fn call(owner: &Arc<ConnectionOwner>) -> UnaryCall<(), ()> {
        UnaryCall::new(owner.clone(), "S", "M", ())
    }

    #[tokio::test]
    async fn a_call_in_the_senders_hand_when_the_connection_ends_is_answered() {
        let (here, _there) = tokio::io::duplex(1);
        let owner = ConnectionOwner::spawn(crate::Connection::new(here), ClientConfig::default());
        let mut call = call(&owner).into_future();
        let mut poll = async || poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
        assert!(poll().await.is_pending());
        tokio::task::yield_now().await;
        assert!(owner.connection().queue.unsent_requests().is_empty(), "the sender has it");
        owner.connection().end(ConnectionError::ClosedLocally);
        let Poll::Ready(Err(status)) = poll().await else { panic!("the call ends") };
        assert_eq!(status.code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn a_connection_without_ids_ends_with_that_cause_when_its_last_call_has_ended() {
        let (here, mut there) = tokio::io::duplex(1000);
        let table = ClientTable::starting_at(u32::MAX);
        let owner = ConnectionOwner::with_table(
            crate::Connection::new(here),
            ClientConfig::default(),
            table,
        );
        let mut last = call(&owner).into_future();
        assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut last).poll(cx))).await.is_pending());

        let is_spent = |status: Status| {
            let source = status.source().and_then(|source| source.downcast_ref());
            matches!(source, Some(ConnectionError::IdsExhausted))
        };
        let status = call(&owner).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(is_spent(status));
        assert!(owner.connection().close_reason().is_none(), "a call is in flight");

        let header = Header {
            data_len: 0,
            stream_id: u32::MAX,
            frame_type: FrameType::Response,
            flags: Flags::NONE,
        };
        there.write_all(&header.to_bytes()).await.unwrap();
        last.await.unwrap();
        let reason = owner.connection().closed().await;
        assert!(matches!(reason, ConnectionError::IdsExhausted));
        assert!(is_spent(call(&owner).await.unwrap_err()));
        let mut request = [0; 100];
        let len = tokio::io::AsyncReadExt::read(&mut there, &mut request).await.unwrap();
        let mut decoder = Decoder::default();
        decoder.feed(&request[..len]);
        let decoded = decoder.decode();
        assert!(matches!(decoded, Some(Decoded::Frame(header)) if header.stream_id == u32::MAX));
    }
}
