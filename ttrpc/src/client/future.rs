//! A call as a future, with options that are set before it is awaited, and the output of each kind of call.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use prost::Message;
use tokio::time::Instant;

use super::{
    call::{
        PendingCall, not_queued,
        owner::CallOwner,
        stream::{RawReceiver, Reply, StreamReceiver, StreamSender},
    },
    intercept::{OutgoingCall, intercepted},
    meta::{CallOptions, DeadlineTimer},
    reconnect::Link,
};
use crate::{
    Metadata, Raw, Status,
    contain::{Panicked, contain, drop_contained},
};

/// A call of the kind `K`, as a future.
///
/// It is made when it is first polled, and can be awaited, spawned and joined with others. The metadata and the timeout
/// that are set before go with the Request.
///
/// ```
/// # use ttrpc::{Client, Status}; use std::time::Duration;
/// # async fn example(client: Client) -> Result<(), Status> {
/// let call = client.unary("greeter.v1.Greeter", "SayHello", "Ann".to_owned());
/// let reply: String = call.timeout(Duration::from_secs(1)).metadata("user", "ann").await?;
/// # Ok(()) }
/// ```
///
/// Cancel safe: dropping it cancels the call, see [the module](super).
///
/// # Panics
/// A call that has a deadline, when it is polled outside of a tokio runtime. Any call that is polled
/// after it has ended.
#[must_use = "a call is made when it is awaited"]
pub struct Call<K, Req, Resp> {
    progress: Progress<Req>,
    kind: PhantomData<fn() -> (K, Resp)>,
}

/// One request, one reply. Its output is the reply.
pub type UnaryCall<Req, Resp> = Call<Unary, Req, Resp>;

/// One request, many replies. Its output is a [`StreamReceiver`](super::StreamReceiver).
///
/// Awaiting a call with streams queues the Request. It waits while the outgoing queue is full, and fails with UNAVAILABLE, DEADLINE_EXCEEDED, or RESOURCE_EXHAUSTED for a request that is too long.
/// Cancel safe: dropped before that, nothing is sent.
pub type ServerStreamingCall<Req, Resp> = Call<ServerStreaming, Req, Resp>;

/// Many requests, one reply. Its output is a [`StreamSender`](super::StreamSender) and the [`Reply`](super::Reply).
///
/// Awaiting it is as for a [`ServerStreamingCall`].
pub type ClientStreamingCall<Req, Resp> = Call<ClientStreaming, Req, Resp>;

/// Many requests, many replies. Its output is a [`StreamSender`](super::StreamSender) and a [`StreamReceiver`](super::StreamReceiver), which may
/// be used from different tasks.
///
/// Awaiting it is as for a [`ServerStreamingCall`].
pub type BidiStreamingCall<Req, Resp> = Call<BidiStreaming, Req, Resp>;

/// A call of which only the Request is known. Its output is a [`StreamSender`](super::StreamSender), if the Request has
/// said that messages follow, and a [`RawReceiver`](super::RawReceiver).
///
/// Awaiting it is as for a [`ServerStreamingCall`].
pub type RawCall = Call<AnyKind, Raw, Raw>;

/// Boxed, since few calls need it: those that the connection's limits keep waiting, those with interceptors or a [`Retry`], and
/// those of clients that reconnect.
type Queueing = Pin<Box<dyn Future<Output = Result<CallOwner, Status>> + Send>>;

enum Progress<Req> {
    Start(Link, PendingCall<Req>),
    Queueing(Queueing),
    Queued(Option<CallOwner>, DeadlineTimer),
    Done,
}

impl<K, Req, Resp> Call<K, Req, Resp> {
    pub(super) fn new(link: Link, pending: PendingCall<Req>) -> Self {
        Call { progress: Progress::Start(link, pending), kind: PhantomData }
    }

