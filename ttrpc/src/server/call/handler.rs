//! Handlers: what one knows of its call ([`Context`]), and its way from the request to the reply ([`Handler`]).
//!
//! The types of a method end here: a handler is boxed, and all that follows is compiled once for all methods.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{self, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use prost::{DecodeError, Message};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::{
    Peer,
    call::{
        reasons::Refusal,
        state::{Call, CallHead},
    },
};
use crate::{
    Extensions, Metadata, Name, Status,
    contain::{Contained, Panicked, contain},
    observer::EndCause,
    proto::{message::DynMessage, payload::Payload},
    transport::BoxFuture,
};

/// A handler's view of its call: the caller, the method, metadata, the deadline.
///
/// Cheap to clone, so that a handler can take it along into other tasks.
///
/// ```
/// use ttrpc::{Context, Status};
///
/// async fn say_hello(ctx: &Context, name: String) -> Result<String, Status> {
///     if ctx.peer().credentials().is_none_or(|peer| peer.uid != 0) {
///         return Err(Status::permission_denied("only root may be greeted"));
///     }
///     let greeting = ctx.metadata().get("greeting").unwrap_or("Hello");
///     Ok(format!("{greeting}, {name}!"))
/// }
/// ```
#[derive(Clone)]
pub struct Context {
    call: Arc<Call>,
    /// What an interceptor has made of the metadata.
    metadata: Option<Arc<Metadata>>,
}

impl Context {
    pub(in crate::server) fn new(call: Arc<Call>) -> Self {
        Context { call, metadata: None }
    }

    pub(in crate::server) fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// If the call fails now, it is for this cause.
    pub(crate) fn set_failure_cause(&self, cause: EndCause) {
        self.call.end.set_failure_cause(cause);
    }

    /// Returns the full protobuf name of the service, `containerd.task.v2.Task` for example.
    pub fn service(&self) -> &str {
        &self.call.head.service
    }

    /// Returns the bare name of the method, `State` for example.
    pub fn method(&self) -> &str {
        &self.call.head.method
    }

    /// Returns the names of the service and the method, without a copy of their text.
    pub(crate) fn names(&self) -> (Name, Name) {
        let head = &self.call.head;
        (head.service.clone(), head.method.clone())
    }

    /// Returns the metadata that came with the call, in order, with what interceptors have changed.
    pub fn metadata(&self) -> &Metadata {
        self.metadata.as_deref().unwrap_or(&self.call.head.metadata)
    }

    /// Returns the metadata for an interceptor to change, for later interceptors and the handler.
    ///
    /// In a handler, this changes this context and its later clones.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        let new = || Arc::new(self.call.head.metadata.clone());
        Arc::make_mut(self.metadata.get_or_insert_with(new))
    }

    /// Returns the values that interceptors, observers and this handler have added to the call.
    pub fn extensions(&self) -> &Extensions {
        &self.call.extensions
    }

    /// Returns the values that were added to the connection, by other calls as well.
    pub fn connection_extensions(&self) -> &Extensions {
        &self.call.connection.extensions
    }

    /// Returns what is known of the caller.
    ///
    /// For a Unix socket, these are the other side's credentials when it connected; for vsock and TCP, the
    /// address. The program may have added more.
    pub fn peer(&self) -> &Peer {
        &self.call.connection.peer
    }

    /// Returns the timeout that the client sent. Changes made here do not show in it.
    pub fn timeout(&self) -> Option<Duration> {
        let CallHead { started, deadline, .. } = self.call.head;
        deadline.map(|deadline| deadline - started)
    }

    /// Returns the call's deadline: its arrival plus [`Context::timeout`], or an earlier one that an
    /// interceptor set.
    pub fn deadline(&self) -> Option<Instant> {
        self.call.deadline()
    }

    /// Moves the deadline to this moment, after which the call ends with DEADLINE_EXCEEDED. For interceptors.
    ///
    /// A later moment than the present deadline changes nothing.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        self.call.end.shorten_deadline(deadline);
    }

    /// Returns the time until the deadline: zero when it has passed, `None` without one.
    pub fn remaining(&self) -> Option<Duration> {
        Some(self.deadline()?.saturating_duration_since(Instant::now()))
    }

    /// Returns a token that fires when the call is over. Tasks that work for the call can wait for it.
    ///
    /// A call is over when its handler has returned, its deadline has passed, its client has gone away, or the
    /// server shuts down without waiting for it.
    ///
    /// A handler whose call ends before it is dropped at once. One that has asked for the token is
    /// polled on, so that it can clean up, for [`ServerConfig::cancellation_grace`] at most. When the
    /// server itself closes, it is polled once more.
    ///
    /// [`ServerConfig::cancellation_grace`]: crate::ServerConfig::cancellation_grace
    pub fn cancellation_token(&self) -> CancellationToken {
        self.call.end.graceful_token()
    }

    /// Waits until the token of [`Context::cancellation_token`] fires.
    ///
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.cancellation_token().cancelled().await;
    }

    /// Returns whether the call's connection has ended: the client has gone, or the server has closed it.
    pub fn is_disconnected(&self) -> bool {
        self.call.connection.queue.is_closed()
    }

    /// Returns whether the call is over.
    pub fn is_cancelled(&self) -> bool {
        self.call.end.is_over()
    }
}

/// Without the metadata's keys and values, which may be secrets.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("service", &self.service())
            .field("method", &self.method())
            .field("metadata_pairs", &self.metadata().len())
            .field("timeout", &self.timeout())
            .field("peer", &self.peer())
            .finish()
    }
}

