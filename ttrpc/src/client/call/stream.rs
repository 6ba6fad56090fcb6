//! The caller's ends of a call with streams.

use std::{
    future::{Future, poll_fn},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_core::Stream;
use prost::Message;

use super::owner::{CallOwner, decode_into, no_reply};
use crate::{
    ConnectionError, Raw, RawEnd, Status,
    client::{
        connection::calls::Calls,
        meta::{DeadlineTimer, within},
    },
    contain::{Contained, Panicked, contain},
    proto::{
        frame::{Flags, FrameType},
        message::Measured,
        payload::Payload,
    },
    snapshot::CallWait,
    transport::{
        coop::CoopBudget,
        frames::Frame,
        limiter::Closed,
        messages::Batch,
        queue::{PushDecision, PushPermit, Pushed},
        wait_until,
    },
};

/// Runs code of a request's type, which is the program's. A panic fails the call with INTERNAL.
fn run_encoder<R>(encode: impl FnOnce() -> R) -> Result<R, Status> {
    contain(encode)
        .map_err(|Panicked| Status::internal("the request's type panicked while it was encoded"))
}

/// Sends a stream of requests.
///
/// ```
/// # use ttrpc::{Client, Status};
/// # async fn example(client: Client) -> Result<(), Status> {
/// let (mut names, reply) =
///     client.client_streaming::<String, String>("greeter.v1.Greeter", "GreetAll").await?;
/// names.send("Ann".to_owned()).await?;
/// names.send("Ben".to_owned()).await?;
/// names.finish();
/// println!("{}", reply.await?);
/// # Ok(()) }
/// ```
///
/// Dropping it closes the stream, as [`StreamSender::finish`] does: ttrpc has no frame that cancels a
/// stream. Where half an upload must not be taken for a whole one, the last message has to say that it
/// is the last. A call whose deadline has passed sends nothing more.
///
/// With [`cancel_at_server`](crate::client::ConnectOptions::cancel_at_server) two things differ. [`StreamSender::give_up`] ends
/// the call without an end of the stream. So does dropping the sender after the reply, or after the receiver of replies. A
/// future that is dropped drops them in that order after `let (sender, reply) = …`. A server that does not have the service
/// gets the end all the same.
#[must_use = "dropping the sender ends the stream of requests"]
pub struct StreamSender<Req> {
    owner: Arc<CallOwner>,
    request: PhantomData<fn(Req)>,
    budget: CoopBudget,
    is_finished: bool,
}

impl<Req> StreamSender<Req> {
    pub(in crate::client) fn new(owner: Arc<CallOwner>) -> Self {
        let budget = CoopBudget::default();
        StreamSender { owner, request: PhantomData, budget, is_finished: false }
    }

    /// Closes the stream of requests: nothing more comes.
    pub fn finish(mut self) {
        self.is_finished = true;
    }

    /// Gives the call up: its handler is cancelled, and sees no end of the requests that it could take for a good one.
    ///
    /// The reply fails with CANCELLED. This needs [`cancel_at_server`](crate::client::ConnectOptions::cancel_at_server), and a
    /// server that has the service; without them it does what [`StreamSender::finish`] does.
    pub fn give_up(self) {
        self.abandon();
    }

    /// Gives the call up, for an owner that is dropped.
    pub(crate) fn abandon(&self) {
        self.owner.connection().give_up(self.owner.stream_id);
    }

    /// Ends the connection of the call. A client that reconnects may make another one.
    pub(crate) fn close_connection(&self) {
        self.owner.tasks.close(ConnectionError::ClosedLocally);
    }

    /// Waits, for the blocking client, until all has been written, within the call's deadline.
    pub(crate) async fn flushed(&self) -> Result<(), Status> {
        self.owner.flushed().await
    }

    /// Finishes as [`StreamSender::finish`] does, and waits until all has been written.
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
    pub fn send(&mut self, message: Req) -> impl Future<Output = Result<(), Status>> {
        // Stays where it is from here on.
        let message = Contained::new(message);
        async move {
            // A sender that never has to wait lets other tasks run now and then.
            poll_fn(|cx| self.budget.poll_spend(cx)).await;
            if self.owner.is_too_late() {
                return Err(self.owner.expire());
            }
            let frame = run_encoder(|| {
                Frame::new(FrameType::Data, Flags::NONE, 0, Measured::new(&*message))
            })??;
            self.budget.spend_bytes(frame.len());
            if !self.push(&frame, None)? {
                let capacity = self.wait_for_capacity(frame.len()).await?;
                self.push(&frame, Some(capacity))?;
            }
            Ok(())
        }
    }

    /// Waits for capacity for a message in the send queue, while the call and its connection go on.
    async fn wait_for_capacity(&self, len: usize) -> Result<PushPermit<'_, Calls>, Status> {
        let connection = self.owner.connection();
        let id = self.owner.stream_id;
        let info = connection.queue.streams(|calls| Some(calls.get(id)?.info(id)));
        let _waiting = info.map(|info| connection.registry.enter(info, CallWait::Capacity));
        let _observed = self.owner.record.as_ref().map(|record| record.stats.wait_for_capacity());
        let capacity = async {
            tokio::select! {
                capacity = connection.queue.reserve(len) => capacity.map_err(|Closed| self.refusal()),
                () = self.requests_ended() => Err(self.refusal()),
            }
        };
        within(self.owner.deadline, capacity).await.unwrap_or_else(|_| Err(self.owner.expire()))
    }

    /// Waits until no message may be sent any more.
    async fn requests_ended(&self) {
        let is_so = || self.owner.read(|state| state.may_send().then_some(())).is_none();
        wait_until(&self.owner.messages().changed, &is_so).await;
    }

    /// Queues a message while the call is open, with a permit or with the capacity that there is. Returns whether there was
    /// capacity.
    fn push(
        &self,
        frame: &Frame<Measured<'_, Req>>,
        capacity: Option<PushPermit<'_, Calls>>,
    ) -> Result<bool, Status> {
        let (id, record) = (self.owner.stream_id, &self.owner.record);
        let mut message = None;
        let claim = |calls: &mut Calls| {
            calls.read(id, |state| state.may_send().then_some(()))?;
            message = record.as_ref().map(|record| record.count_sent(frame.len()));
            Some(PushDecision::from(id))
        };
        let queue = &self.owner.connection().queue;
        let pushed = run_encoder(|| queue.send(frame, capacity, claim))?;
        if let (Some(record), Some(message)) = (record, &message) {
            record.report_message(message);
        }
        match pushed {
            Pushed::Queued(_) => Ok(true),
            Pushed::Full => Ok(false),
            Pushed::Refused => Err(self.refusal()),
        }
    }

    /// Returns why nothing can be sent any more.
    fn refusal(&self) -> Status {
        let refusal = self.owner.read(|state| state.refusal());
        // The queue closes before the calls fail.
        refusal.unwrap_or_else(|| self.owner.connection().unavailable())
    }
}

