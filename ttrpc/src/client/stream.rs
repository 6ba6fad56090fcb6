//! Calls with streams: of requests, of replies, or both.

use std::{
    fmt,
    future::{Future, IntoFuture, poll_fn},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_core::Stream;
use prost::Message;
use tokio::{
    task::coop::consume_budget,
    time::{Sleep, sleep_until, timeout_at},
};

use super::{
    call::{Call, CallOwner},
    connection::ConnectionOwner,
    options::{CallOptions, option_methods},
    request::PendingCall,
    state::Close,
    unary::decode_reply,
};
use crate::{
    Status,
    proto::{
        frame::{Flags, FrameType, Header},
        message::DataParts,
        stream::Kind,
        table::ClientTable,
    },
    snapshot::CallWait,
    transport::{
        encode::Frame, inbox::Phase as _, limiter::Closed, messages::Batch, queue::PushPermit,
    },
};

/// A future of a call that is being opened.
type OpenFuture<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// Defines a kind of call with streams: what the caller holds before it is awaited.
macro_rules! streaming_call {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        ///
        /// Awaiting it queues the Request, which takes as long as the outgoing queue is full, and
        /// fails with UNAVAILABLE, DEADLINE_EXCEEDED, or RESOURCE_EXHAUSTED for a request that is
        /// too long. Cancel safe: dropped before that, nothing is sent.
        #[must_use = "a call is made when it is awaited"]
        pub struct $name<Req, Resp> {
            connection: Arc<ConnectionOwner>,
            service: &'static str,
            method: &'static str,
            request: Option<Req>,
            options: CallOptions,
            reply: PhantomData<fn() -> Resp>,
        }

        impl<Req, Resp> $name<Req, Resp> {
            option_methods!();

            fn into_pending(self) -> (Arc<ConnectionOwner>, PendingCall<Req>) {
                let pending = PendingCall {
                    kind: Kind::$kind,
                    service: self.service,
                    method: self.method,
                    request: self.request,
                    options: self.options,
                };
                (self.connection, pending)
            }
        }

        impl<Req, Resp> fmt::Debug for $name<Req, Resp> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}/{})"), self.service, self.method)
            }
        }
    };
}

streaming_call! {
    /// One request, many replies. Awaited, it gives a [`StreamReceiver`].
    ServerStreamingCall, ServerStreaming
}
streaming_call! {
    /// Many requests, one reply. Awaited, it gives a [`StreamSender`] and the [`Reply`].
    ClientStreamingCall, ClientStreaming
}
streaming_call! {
    /// Many requests, many replies. Awaited, it gives a [`StreamSender`] and a [`StreamReceiver`],
    /// which may be used from different tasks.
    BidiStreamingCall, Bidirectional
}

impl<Req, Resp> ServerStreamingCall<Req, Resp> {
    pub(super) fn new(
        connection: Arc<ConnectionOwner>,
        service: &'static str,
        method: &'static str,
        request: Req,
    ) -> Self {
        let options = CallOptions::default();
        let request = Some(request);
        ServerStreamingCall { connection, service, method, request, options, reply: PhantomData }
    }
}

impl<Req, Resp> ClientStreamingCall<Req, Resp> {
    pub(super) fn new(
        connection: Arc<ConnectionOwner>,
        service: &'static str,
        method: &'static str,
    ) -> Self {
        let options = CallOptions::default();
        ClientStreamingCall {
            connection,
            service,
            method,
            request: None,
            options,
            reply: PhantomData,
        }
    }
}

impl<Req, Resp> BidiStreamingCall<Req, Resp> {
    pub(super) fn new(
        connection: Arc<ConnectionOwner>,
        service: &'static str,
        method: &'static str,
    ) -> Self {
        let options = CallOptions::default();
        BidiStreamingCall {
            connection,
            service,
            method,
            request: None,
            options,
            reply: PhantomData,
        }
    }
}

