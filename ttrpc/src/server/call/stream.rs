//! A handler's ends of a stream.

use std::{
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use prost::Message;

use crate::server::call::{
    handler::{decoder_panicked, undecodable},
    replies::WaitingReply,
    shared::ReplyPermit,
    state::Call,
};
use crate::{
    Status,
    contain::{Contained, Panicked, contain},
    observer::EndCause,
    proto::{
        frame::{Flags, FrameType},
        message::{DynData, DynMessage},
        payload::Payload,
        table::ServerTable,
    },
    transport::{
        coop::CoopBudget,
        frames::Frame,
        limiter::Closed,
        messages::{Batch, message_cost},
        queue::Pushed,
    },
};

/// Receives what a client streams, by [`StreamReceiver::recv`] or as a `futures_core::Stream`.
///
/// ```
/// # use ttrpc::{Context, Status, server::{StreamReceiver, StreamSender}};
/// async fn chat(
///     _ctx: &Context,
///     mut requests: StreamReceiver<String>,
///     mut replies: StreamSender<String>,
/// ) -> Result<(), Status> {
///     while let Some(name) = requests.recv().await? {
///         replies.send(format!("Hello, {name}!")).await?;
///     }
///     Ok(())
/// }
/// ```
///
/// Messages come in the order in which the client sent them. A handler that takes none for long blocks its
/// connection, and loses the stream after [`ServerConfig::stall_timeout`].
///
/// [`ServerConfig::stall_timeout`]: crate::ServerConfig::stall_timeout
pub struct StreamReceiver<Req> {
    call: Arc<Call>,
    batch: Batch,
    is_done: bool,
    request: PhantomData<fn() -> Req>,
}

impl<Req: Message + Default> StreamReceiver<Req> {
    pub(in crate::server) fn new(call: Arc<Call>) -> Self {
        StreamReceiver { call, batch: Batch::default(), is_done: false, request: PhantomData }
    }

    /// Waits for the next message. Returns `None` when the client has closed its side of the stream.
    ///
    /// A client that drops its call closes it too: ttrpc makes no difference.
    ///
    /// Cancel safe: dropped before it is done, no message is lost.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a message does not decode, RESOURCE_EXHAUSTED if the handler took nothing from a full
    /// inbox for too long. CANCELLED in another task, when the handler has ended before the stream of requests
    /// has. The stream is over then.
    pub async fn recv(&mut self) -> Result<Option<Req>, Status> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The message of a method that takes one.
    pub(in crate::server) async fn only_message(mut self) -> Result<Req, Status> {
        let no_request = || Status::invalid_argument("the stream was closed without a request");
        let request = self.recv().await.and_then(|request| request.ok_or_else(no_request));
        request.inspect_err(|_| self.call.end.set_failure_cause(EndCause::ProtocolViolation))
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Req>, Status>> {
        if self.is_done {
            return Poll::Ready(Ok(None));
        }
        let patience = &self.call.connection.limits().patience;
        // Decoded where it is returned from.
        let mut message = None;
        let decode = |payload: &mut Payload<'_>| {
            self.call.connection.release_messages(message_cost(payload.bytes().len()));
            contain(|| message.insert(Req::default()).merge(payload))
        };
        let taken = self.call.inbox().poll_take(&mut self.batch, cx, patience, decode);
        let end = match ready!(taken) {
            Ok(Some(Ok(Ok(())))) => return Poll::Ready(Ok(message)),
            Ok(Some(Err(Panicked))) => {
                self.call.end.set_failure_cause(EndCause::Panicked);
                Err(decoder_panicked())
            }
            Ok(Some(Ok(Err(error)))) => {
                self.call.end.set_failure_cause(EndCause::ProtocolViolation);
                Err(undecodable(error))
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
impl<Req: Message + Default> Stream for StreamReceiver<Req> {
    type Item = Result<Req, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv(cx).map(Result::transpose)
    }
}

impl<Req> Drop for StreamReceiver<Req> {
    fn drop(&mut self) {
        let freed = self.call.inbox().abandon(&mut self.batch);
        self.call.connection.release_messages(freed);
    }
}

debug_in_short!(StreamReceiver<Req>, is_done);

/// Sends a handler's replies. The stream ends when the handler returns, not when this is dropped.
///
/// The example is that of [`StreamReceiver`].
pub struct StreamSender<Resp> {
    call: Arc<Call>,
    reply: PhantomData<fn(Resp)>,
    budget: CoopBudget,
}

impl<Resp: Message> StreamSender<Resp> {
    pub(in crate::server) fn new(call: Arc<Call>) -> Self {
        StreamSender { call, reply: PhantomData, budget: CoopBudget::default() }
    }

    /// Sends a message, waiting while the outgoing queue is full. Messages arrive in the order in
    /// which they were sent.
    ///
    /// Cancel safe: dropped before it is done, the message is not sent. Poll it until it is done, or drop it: one
    /// that is kept unpolled may hold capacity for which all other replies of its connection wait.
    ///
    /// # Errors
    /// CANCELLED when the call is over: its deadline passed, its client went away, its handler has
    /// returned. RESOURCE_EXHAUSTED if the message is longer than a frame may be, or if the client
    /// reads nothing and [`ServerConfig::reply_bytes_per_connection`] wait already; the stream goes on
    /// then.
    ///
    /// [`ServerConfig::reply_bytes_per_connection`]: field@crate::ServerConfig::reply_bytes_per_connection
    pub fn send(&mut self, message: Resp) -> impl Future<Output = Result<(), Status>> {
        // Stays where it is from here on.
        let message = Contained::new(message);
        async move {
            // A handler that is never held up lets other tasks run now and then.
            poll_fn(|cx| self.budget.poll_spend(cx)).await;
            let StreamSender { call, budget, .. } = self;
            match call.push_message(&*message, budget, None)? {
                None => Ok(()),
                Some(len) => call.wait_and_push(&*message, budget, len).await,
            }
        }
    }
}

impl Call {
    /// Sends a message with its permit, or with the capacity that there is. Returns the length of its frame if it has to wait.
    fn push_message(
        &self,
        message: &dyn DynMessage,
        budget: &mut CoopBudget,
        permit: Option<ReplyPermit<'_>>,
    ) -> Result<Option<usize>, Status> {
        let push = || {
            let id = self.head.stream_id;
            let frame = Frame::new(FrameType::Data, Flags::NONE, id, DynData::of_message(message))?;
            let (len, mut sent) = (frame.len(), None);
            let claim = |table: &mut ServerTable<Arc<Call>>| {
                table.contains(id).then(|| {
                    sent = self.count_sent(len);
                    id.into()
                })
            };
            let pushed = self.connection.queue.send(&frame, permit, claim);
            budget.spend_bytes(len);
            self.report_message(sent.as_ref());
            match pushed {
                Pushed::Queued(_) => Ok(None),
                Pushed::Full => Ok(Some(len)),
                Pushed::Refused => Err(over()),
            }
        };
        // Left where it is made: a result of `contain` is moved once more.
        let mut pushed = None;
        let _ = contain(|| pushed = Some(push()));
        let panicked = "the reply's type panicked while it was encoded";
        pushed.unwrap_or_else(|| Err(Status::internal(panicked)))
    }

    /// Sends a message, waiting for capacity for a frame of this length while the call goes on.
    async fn wait_and_push(
        &self,
        message: &dyn DynMessage,
        budget: &mut CoopBudget,
        len: usize,
    ) -> Result<(), Status> {
        let waiting = WaitingReply::new(self, len)?;
        let permit = tokio::select! {
            permit = waiting.permit() => permit.map_err(|Closed| over())?,
            () = self.end.token().cancelled_owned() => return Err(over()),
        };
        drop(waiting);
        self.push_message(message, budget, Some(permit)).map(drop)
    }
}

/// The error of a sender whose call is over.
fn over() -> Status {
    Status::cancelled("the call is over")
}

debug_in_short!(StreamSender<Resp>);
