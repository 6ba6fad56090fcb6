//! The task of one call: starts its handler, and runs it to its end, or to the call's.
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
    pin::{Pin, pin},
    sync::Arc,
    task::{self, Poll, Waker, ready},
};

use bytes::Buf;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::coop::unconstrained,
    time::{sleep, sleep_until},
};

use crate::server::call::{
    handler::{BoxHandler, Context, decode},
    interceptor::{Chain, intercepted},
    reasons::Refusal,
    replies::{try_resume, wait_to_resume, wait_to_start},
    state::{Call, LastFrame},
};
use crate::{
    Status,
    contain::contain,
    observer::EndCause,
    proto::{frame::Flags, payload::Payload, stream::Kind},
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        spawn,
    },
    trace,
    transport::{BoxFuture, messages::message_cost},
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
    /// Frames have arrived after the last call's Request: its reply is not the only one to be written.
    more_to_come: AtomicBool,
}

impl Starts {
    pub(in crate::server) fn new() -> Self {
        let is_one_thread = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread);
        let (inline, batch, unstarted, more_to_come) = Default::default();
        Starts { is_one_thread, inline, batch, unstarted, more_to_come }
    }

    /// Returns whether calls are about to be opened, whose replies may follow.
    pub(super) fn more_to_come(&self) -> bool {
        self.more_to_come.load(Relaxed)
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
    fn count(&self, more_to_come: bool) -> bool {
        self.more_to_come.store(more_to_come, Relaxed);
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
    ctx: Context,
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
        payload: Payload<'_>,
        more_to_come: bool,
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
            decode(&mut handler, payload)?;
        }
        call.begun();
        let (is_inline, span) = (connection.starts.count(more_to_come), call.span.clone());
        // A call may end as soon as it has its task.
        connection.queue.streams(|table| table.open(id, flags, call.clone()));
        self.is_unstarted = !is_inline;
        let mut task = CallTask::New(handler, self);
        if !span.is_none() {
            task = CallTask::GoesOn(span.instrument(Box::pin(task)));
        }
        let mut cx = task::Context::from_waker(Waker::noop());
        // A first step that does not end the call leaves the rest to a task, which polls it again.
        if !is_inline || Pin::new(&mut task).poll(&mut cx).is_pending() {
            spawn(task);
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
        call.connection.release_call(call.load);
        call.end.fire();
        if let Some(inbox) = &call.inbox {
            inbox.end(Err(Status::cancelled("the call is over")), false);
        }
    }
}

/// Runs a call to its end. Its handler is dropped before it stops counting.
enum CallTask {
    New(BoxHandler, CallOwner),
    GoesOn(BoxFuture<'static, ()>),
    Ended,
}

impl Future for CallTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        if let CallTask::New(handler, owner) = &mut *self {
            owner.started();
            let first = first_step(&owner.ctx, handler, cx);
            let has_ended = matches!(first, Some(Poll::Ready(Outcome::Finished)));
            let started = mem::replace(&mut *self, CallTask::Ended);
            // What is not taken out of it is dropped in the order of its fields, the handler with its reply first.
            if !has_ended && let CallTask::New(handler, owner) = started {
                *self = CallTask::GoesOn(Box::pin(go_on(owner, handler, first)));
            }
        }
        match &mut *self {
            CallTask::GoesOn(rest) => rest.as_mut().poll(cx),
            CallTask::New(..) | CallTask::Ended => Poll::Ready(()),
        }
    }
}

/// The reason why a handler is polled no more.
enum Outcome {
    Finished,
    /// It has returned, and its last frame, of this length, waits for capacity.
    Unsent(LastFrame, usize),
    Panicked,
    DeadlinePassed,
    Cancelled,
}

/// Polls the handler for the first time. `None` if the queue is full, so that it may not begin: calls that were spawned
/// earlier have filled it since this one was admitted.
fn first_step(
    ctx: &Context,
    handler: &mut BoxHandler,
    cx: &mut task::Context<'_>,
) -> Option<Poll<Outcome>> {
    let call = ctx.call();
    if call.connection.is_full() {
        return None;
    }
    Some(match ended_before_start(call) {
        Some(outcome) => Poll::Ready(outcome),
        None => poll_handler(ctx, handler, cx),
    })
}

/// Returns the end of a call whose handler has not begun, if it is over.
fn ended_before_start(call: &Call) -> Option<Outcome> {
    if call.end.is_over() {
        return Some(Outcome::Cancelled);
    }
    call.is_too_late().then_some(Outcome::DeadlinePassed)
}

/// Polls the handler of this call, and ends the call with what it returns.
fn poll_handler(
    ctx: &Context,
    handler: &mut BoxHandler,
    cx: &mut task::Context<'_>,
) -> Poll<Outcome> {
    let polled = contain(|| {
        let result = ready!(handler.as_mut().poll(ctx, cx));
        Poll::Ready(match ctx.call().respond(result, handler) {
            None => Outcome::Finished,
            Some((last, len)) => Outcome::Unsent(last, len),
        })
    });
    polled.unwrap_or(Poll::Ready(Outcome::Panicked))
}

