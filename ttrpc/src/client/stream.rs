//! The caller's ends of a call with streams.

use std::{
    fmt,
    future::{Future, poll_fn},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use prost::Message;
use tokio::time::timeout_at;

use super::{
    entry::CallEntry,
    incoming::{Incoming, decode_reply, decoder_panicked, undecodable},
    owner::CallOwner,
    state::RequestsEnd,
};
use crate::{
    Status,
    contain::{Contained, Panicked, contain},
    proto::{
        frame::{Flags, FrameType, Header},
        message::Measured,
        payload::Payload,
        table::ClientTable,
    },
    snapshot::CallWait,
    transport::{coop::CoopBudget, encode::Frame, limiter::Closed, queue::PushPermit},
};

/// Room for a message in a client's queue.
type RequestRoom<'a> = PushPermit<'a, ClientTable<Arc<CallEntry>>>;

/// INTERNAL: the type of a request is the program's, and panicked.
pub(super) fn encoder_panicked() -> Status {
    Status::internal("the request's type panicked while it was encoded")
}

fn message_frame<M: Message>(message: &M) -> Result<Frame<Measured<'_, M>>, Status> {
    Frame::new(FrameType::Data, Flags::NONE, 0, Measured::new(message))
}

/// The caller's side of a stream of requests.
///
/// Dropping it says that nothing more comes, as [`StreamSender::finish`] does: ttrpc has no frame
/// that takes a stream back, so where half an upload must not be taken for a whole one, the last
/// message has to say that it is the last. A call whose deadline has passed sends nothing more.
#[must_use = "dropping the sender ends the stream of requests"]
pub struct StreamSender<Req> {
    owner: Arc<CallOwner>,
    request: PhantomData<fn(Req)>,
    budget: CoopBudget,
}

impl<Req> StreamSender<Req> {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        StreamSender { owner, request: PhantomData, budget: CoopBudget::default() }
    }

    /// Says that nothing more comes.
    pub fn finish(self) {}

    /// For the blocking client: all has been written, within the call's deadline.
    pub(crate) async fn flushed(&self) -> Result<(), Status> {
        self.owner.flushed().await
    }

    /// The same behind [`StreamSender::finish`].
    pub(crate) async fn finish_flushed(self) -> Result<(), Status> {
        let owner = self.owner.clone();
        self.finish();
        owner.flushed().await
    }
}

impl<Req: Message> StreamSender<Req> {
    /// Sends a message, waiting while the outgoing queue is full. Messages arrive in the order in
    /// which they were sent.
    ///
    /// Cancel safe: dropped before it is done, the message is not sent.
    ///
    /// # Errors
    /// The call's status if the server has ended it, RESOURCE_EXHAUSTED if the message is longer
    /// than a frame may be (the stream goes on), DEADLINE_EXCEEDED, UNAVAILABLE.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` would move the message once more")]
    pub fn send(&mut self, message: Req) -> impl Future<Output = Result<(), Status>> {
        async move {
            let message = Contained::new(message);
            // A sender that is never held up lets other tasks run now and then.
            poll_fn(|cx| self.budget.poll_spend(cx)).await;
            if self.owner.is_too_late() {
                return Err(self.owner.pass_deadline());
            }
            let encoded = contain(|| self.send_at_once(&message));
            let is_sent = match encoded.unwrap_or_else(|Panicked| Err(encoder_panicked()))? {
                Some(is_sent) => is_sent,
                None => self.send_in_turn(&message).await?,
            };
            if is_sent { Ok(()) } else { Err(self.refusal().await) }
        }
    }

    /// Sends a message if there is room for it now, else `None`. `false` if the call or its connection has ended.
    fn send_at_once(&mut self, message: &Req) -> Result<Option<bool>, Status> {
        let frame = message_frame(message)?;
        self.budget.spend_bytes(frame.len());
        Ok(match self.owner.connection().queue.try_reserve(frame.len()) {
            Ok(Some(room)) => Some(self.push(&frame, room)),
            Ok(None) => None,
            Err(Closed) => Some(false),
        })
    }

    /// Sends a message, waiting for room. `false` if the call or its connection has ended.
    async fn send_in_turn(&self, message: &Req) -> Result<bool, Status> {
        let frame = contain(|| message_frame(message));
        let frame = frame.unwrap_or_else(|Panicked| Err(encoder_panicked()))?;
        let Some(room) = self.room(frame.len()).await? else { return Ok(false) };
        contain(|| self.push(&frame, room)).map_err(|Panicked| encoder_panicked())
    }

    /// Queues a message. `false` if the call has ended.
    fn push(&self, frame: &Frame<Measured<'_, Req>>, room: RequestRoom<'_>) -> bool {
        let id = self.owner.stream_id;
        let mut message = None;
        let claim = |table: &mut ClientTable<_>| {
            table.contains(id).then(|| {
                message = self.owner.entry.count_sent(frame.len());
                id
            })
        };
        let pushed = frame.encode(|bytes| room.push(bytes, claim));
        self.owner.entry.tell_message(message.as_ref());
        pushed.is_some()
    }

