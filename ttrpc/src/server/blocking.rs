//! Handlers without `async`: for what computes, reads files or waits for processes.
//!
//! Generated with the option `blocking_server`: a trait `GreeterBlocking` whose methods are no `async fn`, and a
//! `GreeterBlockingServer` that serves it.
//!
//! Each call runs on a thread of its own, from the pool of [`tokio::task::spawn_blocking`], so that it holds
//! up neither its connection nor the runtime. A handler that panics answers INTERNAL.
//!
//! # How many
//!
//! At most [`ServerConfig::max_blocking_calls`](field@crate::ServerConfig::max_blocking_calls) run at a
//! time. One more waits for its turn, within its deadline, as long as others end; after `stall_timeout` without
//! any ending it fails with RESOURCE_EXHAUSTED. The only one of a connection begins all the same, so that
//! clients that hold every permit do not shut the others out. The pool has to have as many threads, and those
//! that the program itself wants:
//! [`max_blocking_threads`](tokio::runtime::Builder::max_blocking_threads), 512 by default.
//!
//! # When the call is over
//!
//! A thread cannot be stopped. When the deadline passes, the client goes away or the server shuts down, the
//! client gets its answer at once; the handler goes on, and keeps its permit, until it returns. Its streams fail
//! with CANCELLED, [`Context::is_cancelled`] says so, and [`Context::cancellation_token`] can be waited for or
//! handed on. A server that ends waits for such handlers for a second, and a runtime that is dropped until the
//! last of them has returned: [`Runtime::shutdown_timeout`](tokio::runtime::Runtime::shutdown_timeout) does not.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    future::Future,
    panic::resume_unwind,
    pin::pin,
    sync::Arc,
    task::{self, Poll, Waker},
};

use prost::Message;
use tokio::{runtime::Handle, task::spawn_blocking};

use super::call::Call;
use crate::{
    Context, Status,
    observer::EndCause,
    snapshot::CallWait,
    sync::Mutex,
    trace::Span,
    transport::{
        BoxFuture,
        limiter::{Limiter, Load, Overshoot, Refused},
        lock,
    },
};

/// Runs a handler on a thread of the runtime's pool, as soon as it has a permit. Generated code
/// calls this from an asynchronous handler.
///
/// # Errors
/// Those of the handler. RESOURCE_EXHAUSTED if every permit is taken and no handler ends.
pub fn run<R, F>(ctx: &Context, handler: F) -> BoxFuture<'_, Result<R, Status>>
where
    R: Send + 'static,
    F: FnOnce(&Context) -> Result<R, Status> + Send + 'static,
{
    Box::pin(async move {
        let permit = acquire(ctx.call()).await?;
        let (ctx, span) = (ctx.clone(), Span::current());
        let handler = spawn_blocking(move || {
            let _permit = permit;
            // The pool may have kept it waiting.
            match ctx.is_cancelled() {
                true => Err(Status::cancelled("the call is over")),
                false => span.in_scope(|| handler(&ctx)),
            }
        });
        match handler.await.map_err(|error| error.try_into_panic()) {
            Ok(result) => result,
            Err(Ok(panic)) => resume_unwind(panic),
            Err(Err(_)) => Err(Status::unavailable("the server's runtime is shutting down")),
        }
    })
}

/// What one handler takes.
const PLACE: Load = Load::one(0);

/// Counts blocking handlers.
#[derive(Debug)]
pub(super) struct BlockingCalls {
    limiter: Limiter,
    /// Those of each connection that has some, by its number.
    of_connections: Mutex<HashMap<u64, usize>>,
}

impl BlockingCalls {
    pub(super) fn new(max: usize) -> Self {
        let limiter = Limiter::new(Load { count: max, cost: 1 }, Overshoot::Last);
        BlockingCalls { limiter, of_connections: Mutex::default() }
    }

    /// Takes a permit if one is free, or if it is the connection's first.
    fn try_acquire(&self, connection: u64) -> bool {
        let mut of_connections = lock(&self.of_connections);
        match self.limiter.try_acquire(PLACE) {
            Some(permit) => drop(permit.into_load()),
            None if of_connections.contains_key(&connection) => return false,
            None => self.limiter.force(PLACE),
        }
        *of_connections.entry(connection).or_default() += 1;
        true
    }

