//! The task of one call: starts its handler and polls it for the first time. What has not finished then is in
//! [`unfinished`](super::unfinished).
//!
//! A receiver could open the calls of a whole socket buffer before the first of them runs. So it gives way to the
//! runtime after [`MAX_UNSTARTED`] calls: a connection has few tasks that only wait for the runtime, and one with a
//! thousand calls does not delay one with a single call.
//!
//! Most handlers end when they are first polled. A task's future is allocated and moved for each call, and is as large
//! as the largest thing that it may ever wait for. So what the other handlers need is boxed, and made when it is needed.

use std::{
    future::{Future, poll_fn},
    mem,
    sync::Arc,
    task::{self, Poll, Waker, ready},
};

use bytes::Buf;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::server::call::{
    handler::{BoxHandler, Context, decode},
    interceptor::{Chain, intercepted},
    reasons::Refusal,
    state::{Call, Unsent},
};
use crate::{
    Status,
    contain::{Panicked, contain},
    observer::EndCause,
    proto::{frame::Flags, payload::Payload, stream::Kind},
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        spawn,
    },
    trace,
    transport::messages::message_cost,
};

/// Calls that may be opened before the first of them starts: few enough that they are in the cache when they do. With 32 of
/// them a connection with 256 calls in flight makes 8 % fewer.
const MAX_UNSTARTED: u32 = 12;

/// First steps that the receiver makes between two waits for its socket. Calls beyond these are spawned: the runtime
/// looks at sockets and timers after so many polls, however many handlers one of them runs.
const MAX_INLINE: u32 = 256;

/// First steps that the receiver makes before it gives way, and other tasks have their turns.
const INLINE_BATCH: u32 = 24;

/// Starts the calls of a connection.
#[derive(Debug)]
pub(in crate::server) struct Starts {
    /// On a runtime of one thread a call's first step is made by the receiver, which saves a task where the handler
    /// does not wait. One that blocks its thread blocks all others there, whoever polls it.
    is_one_thread: bool,
    /// First steps that the receiver has made since it last waited for its socket.
    inline: AtomicU32,
    /// Of these, those since it last gave way.
    batch: AtomicU32,
    /// Calls whose tasks have been spawned and have not started.
    unstarted: AtomicU32,
}

impl Starts {
    pub(in crate::server) fn new() -> Self {
        let is_one_thread = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
        let (inline, batch, unstarted) = Default::default();
        Starts { is_one_thread, inline, batch, unstarted }
    }

    /// Returns whether the receiver gives way before it acts on another frame.
    pub(in crate::server) fn are_due(&self) -> bool {
        self.unstarted.load(Relaxed) >= MAX_UNSTARTED || self.batch.load(Relaxed) >= INLINE_BATCH
    }

    /// The receiver waits for its socket: the runtime looks at all of them before it goes on.
    pub(in crate::server) fn receiver_waits(&self) {
        self.inline.store(0, Relaxed);
        self.batch.store(0, Relaxed);
    }

    /// Lets the tasks run that are scheduled at this moment.
    pub(in crate::server) async fn give_way(&self) {
        give_way().await;
        self.batch.store(0, Relaxed);
    }

    /// Counts a call that is about to start. Returns whether the receiver makes its first step.
    fn count(&self) -> bool {
        let is_inline = self.is_one_thread && self.inline.load(Relaxed) < MAX_INLINE;
        if is_inline {
            self.inline.fetch_add(1, Relaxed);
            self.batch.fetch_add(1, Relaxed);
        } else {
            self.unstarted.fetch_add(1, Relaxed);
        }
        is_inline
    }
}