impl<Req> Drop for StreamSender<Req> {
    fn drop(&mut self) {
        if self.owner.is_too_late() {
            return;
        }
        // Nobody waits for the reply: the call is given up.
        if !self.is_finished && Arc::strong_count(&self.owner) == 1 {
            self.abandon();
        }
        let id = self.owner.stream_id;
        let claim = |calls: &mut Calls| calls.close_requests(id).then_some(id);
        self.owner.connection().queue.push_without_capacity(&end_of_requests(id), claim);
    }
}

/// The frame that ends a stream of requests.
pub(in crate::client) fn end_of_requests(stream_id: u32) -> Frame<&'static [u8]> {
    Frame::new(FrameType::Data, Flags::END, stream_id, &[][..]).expect("it has no data")
}

debug_in_short!(StreamSender<Req>);

/// The consumer of a call's messages.
struct Incoming {
    owner: Arc<CallOwner>,
    batch: Batch,
    timer: DeadlineTimer,
    /// The payload of a Response was taken: nothing follows.
    has_reply: bool,
}

impl Incoming {
    fn new(owner: Arc<CallOwner>) -> Self {
        let (batch, timer) = (Batch::default(), DeadlineTimer::default());
        Incoming { owner, batch, timer, has_reply: false }
    }

    /// Returns what `read` makes of the next message, `None` at a good end. See [`Inbox::poll_take`].
    ///
    /// [`Inbox::poll_take`]: crate::transport::inbox::Inbox::poll_take
    fn poll_take<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&mut Payload<'_>) -> R,
    ) -> Poll<Result<Option<R>, Status>> {
        if self.has_reply {
            return Poll::Ready(Ok(None));
        }
        // A server may go on for ever. What ended in time may be read later.
        if self.owner.is_too_late()
            && self.owner.read(|state| state.is_open().then_some(())).is_some()
        {
            return Poll::Ready(Err(self.owner.expire()));
        }
        let (owner, batch) = (&self.owner, &mut self.batch);
        let patience = &owner.connection().patience;
        loop {
            match owner.messages().poll_take(batch, cx, patience, &mut read) {
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(taken) => return Poll::Ready(taken),
                Poll::Pending => {
                    ready!(self.timer.poll(owner.deadline, cx));
                    // The end is taken next: this one, or another that came just before it.
                    owner.expire();
                }
            }
        }
        let last = owner.read(|state| state.last(|payload| payload.to_bytes()));
        let last = match last {
            Some(last) => last.map_err(|(_, status)| status)?,
            None => return Poll::Ready(Err(owner.connection().unavailable())),
        };
        // A Response that ends a stream of replies is its last message, unless it is empty.
        let is_message = |last: &Bytes| !(owner.kind.is_ended_by_response() && last.is_empty());
        let last = last.filter(is_message);
        self.has_reply = last.is_some();
        Poll::Ready(Ok(last.map(|last| read(&mut Payload::shared(&last, &last)))))
    }

    /// Returns the next message, decoded. Reports one that does not decode.
    fn poll_decoded<M: Message + Default>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<M>, Status>> {
        // Decoded where it is returned from.
        let mut message = None;
        let taken = ready!(self.poll_take(cx, |payload| decode_into(&mut message, payload)))?;
        if let (Some(Err(status)), Some(record)) = (&taken, &self.owner.record) {
            record.reply_taken(Some(status));
        }
        Poll::Ready(taken.transpose().map(|_| message))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.owner.messages().abandon(&mut self.batch);
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
    pub(in crate::client) fn new(owner: Arc<CallOwner>) -> Self {
        Reply { incoming: Incoming::new(owner), reply: PhantomData }
    }
}

