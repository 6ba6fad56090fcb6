//! A client's connection: what its callers, its sender and its receiver share.
//!
//! Callers come in through [`ConnectionTasks`], which own the two tasks, and put Requests and messages into
//! [`ClientConnection::queue`]; the receiver ([`receiver`]) brings what arrives to the calls in its table
//! ([`calls`]). Of a call whose Request is not queued there are only its [`record`], its permit, and what it waits
//! for.

pub(super) mod calls;
pub(super) mod observe;
mod receiver;
pub(super) mod record;
mod snapshot;
pub(super) mod state;
#[cfg(test)]
mod tests;
pub(super) mod upkeep;

use std::{future::poll_fn, io, sync::Arc, thread, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{SetOnce, oneshot},
    task::AbortHandle,
    time::{Instant, timeout},
};

use self::{
    calls::{Calls, Change},
    observe::{ObservedConnection, lost_call},
    upkeep::{Upkeep, cancel::Cancels},
};
use crate::{
    ClientConfig, Connection, ConnectionError, Status,
    contain::{contain, drop_contained},
    observer::{EndCause, Observers},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    transport::{
        fork::{Origin, Original},
        io::{ReadHalf, Writer},
        limiter::{Limiter, Load, Oversubscribe},
        queue::Queue,
        registry::Registry,
        spawn,
        stall::StallBudget,
        wire,
    },
};

/// What a program has set for its connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) config: ClientConfig,
    pub(super) observers: Observers,
    pub(super) upkeep: Upkeep,
}

/// Owns a connection's two tasks: they end when the last client and the last call are gone. The
/// sender's ends with the receiver's.
#[derive(Debug)]
pub(super) struct ConnectionTasks {
    pub(super) connection: Arc<ClientConnection>,
    receiver: AbortHandle,
}

impl ConnectionTasks {
    pub(super) fn spawn(io: Connection, settings: &Settings) -> Arc<Self> {
        let Settings { config, observers, upkeep } = settings.clone();
        let observed = ObservedConnection::open(observers, io.peer, io.extensions);
        let span = observed.span.clone();
        let mut connection = ClientConnection::new(config, observed);
        let (reader, upkeep) = upkeep.prepare(&mut connection, io.reader);
        let connection = Arc::new(connection);
        let (signal, ended) = oneshot::channel();
        // They tell of the end even where nothing can be spawned.
        let sender = SenderGuard(connection.clone());
        let guard = EndGuard { connection: connection.clone(), _signal: signal };
        let (reader, writer) = (Original::new(reader), Box::new(Original::new(io.writer)));
        spawn(span.instrument(Box::pin(run_sender(sender, writer, ended))));
        let receiver = spawn(span.instrument(Box::pin(run_receiver(guard, reader)))).abort_handle();
        upkeep.start(&connection, &receiver);
        Arc::new(ConnectionTasks { connection, receiver })
    }

    /// Ends the connection, unless it is that of a parent process.
    pub(super) fn close(&self, reason: ConnectionError) {
        if !self.connection.origin.is_here() {
            return;
        }
        self.connection.end(reason);
        self.receiver.abort();
    }
}

impl Drop for ConnectionTasks {
    fn drop(&mut self) {
        self.close(ConnectionError::ClosedLocally);
    }
}

/// Shared by the callers, the sender and the receiver. Its parts are locked one at a time, each for
/// a few instructions.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) config: ClientConfig,
    pub(super) origin: Origin,
    /// The outgoing queue and the table of calls.
    pub(super) queue: Queue<Calls>,
    /// Limits the calls in flight.
    pub(super) calls: Limiter,
    pub(super) patience: StallBudget,
    pub(super) registry: Registry,
    pub(super) observed: Arc<ObservedConnection>,
    /// The calls that the server is to be told of, if it is.
    cancels: Option<Box<Cancels>>,
    /// A call found that all stream ids have been used.
    is_spent: AtomicBool,
    closed: SetOnce<ConnectionError>,
    /// Set when the sender has failed and the receiver has had the time to find out why.
    pub(super) write_error: SetOnce<ConnectionError>,
    /// Set at the end of the sender's task: the writer is shut down, as far as it can be.
    pub(super) sender_ended: SetOnce<()>,
}