/// Runs a handler that has not finished in its first step, until it has or the call is over.
async fn go_on(owner: CallOwner, mut handler: BoxHandler, first: Option<Poll<Outcome>>) {
    let outcome = {
        let mut runs = pin!(run_handler(&owner.ctx, &mut handler, first));
        // Without a part in the task's budget: a handler that always has something to do uses that up.
        let mut time = pin!(unconstrained(time_is_over(owner.ctx.call())));
        poll_fn(|cx| match runs.as_mut().poll(cx) {
            Poll::Pending => time.as_mut().poll(cx),
            outcome => outcome,
        })
        .await
    };
    end(&owner.ctx, handler, outcome).await;
}

/// Polls the handler whenever it has a permit, see [`replies`](super::replies), and sends its last frame.
async fn run_handler(
    ctx: &Context,
    handler: &mut BoxHandler,
    mut first: Option<Poll<Outcome>>,
) -> Outcome {
    let (call, mut granted) = (ctx.call(), None);
    if first.is_none() {
        granted = Some(unconstrained(wait_to_start(call)).await);
        if let Some(outcome) = ended_before_start(call) {
            return outcome;
        }
    }
    let (outcome, mut permit) = loop {
        let step = poll_fn(|cx| {
            // It may have been polled just now.
            let (polled, permit) = match first.take() {
                Some(polled) => (polled, None),
                None => match granted.take().or_else(|| try_resume(call)) {
                    Some(permit) => (poll_handler(ctx, handler, cx), permit),
                    None => return Poll::Ready(None),
                },
            };
            polled.map(|outcome| Some((outcome, permit)))
        });
        match step.await {
            Some(ended) => break ended,
            None => granted = Some(unconstrained(wait_to_resume(call)).await),
        }
    };
    let Outcome::Unsent(last, len) = outcome else { return outcome };
    let mut sends: BoxFuture<'_, ()> = Box::pin(call.respond_in_turn((last, len), handler));
    poll_fn(|cx| {
        let polled = contain(|| sends.as_mut().poll(cx));
        // The frame that waits counts from its first poll on, and the handler's permit until then.
        permit = None;
        polled.map_or(Poll::Ready(Outcome::Panicked), |sent| sent.map(|()| Outcome::Finished))
    })
    .await
}

/// Waits until the call is over or its deadline has passed, which an interceptor may shorten meanwhile.
async fn time_is_over(call: &Call) -> Outcome {
    let token = call.end.token();
    let mut cancelled = pin!(token.cancelled());
    let (mut time, mut deadline) = (pin!(None), None);
    poll_fn(|cx| {
        if cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Outcome::Cancelled);
        }
        if deadline != call.deadline() {
            deadline = call.deadline();
            time.set(deadline.map(sleep_until));
        }
        match time.as_mut().as_pin_mut() {
            Some(time) => time.poll(cx).map(|()| Outcome::DeadlinePassed),
            None => Poll::Pending,
        }
    })
    .await
}

/// Ends a call. If its handler has not ended it, its status is sent, and the handler has time to clean up if it has asked
/// for its token.
async fn end(ctx: &Context, mut handler: BoxHandler, outcome: Outcome) {
    let call = ctx.call();
    let failure = match outcome {
        Outcome::DeadlinePassed => {
            let status = Status::deadline_exceeded("the call's deadline passed");
            Some(Refusal { cause: EndCause::DeadlineHere, status })
        }
        Outcome::Panicked => {
            let (service, method) = (call.head.service.as_str(), call.head.method.as_str());
            trace::warn!(service, method, "a handler panicked");
            let status = Status::internal("the handler panicked");
            Some(Refusal { cause: EndCause::Panicked, status })
        }
        Outcome::Finished | Outcome::Unsent(..) | Outcome::Cancelled => None,
    };
    let may_go_on = matches!(outcome, Outcome::DeadlinePassed | Outcome::Cancelled);
    let has_grace = may_go_on && call.end.is_graceful();
    let failure = failure.filter(|failure| call.take_end(failure.outcome()));
    let clean_up = async move {
        if has_grace {
            // The handler is polled before it is dropped, so that it sees its token. What it returns comes too late.
            tokio::select! {
                biased;
                _ = poll_fn(|cx| poll_handler(ctx, &mut handler, cx)) => {}
                () = unconstrained(grace(call)) => {}
            }
        }
        drop(handler);
    };
    let send_status = async {
        if let Some(failure) = &failure {
            call.connection.send_status(call.head.stream_id, failure, Some(call)).await;
        }
    };
    tokio::join!(clean_up, unconstrained(send_status));
}

/// The time that a handler has to clean up. When the server has ended, or the limit of its shutdown has passed, the
/// handler is polled once more and dropped.
async fn grace(call: &Call) {
    let server = &call.connection.server;
    tokio::select! {
        biased;
        () = server.lifecycle.limit_passed() => {}
        () = sleep(server.config.cancellation_grace) => {}
    }
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
