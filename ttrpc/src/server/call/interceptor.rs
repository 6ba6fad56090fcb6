//! Interceptors: what runs around calls before their handlers.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{self, Poll, ready},
};

use async_trait::async_trait;

use crate::server::call::{
    handler::{BoxHandler, Context, Reply, boxed, decode},
    state::Call,
};
use crate::{
    Raw, Status,
    contain::{Contained, contain},
    observer::EndCause,
    proto::{message::DynMessage, payload::Payload},
    trace,
    transport::BoxFuture,
};

/// The interceptors of a method, outermost first.
pub(in crate::server) type Chain = Arc<[SharedInterceptor]>;

/// An interceptor of a server, or of a service.
pub(in crate::server) type SharedInterceptor = Contained<Arc<dyn Interceptor>>;

/// Runs around each call of a server or of one service.
///
/// It decides who may call, adds what handlers need, and sees how the call ended, whatever the call's kind.
///
/// [`ServerBuilder::intercept`](crate::server::ServerBuilder::intercept) adds one for all services and the fallback,
/// [`Service::intercept`](crate::server::Service::intercept) for one service.
/// The one that was added first is the outermost; those of the server are outside of those of a service. An
/// [`Arc`] of an interceptor is an interceptor.
///
/// ```
/// use ttrpc::{Context, Status, async_trait, server::{Interceptor, Next}};
///
/// struct User(String);
/// struct Authenticate;
///
/// #[async_trait]
/// impl Interceptor for Authenticate {
///     async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
///         let Some(token) = ctx.metadata().get("token") else {
///             return Err(Status::unauthenticated("a token is missing"));
///         };
///         ctx.extensions().insert(User(token.to_owned()));
///         next.run(ctx).await
///     }
/// }
///
/// let server = ttrpc::Server::builder().intercept(Authenticate);
/// # drop(server);
/// ```
///
/// # What holds for it
///
/// An interceptor runs in its call's own task, as a part of its handler. The call has been admitted and counts for
/// the limits, and its time runs. If the call ends first, the interceptor is dropped with the handler, see
/// [`Context::cancellation_token`]. If it panics the call answers INTERNAL. It may wait for other calls, on the same
/// connection as well.
///
/// It runs before the request is decoded and before the handler begins. A call that it refuses takes no thread of
/// [`max_blocking_calls`](field@crate::ServerConfig::max_blocking_calls), and holds nothing when the interceptor has returned.
///
/// Calls of methods that do not exist, and calls that a limit refuses, come to no interceptor; an
/// [observer](crate::observer) sees them.
#[async_trait]
pub trait Interceptor: Send + Sync + 'static {
    /// Runs around one call. What it returns is the call's outcome: an error goes to the client in place of
    /// what the handler has answered. Messages of a stream that were sent before stay sent.
    ///
    /// To refuse the call, return an error and do not run `next`. `Ok` without running `next` makes INTERNAL
    /// of it: there is no reply then.
    ///
    /// What is changed of the metadata and the deadline in `ctx` is what the handler sees. The call's
    /// bytes are in [`Next::request_bytes`].
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status>;
}

/// Without a future of its own, which would be an allocation more.
impl<I: Interceptor + ?Sized> Interceptor for Arc<I> {
    fn intercept<'a, 'ctx, 'next, 'future>(
        &'a self,
        ctx: &'ctx mut Context,
        next: Next<'next>,
    ) -> BoxFuture<'future, Result<(), Status>>
    where
        'a: 'future,
        'ctx: 'future,
        'next: 'future,
        Self: 'future,
    {
        (**self).intercept(ctx, next)
    }
}

/// The rest of a call: the interceptors after this one, and the handler.
#[must_use = "the handler does not run unless `run` is awaited"]
pub struct Next<'a> {
    rest: &'a [SharedInterceptor],
    handler: &'a mut InnerHandler,
}

