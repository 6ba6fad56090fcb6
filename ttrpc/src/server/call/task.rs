//! The task of one call: runs its handler to its end, or to the call's.
//!
//! ```text
//!     Spawned ──► Started ──► Running ──► (done)  the handler has ended the call
//!                    │           │
//!                    └───────────┴─► Ended ──► (done)  the call ended first: its deadline passed, it was
//!                                                      cancelled, the handler panicked
//! ```
//!
//! A future is as large as the largest thing that it may ever wait for, and it is moved and allocated for each call. Most
//! handlers end when they are first polled. So what the others need is boxed, and made when it is needed.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc,
        atomic::{Ordering::Acquire, fence},
    },
    task::{self, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{
    task::coop::unconstrained,
    time::{Instant, sleep_until},
};

use crate::server::call::ended::{EndedCall, end};
pub(in crate::server) use crate::server::call::start::AdmittedCall;
use crate::server::call::{
    replies::{Grant, ResumePermit, wait_to_resume, wait_to_start},
    state::{Call, ReplyRest},
};
use crate::{
    Status,
    contain::{Panicked, contain},
    trace,
    transport::BoxFuture,
};

/// Ends a call with what its handler returns.
pub(super) type Finish<R> = fn(&Arc<Call>, Result<R, Status>) -> ReplyRest;

pin_project! {
    /// The future of one call.
    pub(in crate::server) struct CallTask<F, R> {
        // Dropped first: only when what it holds is gone does its permit go to another call. `None` if the program's
        // code panicked before it had made one.
        #[pin]
        pub(super) handler: Option<F>,
        pub(super) finish: Finish<R>,
        pub(super) control: CallControl,
    }

    impl<F, R> PinnedDrop for CallTask<F, R> {
        // A runtime that ends drops its tasks.
        fn drop(this: Pin<&mut Self>) {
            drop_handler(this.project().handler);
        }
    }
}

impl<F: Future<Output = Result<R, Status>>, R> Future for CallTask<F, R> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let this = self.project();
        this.control.poll(&mut TypedHandler { future: this.handler, finish: *this.finish }, cx)
    }
}

/// A handler, whatever its type.
pub(super) trait Handler {
    /// Polls the handler of this call, and ends the call with what it returns. Returns the rest of a reply that has to
    /// wait for room.
    fn poll(
        &mut self,
        call: &Arc<Call>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<ReplyRest, Panicked>>;

    /// Drops what it holds. A panic meanwhile is contained.
    fn drop_now(&mut self);
}

struct TypedHandler<'a, F, R> {
    future: Pin<&'a mut Option<F>>,
    finish: Finish<R>,
}

impl<F: Future<Output = Result<R, Status>>, R> Handler for TypedHandler<'_, F, R> {
    fn poll(
        &mut self,
        call: &Arc<Call>,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<ReplyRest, Panicked>> {
        let Some(handler) = self.future.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(Panicked));
        };
        match contain(|| handler.poll(cx).map(|result| (self.finish)(call, result))) {
            Ok(polled) => polled.map(Ok),
            Err(Panicked) => Poll::Ready(Err(Panicked)),
        }
    }

    fn drop_now(&mut self) {
        drop_handler(self.future.as_mut());
    }
}

/// Drops a handler. A panic meanwhile is contained.
fn drop_handler<H>(mut handler: Pin<&mut Option<H>>) {
    if handler.is_some() && contain(|| handler.set(None)).is_err() {
        trace::warn!("a handler panicked while it was dropped");
    }
}

/// What ended the handler, or its time.
pub(super) enum Outcome {
    Finished,
    Panicked,
    DeadlinePassed,
    Cancelled,
}

/// Owns a call that has been admitted. When this is dropped, the call counts no longer, and it is over for all who hold
/// a part of it.
#[derive(Debug)]
pub(in crate::server) struct CallOwner(pub(in crate::server) Arc<Call>);

impl Drop for CallOwner {
    fn drop(&mut self) {
        let CallOwner(call) = self;
        call.connection.release_call(call.load);
        // Most handlers leave nothing behind that could read on, or ask whether the call is over.
        let is_shared = Arc::strong_count(call) > 1;
        // From here on this thread sees what others did before they dropped theirs.
        fence(Acquire);
        if is_shared || call.end.has_token() {
            call.end.fire();
        }
        if is_shared && let Some(inbox) = &call.inbox {
            inbox.end(Err(Status::cancelled("the call is over")), false);
        }
    }
}

/// The part of a call's task that does not depend on its handler's type.
pub(super) struct CallControl {
    state: TaskState,
    pub(super) owner: CallOwner,
}

