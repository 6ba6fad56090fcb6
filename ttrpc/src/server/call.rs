//! One call on the server: its handler's task, and how it ends.
//!
//! The stream's entry in the connection's table is the right to end it: whoever takes it out sends
//! the last frame, and nothing is sent on the stream after that.

use std::{
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{self, Poll, ready},
    time::Duration,
};

use bytes::Buf;
use pin_project_lite::pin_project;
use prost::Message;
use tokio::{
    sync::Notify,
    task::coop::unconstrained,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{backlog::Backlog, connection::Connection, gate::Load};
use crate::{
    Code, Metadata, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{FrameData, ResponseParts},
        payload::Payload,
        stream::Kind,
    },
    snapshot::{CallSnapshot, CallWait},
    transport::{
        BoxFuture,
        encode::Frame,
        inbox::{self, Inbox},
        lock, wait_until,
        waits::CallInfo,
    },
};

/// One call, shared by its handler, its task and the connection's receiver.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) connection: Arc<Connection>,
    pub(super) stream_id: u32,
    pub(super) service: &'static str,
    pub(super) method: &'static str,
    pub(super) metadata: Metadata,
    pub(super) timeout: Option<Duration>,
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
    /// Of the messages that the client streams; unary calls have none.
    pub(super) inbox: Option<Box<Inbox>>,
    /// The right to send the last frame has been taken.
    has_ended: AtomicBool,
    /// Its handler has taken that right and not yet sent the frame; known to its task alone.
    is_replying: AtomicBool,
    cancellation: Cancellation,
}

/// What a Request says of its call.
pub(super) struct Head {
    pub(super) stream_id: u32,
    pub(super) service: &'static str,
    pub(super) method: &'static str,
    pub(super) metadata: Metadata,
    pub(super) timeout: Option<Duration>,
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
}

/// How a call's task is told that the call is over.
#[derive(Debug, Default)]
struct Cancellation {
    is_cancelled: AtomicBool,
    changed: Notify,
    /// Made when the handler first asks for it.
    token: OnceLock<CancellationToken>,
}

impl Call {
    pub(super) fn new(connection: Arc<Connection>, head: Head, kind: Kind) -> Self {
        let Head { stream_id, service, method, metadata, timeout, started, deadline } = head;
        Call {
            connection,
            stream_id,
            service,
            method,
            metadata,
            timeout,
            started,
            deadline,
            inbox: (kind != Kind::Unary).then(Box::default),
            has_ended: AtomicBool::new(false),
            is_replying: AtomicBool::new(false),
            cancellation: Cancellation::default(),
        }
    }

    /// The inbox of a call whose method streams requests.
    pub(super) fn inbox(&self) -> &Inbox {
        self.inbox.as_ref().expect("a stream has an inbox")
    }

    /// What is told of the call.
    pub(super) fn info(&self) -> CallInfo {
        let Call { service, method, stream_id, started, deadline, .. } = *self;
        CallInfo { service, method, stream_id: Some(stream_id), started, deadline }
    }

    /// The call at this moment. It does not wait for room: those that do are known elsewhere.
    pub(super) fn snapshot(&self) -> CallSnapshot {
        let (fill, handler_waits) =
            self.inbox.as_ref().map(|inbox| inbox.fill()).unwrap_or_default();
        let wait = if handler_waits { CallWait::Message } else { CallWait::Handler };
        CallSnapshot::new(self.info(), wait, fill)
    }

    /// Takes the right to end the call, in this way. `false` if somebody has it already.
    fn claim_end(&self, code: Code) -> bool {
        let is_claimed = lock(&self.connection.table).remove(self.stream_id).is_some();
        if is_claimed {
            self.note_end(code);
        }
        is_claimed
    }

    /// Somebody has taken the call out of the table: nothing but the last frame is sent any more.
    pub(super) fn note_end(&self, code: Code) {
        self.has_ended.store(true, SeqCst);
        tracing::debug!(
            service = self.service,
            method = self.method,
            stream_id = self.stream_id,
            ?code,
            duration = ?self.started.elapsed(),
            "call ended",
        );
    }