impl<Req: Message + 'static, Resp: Message + Default> IntoFuture
    for ServerStreamingCall<Req, Resp>
{
    type Output = Result<StreamReceiver<Resp>, Status>;
    type IntoFuture = OpenFuture<StreamReceiver<Resp>>;

    fn into_future(self) -> Self::IntoFuture {
        let (connection, pending) = self.into_pending();
        Box::pin(async move { Ok(StreamReceiver::new(open(connection, pending).await?)) })
    }
}

impl<Req: Message + 'static, Resp: Message + Default> IntoFuture
    for ClientStreamingCall<Req, Resp>
{
    type Output = Result<(StreamSender<Req>, Reply<Resp>), Status>;
    type IntoFuture = OpenFuture<(StreamSender<Req>, Reply<Resp>)>;

    fn into_future(self) -> Self::IntoFuture {
        let (connection, pending) = self.into_pending();
        Box::pin(async move {
            let call = open(connection, pending).await?;
            Ok((
                StreamSender::new(call.clone()),
                Reply { incoming: Incoming::new(call), reply: PhantomData },
            ))
        })
    }
}

impl<Req: Message + 'static, Resp: Message + Default> IntoFuture for BidiStreamingCall<Req, Resp> {
    type Output = Result<(StreamSender<Req>, StreamReceiver<Resp>), Status>;
    type IntoFuture = OpenFuture<(StreamSender<Req>, StreamReceiver<Resp>)>;

    fn into_future(self) -> Self::IntoFuture {
        let (connection, pending) = self.into_pending();
        Box::pin(async move {
            let call = open(connection, pending).await?;
            Ok((StreamSender::new(call.clone()), StreamReceiver::new(call)))
        })
    }
}

/// Queues the Request, within the call's deadline.
async fn open<Req: Message>(
    connection: Arc<ConnectionOwner>,
    pending: PendingCall<Req>,
) -> Result<Arc<CallOwner>, Status> {
    let times = pending.options.times();
    if let Some(call) = pending.try_queue(&connection, times)? {
        return Ok(Arc::new(call));
    }
    pending.queue(&connection, times).await.map(Arc::new)
}

/// The caller's side of a stream of requests.
///
/// Dropping it says that nothing more comes, as [`StreamSender::finish`] does: ttrpc has no frame
/// that takes a stream back, so where half an upload must not be taken for a whole one, the last
/// message has to say that it is the last. A call whose deadline has passed sends nothing more.
#[must_use = "dropping the sender ends the stream of requests"]
pub struct StreamSender<Req> {
    call: Arc<CallOwner>,
    request: PhantomData<fn(Req)>,
}

impl<Req> StreamSender<Req> {
    fn new(call: Arc<CallOwner>) -> Self {
        StreamSender { call, request: PhantomData }
    }

    /// Says that nothing more comes.
    pub fn finish(self) {}
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
    pub async fn send(&mut self, message: Req) -> Result<(), Status> {
        // A sender that is never held up lets other tasks run now and then.
        consume_budget().await;
        if self.call.is_too_late() {
            return Err(self.call.pass_deadline());
        }
        let frame = Frame::new(FrameType::Data, Flags::NONE, 0, DataParts(&message))?;
        if let Some(room) = self.room(frame.len()).await? {
            let id = self.call.stream_id;
            let claim = |table: &mut ClientTable<_>| table.contains(id).then_some(id);
            if frame.encode(|bytes| room.push(bytes, claim)).is_some() {
                return Ok(());
            }
        }
        Err(self.refusal().await)
    }