enum TaskState {
    /// The task has not started.
    Spawned,
    /// The task has started, and has not had to wait.
    Started,
    /// The handler has had to wait, or waits to begin. It goes on until the call is over or its deadline passes.
    Running(Box<Running>),
    /// The call is over.
    Ended(Box<EndedCall>),
}

impl CallControl {
    /// The control of a call whose task is spawned next.
    pub(super) fn new(owner: CallOwner) -> Self {
        owner.0.connection.unstarted.add();
        CallControl { state: TaskState::Spawned, owner }
    }

    fn poll(&mut self, handler: &mut dyn Handler, cx: &mut task::Context<'_>) -> Poll<()> {
        let CallOwner(call) = &self.owner;
        if call.span.is_none() {
            return self.poll_in_span(handler, cx);
        }
        let span = call.span.clone();
        span.in_scope(|| self.poll_in_span(handler, cx))
    }

    fn poll_in_span(&mut self, handler: &mut dyn Handler, cx: &mut task::Context<'_>) -> Poll<()> {
        let CallControl { state, owner: CallOwner(call) } = self;
        let outcome = match state {
            TaskState::Spawned | TaskState::Started => ready!(start(call, state, handler, cx)),
            TaskState::Running(running) => ready!(running.poll(call, handler, cx)),
            TaskState::Ended(ended) => return ended.poll(call, handler, cx),
        };
        if let Outcome::Finished = outcome {
            handler.drop_now();
            return Poll::Ready(());
        }
        let mut ended = end(call, outcome);
        let polled = ended.poll(call, handler, cx);
        *state = TaskState::Ended(Box::new(ended));
        polled
    }
}

impl Drop for CallControl {
    fn drop(&mut self) {
        if let TaskState::Spawned = self.state {
            self.owner.0.connection.unstarted.remove();
        }
    }
}

/// The task starts. Calls that were spawned before this one may have filled the queue since it was admitted: its handler
/// begins when there is room.
fn start(
    call: &Arc<Call>,
    state: &mut TaskState,
    handler: &mut dyn Handler,
    cx: &mut task::Context<'_>,
) -> Poll<Outcome> {
    call.connection.unstarted.remove();
    *state = TaskState::Started;
    let step = if call.connection.is_full() {
        Step::WaitsToStart(beside(wait_to_start(call.clone())))
    } else if let Some(outcome) = ended_before_start(call) {
        return Poll::Ready(outcome);
    } else {
        match handler.poll(call, cx) {
            Poll::Ready(Ok(None)) => return Poll::Ready(Outcome::Finished),
            Poll::Ready(Err(Panicked)) => return Poll::Ready(Outcome::Panicked),
            Poll::Ready(Ok(Some(reply))) => Step::WaitsToReply(reply),
            Poll::Pending => Step::Runs,
        }
    };
    let is_polled = matches!(step, Step::Runs);
    let mut running = Box::new(Running::new(call, step));
    let polled = match is_polled {
        true => running.poll_end(call, cx),
        false => running.poll(call, handler, cx),
    };
    *state = TaskState::Running(running);
    polled
}

/// A handler that has had to wait, or waits to begin.
struct Running {
    step: Step,
    /// What ends the call before its handler does.
    end: BoxFuture<'static, Outcome>,
    /// The deadline for which `end` was made.
    deadline: Option<Instant>,
}

