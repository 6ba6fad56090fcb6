//! Interceptors: what runs around calls before they are made.

use std::{fmt, mem, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;

use super::{
    call::{PendingCall, owner::CallOwner},
    connection::record::{CallRecord, OnMessage},
    meta::{Around, CallOptions, within},
    reconnect::Link,
};
use crate::{
    Code, Extensions, Metadata, Raw, Status,
    contain::Contained,
    observer::{CallEnd, EndCause, MessageInfo},
    transport::BoxFuture,
};

/// Runs around each call of a client: adds metadata, refuses calls, repeats them, sees how they end.
///
/// [`Client::with_interceptor`](super::Client::with_interceptor) adds one. The one that was added first is the
/// outermost. An [`Arc`] of an interceptor is an interceptor.
///
/// ```
/// use ttrpc::{Code, Status, async_trait, client::{Answer, Interceptor, Next, OutgoingCall}};
///
/// /// Makes a call again if the server was at its limits. For idempotent methods.
/// struct RetryOnce;
///
/// #[async_trait]
/// impl Interceptor for RetryOnce {
///     async fn intercept(
///         &self,
///         call: &mut OutgoingCall,
///         next: Next<'_>,
///     ) -> Result<Answer, Status> {
///         match next.run(call).await {
///             Err(status) if status.code() == Code::ResourceExhausted => next.run(call).await,
///             result => result,
///         }
///     }
/// }
/// # fn example(client: ttrpc::Client) -> ttrpc::Client {
/// client.with_interceptor(RetryOnce)
/// # }
/// ```
///
/// # What holds for it
///
/// An interceptor runs in the future of its call, and its time is a part of the call's. At the caller's deadline
/// the call ends, whatever the interceptor waits for. It is dropped with the call. If it panics, the call fails
/// with INTERNAL.
///
/// An [observer](crate::observer) receives the call when it is first polled, before any interceptor runs: one
/// that is never made ends as well, refused or given up.
///
/// A client's [`Retry`](super::Retry) runs around all interceptors: each attempt passes through them, with the metadata and the
/// deadline that the call had at first, and [`OutgoingCall::attempt`] counts them.
#[async_trait]
pub trait Interceptor: Send + Sync + 'static {
    /// Runs around one call. An error is what the caller gets. To refuse the call, return one and do not run
    /// `next`.
    async fn intercept(&self, call: &mut OutgoingCall, next: Next<'_>) -> Result<Answer, Status>;
}

/// Without a future of its own, which would be an allocation more.
impl<I: Interceptor + ?Sized> Interceptor for Arc<I> {
    fn intercept<'a, 'call, 'next, 'future>(
        &'a self,
        call: &'call mut OutgoingCall,
        next: Next<'next>,
    ) -> BoxFuture<'future, Result<Answer, Status>>
    where
        'a: 'future,
        'call: 'future,
        'next: 'future,
        Self: 'future,
    {
        (**self).intercept(call, next)
    }
}

/// A call that is about to be made.
pub struct OutgoingCall {
    pub(super) pending: PendingCall<Raw>,
    /// Shared with the record, if the client has observers.
    extensions: Extensions,
    /// Dropped before the call is made, it was given up.
    pub(super) record: Option<Arc<CallRecord>>,
    pub(super) on_message: Option<OnMessage>,
    /// Counted from 1.
    pub(super) attempt: u32,
    /// It was made, in this attempt.
    pub(super) is_made: bool,
    /// A server may have seen it, in this attempt or in one before.
    pub(super) may_be_seen: bool,
    /// The client may make it again when it fails.
    is_repeatable: bool,
}

impl OutgoingCall {
    /// Returns the full protobuf name of the service.
    pub fn service(&self) -> &str {
        &self.pending.head.service
    }

    /// Returns the bare name of the method.
    pub fn method(&self) -> &str {
        &self.pending.head.method
    }

    /// Returns whether the call has a stream of requests or of replies. Otherwise it is unary.
    pub fn is_stream(&self) -> bool {
        self.pending.head.kind.is_stream()
    }

    /// Returns the metadata that go with the call.
    pub fn metadata(&self) -> &Metadata {
        self.pending.head.options.metadata()
    }

    /// Returns the metadata that go with the call, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.pending.head.options.metadata_mut()
    }

    /// Returns the call's deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.pending.head.options.deadline
    }

    /// Returns the time that is left to the call; zero when it is over, `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        Some(self.deadline()?.saturating_duration_since(Instant::now()))
    }

    /// Ends the call at this moment, unless it ends before.
    ///
    /// The deadline holds for what [`Next::run`] runs from now on, the interceptors after this one as well. A
    /// later moment than the present deadline changes nothing.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        self.pending.head.options.end_by(deadline);
    }

    /// Returns the encoded request. Empty for a stream of requests.
    pub fn request_bytes(&self) -> &[u8] {
        self.pending.request.as_ref().map_or(&[], |Raw(bytes)| bytes)
    }

    /// Calls this for each message that the call sends and receives when it is made from now on.
    ///
    /// It runs in the task that sends or receives, and has to return at once. The last one that is set counts.
    pub fn on_message(&mut self, told: impl Fn(&MessageInfo) + Send + Sync + 'static) {
        self.on_message = Some(Contained::new(Arc::new(told)));
    }

    /// Returns which attempt this is, counted from 1: a client's [`Retry`](super::Retry) makes more than one.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the values that interceptors have added to the call; observers see them.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }
}

impl fmt::Debug for OutgoingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutgoingCall({}/{})", self.service(), self.method())
    }
}

