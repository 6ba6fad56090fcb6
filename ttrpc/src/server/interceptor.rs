//! Interceptors: what runs around calls before their handlers.

use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    call::{Call, ReplyRest},
    context::Context,
};
use crate::{Status, observer::EndCause, transport::BoxFuture};

/// The interceptors of a method, outermost first.
pub(super) type Chain = Arc<[Arc<dyn Interceptor>]>;

/// Runs around each call of a server or of one service, whatever its kind: decides who may call, adds what
/// handlers need, looks at how the call ended.
///
/// [`ServerBuilder::intercept`](super::ServerBuilder::intercept) adds one for all services and the fallback,
/// [`Service::intercept`](super::Service::intercept) for one service.
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
/// An interceptor runs in its call's own task, as a part of its handler: the call has been let in and
/// counts for the limits, its time runs, and it is dropped with the handler when the call ends first, see
/// [`Context::cancellation_token`]. If it panics the call answers INTERNAL. It may wait for other calls,
/// on the same connection as well.
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

/// The rest of a call: the interceptors behind this one, and the handler.
#[must_use = "the handler does not run unless `run` is awaited"]
pub struct Next<'a> {
    rest: &'a [Arc<dyn Interceptor>],
    request: &'a Bytes,
    call: &'a Call,
    handler: Pin<&'a mut (dyn Future<Output = Result<(), Status>> + Send + 'a)>,
}

impl Next<'_> {
    /// The payload of the Request, encoded: the request of a unary call or of one that asks for a stream of
    /// replies; what a stream of requests begins with, which most clients leave empty. It is decoded
    /// when the handler's turn has come.
    pub fn request_bytes(&self) -> &[u8] {
        self.request
    }

    /// Runs the rest, and returns how the call ended. A reply is sent when all interceptors have returned.
    ///
    /// Dropped before it is done, the handler is dropped as well.
    ///
    /// # Errors
    /// The status of the handler or of an interceptor behind this one; INVALID_ARGUMENT if the request does
    /// not decode.
    pub async fn run(self, ctx: &mut Context) -> Result<(), Status> {
        match self.rest.split_first() {
            Some((first, rest)) => (**first).intercept(ctx, Next { rest, ..self }).await,
            None => {
                self.call.begin_handler(ctx.changed_metadata());
                self.handler.await
            }
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("interceptors", &self.rest.len()).finish_non_exhaustive()
    }
}

/// Runs a call's interceptors around its handler, which makes its context when it is first polled. `finish`
/// ends the call, and returns what is left to do when there is no room for its end.
pub(super) async fn intercepted<R>(
    chain: Chain,
    call: Arc<Call>,
    request: Bytes,
    handler: impl Future<Output = (Context, Result<R, Status>)> + Send,
    finish: fn(&Arc<Call>, Result<R, Status>) -> ReplyRest,
) where
    R: Send,
{
    let mut reply = None;
    let handler = async {
        reply = Some(handler.await.1?);
        Ok(())
    };
    let result = run_chain(&chain, &call, &request, pin!(handler)).await;
    let no_reply = || Status::internal("an interceptor has ended the call without a reply");
    let result = result.and_then(|()| reply.ok_or_else(no_reply));
    if let Some(rest) = finish(&call, result) {
        rest.await;
    }
}

async fn run_chain(
    chain: &Chain,
    call: &Arc<Call>,
    request: &Bytes,
    handler: Pin<&mut (dyn Future<Output = Result<(), Status>> + Send + '_)>,
) -> Result<(), Status> {
    let mut ctx = Context::new(call.clone());
    let result = Next { rest: chain, request, call, handler }.run(&mut ctx).await;
    if result.is_err() && !call.end.is_handled() {
        call.end.blame(EndCause::Refused);
    }
    result
}
