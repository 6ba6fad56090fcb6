//! The task of one call: runs its handler to its end, or to the call's.
//!
//! Most handlers end when they are first polled. A task's future is allocated and moved for each call, and is as large
//! as the largest thing that it may ever wait for. So what the other handlers need is boxed, and made when it is needed.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{self, Poll, ready},
};

use tokio::{
    task::coop::unconstrained,
    time::{sleep, sleep_until},
};

use crate::server::call::{
    context::Context,
    handler::OwnedHandler,
    replies::{ResumePermit, try_resume, wait_to_resume, wait_to_start},
    state::{Call, ReplyRest, is_past},
};
use crate::{
    Status,
    contain::{Panicked, contain},
    observer::{CallOutcome, EndCause},
    trace,
    transport::BoxFuture,
};

/// Owns a call that has been admitted. When this is dropped, the call counts no longer, and it is over for all who hold
/// a part of it.
#[derive(Debug)]
pub(in crate::server) struct CallOwner {
    pub(in crate::server) call: Arc<Call>,
    /// Its task counts among those that have not started.
    pub(super) is_unstarted: bool,
}

impl CallOwner {
    pub(in crate::server) fn new(call: Arc<Call>) -> Self {
        CallOwner { call, is_unstarted: false }
    }

    fn started(&mut self) {
        if mem::take(&mut self.is_unstarted) {
            self.call.connection.starts.started();
        }
    }
}

impl Drop for CallOwner {
    fn drop(&mut self) {
        self.started();
        let call = &self.call;
        call.connection.release_call(call.load);
        call.end.fire();
        if let Some(inbox) = &call.inbox {
            inbox.end(Err(Status::cancelled("the call is over")), false);
        }
    }
}