    /// Room for a message. `None` if the connection has ended.
    async fn room(
        &self,
        len: usize,
    ) -> Result<Option<PushPermit<'_, ClientTable<Arc<Call>>>>, Status> {
        let connection = self.call.connection();
        match connection.queue.try_reserve(len) {
            Ok(None) => {}
            Ok(room) => return Ok(room),
            Err(Closed) => return Ok(None),
        }
        let _waiting = connection.registry.enter(self.call.info(), CallWait::Room);
        let room = async {
            tokio::select! {
                room = connection.queue.reserve(len) => Ok(room.ok()),
                () = self.call.call.requests_ended() => Err(self.refusal().await),
            }
        };
        match self.call.deadline() {
            Some(deadline) => match timeout_at(deadline, room).await {
                Ok(room) => room,
                Err(_) => Err(self.call.pass_deadline()),
            },
            None => room.await,
        }
    }

    /// Why nothing can be sent any more. Whoever has taken the call out of the table is about to say
    /// so.
    async fn refusal(&self) -> Status {
        self.call.call.requests_ended().await;
        let refusal = self.call.call.inbox.with(|phase| phase.refusal());
        refusal.expect("the requests have ended")
    }
}

impl<Req> Drop for StreamSender<Req> {
    fn drop(&mut self) {
        if self.call.is_too_late() {
            return;
        }
        let (id, close) = (self.call.stream_id, self.call.call.inbox.with(|phase| phase.close()));
        if close == Close::Never {
            return;
        }
        let frame =
            Header { data_len: 0, stream_id: id, frame_type: FrameType::Data, flags: Flags::END };
        self.call.connection().queue.push_without_room(&frame.to_bytes(), |table| {
            let is_closed = close == Close::Always || table.contains(id);
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

/// What arrives for a call, within its deadline.
struct Incoming {
    call: Arc<CallOwner>,
    batch: Batch,
    /// Made when the consumer first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    fn new(call: Arc<CallOwner>) -> Self {
        Incoming { call, batch: Batch::default(), timer: None }
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        let inbox = &self.call.call.inbox;
        // A server may go on for ever. What ended in time may be read later.
        if self.call.is_too_late() && inbox.with(|phase| phase.is_open()) {
            return Poll::Ready(Err(self.call.pass_deadline()));
        }
        let patience = &self.call.connection().patience;
        if let Poll::Ready(taken) = inbox.poll_take(&mut self.batch, cx, patience) {
            return Poll::Ready(taken);
        }
        let Some(deadline) = self.call.deadline() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        self.call.pass_deadline();
        // The end: this one, or another that came just before it.
        inbox.poll_take(&mut self.batch, cx, patience)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.call.call.inbox.abandon(&mut self.batch);
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

impl<Resp: Message + Default> Future for Reply<Resp> {
    type Output = Result<Resp, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match ready!(self.get_mut().incoming.poll_take(cx))? {
            Some(payload) => Poll::Ready(decode_reply(payload)),
            None => Poll::Ready(Err(Status::internal("the call ended without a reply"))),
        }
    }
}

impl<Resp> fmt::Debug for Reply<Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

/// A stream of replies: take them with [`StreamReceiver::recv`], or use it as a [`Stream`].
///
/// Messages come in the order in which the server sent them. Whoever takes none for long holds up
/// the connection, and loses the stream after [`ClientConfig::stall_timeout`].
///
/// [`ClientConfig::stall_timeout`]: crate::ClientConfig::stall_timeout
#[must_use = "dropping the receiver gives the replies up"]
pub struct StreamReceiver<Resp> {
    incoming: Incoming,
    is_done: bool,
    reply: PhantomData<fn() -> Resp>,
}

impl<Resp: Message + Default> StreamReceiver<Resp> {
    fn new(call: Arc<CallOwner>) -> Self {
        StreamReceiver { incoming: Incoming::new(call), is_done: false, reply: PhantomData }
    }

    /// The next message; `None` when the server has ended the stream well.
    ///
    /// Cancel safe: dropped before it is done, no message is lost.
    ///
    /// # Errors
    /// The status with which the stream failed. The stream is over then.
    pub async fn recv(&mut self) -> Result<Option<Resp>, Status> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Resp>, Status>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        let message = match ready!(self.incoming.poll_take(cx)) {
            Ok(Some(payload)) => decode_reply(payload).map(Some),
            Ok(None) => Ok(None),
            Err(status) => Err(status),
        };
        self.is_done = !matches!(message, Ok(Some(_)));
        Poll::Ready(message)
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