    /// Ends the call with DEADLINE_EXCEEDED when it takes longer than this.
    ///
    /// The time covers every phase: queueing, writing, waiting for the answer. It runs from the moment when the call is
    /// first awaited. The Request carries it, and the server ends its side too. The last timeout that is set counts, in
    /// place of [the client's](super::Client::with_timeout).
    ///
    /// For calls with streams, this is the time of the whole stream.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.timeout = Some(timeout))
    }

    /// Ends the call at this moment. The earliest of all deadlines that are set counts, the
    /// [timeout's](Call::timeout) included, but not that of [a method's defaults](super::MethodDefaults).
    pub fn deadline(self, deadline: Instant) -> Self {
        self.with(|options| {
            options.end_by(deadline);
            options.has_own_deadline = true;
        })
    }

    /// Ends the call no later than the call of this context, for a handler that makes calls itself. Nothing
    /// changes if that call has no deadline.
    ///
    /// ```
    /// # use ttrpc::{Client, Context, Status};
    /// async fn handler(backend: &Client, ctx: &Context, name: String) -> Result<String, Status> {
    ///     backend.unary("backend.v1.Names", "Look", name).within(ctx).await
    /// }
    /// ```
    pub fn within(self, ctx: &crate::Context) -> Self {
        match ctx.deadline() {
            Some(deadline) => self.with(|options| options.end_by(deadline)),
            None => self,
        }
    }

    /// Adds a pair of metadata, after the values that the key already has.
    pub fn metadata(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|options| options.metadata_mut().append(key, value))
    }

    /// Replaces all metadata of the call, [the client's](super::Client::with_metadata) included.
    pub fn with_metadata(self, metadata: Metadata) -> Self {
        self.with(|options| options.set_metadata(metadata))
    }

    /// Sets whether the call waits for a connection when its client [reconnects](super::ConnectOptions::reconnect) and
    /// the last attempt has failed. It waits within its deadline. Otherwise it fails at once with UNAVAILABLE and the
    /// cause. In place of [the client's](super::Client::with_wait_for_ready); default no.
    pub fn wait_for_ready(self, waits: bool) -> Self {
        self.with(|options| options.waits_for_ready = waits)
    }

    /// Sets an option. A call that has been polled does not change any more.
    pub(super) fn with(mut self, set: impl FnOnce(&mut CallOptions)) -> Self {
        if let Progress::Start(_, pending) = &mut self.progress {
            set(&mut pending.head.options);
        }
        self
    }
}

/// Nothing in it is pinned in place.
impl<K, Req, Resp> Unpin for Call<K, Req, Resp> {}

impl<K, Req, Resp> fmt::Debug for Call<K, Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.progress {
            Progress::Start(_, PendingCall { head, .. }) => {
                write!(f, "Call({}/{})", head.service, head.method)
            }
            _ => f.debug_struct("Call").finish_non_exhaustive(),
        }
    }
}

impl<K, Req, Resp> Future for Call<K, Req, Resp>
where
    K: CallKind<Req, Resp>,
    Req: Message + 'static,
{
    type Output = Result<K::Output, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = this.poll_call(cx);
        if polled.is_ready() {
            match this.progress {
                // Nothing that is left of it is the program's.
                Progress::Queued(..) => this.progress = Progress::Done,
                _ => _ = drop_contained(mem::replace(&mut this.progress, Progress::Done)),
            }
        }
        polled
    }
}

impl<K, Req, Resp> Call<K, Req, Resp>
where
    K: CallKind<Req, Resp>,
    Req: Message + 'static,
{
    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Result<K::Output, Status>> {
        // The entry of a call that has just been queued has the waker of this task.
        let mut waits_already = false;
        loop {
            match &mut self.progress {
                Progress::Start(..) => {
                    ready!(contained(|| Poll::Ready(self.start(cx))))?;
                    waits_already = K::AWAITS_REPLY;
                }
                Progress::Queueing(queueing) => {
                    let owner = ready!(contained(|| queueing.as_mut().poll(cx)))?;
                    self.progress = Progress::Queued(Some(owner), DeadlineTimer::default());
                    waits_already = false;
                }
                Progress::Queued(owner, timer) => {
                    if !mem::take(&mut waits_already)
                        && let Poll::Ready(output) = K::poll_output(owner, cx)
                    {
                        return Poll::Ready(output);
                    }
                    let owner = owner.as_ref().expect("a call that waits was not taken");
                    // While it is queued the call keeps its deadline itself.
                    ready!(timer.poll(owner.deadline, cx));
                    // The end is taken next: this one, or a reply that came just before it.
                    owner.expire();
                }
                Progress::Done => panic!("a call was polled after it had ended"),
            }
        }
    }

    /// Queues the Request, or begins to wait until it may be.
    fn start(&mut self, cx: &mut Context<'_>) -> Result<(), Status> {
        let Progress::Start(link, pending) = &mut self.progress else { only_at_the_start() };
        let policies = pending.head.options.policies.take();
        let around = policies.and_then(|policies| policies.apply(&mut pending.head));
        pending.head.options.start();
        let mut record = match around {
            None => pending.begin(link.observed(), None),
            Some(_) => None,
        };
        if let (Link::Fixed(tasks), None) = (&*link, &around) {
            let caller = K::AWAITS_REPLY.then(|| cx.waker());
            let queued = pending.try_queue(tasks, record.as_ref(), caller);
            let queued = queued.map_err(|status| not_queued(record.as_deref(), status))?;
            if queued.is_some() {
                // It is the program's.
                let _ = drop_contained(pending.request.take());
                self.progress = Progress::Queued(queued, DeadlineTimer::default());
                return Ok(());
            }
        }
        // All of it is moved only if it has to wait.
        let Progress::Start(link, pending) = mem::replace(&mut self.progress, Progress::Done)
        else {
            only_at_the_start()
        };
        self.progress = Progress::Queueing(match around {
            Some(around) => Box::pin(intercepted(around, link, OutgoingCall::new(pending))),
            None => Box::pin(async move { pending.make_over(&link, &mut record).await }),
        });
        Ok(())
    }
}

