//! Interceptors: what runs around calls before their handlers.

use std::{fmt, future::poll_fn, sync::Arc};

use async_trait::async_trait;

use crate::server::call::{
    handler::{BoxHandler, Context, Reply, boxed, decode},
    reasons::Refusal,
    state::Call,
};
use crate::{
    Raw, Status,
    contain::Contained,
    observer::EndCause,
    proto::{message::DynMessage, payload::Payload},
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
            None => self.handler.run(ctx).await,
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
    /// `None` once it has begun: it is dropped with the future that runs it.
    handler: Option<BoxHandler>,
    /// The handler again, when it has replied.
    replied: Option<BoxHandler>,
    /// Its request comes through the call's inbox.
    is_stream: bool,
    request: Raw,
}

impl InnerHandler {
    /// Runs it. It sees the metadata of this context.
    async fn run(&mut self, ctx: &Context) -> Result<(), Status> {
        let begun = self.begin(ctx.call());
        let mut handler = begun.map_err(|Refusal { cause, status }| {
            ctx.set_failure_cause(cause);
            status
        })?;
        poll_fn(|cx| handler.as_mut().poll(ctx, cx)).await?;
        self.replied = Some(handler);
        Ok(())
    }

    /// An interceptor may go on for its grace when the call is over, and may have shortened the deadline: neither has a
    /// handler begin too late.
    fn begin(&mut self, call: &Call) -> Result<BoxHandler, Refusal> {
        call.check_time()?;
        let mut handler = self.handler.take().expect("`Next` runs it once");
        if !self.is_stream {
            let Raw(request) = &self.request;
            decode(&mut handler, &mut Payload::shared(request, request))?;
        }
        Ok(handler)
    }
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
        let (handler, replied) = (Some(handler), None);
        let mut inner = InnerHandler { handler, replied, is_stream, request };
        let (first, rest) = chain.split_first().expect("a chain has interceptors");
        let result = first.intercept(&mut ctx, Next { rest, handler: &mut inner }).await;
        // A status to follow is an interceptor's.
        if inner.handler.is_some() {
            ctx.set_failure_cause(EndCause::Refused);
        }
        result?;
        let no_reply = || Status::internal("an interceptor has ended the call without a reply");
        inner.replied.ok_or_else(no_reply)
    })
}