impl<Resp: Message + Default> Future for Reply<Resp> {
    type Output = Result<Resp, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let incoming = &mut self.get_mut().incoming;
        let reply = ready!(incoming.poll_decoded(cx))?;
        let reply = reply.ok_or_else(no_reply);
        if let Some(record) = &incoming.owner.record {
            record.reply_taken(reply.as_ref().err());
        }
        Poll::Ready(reply)
    }
}

debug_in_short!(Reply<Resp>);

/// Receives a stream of replies, by [`StreamReceiver::recv`] or as a `futures_core::Stream`.
///
/// ```
/// # use ttrpc::{Client, Status};
/// # async fn example(client: Client) -> Result<(), Status> {
/// let call = client.server_streaming("greeter.v1.Greeter", "Countdown", 3_u32);
/// let mut replies = call.await?;
/// while let Some(reply) = replies.recv().await? {
///     let reply: String = reply;
///     println!("{reply}");
/// }
/// # Ok(()) }
/// ```
///
/// Messages come in the order in which the server sent them. A caller that takes none for long blocks
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
    pub(in crate::client) fn new(owner: Arc<CallOwner>) -> Self {
        StreamReceiver { incoming: Incoming::new(owner), is_done: false, reply: PhantomData }
    }
}

impl<Resp: Message + Default> StreamReceiver<Resp> {
    /// Waits for the next message. Returns `None` when the server has ended the stream well.
    ///
    /// Cancel safe: dropped before it is done, no message is lost.
    ///
    /// # Errors
    /// The status with which the stream failed. The stream is over then.
    pub async fn recv(&mut self) -> Result<Option<Resp>, Status> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Waits, for the blocking client, until the Request has been written, within the call's deadline.
    pub(crate) async fn request_flushed(&self) -> Result<(), Status> {
        self.incoming.owner.flushed().await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Resp>, Status>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        let next = ready!(self.incoming.poll_decoded(cx));
        self.is_done = !matches!(next, Ok(Some(_)));
        Poll::Ready(next)
    }
}

/// Ends after the first error.
impl<Resp: Message + Default> Stream for StreamReceiver<Resp> {
    type Item = Result<Resp, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv(cx).map(Result::transpose)
    }
}

debug_in_short!(StreamReceiver<Resp>, is_done);

/// A message or the end that a server sends on a [`RawCall`](crate::client::RawCall).
#[derive(Clone, Debug, PartialEq)]
pub enum RawReply {
    /// A message of a stream.
    Message(Raw),
    /// The end of the call; nothing more comes.
    End(RawEnd),
}

/// Takes what a server sends, whatever the kind of the call is.
///
/// Messages come in the order in which the server sent them. A caller that takes none for long blocks the
/// connection, and loses the stream after [`ClientConfig::stall_timeout`].
///
/// [`ClientConfig::stall_timeout`]: crate::ClientConfig::stall_timeout
#[must_use = "dropping the receiver gives the replies up"]
pub struct RawReceiver {
    incoming: Incoming,
}

impl RawReceiver {
    pub(in crate::client) fn new(owner: Arc<CallOwner>) -> Self {
        RawReceiver { incoming: Incoming::new(owner) }
    }

    /// Waits for the next message, or the end. After the end it returns [`RawEnd::Closed`].
    ///
    /// Cancel safe: dropped before it is done, nothing is lost.
    ///
    /// # Errors
    /// The status with which the call failed. The call is over then.
    pub async fn recv(&mut self) -> Result<RawReply, Status> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawReply, Status>> {
        Poll::Ready(Ok(
            match ready!(self.incoming.poll_take(cx, |payload| Raw(payload.to_bytes())))? {
                Some(payload) if self.incoming.has_reply => RawReply::End(RawEnd::Reply(payload)),
                Some(message) => RawReply::Message(message),
                None => RawReply::End(RawEnd::Closed),
            },
        ))
    }
}

debug_in_short!(RawReceiver);