    /// Waits for room for a message. `None` if the connection has ended.
    async fn room(&self, len: usize) -> Result<Option<RequestRoom<'_>>, Status> {
        let connection = self.owner.connection();
        let _waiting = connection.registry.enter(self.owner.info(), CallWait::Room);
        let record = self.owner.entry.record();
        let _observed = record.map(|record| record.stats.wait_for_room());
        let room = async {
            tokio::select! {
                room = connection.queue.reserve(len) => Ok(room.ok()),
                () = self.owner.entry.requests_ended() => Err(self.refusal().await),
            }
        };
        match self.owner.deadline() {
            Some(deadline) => match timeout_at(deadline, room).await {
                Ok(room) => room,
                Err(_) => Err(self.owner.pass_deadline()),
            },
            None => room.await,
        }
    }

    /// Why nothing can be sent any more. The task that has taken the call out of the table sets the
    /// call's state next, which this waits for.
    async fn refusal(&self) -> Status {
        self.owner.entry.requests_ended().await;
        let refusal = self.owner.entry.inbox.with(|state| state.refusal());
        refusal.expect("the requests have ended")
    }
}

impl<Req> Drop for StreamSender<Req> {
    fn drop(&mut self) {
        if self.owner.is_too_late() {
            return;
        }
        let (id, close) =
            (self.owner.stream_id, self.owner.entry.inbox.with(|state| state.close()));
        if close == RequestsEnd::Nothing {
            return;
        }
        let frame =
            Header { data_len: 0, stream_id: id, frame_type: FrameType::Data, flags: Flags::END };
        self.owner.connection().queue.push_without_room(&mut frame.to_bytes(), |table| {
            let is_closed = close == RequestsEnd::Close || table.contains(id);
            table.close_local(id);
            is_closed.then_some(id)
        });
    }
}

impl<Req> fmt::Debug for StreamSender<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSender").finish_non_exhaustive()
    }
}

/// The one reply to a stream of requests; a future.
///
/// Cancel safe. Dropped, the reply is dropped when it comes; the requests may go on.
#[must_use = "the reply is what the call was made for"]
pub struct Reply<Resp> {
    incoming: Incoming,
    reply: PhantomData<fn() -> Resp>,
}

impl<Resp> Reply<Resp> {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        Reply { incoming: Incoming::new(owner), reply: PhantomData }
    }
}

impl<Resp: Message + Default> Future for Reply<Resp> {
    type Output = Result<Resp, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let incoming = &mut self.get_mut().incoming;
        let reply = match ready!(incoming.poll_take(cx, decode_reply))? {
            Some(reply) => reply,
            None => Err(Status::internal("the call ended without a reply")),
        };
        incoming.owner().entry.tell_reply(reply.as_ref().err());
        Poll::Ready(reply)
    }
}

impl<Resp> fmt::Debug for Reply<Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

/// A stream of replies: take them with [`StreamReceiver::recv`], or use it as a [`Stream`].
///
/// Messages come in the order in which the server sent them. A caller that takes none for long holds up
/// the connection, and loses the stream after [`ClientConfig::stall_timeout`].
///
/// [`ClientConfig::stall_timeout`]: crate::ClientConfig::stall_timeout
#[must_use = "dropping the receiver gives the replies up"]
pub struct StreamReceiver<Resp> {
    incoming: Incoming,
    is_done: bool,
    reply: PhantomData<fn() -> Resp>,
}

impl<Resp> StreamReceiver<Resp> {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        StreamReceiver { incoming: Incoming::new(owner), is_done: false, reply: PhantomData }
    }
}

impl<Resp: Message + Default> StreamReceiver<Resp> {
    /// The next message; `None` when the server has ended the stream well.
    ///
    /// Cancel safe: dropped before it is done, no message is lost.
    ///
    /// # Errors
    /// The status with which the stream failed. The stream is over then.
    pub async fn recv(&mut self) -> Result<Option<Resp>, Status> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// For the blocking client: the Request has been written, within the call's deadline.
    pub(crate) async fn request_flushed(&self) -> Result<(), Status> {
        self.incoming.owner().flushed().await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Resp>, Status>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        // Decoded where it is returned from.
        let mut message = None;
        let decode =
            |payload: Payload<'_>| contain(|| message.insert(Resp::default()).merge(payload));
        let end = match ready!(self.incoming.poll_take(cx, decode)) {
            Ok(Some(Ok(Ok(())))) => return Poll::Ready(Ok(message)),
            Ok(Some(decoded)) => {
                let status = match decoded {
                    Ok(Err(error)) => undecodable(error),
                    _ => decoder_panicked(),
                };
                self.incoming.owner().entry.tell_violation(&status);
                Err(status)
            }
            Ok(None) => Ok(None),
            Err(status) => Err(status),
        };
        self.is_done = true;
        drop(Contained::new(message));
        Poll::Ready(end)
    }
}

/// Ends after the first error.
impl<Resp: Message + Default> Stream for StreamReceiver<Resp> {
    type Item = Result<Resp, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv(cx).map(Result::transpose)
    }
}

impl<Resp> fmt::Debug for StreamReceiver<Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReceiver").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}