/// Lets the tasks run that are scheduled at this moment.
///
/// The task wakes itself. Unlike [`tokio::task::yield_now`], which waits until the runtime has looked at sockets and
/// timers, this leaves the task in the queue of its worker, where other workers find it.
pub(in crate::server) fn give_way() -> impl Future<Output = ()> {
    let mut has_given_way = false;
    poll_fn(move |cx| {
        if mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Owns a call that has been admitted. When this is dropped, the call counts no longer, and it is over for all who hold
/// a part of it.
pub(in crate::server) struct CallOwner {
    pub(super) ctx: Context,
    /// Its task counts among those that have not started.
    is_unstarted: bool,
}

impl CallOwner {
    pub(in crate::server) fn new(call: Arc<Call>) -> Self {
        CallOwner { ctx: Context::new(call), is_unstarted: false }
    }

    /// Opens the stream, and starts the handler of a method of this kind with what it decodes of the payload; or its
    /// interceptors, after which it is decoded. A stream takes the payload as its first message: an empty one only if
    /// the method needs one.
    ///
    /// # Errors
    /// The refusal of a payload that does not decode, for a call without interceptors.
    pub(in crate::server) fn start(
        mut self,
        mut handler: BoxHandler,
        kind: Kind,
        chain: Option<&Chain>,
        mut payload: Payload<'_>,
    ) -> Result<(), Refusal> {
        let call = self.ctx.call();
        let connection = &call.connection;
        let (id, flags, is_stream) = (call.head.stream_id, call.head.flags, kind != Kind::Unary);
        let remote_open = flags.contains(Flags::REMOTE_OPEN);
        if is_stream && call.head.has_message {
            connection.force_message(message_cost(payload.remaining()));
            call.inbox().push(payload, &connection.limits().patience);
        }
        if is_stream && !remote_open {
            call.inbox().end(Ok(()), false);
        }
        if let Some(chain) = chain {
            handler = intercepted(handler, chain.clone(), is_stream);
        }
        if chain.is_some() || !is_stream {
            decode(&mut handler, &mut payload)?;
        }
        call.begun();
        let (is_inline, span) = (connection.starts.count(), call.span.clone());
        // A call may end as soon as it has its task.
        connection.queue.streams(|table| table.open(id, flags, call.clone()));
        self.is_unstarted = !is_inline;
        let mut task = CallTask { handler, owner: self };
        if !is_inline {
            match span.is_none() {
                true => spawn(task.run()),
                false => spawn(span.instrument(Box::pin(task.run()))),
            };
            return Ok(());
        }
        let mut cx = task::Context::from_waker(Waker::noop());
        let first = span.in_scope(|| task.first_step(&mut cx));
        if !matches!(first, Some(Poll::Ready(Ok(None)))) {
            // What it waits for counts before the next frame is acted on. Its task polls it again.
            let mut rest = span.instrument(Box::pin(task.go_on(first)));
            if rest.as_mut().poll(&mut cx).is_pending() {
                spawn(rest);
            }
        }
        Ok(())
    }

    /// The task has started, or is dropped before. This wakes nobody: the runtime may keep what a task wakes for that
    /// task's thread, where a handler that blocks would strand it.
    fn started(&mut self) {
        if mem::take(&mut self.is_unstarted) {
            self.ctx.call().connection.starts.unstarted.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for CallOwner {
    fn drop(&mut self) {
        self.started();
        let call = self.ctx.call();
        call.connection.call_limits().release(call.load);
        call.end.fire();
        if let Some(inbox) = &call.inbox {
            inbox.end(Err(Status::cancelled("the call is over")), false);
        }
    }
}

/// The end of a handler that is polled no more: it has ended its call, or what ends it waits for capacity, or the call
/// ends with a failure that is not the handler's.
pub(super) type Step = Result<Option<Unsent>, Refusal>;

/// A call from its start to its end. Its handler is dropped, with its reply, before the call stops counting.
pub(super) struct CallTask {
    pub(super) handler: BoxHandler,
    pub(super) owner: CallOwner,
}

impl CallTask {
    /// Polls the handler for the first time. `None` if the queue is full, so that it may not begin: calls that were
    /// spawned earlier have filled it since this one was admitted.
    fn first_step(&mut self, cx: &mut task::Context<'_>) -> Option<Poll<Step>> {
        let ctx = &self.owner.ctx;
        if ctx.call().connection.is_full() {
            return None;
        }
        Some(match ctx.call().check_time() {
            Ok(()) => poll_handler(ctx, &mut self.handler, cx),
            Err(refusal) => Poll::Ready(Err(refusal)),
        })
    }

    /// Runs the call to its end.
    async fn run(mut self) {
        self.owner.started();
        let first = poll_fn(|cx| Poll::Ready(self.first_step(cx))).await;
        if !matches!(first, Some(Poll::Ready(Ok(None)))) {
            Box::pin(self.go_on(first)).await;
        }
    }
}

/// Polls the handler of this call, and ends the call with what it returns.
pub(super) fn poll_handler(
    ctx: &Context,
    handler: &mut BoxHandler,
    cx: &mut task::Context<'_>,
) -> Poll<Step> {
    let polled = contain(|| {
        let result = ready!(handler.as_mut().poll(ctx, cx));
        Poll::Ready(Ok(ctx.call().respond(result, handler)))
    });
    polled.unwrap_or_else(|Panicked| Poll::Ready(Err(panicked(ctx.call()))))
}

pub(super) fn panicked(call: &Call) -> Refusal {
    let (service, method) = (call.head.service.as_str(), call.head.method.as_str());
    trace::warn!(service, method, "a handler panicked");
    Refusal { cause: EndCause::Panicked, status: Status::internal("the handler panicked") }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        time::Duration,
    };

    use async_trait::async_trait;
    use tokio::{
        runtime,
        sync::mpsc,
        time::{Instant, timeout},
    };
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        Code, Context, Raw, RawEnd, Server, ServerConfig,
        proto::message::DynMessage,
        server::{
            Fallback, FallbackCall,
            call::{
                handler::{Reply, boxed},
                shared::Connection,
            },
            tests::{idle_connection, start, unary_call},
        },
        testing,
    };

    /// A call that was admitted may wait for a thread.
    #[tokio::test(start_paused = true)]
    async fn a_handler_does_not_run_whose_call_is_over_before_it_begins() {
        for (is_late, is_cancelled) in [(false, false), (true, false), (false, true)] {
            let (_server, connection) = idle_connection(ServerConfig::default());
            let call = unary_call(connection.clone(), 1);
            let has_run = Arc::new(AtomicBool::new(false));
            let runs = has_run.clone();
            let handler = boxed(move |_, ()| async move {
                runs.store(true, Relaxed);
                Ok(())
            });
            if is_late {
                call.end.shorten_deadline(Instant::now());
            }
            if is_cancelled {
                call.end.fire();
            }
            start(call, handler);
            while connection.calls.load().count > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(has_run.load(Relaxed), !is_late && !is_cancelled);
            assert!(is_cancelled || connection.queue.streams(|table| table.is_empty()));
            drop(connection.queue.streams(std::mem::take));
        }
    }

    /// A failure may wait for capacity, and its call be over meanwhile.
    #[tokio::test]
    async fn a_handler_that_has_failed_may_be_polled_again() {
        let (_server, connection) = idle_connection(ServerConfig::default());
        let ctx = Context::new(unary_call(connection, 1));
        let mut handler = boxed(|_, ()| async { Err::<(), _>(Status::not_found("nothing")) });
        let mut cx = task::Context::from_waker(task::Waker::noop());
        let failed = handler.as_mut().poll(&ctx, &mut cx).map_err(|status| status.code());
        assert_eq!(failed, Poll::Ready(Err(Code::NotFound)));
        let again = handler.as_mut().poll(&ctx, &mut cx).map_err(|status| status.code());
        assert_eq!(again, Poll::Ready(Ok(())));
    }

    /// Gives the token of its call away, and nothing else.
    struct GivesToken(mpsc::UnboundedSender<CancellationToken>);

    #[async_trait]
    impl Fallback for GivesToken {
        async fn call(&self, ctx: &Context, _: FallbackCall) -> Result<RawEnd, Status> {
            self.0.send(ctx.cancellation_token()).expect("the test goes on");
            Ok(RawEnd::Reply(Raw::default()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_fires_when_the_call_has_ended_well_and_nothing_else_is_left_of_it() {
        let (gives, mut given) = mpsc::unbounded_channel();
        let server = Server::builder().fallback(GivesToken(gives));
        let client = testing::Setup::new(server).connect();
        client.unary::<Raw, Raw>("a.B", "C", Raw::default()).await.unwrap();
        let token = given.recv().await.expect("the handler has run");
        timeout(Duration::from_secs(1), token.cancelled()).await.expect("it fires");
    }

    /// Holds something for ever that, when it is dropped, tells how many calls hold a permit.
    struct Hangs {
        begun: mpsc::UnboundedSender<()>,
        dropped: std::sync::mpsc::Sender<usize>,
    }

    struct TellsPermits(Context, std::sync::mpsc::Sender<usize>);

    impl Drop for TellsPermits {
        fn drop(&mut self) {
            let permits = self.0.call().connection.calls.load().count;
            self.1.send(permits).expect("the test listens");
        }
    }

    #[async_trait]
    impl Fallback for Hangs {
        async fn call(&self, ctx: &Context, _: FallbackCall) -> Result<RawEnd, Status> {
            let _held = TellsPermits(ctx.clone(), self.dropped.clone());
            self.begun.send(()).expect("the test goes on");
            pending().await
        }
    }

    /// The values that a handler holds are gone before another call may take its place.
    #[test]
    fn a_runtime_that_ends_drops_a_handler_before_its_permit() {
        let (begun, mut begins) = mpsc::unbounded_channel();
        let (dropped, drops) = std::sync::mpsc::channel();
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::builder().fallback(Hangs { begun, dropped });
            let client = testing::Setup::new(server).connect();
            tokio::spawn(client.unary::<Raw, Raw>("a.B", "C", Raw::default()));
            begins.recv().await.expect("the handler begins");
        });
        drop(runtime);
        assert_eq!(drops.iter().collect::<Vec<_>>(), [1]);
    }
    /// Tells, when it is dropped, how many calls hold a permit.
    struct TellingReply(Arc<Connection>, std::sync::mpsc::Sender<usize>);

    impl Reply for TellingReply {
        fn message(&self) -> Option<&dyn DynMessage> {
            None
        }
    }

    impl Drop for TellingReply {
        fn drop(&mut self) {
            self.1.send(self.0.calls.load().count).expect("the test listens");
        }
    }

    /// It is the program's, as what the handler holds is.
    #[tokio::test]
    async fn a_reply_is_dropped_before_its_permit() {
        for waits in [false, true] {
            let (_server, connection) = idle_connection(ServerConfig::default());
            let (dropped, drops) = std::sync::mpsc::channel();
            let reply = TellingReply(connection.clone(), dropped);
            let handler = boxed(move |_, ()| async move {
                if waits {
                    tokio::task::yield_now().await;
                }
                Ok(reply)
            });
            start(unary_call(connection.clone(), 1), handler);
            while connection.calls.load().count > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(drops.try_iter().collect::<Vec<_>>(), [1]);
        }
    }
}