/// Runs a call to its end. Its handler is dropped before it stops counting.
pub(super) enum CallTask {
    New(OwnedHandler, CallOwner),
    GoesOn(BoxFuture<'static, ()>),
    Ended,
}

impl Future for CallTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        if let CallTask::New(handler, owner) = &mut *self {
            owner.started();
            let first = start(&owner.call, handler, cx);
            let has_ended = matches!(first, FirstStep::Ended(Outcome::Finished));
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

/// Polls the handler of this call, and ends the call with what it returns.
fn poll_handler(
    call: &Arc<Call>,
    handler: &mut OwnedHandler,
    cx: &mut task::Context<'_>,
) -> Poll<Result<ReplyRest, Panicked>> {
    let polled = contain(|| {
        let result = ready!(handler.poll(|| Context::new(call.clone()), cx));
        Poll::Ready(call.respond(result.map(|()| handler.reply())))
    });
    match polled {
        Ok(polled) => polled.map(Ok),
        Err(Panicked) => Poll::Ready(Err(Panicked)),
    }
}

/// The reason why a handler is polled no more.
enum Outcome {
    Finished,
    Panicked,
    DeadlinePassed,
    Cancelled,
}

/// How far a handler comes when its task starts.
enum FirstStep {
    /// The queue is full, so the handler has not begun: calls that were spawned earlier have filled it since this one
    /// was admitted.
    WaitsToStart,
    Waits,
    /// It has returned, and the rest waits for capacity.
    Returned(ReplyRest),
    Ended(Outcome),
}

fn start(call: &Arc<Call>, handler: &mut OwnedHandler, cx: &mut task::Context<'_>) -> FirstStep {
    if call.connection.is_full() {
        return FirstStep::WaitsToStart;
    }
    if let Some(outcome) = ended_before_start(call) {
        return FirstStep::Ended(outcome);
    }
    match poll_handler(call, handler, cx) {
        Poll::Pending => FirstStep::Waits,
        Poll::Ready(Ok(ReplyRest::None)) => FirstStep::Ended(Outcome::Finished),
        Poll::Ready(Ok(rest)) => FirstStep::Returned(rest),
        Poll::Ready(Err(Panicked)) => FirstStep::Ended(Outcome::Panicked),
    }
}

/// Returns the end of a call whose handler has not begun, if it is over.
fn ended_before_start(call: &Call) -> Option<Outcome> {
    let (is_over, deadline) = call.end.state();
    if is_over {
        return Some(Outcome::Cancelled);
    }
    is_past(deadline).then_some(Outcome::DeadlinePassed)
}

/// Runs a handler that has not finished in its first step, until it has or the call is over.
async fn go_on(owner: CallOwner, mut handler: OwnedHandler, first: FirstStep) {
    let call = &owner.call;
    let outcome = match first {
        FirstStep::Ended(outcome) => outcome,
        first => {
            let mut runs = pin!(run_handler(call, &mut handler, first));
            // Without a part in the task's budget: a handler that always has something to do uses that up.
            let mut time = pin!(unconstrained(time_is_over(call)));
            poll_fn(|cx| match runs.as_mut().poll(cx) {
                Poll::Pending => time.as_mut().poll(cx),
                outcome => outcome,
            })
            .await
        }
    };
    if !matches!(outcome, Outcome::Finished) {
        end(call, handler, outcome).await;
    }
}

/// Polls the handler whenever it has a permit, see [`replies`](super::replies), and sends its reply.
async fn run_handler(call: &Arc<Call>, handler: &mut OwnedHandler, first: FirstStep) -> Outcome {
    let mut granted = None;
    let mut has_begun_now = matches!(first, FirstStep::Waits);
    match first {
        FirstStep::Returned(rest) => return send_rest(call, handler, rest, None).await,
        FirstStep::WaitsToStart => {
            granted = Some(unconstrained(wait_to_start(call)).await);
            if let Some(outcome) = ended_before_start(call) {
                return outcome;
            }
        }
        FirstStep::Waits | FirstStep::Ended(_) => {}
    }
    loop {
        let step = poll_fn(|cx| {
            if mem::take(&mut has_begun_now) {
                // It was polled just now.
                return Poll::Pending;
            }
            let acquire = || try_resume(&call.connection, &call.end);
            let Some(permit) = granted.take().or_else(acquire) else {
                return Poll::Ready(None);
            };
            let result = ready!(poll_handler(call, handler, cx));
            Poll::Ready(Some((result, permit)))
        });
        match step.await {
            None => granted = Some(unconstrained(wait_to_resume(call)).await),
            Some((Ok(ReplyRest::None), _)) => return Outcome::Finished,
            Some((Ok(rest), permit)) => return send_rest(call, handler, rest, permit).await,
            Some((Err(Panicked), _)) => return Outcome::Panicked,
        }
    }
}

/// Sends a last frame that waits for capacity; a reply is encoded when it has it. It counts from its first poll on, and
/// the handler's permit until then.
async fn send_rest(
    call: &Arc<Call>,
    handler: &mut OwnedHandler,
    rest: ReplyRest,
    mut permit: ResumePermit<'_>,
) -> Outcome {
    let mut sends: BoxFuture<'_, ()> = match rest {
        ReplyRest::None => return Outcome::Finished,
        ReplyRest::Reply(len) => Box::pin(call.respond_in_turn(len, handler)),
        ReplyRest::Last(sends) => sends,
    };
    let sent = poll_fn(|cx| {
        let polled = contain(|| sends.as_mut().poll(cx));
        permit = None;
        match polled {
            Ok(polled) => polled.map(|()| Outcome::Finished),
            Err(Panicked) => Poll::Ready(Outcome::Panicked),
        }
    });
    sent.await
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

/// Ends a call whose handler has not ended it: its status is sent, and the handler has time to clean up if it has asked
/// for its token.
async fn end(call: &Arc<Call>, mut handler: OwnedHandler, outcome: Outcome) {
    let end = match outcome {
        Outcome::DeadlinePassed => {
            let status = Status::deadline_exceeded("the call's deadline passed");
            Some((EndCause::DeadlineHere, status))
        }
        Outcome::Panicked => {
            let (service, method) = (call.head.service.as_str(), call.head.method.as_str());
            trace::warn!(service, method, "a handler panicked");
            Some((EndCause::Panicked, Status::internal("the handler panicked")))
        }
        Outcome::Finished | Outcome::Cancelled => None,
    };
    let may_go_on = matches!(outcome, Outcome::DeadlinePassed | Outcome::Cancelled);
    let has_grace = may_go_on && call.end.is_graceful();
    let end = end.filter(|(cause, status)| {
        call.take_end(CallOutcome { cause: *cause, status: Some(status) })
    });
    let clean_up = async move {
        if has_grace {
            // The handler is polled before it is dropped, so that it sees its token. What it returns comes too late.
            tokio::select! {
                biased;
                _ = poll_fn(|cx| poll_handler(call, &mut handler, cx)) => {}
                () = unconstrained(grace(call)) => {}
            }
        }
        drop(handler);
    };
    let send_status = async {
        if let Some((cause, status)) = &end {
            call.connection.send_status(call.head.stream_id, *cause, status, Some(call)).await;
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
        Context, Raw, RawEnd, Server, ServerConfig,
        proto::{message::DynMessage, payload::Payload},
        server::{
            Fallback, FallbackCall,
            call::{handler, shared::Connection, start::AdmittedCall},
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
            let owner = CallOwner::new(call.clone());
            let admitted = AdmittedCall { owner, request_bytes: 0, more_to_come: false, chain };
            let (runs, payload) = (has_run.clone(), Payload::borrowed(&[]));
            let handler = handler::boxed(move |_, ()| async move {
                runs.store(true, Relaxed);
                Ok(())
            });
            if is_late {
                call.end.shorten_deadline(Instant::now());
            }
            if is_cancelled {
                call.end.fire();
            }
            admitted.begin(payload, true, OwnedHandler::new(handler, false)).expect("it decodes");
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

    impl handler::Reply for TellingReply {
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
            let owner = CallOwner::new(unary_call(connection.clone(), 1));
            let admitted =
                AdmittedCall { owner, request_bytes: 0, more_to_come: false, chain: None };
            let (dropped, drops) = std::sync::mpsc::channel();
            let reply = TellingReply(connection.clone(), dropped);
            let handler = handler::boxed(move |_, ()| async move {
                if waits {
                    tokio::task::yield_now().await;
                }
                Ok(reply)
            });
            let payload = Payload::borrowed(&[]);
            admitted.begin(payload, true, OwnedHandler::new(handler, false)).expect("it decodes");
            while connection.calls.load().count > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(drops.try_iter().collect::<Vec<_>>(), [1]);
        }
    }
}