    /// Whether the last frame is on its way or was sent.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(SeqCst)
    }

    /// Ends the call with its reply: at once, or in what is given back.
    ///
    /// That is boxed, so that the futures of calls are small: a full queue is the exception.
    pub(super) fn respond<M: Message>(
        self: &Arc<Self>,
        result: Result<M, Status>,
    ) -> Option<BoxFuture<'static, ()>> {
        if !self.claim_end(code_of(&result)) {
            return None;
        }
        // Encoding the reply, and dropping it, runs code of the program's, which may panic.
        self.is_replying.store(true, Relaxed);
        let last_frame = result.and_then(|reply| {
            let frame = self.response(ResponseParts(&reply))?;
            let is_sent = self.connection.try_send(&frame);
            // Dropping it must not be answered as well.
            self.is_replying.store(!is_sent, Relaxed);
            Ok((!is_sent).then(|| frame.to_vec()))
        });
        self.is_replying.store(false, Relaxed);
        match last_frame {
            Ok(None) => None,
            Ok(Some(frame)) => Some(Box::pin(self.clone().send_in_turn(frame))),
            Err(status) => Some(Box::pin(fail(self.clone(), status))),
        }
    }

    async fn send_in_turn(self: Arc<Self>, frame: Vec<u8>) {
        self.connection.send(frame, Some(&self)).await;
    }

    /// Ends a stream of replies.
    pub(super) async fn finish_stream(&self, result: Result<(), Status>) {
        if !self.claim_end(code_of(&result)) {
            return;
        }
        match result {
            Ok(()) => {
                let end = Frame::new(FrameType::Data, Flags::END, self.stream_id, &[][..]);
                let end = end.expect("no data fits into any frame").to_vec();
                self.connection.send(end, Some(self)).await;
            }
            Err(status) => self.send_status(&status).await,
        }
    }

    async fn send_status(&self, status: &Status) {
        self.connection.send_status(self.stream_id, status, Some(self)).await;
    }

    fn response<D: FrameData>(&self, data: D) -> Result<Frame<D>, Status> {
        Frame::new(FrameType::Response, Flags::NONE, self.stream_id, data)
    }

    /// Ends the call of a handler that panicked, perhaps while its reply was encoded.
    fn fail_after_panic(self: &Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        tracing::warn!(service = self.service, method = self.method, "a handler panicked");
        let status = Status::internal("the handler panicked");
        let is_unanswered = self.claim_end(status.code()) || self.is_replying.load(Relaxed);
        is_unanswered.then(|| beside(fail(self.clone(), status)))
    }

    /// Tells whoever the handler has handed its stream of requests on to that nothing more comes.
    fn end_requests(self: &Arc<Self>) {
        // Most handlers hand nothing on.
        if Arc::strong_count(self) > 1
            && let Some(inbox) = &self.inbox
        {
            inbox.end(None, Err(Status::cancelled("the call is over")), || {});
        }
    }

    /// Fires the token and tells the task that the call is over: its deadline passed, its client
    /// went away or broke the protocol, the server waits no more.
    pub(super) fn cancel(&self) {
        self.cancellation.is_cancelled.store(true, SeqCst);
        if let Some(token) = self.cancellation.token.get() {
            token.cancel();
        }
        self.cancellation.changed.notify_waiters();
    }

    /// The token that [`Call::cancel`] fires; asking for it earns the handler its grace.
    pub(super) fn cancellation_token(&self) -> &CancellationToken {
        let token = self.cancellation.token.get_or_init(CancellationToken::new);
        if self.is_cancelled() {
            token.cancel();
        }
        token
    }

    /// Whether the call is over for its handler.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled.load(SeqCst)
    }

    /// Waits until the call is cancelled.
    pub(super) async fn cancelled(&self) {
        wait_until(&self.cancellation.changed, &|| self.is_cancelled()).await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(inbox) = &mut self.inbox {
            self.connection.leave_inbox(inbox.drop_rest());
        }
    }
}

/// A call that the gates count until this is dropped, or until its task does so.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    pub(super) connection: &'a Connection,
    pub(super) load: Load,
}

impl Admission<'_> {
    /// Leaves it to the call's task to give the load back.
    fn hand_over(self) -> Load {
        let load = self.load;
        std::mem::forget(self);
        load
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.connection.leave_call(self.load);
    }
}