fn only_at_the_start() -> ! {
    unreachable!("a call starts once")
}

/// Polls what may run the program's code: interceptors, and the encoder of the request.
fn contained<T>(poll: impl FnOnce() -> Polled<T>) -> Polled<T> {
    contain(poll).unwrap_or_else(|Panicked| {
        Poll::Ready(Err(Status::internal("an interceptor or the request's type panicked")))
    })
}

/// The kind of [`UnaryCall`](super::UnaryCall).
#[derive(Debug)]
pub enum Unary {}
/// The kind of [`ServerStreamingCall`](super::ServerStreamingCall).
#[derive(Debug)]
pub enum ServerStreaming {}
/// The kind of [`ClientStreamingCall`](super::ClientStreamingCall).
#[derive(Debug)]
pub enum ClientStreaming {}
/// The kind of [`BidiStreamingCall`](super::BidiStreamingCall).
#[derive(Debug)]
pub enum BidiStreaming {}
/// The kind of [`RawCall`](super::RawCall).
#[derive(Debug)]
pub enum AnyKind {}

/// The result of a poll of a call.
type Polled<T> = Poll<Result<T, Status>>;

/// A kind of calls with these messages. Implemented here alone.
pub trait CallKind<Req, Resp> {
    /// The output of the call as a future.
    type Output;

    /// The output is the reply: there is nothing to take from a call that has just been queued.
    #[doc(hidden)]
    const AWAITS_REPLY: bool = false;

    /// Polls a call that has been queued, until it is taken.
    #[doc(hidden)]
    fn poll_output(owner: &mut Option<CallOwner>, cx: &mut Context<'_>) -> Polled<Self::Output>;
}

impl<Req, Resp: Message + Default> CallKind<Req, Resp> for Unary {
    type Output = Resp;

    const AWAITS_REPLY: bool = true;

    fn poll_output(owner: &mut Option<CallOwner>, cx: &mut Context<'_>) -> Polled<Resp> {
        let owner = owner.as_mut().expect("a unary call stays with its future");
        owner.poll_reply(cx)
    }
}

/// The parts of a stream share the call once it is queued.
fn share(owner: &mut Option<CallOwner>) -> Arc<CallOwner> {
    Arc::new(owner.take().expect("a call's output is taken once"))
}

impl<Req, Resp> CallKind<Req, Resp> for ServerStreaming {
    type Output = StreamReceiver<Resp>;

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        Poll::Ready(Ok(StreamReceiver::new(share(owner))))
    }
}

impl<Req, Resp> CallKind<Req, Resp> for ClientStreaming {
    type Output = (StreamSender<Req>, Reply<Resp>);

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        let owner = share(owner);
        Poll::Ready(Ok((StreamSender::new(owner.clone()), Reply::new(owner))))
    }
}

impl<Req, Resp> CallKind<Req, Resp> for BidiStreaming {
    type Output = (StreamSender<Req>, StreamReceiver<Resp>);

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        let owner = share(owner);
        Poll::Ready(Ok((StreamSender::new(owner.clone()), StreamReceiver::new(owner))))
    }
}

impl CallKind<Raw, Raw> for AnyKind {
    type Output = (Option<StreamSender<Raw>>, RawReceiver);

    fn poll_output(owner: &mut Option<CallOwner>, _: &mut Context<'_>) -> Polled<Self::Output> {
        let owner = share(owner);
        let requests = owner.kind.kind.client_streams().then(|| StreamSender::new(owner.clone()));
        Poll::Ready(Ok((requests, RawReceiver::new(owner))))
    }
}
