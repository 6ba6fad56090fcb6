//! Unary calls: one request, one reply.

use std::{
    fmt,
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use prost::Message;
use tokio::time::{Sleep, sleep_until};

use super::{
    call::CallOwner,
    connection::ConnectionOwner,
    options::{CallOptions, option_methods},
    request::PendingCall,
};
use crate::{Status, proto::stream::Kind};

/// A unary call that has not started. Await it to make it.
#[must_use = "a call is made when it is awaited"]
pub struct UnaryCall<Req, Resp> {
    connection: Arc<ConnectionOwner>,
    service: &'static str,
    method: &'static str,
    request: Req,
    options: CallOptions,
    reply: PhantomData<fn() -> Resp>,
}

impl<Req, Resp> UnaryCall<Req, Resp> {
    pub(super) fn new(
        connection: Arc<ConnectionOwner>,
        service: &'static str,
        method: &'static str,
        request: Req,
    ) -> Self {
        let options = CallOptions::default();
        UnaryCall { connection, service, method, request, options, reply: PhantomData }
    }

    option_methods!();
}

impl<Req, Resp> fmt::Debug for UnaryCall<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnaryCall({}/{})", self.service, self.method)
    }
}

impl<Req, Resp> IntoFuture for UnaryCall<Req, Resp>
where
    Req: Message + 'static,
    Resp: Message + Default,
{
    type Output = Result<Resp, Status>;
    type IntoFuture = UnaryFuture<Req, Resp>;

    fn into_future(self) -> UnaryFuture<Req, Resp> {
        let pending = PendingCall {
            kind: Kind::Unary,
            service: self.service,
            method: self.method,
            request: Some(self.request),
            options: self.options,
        };
        let progress = Progress::Start(self.connection, pending);
        UnaryFuture { progress, timer: None, reply: PhantomData }
    }
}

/// A unary call under way.
///
/// Cancel safe: dropped, the call is given up, see [the module](super).
#[must_use = "a call is made when it is awaited"]
pub struct UnaryFuture<Req, Resp> {
    progress: Progress<Req>,
    /// Made when the call first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
    reply: PhantomData<fn() -> Resp>,
}

/// Boxed since it is needed only when there is no room at once.
type WaitForRoom = Pin<Box<dyn Future<Output = Result<CallOwner, Status>> + Send>>;

enum Progress<Req> {
    Start(Arc<ConnectionOwner>, PendingCall<Req>),
    WaitForRoom(WaitForRoom),
    WaitForReply(CallOwner),
    Done,
}

/// Nothing in it is pinned in place.
impl<Req, Resp> Unpin for UnaryFuture<Req, Resp> {}

impl<Req, Resp> fmt::Debug for UnaryFuture<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryFuture").finish_non_exhaustive()
    }
}

impl<Req, Resp> Future for UnaryFuture<Req, Resp>
where
    Req: Message + 'static,
    Resp: Message + Default,
{
    type Output = Result<Resp, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Poll::Ready(result) = this.poll_call(cx) {
            this.progress = Progress::Done;
            return Poll::Ready(result);
        }
        // While it waits for room the call keeps an eye on its deadline itself.
        let Progress::WaitForReply(call) = &this.progress else { return Poll::Pending };
        let Some(deadline) = call.deadline() else { return Poll::Pending };
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        call.pass_deadline();
        // The end: this one, or a reply that came just before it.
        let result = ready!(this.poll_call(cx));
        this.progress = Progress::Done;
        Poll::Ready(result)
    }
}

impl<Req, Resp> UnaryFuture<Req, Resp>
where
    Req: Message + 'static,
    Resp: Message + Default,
{
    /// Takes the call as far as it goes, without regard to the deadline of its reply.
    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Result<Resp, Status>> {
        loop {
            self.progress = match &mut self.progress {
                Progress::Start(..) => self.start()?,
                Progress::WaitForRoom(room) => {
                    Progress::WaitForReply(ready!(room.as_mut().poll(cx))?)
                }
                Progress::WaitForReply(call) => {
                    return Poll::Ready(match ready!(call.poll_reply(cx))? {
                        Some(payload) => decode_reply(payload),
                        None => Err(Status::internal("the call ended without a reply")),
                    });
                }
                Progress::Done => panic!("a call was polled after it had ended"),
            };
        }
    }

    fn start(&mut self) -> Result<Progress<Req>, Status> {
        let Progress::Start(connection, pending) =
            std::mem::replace(&mut self.progress, Progress::Done)
        else {
            unreachable!("only called at the start");
        };
        let times = pending.options.times();
        if let Some(call) = pending.try_queue(&connection, times)? {
            return Ok(Progress::WaitForReply(call));
        }
        let queue = async move { pending.queue(&connection, times).await };
        Ok(Progress::WaitForRoom(Box::pin(queue)))
    }
}

/// Decodes a reply, from [`Bytes`] since prost copies a field of bytes twice from anything else.
///
/// # Errors
/// INTERNAL if the bytes are not a message of this type.
pub(super) fn decode_reply<M: Message + Default>(payload: Bytes) -> Result<M, Status> {
    M::decode(payload)
        .map_err(|error| Status::internal(format!("the server's reply does not decode: {error}")))
}
