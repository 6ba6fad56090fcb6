//! Handlers of calls, their types forgotten.
//!
//! What is generic here is compiled once for each method of a program, so it is as little as can be: the request is
//! decoded, the handler's future is made and polled, and its reply is kept. All else that a call needs works with an
//! [`OwnedHandler`].

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{self, Poll, ready},
};

use pin_project_lite::pin_project;
use prost::{DecodeError, Message};

use crate::server::call::{context::Context, reasons::Refusal};
use crate::{
    Status,
    contain::{Contained, Panicked, contain},
    observer::EndCause,
    proto::{message::DynMessage, payload::Payload},
    trace,
};

/// The handler of one method for one call, from its request to its reply. The steps are taken in the order in which they
/// stand here. They are the program's code, and nothing of it is contained.
pub(in crate::server) trait Handler: Send {
    /// Decodes the request.
    fn decode(self: Pin<&mut Self>, payload: Payload<'_>) -> Result<(), DecodeError>;

    /// Makes the handler's future of the request.
    fn begin(self: Pin<&mut Self>, ctx: Context);

    /// Polls the handler, until it has replied.
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Result<(), Status>>;

    /// Returns the reply, when there is one. `None` if the call ends with the end of a stream.
    fn reply(self: Pin<&Self>) -> Option<&dyn DynMessage>;

    /// Drops the request, or the future, and not the reply.
    fn drop_now(self: Pin<&mut Self>);

    /// Drops the reply.
    fn drop_reply(self: Pin<&mut Self>);
}

/// What a handler ends its call with.
pub(in crate::server) trait Reply: Send + Sync {
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
pub(in crate::server) type BoxHandler = Pin<Box<dyn Handler>>;

/// Boxes the handler of a call: `make` makes its future.
pub(in crate::server) fn boxed<M, F, R>(
    make: impl FnOnce(Context, M) -> F + Send + 'static,
) -> BoxHandler
where
    M: Message + Default + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
    R: Reply + 'static,
{
    Box::pin(Steps::New { make: Some(make), request: None, result: PhantomData })
}

pin_project! {
    /// How far a handler is.
    #[project = StepsProject]
    #[project_ref = StepsRef]
    enum Steps<H, M, F, R> {
        New { make: Option<H>, request: Option<M>, result: PhantomData<fn() -> R> },
        Running { #[pin] future: F },
        Replied { reply: R },
        Dropped,
    }
}

impl<H, M, F, R> Handler for Steps<H, M, F, R>
where
    H: FnOnce(Context, M) -> F + Send,
    M: Message + Default,
    F: Future<Output = Result<R, Status>> + Send,
    R: Reply,
{
    fn decode(self: Pin<&mut Self>, payload: Payload<'_>) -> Result<(), DecodeError> {
        match self.project() {
            StepsProject::New { request, .. } => request.insert(M::default()).merge(payload),
            _ => Ok(()),
        }
    }

    fn begin(mut self: Pin<&mut Self>, ctx: Context) {
        if let StepsProject::New { make, request, .. } = self.as_mut().project()
            && let (Some(make), Some(request)) = (make.take(), request.take())
        {
            let future = make(ctx, request);
            self.set(Steps::Running { future });
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Result<(), Status>> {
        if let StepsProject::Running { future } = self.as_mut().project() {
            let reply = ready!(future.poll(cx))?;
            self.set(Steps::Replied { reply });
        }
        Poll::Ready(Ok(()))
    }

    fn reply(self: Pin<&Self>) -> Option<&dyn DynMessage> {
        match self.project_ref() {
            StepsRef::Replied { reply } => reply.message(),
            _ => None,
        }
    }

    fn drop_now(mut self: Pin<&mut Self>) {
        match self.as_mut().project() {
            StepsProject::New { request, .. } => *request = None,
            StepsProject::Running { .. } => self.set(Steps::Dropped),
            StepsProject::Replied { .. } | StepsProject::Dropped => {}
        }
    }

    fn drop_reply(mut self: Pin<&mut Self>) {
        self.set(Steps::Dropped);
    }
}

/// Owns a handler, and contains what it does where nothing is said of it.
pub(in crate::server) struct OwnedHandler {
    handler: Contained<BoxHandler>,
    /// What comes with the Request of a stream goes through its inbox, and is not decoded here.
    is_stream: bool,
    has_begun: bool,
}

impl OwnedHandler {
    pub(in crate::server) fn new(handler: BoxHandler, is_stream: bool) -> Self {
        OwnedHandler { handler: Contained::new(handler), is_stream, has_begun: false }
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the bytes are not a message of its type, INTERNAL if the type's code panics.
    pub(super) fn decode(&mut self, payload: Payload<'_>) -> Result<(), Refusal> {
        let payload = if self.is_stream { Payload::borrowed(&[]) } else { payload };
        let (cause, status) = match contain(|| self.handler.as_mut().decode(payload)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => (EndCause::ProtocolViolation, undecodable(error)),
            Err(Panicked) => (EndCause::Panicked, decoder_panicked()),
        };
        Err(Refusal { cause, status })
    }

    /// Polls the handler, which begins with this context when it is first polled. Not contained.
    pub(super) fn poll(
        &mut self,
        ctx: impl FnOnce() -> Context,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<(), Status>> {
        if !self.has_begun {
            self.has_begun = true;
            self.handler.as_mut().begin(ctx());
        }
        self.handler.as_mut().poll(cx)
    }

    /// Returns what the handler has replied.
    pub(super) fn reply(&self) -> Option<&dyn DynMessage> {
        self.handler.as_ref().reply()
    }

    /// Drops the reply. Not contained.
    pub(super) fn drop_reply(&mut self) {
        self.handler.as_mut().drop_reply();
    }

    /// Drops what the handler holds, but not its reply.
    pub(super) fn drop_now(&mut self) {
        if contain(|| self.handler.as_mut().drop_now()).is_err() {
            trace::warn!("a handler panicked while it was dropped");
        }
    }
}

impl Drop for OwnedHandler {
    fn drop(&mut self) {
        self.drop_now();
    }
}

pub(super) fn decoder_panicked() -> Status {
    Status::internal("the request's type panicked while it was decoded")
}

pub(super) fn undecodable(error: DecodeError) -> Status {
    Status::invalid_argument(format!("the request does not decode: {error}"))
}