    /// Releases the permit that was taken for the connection.
    fn release(&self, connection: u64) {
        let mut of_connections = lock(&self.of_connections);
        if let Entry::Occupied(mut count) = of_connections.entry(connection) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        drop(of_connections);
        self.limiter.release(PLACE);
    }

    /// Waits until none runs.
    pub(super) async fn ended(&self) {
        self.limiter.at_most(Load::default()).await;
    }
}

/// The right to run a handler. Dropped, it goes to another call.
struct BlockingPermit {
    call: Arc<Call>,
}

async fn acquire(call: &Arc<Call>) -> Result<BlockingPermit, Status> {
    let connection = &call.connection;
    let (calls, config) = (&connection.server.blocking_calls, &connection.server.config);
    if !calls.try_acquire(connection.id) {
        let _waiting = connection.registry.enter(call.info(), CallWait::Place);
        let waiting = calls.limiter.acquire_while_moving(PLACE, config.stall_timeout, &|| false);
        match waiting.await {
            Ok(permit) => {
                permit.into_load();
                *lock(&calls.of_connections).entry(connection.id).or_default() += 1;
            }
            // What the connection had may have ended meanwhile.
            Err(_) if calls.try_acquire(connection.id) => {}
            Err(Refused::Stalled | Refused::Closed) => {
                call.end.blame(EndCause::Limit);
                return Err(Status::resource_exhausted(
                    "too many blocking handlers run on this server and none ends",
                ));
            }
        }
    }
    Ok(BlockingPermit { call: call.clone() })
}

impl Drop for BlockingPermit {
    fn drop(&mut self) {
        let connection = &self.call.connection;
        connection.server.blocking_calls.release(connection.id);
    }
}

/// The messages that a client streams: take them with [`StreamReceiver::recv`], or use it as an
/// [`Iterator`].
///
/// Messages come in the order in which the client sent them. A handler that takes none for long
/// holds up its connection, and loses the stream after
/// [`ServerConfig::stall_timeout`](field@crate::ServerConfig::stall_timeout).
pub struct StreamReceiver<Req> {
    receiver: super::StreamReceiver<Req>,
    runtime: Handle,
}

/// # Panics
/// Outside of a tokio runtime.
impl<Req> From<super::StreamReceiver<Req>> for StreamReceiver<Req> {
    fn from(receiver: super::StreamReceiver<Req>) -> Self {
        StreamReceiver { receiver, runtime: Handle::current() }
    }
}

impl<Req: Message + Default> StreamReceiver<Req> {
    /// Waits for the next message; `None` when the client has said that nothing more comes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a message does not decode, RESOURCE_EXHAUSTED if the handler stood still with a
    /// full inbox, CANCELLED when the call is over. The stream is over then.
    ///
    /// # Panics
    /// In a task of a tokio runtime, if no message is there.
    pub fn recv(&mut self) -> Result<Option<Req>, Status> {
        wait(&self.runtime, self.receiver.recv())
    }
}

/// Ends after the first error.
impl<Req: Message + Default> Iterator for StreamReceiver<Req> {
    type Item = Result<Req, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        self.recv().transpose()
    }
}

impl<Req> fmt::Debug for StreamReceiver<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.receiver, f)
    }
}

/// Sends a handler's replies. The stream ends when the handler returns, not when this is dropped.
pub struct StreamSender<Resp> {
    sender: super::StreamSender<Resp>,
    runtime: Handle,
}

/// # Panics
/// Outside of a tokio runtime.
impl<Resp> From<super::StreamSender<Resp>> for StreamSender<Resp> {
    fn from(sender: super::StreamSender<Resp>) -> Self {
        StreamSender { sender, runtime: Handle::current() }
    }
}

impl<Resp: Message> StreamSender<Resp> {
    /// Sends a message, waiting while the outgoing queue is full. Messages arrive in the order in
    /// which they were sent.
    ///
    /// # Errors
    /// CANCELLED when the call is over: its deadline passed, its client went away, its handler has
    /// returned. RESOURCE_EXHAUSTED if the message is longer than a frame may be; the stream goes
    /// on then.
    ///
    /// # Panics
    /// In a task of a tokio runtime, if it has to wait.
    pub fn send(&mut self, message: Resp) -> Result<(), Status> {
        wait(&self.runtime, self.sender.send(message))
    }
}

impl<Resp> fmt::Debug for StreamSender<Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.sender, f)
    }
}

/// Waits for a future that is often ready.
fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => runtime.block_on(future),
    }
}
