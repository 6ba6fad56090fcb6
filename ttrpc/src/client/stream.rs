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
use tokio::time::{Sleep, sleep_until, timeout_at};

use super::{
    call::{OpenCall, Opening, Step, Tag, close_frame},
    connection::Handle,
    options::{CallOptions, option_methods},
    unary::decode_reply,
};
use crate::{
    Status,
    proto::{
        frame::{Flags, FrameType},
        message::DataParts,
        stream::Kind,
    },
    snapshot::CallWait,
    transport::{encode::Frame, inbox::Batch, queue::Room},
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
            handle: Arc<Handle>,
            service: &'static str,
            method: &'static str,
            request: Option<Req>,
            options: CallOptions,
            reply: PhantomData<fn() -> Resp>,
        }

        impl<Req, Resp> $name<Req, Resp> {
            option_methods!();

            fn into_opening(self) -> (Arc<Handle>, Opening<Req>) {
                let opening = Opening {
                    kind: Kind::$kind,
                    service: self.service,
                    method: self.method,
                    request: self.request,
                    options: self.options,
                };
                (self.handle, opening)
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
        handle: Arc<Handle>,
        service: &'static str,
        method: &'static str,
        request: Req,
    ) -> Self {
        let options = CallOptions::default();
        let request = Some(request);
        ServerStreamingCall { handle, service, method, request, options, reply: PhantomData }
    }
}

impl<Req, Resp> ClientStreamingCall<Req, Resp> {
    pub(super) fn new(handle: Arc<Handle>, service: &'static str, method: &'static str) -> Self {
        let options = CallOptions::default();
        ClientStreamingCall { handle, service, method, request: None, options, reply: PhantomData }
    }
}

impl<Req, Resp> BidiStreamingCall<Req, Resp> {
    pub(super) fn new(handle: Arc<Handle>, service: &'static str, method: &'static str) -> Self {
        let options = CallOptions::default();
        BidiStreamingCall { handle, service, method, request: None, options, reply: PhantomData }
    }
}

impl<Req: Message + 'static, Resp: Message + Default> IntoFuture
    for ServerStreamingCall<Req, Resp>
{
    type Output = Result<StreamReceiver<Resp>, Status>;
    type IntoFuture = OpenFuture<StreamReceiver<Resp>>;

    fn into_future(self) -> Self::IntoFuture {
        let (handle, opening) = self.into_opening();
        Box::pin(async move { Ok(StreamReceiver::new(open(handle, opening).await?)) })
    }
}

impl<Req: Message + 'static, Resp: Message + Default> IntoFuture
    for ClientStreamingCall<Req, Resp>
{
    type Output = Result<(StreamSender<Req>, Reply<Resp>), Status>;
    type IntoFuture = OpenFuture<(StreamSender<Req>, Reply<Resp>)>;

    fn into_future(self) -> Self::IntoFuture {
        let (handle, opening) = self.into_opening();
        Box::pin(async move {
            let open = open(handle, opening).await?;
            Ok((
                StreamSender::new(open.clone()),
                Reply { incoming: Incoming::new(open), reply: PhantomData },
            ))
        })
    }
}

impl<Req: Message + 'static, Resp: Message + Default> IntoFuture for BidiStreamingCall<Req, Resp> {
    type Output = Result<(StreamSender<Req>, StreamReceiver<Resp>), Status>;
    type IntoFuture = OpenFuture<(StreamSender<Req>, StreamReceiver<Resp>)>;

    fn into_future(self) -> Self::IntoFuture {
        let (handle, opening) = self.into_opening();
        Box::pin(async move {
            let open = open(handle, opening).await?;
            Ok((StreamSender::new(open.clone()), StreamReceiver::new(open)))
        })
    }
}

/// Queues the Request, within the call's deadline.
async fn open<Req: Message>(
    handle: Arc<Handle>,
    opening: Opening<Req>,
) -> Result<Arc<OpenCall>, Status> {
    let times = opening.options.times();
    opening.open(&handle, times).await.map(Arc::new)
}

/// The caller's side of a stream of requests.
///
/// Dropping it says that nothing more comes, as [`StreamSender::finish`] does: ttrpc has no frame
/// that takes a stream back, so where half an upload must not be taken for a whole one, the last
/// message has to say that it is the last. A call whose deadline has passed sends nothing more.
#[must_use = "dropping the sender ends the stream of requests"]
pub struct StreamSender<Req> {
    open: Arc<OpenCall>,
    request: PhantomData<fn(Req)>,
}

impl<Req> StreamSender<Req> {
    fn new(open: Arc<OpenCall>) -> Self {
        StreamSender { open, request: PhantomData }
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
        if self.open.is_too_late() {
            return Err(self.open.pass_deadline());
        }
        let frame = Frame::new(FrameType::Data, Flags::NONE, 0, DataParts(&message))?;
        let room = self.room(frame.len()).await?;
        let call = &self.open.call;
        let tag = Tag { call: call.clone(), step: Step::Message };
        if frame.encode(|bytes| room.push(bytes, Some(tag), || call.may_send())) {
            return Ok(());
        }
        Err(self.end_status())
    }

    async fn room(&self, len: usize) -> Result<Room<'_, Tag>, Status> {
        let connection = self.open.connection();
        match connection.queue.try_reserve(len) {
            Ok(Some(room)) => return Ok(room),
            Ok(None) => {}
            Err(_) => return Err(self.end_status()),
        }
        let _waiting = connection.waits.enter(self.open.call.info(), CallWait::Room);
        let room = async {
            tokio::select! {
                room = connection.queue.reserve(len) => room.map_err(|_| self.end_status()),
                () = self.open.call.over() => Err(self.end_status()),
            }
        };
        match self.open.deadline() {
            Some(deadline) => match timeout_at(deadline, room).await {
                Ok(room) => room,
                Err(_) => Err(self.open.pass_deadline()),
            },
            None => room.await,
        }
    }

    /// Why nothing can be sent any more.
    fn end_status(&self) -> Status {
        let ended = || Status::cancelled("the server has ended the call");
        match self.open.call.inbox.end_status() {
            Some(end) => end.err().unwrap_or_else(ended),
            None => self.open.connection().unavailable(),
        }
    }
}

impl<Req> Drop for StreamSender<Req> {
    fn drop(&mut self) {
        if !self.open.call.is_silent() && !self.open.is_too_late() {
            let tag = Tag { call: self.open.call.clone(), step: Step::Close };
            self.open.connection().queue.push_unreserved(&close_frame(), tag);
        }
    }
}

impl<Req> fmt::Debug for StreamSender<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSender").finish_non_exhaustive()
    }
}

/// What arrives for a call, within its deadline.
struct Incoming {
    open: Arc<OpenCall>,
    batch: Batch,
    /// Made when the consumer first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    fn new(open: Arc<OpenCall>) -> Self {
        Incoming { open, batch: Batch::default(), timer: None }
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        let inbox = &self.open.call.inbox;
        // A server may go on for ever. What ended in time may be read later.
        if self.open.is_too_late() && inbox.end_status().is_none() {
            return Poll::Ready(Err(self.open.pass_deadline()));
        }
        if let Poll::Ready(taken) =
            inbox.poll_take(&mut self.batch, cx, &self.open.connection().stalls)
        {
            return Poll::Ready(taken);
        }
        let Some(deadline) = self.open.deadline() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(self.open.pass_deadline()))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.open.call.inbox.abandon();
        self.open.call.inbox.give_up(&mut self.batch);
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
    fn new(open: Arc<OpenCall>) -> Self {
        StreamReceiver { incoming: Incoming::new(open), is_done: false, reply: PhantomData }
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