fn code_of<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

/// A call that has been let in and is not started yet. Dropped, it leaves.
pub(super) struct Admitted<'a> {
    pub(super) call: Arc<Call>,
    pub(super) admission: Admission<'a>,
    /// The Request's flags.
    pub(super) flags: Flags,
    /// Where it waits to begin.
    pub(super) backlog: &'a Arc<Backlog>,
}

impl Admitted<'_> {
    /// Puts what came with the Request of a stream into its inbox, before the stream is open. An
    /// empty payload is a message only where the method needs one.
    pub(super) fn fill_inbox(&self, payload: Payload<'_>, needs_message: bool) {
        let call = &self.call;
        let inbox = call.inbox();
        let remote_open = self.flags.contains(Flags::REMOTE_OPEN);
        let has_message = payload.has_remaining() || (needs_message && !remote_open);
        if has_message {
            call.connection.force_inbox(inbox::cost(payload.remaining()));
            inbox.push(payload, &call.connection.stalls);
        }
        if !remote_open {
            inbox.end(None, Ok(()), || {});
        }
    }

    /// Opens the stream and has its handler begin.
    pub(super) fn begin<F>(self, handler: impl FnOnce(Arc<Call>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let backlog = self.backlog;
        let course = self.open();
        let handler = Some(handler(course.call.clone()));
        let read_at = course.call.started;
        backlog.push(Box::pin(Drive { handler, course }), read_at);
    }

    fn open(self) -> Course {
        let Admitted { call, admission, flags, .. } = self;
        let Call { stream_id, service, method, .. } = *call;
        lock(&call.connection.table).open(stream_id, flags, call.clone());
        call.connection.queue.announce();
        let span = tracing::debug_span!("call", stream_id, service, method);
        Course {
            phase: Phase::Started,
            is_announced: true,
            load: admission.hand_over(),
            call,
            span: (!span.is_disabled()).then(|| Box::new(span)),
        }
    }
}

enum Outcome {
    Finished,
    Panicked,
    DeadlinePassed,
    Cancelled,
}

pin_project! {
    /// A call as its task sees it: runs the handler to its end, or to the call's.
    struct Drive<F> {
        // Dropped first: only when what it holds is gone does its place go to another call.
        #[pin]
        handler: Option<F>,
        course: Course,
    }
}

impl<F: Future<Output = ()>> Future for Drive<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<()> {
        let mut this = self.project();
        this.course.poll(&mut this.handler, cx)
    }
}

/// A handler as its task sees it, whatever its type.
trait Handler {
    /// Polls it; a panic is an end of it.
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Outcome>;

    /// Drops what it holds. What panics meanwhile harms nobody else.
    fn drop_now(&mut self);
}

impl<F: Future<Output = ()>> Handler for Pin<&mut Option<F>> {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Outcome> {
        let Some(handler) = self.as_mut().as_pin_mut() else {
            return Poll::Ready(Outcome::Finished);
        };
        match catch_unwind(AssertUnwindSafe(|| handler.poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Outcome::Finished),
            Err(_) => Poll::Ready(Outcome::Panicked),
        }
    }

    fn drop_now(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.set(None))).is_err() {
            tracing::warn!("a handler panicked while it was dropped");
        }
    }
}

/// How far a call has come.
///
/// A future is as large as the largest thing that it may ever have to wait for. Most handlers end when
/// they are first polled, so what the others need is boxed, and made when it is needed.
struct Course {
    phase: Phase,
    /// The queue expects the handler to run for the first time soon.
    is_announced: bool,
    load: Load,
    call: Arc<Call>,
    /// Where somebody traces.
    span: Option<Box<Span>>,
}