enum Step {
    /// The handler has not been polled, and waits for its permit.
    WaitsToStart(BoxFuture<'static, Grant>),
    /// The handler runs, or waits for something of its own.
    Runs,
    /// The handler may go on, and waits for its permit.
    WaitsToResume(BoxFuture<'static, Grant>),
    /// The handler has returned, and its reply waits for room.
    WaitsToReply(BoxFuture<'static, ()>),
}

impl Running {
    fn new(call: &Arc<Call>, step: Step) -> Self {
        let deadline = call.deadline();
        Running { step, end: beside(time_is_over(call.clone(), deadline)), deadline }
    }

    fn poll(
        &mut self,
        call: &Arc<Call>,
        handler: &mut dyn Handler,
        cx: &mut task::Context<'_>,
    ) -> Poll<Outcome> {
        match self.poll_step(call, handler, cx) {
            Poll::Pending => self.poll_end(call, cx),
            outcome => outcome,
        }
    }

    fn poll_end(&mut self, call: &Arc<Call>, cx: &mut task::Context<'_>) -> Poll<Outcome> {
        let deadline = call.deadline();
        // An interceptor may have shortened it.
        if self.deadline != deadline {
            self.end = beside(time_is_over(call.clone(), deadline));
            self.deadline = deadline;
        }
        self.end.as_mut().poll(cx)
    }

    /// Polls the handler when it has its permit, see [`replies`](super::replies).
    fn poll_step(
        &mut self,
        call: &Arc<Call>,
        handler: &mut dyn Handler,
        cx: &mut task::Context<'_>,
    ) -> Poll<Outcome> {
        let connection = &call.connection;
        loop {
            let permit = match &mut self.step {
                Step::WaitsToStart(grant) => {
                    let permit = ResumePermit::granted(connection, ready!(grant.as_mut().poll(cx)));
                    if let Some(outcome) = ended_before_start(call) {
                        return Poll::Ready(outcome);
                    }
                    Some(permit)
                }
                Step::Runs => ResumePermit::try_acquire(connection, &call.waits),
                Step::WaitsToResume(grant) => {
                    Some(ResumePermit::granted(connection, ready!(grant.as_mut().poll(cx))))
                }
                Step::WaitsToReply(reply) => return poll_reply(reply, cx),
            };
            let Some(_permit) = permit else {
                self.step = Step::WaitsToResume(beside(wait_to_resume(call.clone())));
                continue;
            };
            self.step = Step::Runs;
            match ready!(handler.poll(call, cx)) {
                Ok(None) => return Poll::Ready(Outcome::Finished),
                Err(Panicked) => return Poll::Ready(Outcome::Panicked),
                Ok(Some(mut reply)) => {
                    // It counts from its first poll on, and the permit until then.
                    let polled = poll_reply(&mut reply, cx);
                    self.step = Step::WaitsToReply(reply);
                    return polled;
                }
            }
        }
    }
}

/// Polls a reply that waits for room, and that is encoded when it has it.
fn poll_reply(reply: &mut BoxFuture<'static, ()>, cx: &mut task::Context<'_>) -> Poll<Outcome> {
    match contain(|| reply.as_mut().poll(cx)) {
        Ok(polled) => polled.map(|()| Outcome::Finished),
        Err(Panicked) => Poll::Ready(Outcome::Panicked),
    }
}

/// What has ended a call whose handler has not begun.
fn ended_before_start(call: &Call) -> Option<Outcome> {
    let is_too_late = || call.deadline().is_some_and(|deadline| deadline <= Instant::now());
    if call.end.is_over() {
        Some(Outcome::Cancelled)
    } else if is_too_late() {
        Some(Outcome::DeadlinePassed)
    } else {
        None
    }
}

/// A future that a call's task polls after its handler. It has no part in the task's budget: a
/// handler that always has something to do uses that up whenever it is polled.
pub(super) fn beside<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
    Box::pin(unconstrained(future))
}

/// Waits until the call is over or its deadline has passed.
async fn time_is_over(call: Arc<Call>, deadline: Option<Instant>) -> Outcome {
    let deadline_passed = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        () = call.end.token().cancelled_owned() => Outcome::Cancelled,
        () = deadline_passed => Outcome::DeadlinePassed,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        time::Duration,
    };

    use async_trait::async_trait;
    use tokio::{runtime, sync::mpsc, time::timeout};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        Context, Raw, RawEnd, Server, ServerConfig,
        proto::payload::Payload,
        server::{
            Fallback, FallbackCall,
            tests::{idle_connection, unary_call},
        },
        testing,
    };

    /// A call that was let in may wait for a thread.
    #[tokio::test(start_paused = true)]
    async fn a_handler_does_not_run_whose_call_is_over_before_it_begins() {
        for (is_late, is_cancelled) in [(false, false), (true, false), (false, true)] {
            let (_server, connection) = idle_connection(ServerConfig::default());
            let call = unary_call(connection.clone(), 1);
            let (chain, has_run) = (None, Arc::new(AtomicBool::new(false)));
            let owner = CallOwner(call.clone());
            let admitted = AdmittedCall { owner, request_bytes: 0, chain };
            let (runs, payload) = (has_run.clone(), Payload::borrowed(&[]));
            let handler = move |_, ()| async move {
                runs.store(true, Relaxed);
                Ok(())
            };
            admitted.begin(payload, true, |_| Ok(()), handler, Call::respond).expect("it decodes");
            if is_late {
                call.shorten_deadline(Instant::now());
            }
            if is_cancelled {
                call.end.fire();
            }
            while connection.calls.load().count > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(has_run.load(Relaxed), !is_late && !is_cancelled);
            assert!(is_cancelled || connection.queue.streams(|table| table.is_empty()));
            drop(connection.queue.streams(std::mem::take));
        }
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

    /// What a handler holds is gone before another call may take its place.
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
}
