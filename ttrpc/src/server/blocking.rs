//! Handlers without `async`, for code that computes, reads files or waits for processes.
//!
//! Generated with the option `blocking_server`: a trait `GreeterBlocking` whose methods are no `async fn`, and a
//! `GreeterBlockingServer` that serves it.
//!
//! Each call runs on a thread of its own, from the pool of [`tokio::task::spawn_blocking`]. So it blocks neither its
//! connection nor the runtime. A handler that panics answers INTERNAL.
//!
//! # How many
//!
//! At most [`ServerConfig::max_blocking_calls`](field@crate::ServerConfig::max_blocking_calls) run at a
//! time, however many connections there are. One more waits, within its deadline, while others end; after
//! `stall_timeout` without any ending it fails with RESOURCE_EXHAUSTED, and so does the next one at once, until one ends.
//!
//! A connection that runs no blocking handler comes first, in the order of arrival. Connections that run some share the
//! other permits, one call each in rotation. A quarter of the permits is for connections that run none, so one client
//! whose handlers never end does not shut the others out. As many connections as there are permits, each with one
//! handler that never ends, do: their calls and those of others are refused after `stall_timeout`. Limit such peers
//! with [`max_connections`](field@crate::ServerConfig::max_connections), and handlers with deadlines that they keep.
//!
//! The runtime's pool needs a thread for each. Set
//! [`max_blocking_threads`](tokio::runtime::Builder::max_blocking_threads), 512 by default, to at least the sum of
//! `max_blocking_calls` of all servers on the runtime and of what the program runs there itself: `spawn_blocking`,
//! `tokio::fs`, lookups of names. With less, calls that have a permit wait for a thread until their deadlines.
//!
//! A handler that has returned keeps its permit until its call takes the reply. That is at once, unless the
//! client does not read its replies, see
//! [`ServerConfig::reply_bytes_per_connection`](field@crate::ServerConfig::reply_bytes_per_connection).
//!
//! # When the call is over
//!
//! A thread cannot be stopped. When the deadline passes, the client goes away or the server shuts down, the call ends
//! at once. Its handler goes on, and keeps its permit, until it returns. Its streams fail with CANCELLED,
//! [`Context::is_cancelled`] says so, and [`Context::cancellation_token`] can be waited for or handed on. A server that
//! ends waits for such handlers for a second: [`close`](crate::server::ServerHandle::close) and
//! [`shutdown`](crate::server::ServerHandle::shutdown) take that much longer. A runtime that is dropped waits until the
//! last of them has returned: [`Runtime::shutdown_timeout`](tokio::runtime::Runtime::shutdown_timeout) does not.

use std::{
    fmt,
    future::Future,
    panic::resume_unwind,
    pin::pin,
    sync::Arc,
    task::{self, Poll, Waker},
};

use prost::Message;
use tokio::{
    runtime::Handle,
    task::{spawn_blocking, yield_now},
};

use crate::server::{
    blocking_places::{Stalled, UnusedPermit},
    call::{replies::may_resume, state::Call},
};
use crate::{
    Context, Status,
    contain::{Contained, Panicked, contain},
    observer::EndCause,
    snapshot::CallWait,
    trace::Span,
    transport::BoxFuture,
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
            // The pool may have kept it waiting.
            let result = match ctx.is_cancelled() {
                true => Ok(Err(Status::cancelled("the call is over"))),
                false => span.in_scope(|| contain(|| handler(&ctx))),
            };
            // Nobody else counts the reply before the call takes it. A call that is over does not.
            (Contained::new(result), permit)
        });
        let Ok((result, _permit)) = handler.await else {
            return Err(Status::unavailable("the server's runtime is shutting down"));
        };
        // Contained again by the call's task, which answers.
        result.into_inner().unwrap_or_else(|Panicked| resume_unwind(Box::new(Panicked)))
    })
}

/// The permit of a handler that runs. Dropped, it goes to another call.
struct BlockingPermit(Arc<Call>);

impl Drop for BlockingPermit {
    fn drop(&mut self) {
        let connection = &self.0.connection;
        connection.server.blocking_calls.release(connection.id);
    }
}

/// Waits for a permit. One that comes while the handler would have to wait before it is polled again, see [`replies`](super::call::replies), is
/// left to others: the call asks again when it is polled. It leaves only one, so that it begins at last.
async fn acquire(call: &Arc<Call>) -> Result<BlockingPermit, Status> {
    let mut granted = acquire_unused(call).await?;
    if !may_resume(call) {
        drop(granted);
        // Its task polls it when it has a permit to go on.
        yield_now().await;
        granted = acquire_unused(call).await?;
    }
    granted.forget();
    Ok(BlockingPermit(call.clone()))
}

/// Waits for a permit, registered as a call that waits.
async fn acquire_unused(call: &Call) -> Result<UnusedPermit<'_>, Status> {
    let connection = &call.connection;
    let permits = &connection.server.blocking_calls;
    if let Some(permit) = permits.try_take(connection.id) {
        return Ok(permit);
    }
    let _wait = call.end.wait();
    let _waiting = connection.registry.enter(call.info(), CallWait::Admission);
    let stall_timeout = connection.server.config.stall_timeout;
    permits.take(connection.id, stall_timeout).await.map_err(|Stalled| {
        call.end.set_failure_cause(EndCause::Limit);
        Status::resource_exhausted(
            "too many blocking handlers run on this server and none ends (max_blocking_calls)",
        )
    })
}

/// The messages that a client streams: take them with [`StreamReceiver::recv`], or use it as an
/// [`Iterator`].
///
/// Messages come in the order in which the client sent them. A handler that takes none for long blocks its connection,
/// and loses the stream after [`ServerConfig::stall_timeout`](field@crate::ServerConfig::stall_timeout).
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
    /// INVALID_ARGUMENT if a message does not decode, RESOURCE_EXHAUSTED if the handler took nothing from a full inbox
    /// for too long, CANCELLED when the call is over. The stream is over then.
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

debug_in_short!(StreamSender<Resp>);

/// Waits for a future that is often ready.
fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut task::Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => runtime.block_on(future),
    }
}