enum Phase {
    /// The handler has not had to wait yet.
    Started,
    /// The handler goes on until the call is cancelled or its deadline passes.
    Running(BoxFuture<'static, Outcome>),
    /// The call is over.
    Ending(Ending),
}

/// What is left to do of a call whose handler has not ended well.
struct Ending {
    /// Says so to the client.
    last_frame: Option<BoxFuture<'static, ()>>,
    /// The time that the handler still has.
    grace: Option<BoxFuture<'static, ()>>,
}

impl Course {
    fn poll(&mut self, handler: &mut dyn Handler, cx: &mut task::Context<'_>) -> Poll<()> {
        let _entered = self.span.as_ref().map(|span| span.enter());
        let call = &self.call;
        loop {
            if let Phase::Ending(ending) = &mut self.phase {
                return ending.poll(handler, cx);
            }
            let polled = handler.poll(cx);
            if std::mem::take(&mut self.is_announced) {
                call.connection.queue.retract();
            }
            let outcome = match polled {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => ready!(self.phase.end_of_time(call).as_mut().poll(cx)),
            };
            let grace = || call.cancellation.token.get().map(|_| grace(call.clone()));
            self.phase = match outcome {
                Outcome::Finished => return Poll::Ready(()),
                Outcome::Panicked => {
                    Phase::Ending(Ending { last_frame: call.fail_after_panic(), grace: None })
                }
                Outcome::Cancelled => Phase::Ending(Ending { last_frame: None, grace: grace() }),
                Outcome::DeadlinePassed if call.claim_end(Code::DeadlineExceeded) => {
                    call.cancel();
                    let status = Status::deadline_exceeded("the call's deadline passed");
                    Phase::Ending(Ending {
                        last_frame: Some(beside(fail(call.clone(), status))),
                        grace: grace(),
                    })
                }
                // The handler has ended the call already and waits for room for its reply.
                Outcome::DeadlinePassed => Phase::Running(beside(time_is_over(call.clone(), None))),
            };
        }
    }
}

impl Drop for Course {
    fn drop(&mut self) {
        let connection = &self.call.connection;
        if self.is_announced {
            connection.queue.retract();
        }
        connection.leave_call(self.load);
        self.call.end_requests();
    }
}

impl Phase {
    /// What ends the call before its handler does.
    fn end_of_time(&mut self, call: &Arc<Call>) -> &mut BoxFuture<'static, Outcome> {
        if let Phase::Started = self {
            *self = Phase::Running(beside(time_is_over(call.clone(), call.deadline)));
        }
        match self {
            Phase::Running(end) => end,
            Phase::Started | Phase::Ending(_) => unreachable!("a handler that runs has a time"),
        }
    }
}

impl Ending {
    fn poll(&mut self, handler: &mut dyn Handler, cx: &mut task::Context<'_>) -> Poll<()> {
        // The handler is polled before it is dropped, so that it sees its token.
        let is_waiting = |grace: &mut BoxFuture<'static, ()>| {
            handler.poll(cx).is_pending() && grace.as_mut().poll(cx).is_pending()
        };
        if !self.grace.as_mut().is_some_and(is_waiting) {
            self.grace = None;
            handler.drop_now();
        }
        let is_waiting = |frame: &mut BoxFuture<'static, ()>| frame.as_mut().poll(cx).is_pending();
        if !self.last_frame.as_mut().is_some_and(is_waiting) {
            self.last_frame = None;
        }
        match self {
            Ending { last_frame: None, grace: None } => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

/// A future that a call's task polls after its handler. It has no part in the task's budget: a
/// handler that always has something to do uses that up whenever it is polled.
fn beside<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
    Box::pin(unconstrained(future))
}

/// Waits until the call is cancelled or its deadline has passed.
async fn time_is_over(call: Arc<Call>, deadline: Option<Instant>) -> Outcome {
    let deadline_passed = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        () = call.cancelled() => Outcome::Cancelled,
        () = deadline_passed => Outcome::DeadlinePassed,
    }
}

/// The time in which a handler that has asked for its token may act on it. Once the server has
/// ended, or its limit has passed, that is one more poll.
fn grace(call: Arc<Call>) -> BoxFuture<'static, ()> {
    beside(async move {
        let server = &call.connection.server;
        tokio::select! {
            biased;
            () = server.lifecycle.limit_passed() => {}
            () = sleep(server.config.cancellation_grace) => {}
        }
    })
}

/// Says that the call has failed, to whom it was left to say so.
async fn fail(call: Arc<Call>, status: Status) {
    call.send_status(&status).await;
}