/// The handler of one method for one call, from its request to its reply. All of it is the program's code, and nothing of it
/// is contained.
pub(in crate::server) trait Handler: Send {
    /// Decodes the request.
    fn decode(self: Pin<&mut Self>, payload: &mut Payload<'_>) -> Result<(), DecodeError>;

    /// Polls the handler, until it has replied. It begins with a clone of this context when it is first polled.
    fn poll(
        self: Pin<&mut Self>,
        ctx: &Context,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), Status>>;

    /// Returns the reply, when there is one. `None` if the call ends with the end of a stream.
    fn reply(self: Pin<&Self>) -> Option<&dyn DynMessage>;

    /// Drops what there is of the request, the future and the reply.
    fn clear(self: Pin<&mut Self>);
}

/// What a handler ends its call with.
pub(in crate::server) trait Reply: Send {
    /// Returns the message to reply with, or `None` to end the stream.
    fn message(&self) -> Option<&dyn DynMessage>;
}

impl<M: Message> Reply for M {
    fn message(&self) -> Option<&dyn DynMessage> {
        Some(self)
    }
}

/// The end of a stream of replies.
pub(in crate::server) struct EndOfStream;

impl Reply for EndOfStream {
    fn message(&self) -> Option<&dyn DynMessage> {
        None
    }
}

/// A handler on its way.
pub(in crate::server) type BoxHandler = Contained<Pin<Box<dyn Handler>>>;

/// Makes the handlers of a method's calls.
pub(in crate::server) type MakeHandler = dyn Fn() -> BoxHandler + Send + Sync;

/// Returns what makes the handlers of a method of this service: `handle` makes the future of one.
pub(in crate::server) fn maker<T, M, F, R>(
    service: &Arc<T>,
    handle: impl Fn(Arc<T>, Context, M) -> F + Copy + Send + Sync + 'static,
) -> Box<MakeHandler>
where
    T: Send + Sync + 'static,
    M: Message + Default + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
    R: Reply + 'static,
{
    let service = service.clone();
    Box::new(move || {
        let service = service.clone();
        boxed(move |ctx, request| handle(service, ctx, request))
    })
}

/// Returns what makes the handlers of a unary method, of which this function makes the futures.
pub(in crate::server) fn unary_maker<T, M, R>(
    service: &Arc<T>,
    handle: for<'a> fn(&'a T, &'a Context, M) -> BoxFuture<'a, Result<R, Status>>,
) -> Box<MakeHandler>
where
    T: Send + Sync + 'static,
    M: Message + Default + 'static,
    R: Reply + 'static,
{
    maker(service, move |service: Arc<T>, ctx, request| async move {
        handle(&service, &ctx, request).await
    })
}

/// Boxes the handler of a call: `make` makes its future.
pub(in crate::server) fn boxed<M, F, R>(
    make: impl FnOnce(Context, M) -> F + Send + 'static,
) -> BoxHandler
where
    M: Message + Default + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
    R: Reply + 'static,
{
    Contained::new(Box::pin(Steps::New { parts: Some((make, None)) }))
}

pin_project! {
    /// How far a handler is.
    #[project = StepsProject]
    #[project_ref = StepsRef]
    enum Steps<H, M, F, R> {
        // Without its parts once `make` has been called, which may have panicked.
        New { parts: Option<(H, Option<M>)> },
        Running { #[pin] future: F },
        Replied { reply: R },
        Cleared,
    }
}

impl<H, M, F, R> Handler for Steps<H, M, F, R>
where
    H: FnOnce(Context, M) -> F + Send,
    M: Message + Default,
    F: Future<Output = Result<R, Status>> + Send,
    R: Reply,
{
    fn decode(self: Pin<&mut Self>, payload: &mut Payload<'_>) -> Result<(), DecodeError> {
        match self.project() {
            StepsProject::New { parts: Some((_, request)) } => {
                request.insert(M::default()).merge(payload)
            }
            _ => Ok(()),
        }
    }

    fn poll(
        mut self: Pin<&mut Self>,
        ctx: &Context,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), Status>> {
        if let StepsProject::New { parts } = self.as_mut().project()
            && let Some((make, request)) = parts.take()
        {
            let future = make(ctx.clone(), request.unwrap_or_default());
            self.set(Steps::Running { future });
        }
        if let StepsProject::Running { future } = self.as_mut().project() {
            let (next, result) = match ready!(future.poll(cx)) {
                Ok(reply) => (Steps::Replied { reply }, Ok(())),
                // A handler whose failure waits for capacity may be polled once more, when its call is over.
                Err(status) => (Steps::Cleared, Err(status)),
            };
            self.set(next);
            return Poll::Ready(result);
        }
        Poll::Ready(Ok(()))
    }

    fn reply(self: Pin<&Self>) -> Option<&dyn DynMessage> {
        match self.project_ref() {
            StepsRef::Replied { reply } => reply.message(),
            _ => None,
        }
    }

    fn clear(mut self: Pin<&mut Self>) {
        self.set(Steps::Cleared);
    }
}

/// Decodes the request of a handler.
///
/// # Errors
/// INVALID_ARGUMENT if the bytes are not a message of its type, INTERNAL if the type's code panics.
pub(super) fn decode(handler: &mut BoxHandler, payload: &mut Payload<'_>) -> Result<(), Refusal> {
    let (cause, status) = match contain(|| handler.as_mut().decode(payload)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => (EndCause::ProtocolViolation, undecodable(error)),
        Err(Panicked) => (EndCause::Panicked, decoder_panicked()),
    };
    Err(Refusal { cause, status })
}

pub(super) fn decoder_panicked() -> Status {
    Status::internal("the request's type panicked while it was decoded")
}

pub(super) fn undecodable(error: DecodeError) -> Status {
    Status::invalid_argument(format!("the request does not decode: {error}"))
}
