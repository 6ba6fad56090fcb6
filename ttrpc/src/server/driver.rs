//! The future of one call: runs its handler to its end, or to the call's.
//!
//! ```text
//!     Spawned ──► Started ──► Running ──► (done)  the handler has ended the call, or has nothing to end
//!                    │           │
//!                    └───────────┴─► Ended ──► (done)  the call ended first: its deadline passed, it was
//!                                                      cancelled, the handler panicked
//! ```

mod admitted;
mod ended;

use std::{
    future::{Future, pending},
    mem,
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

pub(super) use self::admitted::AdmittedCall;
use self::ended::{EndedCall, end};
use super::{
    admission::AdmittedLoad,
    call::{Call, ReplyRest, RequestStream},
    replies::{Grant, ResumePermit, wait_to_resume, wait_to_start},
};
use crate::{
    Status,
    contain::{Panicked, contain},
    trace,
    transport::BoxFuture,
};

/// Ends a call with what its handler returns.
type Finish<R> = fn(&Arc<Call>, Result<R, Status>) -> ReplyRest;

pin_project! {
    /// A handler and the end of its call. An `async` block would have room for the handler twice.
    struct Finished<F, R> {
        #[pin]
        handler: F,
        finish: Finish<R>,
        // The rest of the call when its handler has returned: a reply that waits for room.
        rest: ReplyRest,
    }
}

impl<F: Future<Output = Result<R, Status>>, R> Finished<F, R> {
    fn poll(self: Pin<&mut Self>, call: &Arc<Call>, cx: &mut task::Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.rest.is_none() {
            let result = ready!(this.handler.poll(cx));
            *this.rest = (this.finish)(call, result);
        }
        match this.rest {
            Some(rest) => rest.as_mut().poll(cx),
            None => Poll::Ready(()),
        }
    }
}

pin_project! {
    /// The future of one call.
    pub(super) struct CallDriver<F, R> {
        // Dropped first: only when what it holds is gone does its permit go to another call.
        #[pin]
        handler: Option<Finished<F, R>>,
        driver: Driver,
    }

    impl<F, R> PinnedDrop for CallDriver<F, R> {
        // A runtime that ends drops its tasks.
        fn drop(this: Pin<&mut Self>) {
            drop_handler(this.project().handler);
        }
    }
}

impl<F: Future<Output = Result<R, Status>>, R> Future for CallDriver<F, R> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let mut this = self.project();
        this.driver.poll(&mut this.handler, cx)
    }
}

/// A handler, whatever its type.
trait Handler {
    /// Polls the handler of this call; a panic is an end of it. One that is not there has panicked before its first step.
    fn poll(&mut self, call: &Arc<Call>, cx: &mut task::Context<'_>) -> Poll<Outcome>;

    /// Drops what it holds. A panic meanwhile is contained.
    fn drop_now(&mut self);
}

/// Drops a handler. A panic meanwhile is contained.
fn drop_handler<H>(mut handler: Pin<&mut Option<H>>) {
    if handler.is_some() && contain(|| handler.set(None)).is_err() {
        trace::warn!("a handler panicked while it was dropped");
    }
}

/// What ended the handler, or its time.
enum Outcome {
    Finished,
    Panicked,
    DeadlinePassed,
    Cancelled,
}

impl<F: Future<Output = Result<R, Status>>, R> Handler for Pin<&mut Option<Finished<F, R>>> {
    fn poll(&mut self, call: &Arc<Call>, cx: &mut task::Context<'_>) -> Poll<Outcome> {
        let Some(handler) = self.as_mut().as_pin_mut() else {
            return Poll::Ready(Outcome::Panicked);
        };
        match contain(|| handler.poll(call, cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Outcome::Finished),
            Err(Panicked) => Poll::Ready(Outcome::Panicked),
        }
    }

    fn drop_now(&mut self) {
        drop_handler(self.as_mut());
    }
}

/// The part of a call's future that does not depend on its handler's type.
///
/// A future is as large as the largest thing that it may ever have to wait for. Most handlers end when
/// they are first polled, so what the others need is boxed, and made when it is needed.
struct Driver {
    state: DriverState,
    /// The handler has been polled.
    has_begun: bool,
    load: AdmittedLoad,
    call: Arc<Call>,
}

enum DriverState {
    /// The task has not started.
    Spawned,
    /// The task has started, and has not had to wait.
    Started,
    /// The handler has had to wait, or waits to begin. It goes on until the call is over or its deadline passes.
    Running(Running),
    /// The call is over.
    Ended(EndedCall),
}

struct Running {
    /// What ends the call before its handler does.
    end: BoxFuture<'static, Outcome>,
    /// The deadline for which `end` was made.
    deadline: Option<Instant>,
    /// The handler may go on, and waits for its permit.
    permit: Option<BoxFuture<'static, Grant>>,
}

impl Driver {
    fn poll(&mut self, handler: &mut dyn Handler, cx: &mut task::Context<'_>) -> Poll<()> {
        if self.call.span.is_none() {
            return self.poll_in_span(handler, cx);
        }
        let span = self.call.span.clone();
        span.in_scope(|| self.poll_in_span(handler, cx))
    }

