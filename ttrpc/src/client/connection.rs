//! A client's connection: what its callers, its sender and its receiver share.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{SetOnce, oneshot},
    task::AbortHandle,
    time::timeout,
};

use super::{
    call::{Call, Step, Tag},
    places::Places,
    receiver,
};
use crate::{
    ClientConfig, ConnectionError, Status,
    proto::{frame::Header, table::ClientTable},
    snapshot::{ClientSnapshot, merge_calls},
    transport::{
        lock,
        queue::{Chunk, Queue},
        spawn,
        stall::Stalls,
        waits::Waits,
        writer,
    },
};

/// Shared by the callers, the sender and the receiver. Its parts are locked one at a time, each for
/// a few instructions; a call may be locked within two of them: the table, in [`Connection::stamp`],
/// and the queue, where a message is pushed only while its call goes on.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) config: ClientConfig,
    pub(super) queue: Queue<Tag>,
    /// `None` once the connection has ended.
    pub(super) table: Mutex<Option<ClientTable<Arc<Call>>>>,
    pub(super) places: Places,
    pub(super) stalls: Stalls,
    pub(super) waits: Waits,
    closed: SetOnce<ConnectionError>,
    /// Set when the sender has failed and the receiver has had the time to find out why.
    pub(super) write_error: SetOnce<ConnectionError>,
}

impl Connection {
    pub(super) async fn closed(&self) -> ConnectionError {
        self.closed.wait().await.clone()
    }

    pub(super) fn close_reason(&self) -> Option<ConnectionError> {
        self.closed.get().cloned()
    }

    pub(super) fn streams_open(&self) -> usize {
        lock(&self.table).as_ref().map_or(0, ClientTable::len)
    }

    /// What the connection is doing at this moment.
    pub(super) fn snapshot(&self) -> ClientSnapshot {
        let queued = self.queue.map_tags(|tag| match tag.step {
            Step::Request => Some(tag.call.clone()),
            Step::Message | Step::Close => None,
        });
        let sent: Vec<_> =
            lock(&self.table).iter().flat_map(ClientTable::handles).cloned().collect();
        // A Request that the socket refused is stamped and in the table, and no longer queued.
        let calls = queued.iter().chain(&sent).map(|call| call.snapshot());
        ClientSnapshot {
            close_reason: self.close_reason(),
            queue: self.queue.snapshot(self.waits.total()),
            receiver: self.waits.receiver(),
            calls: merge_calls(calls, self.waits.callers()),
        }
    }

    /// The status of a call that the connection's end took with it.
    pub(super) fn unavailable(&self) -> Status {
        let reason = self.close_reason().unwrap_or(ConnectionError::ClosedLocally);
        unavailable(reason)
    }

    /// Ends the connection: every call that is pending is answered, at once, with the cause. The
    /// first cause counts.
    pub(super) fn end(&self, reason: ConnectionError) {
        if self.closed.set(reason).is_err() {
            return;
        }
        self.places.close();
        let queued = self.queue.close();
        let table = lock(&self.table).take();
        let sent = table.into_iter().flat_map(ClientTable::into_handles);
        let queued = queued.into_iter().flat_map(Chunk::into_tags).map(|tag| tag.call);
        for call in sent.chain(queued) {
            call.end(Err(self.unavailable()));
        }
    }

    /// Gives Requests their stream ids in the order in which they enter the socket, writes the ids
    /// into all frames, and drops the frames of calls that were given up before their Request had
    /// begun to be written.
    fn stamp(&self, chunk: &mut Chunk<Tag>, from: usize) {
        let mut table = lock(&self.table);
        chunk.retain(from, |tag, frame| {
            let id = match table.as_mut() {
                Some(table) => tag.stamp(table),
                // The connection has ended between the queue and here.
                None => {
                    tag.call.end(Err(self.unavailable()));
                    None
                }
            };
            if let Some(id) = id {
                Header::set_stream_id(frame, id);
            }
            id.is_some()
        });
    }
}

fn unavailable(reason: ConnectionError) -> Status {
    Status::unavailable(reason.to_string()).with_source(Arc::new(reason) as Arc<_>)
}

/// Owns a connection's two tasks: they end when the last handle goes, which is when neither a
/// client nor a call is left. The sender's ends with the receiver's.
#[derive(Debug)]
pub(super) struct Handle {
    connection: Arc<Connection>,
    receiver: AbortHandle,
}

impl Handle {
    pub(super) fn spawn(io: crate::Connection, config: ClientConfig) -> Arc<Self> {
        let connection = Arc::new(Connection {
            queue: Queue::new(config.send_queue_frames, config.send_queue_bytes),
            table: Mutex::new(Some(ClientTable::default())),
            places: Places::new(config.max_calls),
            stalls: Stalls::default(),
            waits: Waits::default(),
            closed: SetOnce::new(),
            write_error: SetOnce::new(),
            config,
        });
        let (signal, ended) = oneshot::channel();
        spawn(run_sender(connection.clone(), io.writer, ended));
        let owner = ConnectionOwner { connection: connection.clone(), _signal: signal };
        let receiver = spawn(run_receiver(owner, io.reader)).abort_handle();
        Arc::new(Handle { connection, receiver })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn close(&self, reason: ConnectionError) {
        self.connection.end(reason);
        self.receiver.abort();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close(ConnectionError::ClosedLocally);
    }
}

/// How long the receiver may go on after a write has failed.
const LAST_WORDS: Duration = Duration::from_millis(100);

async fn run_sender(
    connection: Arc<Connection>,
    writer: impl tokio::io::AsyncWrite + Unpin,
    mut ended: writer::Ended,
) {
    let stamp = |chunk: &mut Chunk<Tag>, from: usize| connection.stamp(chunk, from);
    if let Err(error) = writer::run(writer, &connection.queue, stamp, &mut ended).await {
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

async fn run_receiver(owner: ConnectionOwner, reader: impl tokio::io::AsyncRead + Unpin) {
    let reason = receiver::run(&owner.connection, reader).await;
    owner.connection.end(reason);
}

/// Ends the connection when the receiver's task ends in whatever way, a runtime that shuts down
/// included.
struct ConnectionOwner {
    connection: Arc<Connection>,
    /// Dropped behind the connection's end, to tell the sender, which shuts the writer down.
    _signal: oneshot::Sender<()>,
}

impl Drop for ConnectionOwner {
    fn drop(&mut self) {
        self.connection.end(ConnectionError::ClosedLocally);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::Pin, task::Poll};

    use super::{super::UnaryCall, *};
    use crate::Code;

    #[tokio::test]
    async fn a_call_in_the_senders_hand_when_the_connection_ends_is_answered() {
        let (here, _there) = tokio::io::duplex(1);
        let handle = Handle::spawn(crate::Connection::new(here), ClientConfig::default());
        let mut call = UnaryCall::<(), ()>::new(handle.clone(), "S", "M", ()).into_future();
        let mut poll = async || poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
        assert!(poll().await.is_pending());

        let connection = handle.connection();
        let mut chunks = connection.queue.take().await.expect("the Request is queued");
        connection.end(ConnectionError::ClosedLocally);
        assert!(poll().await.is_pending(), "neither queued nor sent");
        chunks.iter_mut().for_each(|chunk| connection.stamp(chunk, 0));
        let Poll::Ready(Err(status)) = poll().await else { panic!("the call ends") };
        assert_eq!(status.code(), Code::Unavailable);
    }
}
