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
    call::{OpenCall, Opening},
    connection::Handle,
    options::{CallOptions, option_methods},
};
use crate::{Status, proto::stream::Kind};

/// A unary call that has not started. Await it to make it.
#[must_use = "a call is made when it is awaited"]
pub struct UnaryCall<Req, Resp> {
    handle: Arc<Handle>,
    service: &'static str,
    method: &'static str,
    request: Req,
    options: CallOptions,
    reply: PhantomData<fn() -> Resp>,
}

impl<Req, Resp> UnaryCall<Req, Resp> {
    pub(super) fn new(
        handle: Arc<Handle>,
        service: &'static str,
        method: &'static str,
        request: Req,
    ) -> Self {
        let options = CallOptions::default();
        UnaryCall { handle, service, method, request, options, reply: PhantomData }
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
        let opening = Opening {
            kind: Kind::Unary,
            service: self.service,
            method: self.method,
            request: Some(self.request),
            options: self.options,
        };
        let phase = Phase::Start(self.handle, opening);
        UnaryFuture { phase, timer: None, reply: PhantomData }
    }
}

/// A unary call under way.
///
/// Cancel safe: dropped, the call is given up, see [the module](super).
#[must_use = "a call is made when it is awaited"]
pub struct UnaryFuture<Req, Resp> {
    phase: Phase<Req>,
    /// Made when the call first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
    reply: PhantomData<fn() -> Resp>,
}

/// A phase's future, boxed since it is needed only when there is no room at once.
type WaitForRoom = Pin<Box<dyn Future<Output = Result<OpenCall, Status>> + Send>>;

enum Phase<Req> {
    Start(Arc<Handle>, Opening<Req>),
    WaitForRoom(WaitForRoom),
    WaitForReply(OpenCall),
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
            this.phase = Phase::Done;
            return Poll::Ready(result);
        }
        // While it waits for room the call keeps an eye on its deadline itself.
        let Phase::WaitForReply(open) = &this.phase else { return Poll::Pending };
        let Some(deadline) = open.deadline() else { return Poll::Pending };
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        let status = open.pass_deadline();
        this.phase = Phase::Done;
        Poll::Ready(Err(status))
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
            self.phase = match &mut self.phase {
                Phase::Start(..) => self.start()?,
                Phase::WaitForRoom(room) => Phase::WaitForReply(ready!(room.as_mut().poll(cx))?),
                Phase::WaitForReply(open) => {
                    let payload = ready!(open.call.inbox.poll_last(cx));
                    open.finish();
                    let Some(payload) = payload? else {
                        return Poll::Ready(Err(Status::internal(
                            "the call ended without a reply",
                        )));
                    };
                    return Poll::Ready(decode_reply(payload));
                }
                Phase::Done => panic!("a call was polled after it had ended"),
            };
        }
    }

    fn start(&mut self) -> Result<Phase<Req>, Status> {
        let Phase::Start(handle, opening) = std::mem::replace(&mut self.phase, Phase::Done) else {
            unreachable!("only called in the first phase");
        };
        let times = opening.options.times();
        if let Some(open) = opening.try_open(&handle, times)? {
            return Ok(Phase::WaitForReply(open));
        }
        let room = async move { opening.open(&handle, times).await };
        Ok(Phase::WaitForRoom(Box::pin(room)))
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