impl Next<'_> {
    /// Returns the payload of the Request, encoded. It is decoded when the handler starts.
    ///
    /// This is the request of a unary or server-streaming call. In a stream of requests most clients leave it empty.
    pub fn request_bytes(&self) -> &[u8] {
        &self.handler.request.0
    }

    /// Runs the rest, and returns how the call ended. A reply is sent when all interceptors have returned.
    ///
    /// Dropped before it is done, the handler is dropped as well. The handler of a call that is over, or whose
    /// deadline has passed, does not begin.
    ///
    /// # Errors
    /// The status of the handler or of an interceptor after this one; INVALID_ARGUMENT if the request does not
    /// decode; DEADLINE_EXCEEDED or CANCELLED if the handler does not begin.
    pub async fn run(self, ctx: &mut Context) -> Result<(), Status> {
        match self.rest.split_first() {
            Some((first, rest)) => (***first).intercept(ctx, Next { rest, ..self }).await,
            None => {
                let running = Running(self.handler);
                poll_fn(|cx| running.0.poll(ctx, cx)).await
            }
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("interceptors", &self.rest.len()).finish_non_exhaustive()
    }
}

/// A handler that begins when the interceptors let it.
struct InnerHandler {
    handler: BoxHandler,
    /// Its request comes through the call's inbox.
    is_stream: bool,
    request: Raw,
    has_begun: bool,
    has_replied: bool,
}

impl InnerHandler {
    /// Polls it. When it begins, it sees the metadata of this context.
    fn poll(&mut self, ctx: &Context, cx: &mut task::Context<'_>) -> Poll<Result<(), Status>> {
        if !self.has_begun {
            check_time(ctx.call())?;
            self.has_begun = true;
            let Raw(request) = &self.request;
            if !self.is_stream
                && let Err(refusal) = decode(&mut self.handler, Payload::shared(request, request))
            {
                ctx.set_failure_cause(refusal.cause);
                return Poll::Ready(Err(refusal.status));
            }
        }
        ready!(self.handler.as_mut().poll(ctx, cx))?;
        self.has_replied = true;
        Poll::Ready(Ok(()))
    }
}

/// A handler that has begun. Dropped, it drops what the handler holds, but not its reply.
struct Running<'a>(&'a mut InnerHandler);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.0.has_replied && contain(|| self.0.handler.as_mut().clear()).is_err() {
            trace::warn!("a handler panicked while it was dropped");
        }
    }
}

/// An interceptor may go on for its grace when the call is over, and may have shortened the deadline: neither
/// has a handler begin too late.
///
/// # Errors
/// CANCELLED, DEADLINE_EXCEEDED.
fn check_time(call: &Call) -> Result<(), Status> {
    if call.end.is_over() {
        return Err(Status::cancelled("the call is over"));
    }
    if call.is_too_late() {
        call.end.set_failure_cause(EndCause::DeadlineHere);
        return Err(Status::deadline_exceeded("the call's deadline passed before it was started"));
    }
    Ok(())
}

/// The reply of a handler after its interceptors.
impl Reply for BoxHandler {
    fn message(&self) -> Option<&dyn DynMessage> {
        self.as_ref().reply()
    }
}

/// Puts a handler behind its interceptors.
pub(super) fn intercepted(handler: BoxHandler, chain: Chain, is_stream: bool) -> BoxHandler {
    boxed(move |mut ctx: Context, request: Raw| async move {
        let (has_begun, has_replied) = (false, false);
        let mut inner = InnerHandler { handler, is_stream, request, has_begun, has_replied };
        let (first, rest) = chain.split_first().expect("a chain has interceptors");
        let result = first.intercept(&mut ctx, Next { rest, handler: &mut inner }).await;
        // A status to follow is an interceptor's.
        if !inner.has_begun {
            ctx.set_failure_cause(EndCause::Refused);
        }
        result?;
        match inner.has_replied {
            true => Ok(inner.handler),
            false => Err(Status::internal("an interceptor has ended the call without a reply")),
        }
    })
}