/// The rest of a call: the interceptors after this one, and the connection.
#[derive(Clone, Copy)]
#[must_use = "the call is not made unless `run` is awaited"]
pub struct Next<'a> {
    rest: &'a [Arc<dyn Interceptor>],
    pub(super) link: &'a Link,
}

impl Next<'_> {
    /// Makes the call, and returns its answer. It may be run again, which makes the call again.
    ///
    /// A unary call has its answer when the reply has come. One with streams, or a [raw](crate::Client::raw)
    /// one, has it when its Request is queued.
    ///
    /// Dropping it before it is done cancels the call.
    ///
    /// # Errors
    /// The status of the call, as its caller would get it.
    pub async fn run(&self, call: &mut OutgoingCall) -> Result<Answer, Status> {
        let Some((first, rest)) = self.rest.split_first() else {
            return call.make(self.link).await;
        };
        // Interceptors before this one may have shortened it.
        let deadline = call.deadline();
        let intercepted = (**first).intercept(call, Next { rest, ..*self });
        within(deadline, intercepted).await.unwrap_or_else(|late| Err(call.expire(late)))
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("interceptors", &self.rest.len()).finish_non_exhaustive()
    }
}

/// The answer to a call: its reply, or, where it has streams or is [raw](crate::Client::raw), the open call. It
/// answers the call for which it was made.
#[must_use = "dropping the answer gives the call up"]
pub struct Answer(pub(super) CallOwner);

impl Answer {
    /// Returns the encoded reply of a unary call; `None` for calls with streams.
    pub fn reply_bytes(&self) -> Option<Bytes> {
        let reply = self.0.read(|state| state.last(|payload| payload.to_bytes()));
        reply?.ok()?.filter(|_| self.0.kind.is_unary())
    }

    /// Calls this exactly once, when the call ends.
    ///
    /// It runs in the task that finds the end. As
    /// [`Observer::call_ended`](crate::observer::Observer::call_ended), it has to return at once. A unary call
    /// ends when the caller has taken the reply, which may not decode.
    pub fn on_end(&self, told: impl FnOnce(&CallEnd<'_>) + Send + 'static) {
        if let Some(record) = &self.0.record {
            record.on_end(Box::new(told));
        }
    }
}

debug_in_short!(Answer);

/// Makes a call that starts now through the interceptors, as often as the client's policy says, within its deadline.
#[expect(clippy::manual_async_fn, reason = "an `async fn` would have room for its arguments twice")]
pub(super) fn intercepted(
    Around { policies, retry }: Around,
    link: Link,
    mut call: OutgoingCall,
) -> impl Future<Output = Result<CallOwner, Status>> + Send {
    async move {
        call.is_repeatable = retry.is_some();
        call.begin(&link);
        let (kind, deadline) = (call.pending.head.kind, call.deadline());
        let next = Next { rest: &policies.interceptors, link: &link };
        let answer = match &retry {
            None => next.run(&mut call).await,
            Some(retry) => Box::pin(retry.run(&mut call, next)).await,
        };
        let owner =
            answer.and_then(|Answer(owner)| owner.may_answer(kind, deadline).map(|()| owner));
        if let Some(record) = &call.record {
            // What was made has reported its end.
            if let (Err(status), false) = (&owner, call.is_made) {
                record.ended((EndCause::Refused, Some(status.clone())));
            }
            record.release_end();
        }
        owner
    }
}

impl OutgoingCall {
    /// A call that has started.
    pub(super) fn new<Req: Message>(pending: PendingCall<Req>) -> Self {
        OutgoingCall {
            pending: pending.into_raw(),
            extensions: Extensions::default(),
            record: None,
            on_message: None,
            attempt: 1,
            is_made: false,
            may_be_seen: false,
            is_repeatable: false,
        }
    }

    /// Reports that the call begins, or begins again.
    fn begin(&mut self, link: &Link) {
        self.record = self.pending.begin(link.observed(), Some(&self.extensions));
        if let (Some(record), true) = (&self.record, self.is_repeatable) {
            record.hold_end();
        }
    }

    /// The call's time is over, or what an interceptor has left of it. If the call was made, its owner has reported the end
    /// when it was dropped, unless an interceptor keeps it. Made again by an interceptor, it is another call.
    fn expire(&mut self, late: Status) -> Status {
        if let Some(record) = &self.record {
            record.ended((EndCause::DeadlineHere, Some(late.clone())));
        }
        self.is_made = true;
        late
    }

    /// Makes the call, and waits for the reply if there is only that to wait for.
    async fn make(&mut self, link: &Link) -> Result<Answer, Status> {
        if mem::replace(&mut self.is_made, true) {
            if let Some(record) = self.record.take() {
                record.release_end();
            }
            self.pending.head.options.start();
            self.begin(link);
        }
        if let Some(record) = self.record.as_mut().and_then(Arc::get_mut) {
            // Interceptors may have changed them. The call began when its record says.
            let started = record.head.options.started;
            record.head.options = CallOptions { started, ..self.pending.head.options.clone() };
            record.on_message = self.on_message.clone();
        }
        let was_seen = mem::replace(&mut self.may_be_seen, true);
        let made = self.pending.make_over(link, &mut self.record).await;
        // At its deadline a Request may be half written.
        let is_late = |status: &Status| status.code() == Code::DeadlineExceeded;
        let owner = made.inspect_err(|status| self.may_be_seen = was_seen || is_late(status))?;
        if self.pending.head.kind.is_unary() {
            owner.wait_for_progress().await?;
            if let Some(status) = owner.read(|state| state.outcome()?.1) {
                return Err(status);
            }
        }
        Ok(Answer(owner))
    }
}