    fn poll_in_span(&mut self, handler: &mut dyn Handler, cx: &mut task::Context<'_>) -> Poll<()> {
        if let DriverState::Spawned = self.state {
            self.start();
        }
        loop {
            if let DriverState::Ended(ended) = &mut self.state {
                return ended.poll(&self.call, handler, cx);
            }
            let outcome = match self.poll_handler(handler, cx) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => ready!(self.running().end.as_mut().poll(cx)),
            };
            match outcome {
                Outcome::Finished => {
                    handler.drop_now();
                    return Poll::Ready(());
                }
                outcome => self.state = DriverState::Ended(end(&self.call, outcome)),
            }
        }
    }

    /// The task starts. Calls that were spawned before this one may have filled the queue since it was admitted: it
    /// begins when there is room.
    fn start(&mut self) {
        let connection = &self.call.connection;
        connection.unstarted.remove();
        let is_full = connection.is_full();
        self.state = DriverState::Started;
        if is_full {
            let wait = beside(wait_to_start(self.call.clone()));
            self.running().permit = Some(wait);
        }
    }

    /// Polls the handler when it has its permit, see [`replies`](super::replies). The handler of a call that is over before
    /// it begins is not polled.
    fn poll_handler(
        &mut self,
        handler: &mut dyn Handler,
        cx: &mut task::Context<'_>,
    ) -> Poll<Outcome> {
        let Driver { state, has_begun, call, .. } = self;
        let connection = &call.connection;
        let _permit = match state {
            DriverState::Running(Running { permit, .. }) => {
                let acquired = match permit {
                    None => ResumePermit::try_acquire(connection, &call.waits),
                    Some(_) => None,
                };
                Some(match acquired {
                    Some(acquired) => acquired,
                    None => {
                        let wait = || beside(wait_to_resume(call.clone()));
                        let grant = ready!(permit.get_or_insert_with(wait).as_mut().poll(cx));
                        *permit = None;
                        ResumePermit::granted(connection, grant)
                    }
                })
            }
            _ => None,
        };
        if !mem::replace(has_begun, true)
            && let Some(outcome) = end_before_begin(call)
        {
            return Poll::Ready(outcome);
        }
        handler.poll(call, cx)
    }

    fn running(&mut self) -> &mut Running {
        let deadline = self.call.deadline();
        let end = || beside(time_is_over(self.call.clone(), deadline));
        if let DriverState::Started = self.state {
            self.state = DriverState::Running(Running { end: end(), deadline, permit: None });
        }
        match &mut self.state {
            DriverState::Running(running) => {
                // An interceptor may have shortened it.
                if running.deadline != deadline {
                    (running.end, running.deadline) = (end(), deadline);
                }
                running
            }
            DriverState::Spawned | DriverState::Started | DriverState::Ended(_) => {
                unreachable!("a handler that is polled runs")
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let call = &self.call;
        if let DriverState::Spawned = self.state {
            call.connection.unstarted.remove();
        }
        call.connection.release_call(self.load);
        // Most handlers leave nothing behind that could read on, or ask whether the call is over.
        let is_shared = Arc::strong_count(call) > 1;
        // From here on this thread sees what others did before they dropped theirs.
        fence(Acquire);
        if is_shared || call.end.has_token() {
            call.end.fire();
        }
        if is_shared && let Some(inbox) = &call.inbox {
            inbox.change(|requests: &mut RequestStream| {
                requests.fail(Status::cancelled("the call is over"))
            });
        }
    }
}

/// What has ended a call whose handler has not begun.
fn end_before_begin(call: &Call) -> Option<Outcome> {
    let is_too_late = || call.deadline().is_some_and(|deadline| deadline <= Instant::now());
    match () {
        () if call.end.is_over() => Some(Outcome::Cancelled),
        () if is_too_late() => Some(Outcome::DeadlinePassed),
        () => None,
    }
}

/// A future that a call's task polls after its handler. It has no part in the task's budget: a
/// handler that always has something to do uses that up whenever it is polled.
fn beside<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
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
        transport::limiter::Load,
    };

    /// A call that was let in may wait for a thread.
    #[tokio::test(start_paused = true)]
    async fn a_handler_does_not_run_whose_call_is_over_before_it_begins() {
        for (is_late, is_cancelled) in [(false, false), (true, false), (false, true)] {
            let (_server, connection) = idle_connection(ServerConfig::default());
            let call = unary_call(connection.clone(), 1);
            let permit = connection.try_admit_call(Load::one(0)).expect("there is a place");
            let (chain, has_run) = (None, Arc::new(AtomicBool::new(false)));
            let admitted = AdmittedCall { call: call.clone(), permit, request_bytes: 0, chain };
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