impl ClientConnection {
    pub(super) fn new(config: ClientConfig, observed: Arc<ObservedConnection>) -> Self {
        let (frames, bytes) = (config.send_queue_frames, config.send_queue_bytes);
        ClientConnection {
            queue: Queue::new(frames, bytes, Calls::default()),
            calls: Limiter::new(Load { count: config.max_calls, cost: 1 }, Oversubscribe::AnyLast),
            patience: StallBudget::new(config.stall_timeout),
            registry: Registry::default(),
            observed,
            cancels: None,
            is_spent: AtomicBool::new(false),
            closed: SetOnce::new(),
            write_error: SetOnce::new(),
            sender_ended: SetOnce::new(),
            origin: Origin::here(),
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
        self.queue.streams(|calls| calls.len())
    }

    /// The status of a call that ended with the connection.
    pub(super) fn unavailable(&self) -> Status {
        let reason = self.close_reason().unwrap_or(ConnectionError::ClosedLocally);
        unavailable(reason)
    }

    /// The status of a call whose Request was not queued: the connection has ended, or has no stream
    /// id left. It goes on until its last call has ended, so that this one alone is lost.
    pub(super) fn no_id(&self) -> Status {
        if self.queue.streams(|calls| calls.is_spent()) {
            self.is_spent.store(true, SeqCst);
            self.end_if_spent();
            return unavailable(ConnectionError::IdsExhausted);
        }
        self.unavailable()
    }

    /// Ends a connection that has no stream id left, once its last call has ended.
    pub(super) fn end_if_spent(&self) {
        if self.is_spent.load(SeqCst) && self.streams_open() == 0 {
            self.end(ConnectionError::IdsExhausted);
        }
    }

    /// Hands a Response to its call.
    fn answer(&self, id: u32, response: Bytes, read_at: impl FnOnce() -> Instant) {
        let ended = self.queue.streams(|calls| calls.end_by_response(id, response));
        let change = ended.unwrap_or_else(|(record, response)| {
            // Observers see the answer before the caller does.
            record.answered(read_at(), &response);
            self.queue.streams(|calls| calls.change_call(id, |call| call.answer(response)))
        });
        change.publish();
    }

    /// Waits until a call has ended.
    pub(super) async fn ended(&self, id: u32) {
        poll_fn(|cx| {
            // A waker is the program's: it is copied and dropped without the lock.
            let mut waker = Some(cx.waker().clone());
            self.queue.streams(|calls| calls.poll_ended(id, &mut waker))
        })
        .await;
    }

    /// Fails a call that has reached a limit of this side.
    fn refuse(&self, id: u32, message: impl Into<String>) {
        self.withdraw(id, EndCause::Limit, Status::resource_exhausted(message));
    }

    /// Fails a call, unless it has ended before. A Request that has not begun to be written never is.
    pub(super) fn withdraw(&self, id: u32, cause: EndCause, status: Status) {
        let mut change = Change::default();
        let begun = self.withdraw_by(id, |calls| change = calls.fail(id, cause, status));
        change.publish();
        self.given_up(begun, cause == EndCause::GivenUp);
    }

    /// Removes a call whose owner lets go of it. A Request that has not begun to be written never is.
    pub(super) fn release(&self, id: u32) {
        self.given_up(self.remove(id), false);
    }

    /// Removes a call. Returns its id if it was open, and its Request has begun to be written.
    fn remove(&self, id: u32) -> Option<u32> {
        let mut entry = None;
        let begun = self.withdraw_by(id, |calls| entry = calls.remove(id));
        // Dropped without the lock: it has a waker.
        let _ = drop_contained(entry);
        begun
    }

    /// Ends a call in this way. Returns its id if it was open, and its Request has begun to be written.
    fn withdraw_by(&self, id: u32, end: impl FnOnce(&mut Calls)) -> Option<u32> {
        self.queue.withdraw(|calls| {
            let was_open = calls.contains(id);
            end(calls);
            was_open.then_some(id)
        })
    }

    /// Ends the connection: every call that is pending is answered, at once, with the cause. The
    /// first cause counts.
    pub(super) fn end(&self, reason: ConnectionError) {
        if self.closed.set(reason).is_err() {
            return;
        }
        let _ = contain(|| self.calls.close());
        // Nothing is queued, and so no call comes into the table, from here on.
        let _ = contain(|| self.queue.close());
        let (cause, status) = (lost_call(self.closed.get()), self.unavailable());
        let unsent = self.queue.first_unsent();
        for change in self.queue.streams(|calls| calls.fail_all(cause, &status, unsent)) {
            let _ = contain(move || change.publish());
        }
        if let Some(reason) = self.closed.get() {
            self.observed.closed(reason);
        }
    }
}

/// The status of a call without a connection, for this reason.
pub(super) fn unavailable(reason: ConnectionError) -> Status {
    Status::unavailable(reason.to_string()).with_source(reason)
}

/// How long the receiver may go on after a write has failed.
const LAST_WORDS: Duration = Duration::from_millis(100);

async fn run_sender(guard: SenderGuard, writer: Writer, mut ended: wire::Ended) {
    let connection = &guard.0;
    if let Err(error) = wire::send_all(writer, &connection.queue, &mut ended).await {
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

async fn run_receiver(guard: EndGuard, mut reader: Original<Box<dyn ReadHalf + Send>>) {
    let reason = receiver::run(&guard.connection, &mut *reader).await;
    guard.connection.end(reason);
}

/// The error of a stream of bytes, which is the program's, that panics. `None` while nothing does.
fn panicked() -> Option<Arc<io::Error>> {
    thread::panicking().then(|| Arc::new(io::Error::other("the connection's stream panicked")))
}

/// Tells of the end of the sender's task in whatever way it ends, a runtime that shuts down included.
struct SenderGuard(Arc<ClientConnection>);

impl Drop for SenderGuard {
    fn drop(&mut self) {
        if let Some(error) = panicked() {
            let _ = self.0.write_error.set(ConnectionError::Write(error));
        }
        let _ = self.0.sender_ended.set(());
    }
}

/// Ends the connection when the receiver's task ends in whatever way, a runtime that shuts down
/// included.
struct EndGuard {
    connection: Arc<ClientConnection>,
    /// Dropped behind the connection's end, to tell the sender, which shuts the writer down.
    _signal: oneshot::Sender<()>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let reason = panicked().map_or(ConnectionError::ClosedLocally, ConnectionError::Read);
        self.connection.end(reason);
        // Somebody else may be about to end it, and the sender looks at the queue when the signal comes.
        self.connection.queue.close();
    }
}
