//! One call on the server: its handler's task, and how it ends.
//!
//! The stream's entry in the connection's table is the right to end it: whoever takes it out sends
//! the last frame, and nothing is sent on the stream after that.

use std::{
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{self, Poll},
    time::Duration,
};

use bytes::Buf;
use prost::Message;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{connection::Connection, gate::Load};
use crate::{
    Code, Metadata, Status,
    proto::{
        frame::{Flags, FrameType},
        message::{FrameData, ResponseParts},
        payload::Payload,
    },
    snapshot::{CallSnapshot, CallWait},
    transport::{encode::Frame, inbox::Inbox, lock, waits::CallInfo},
};

/// A handler's future.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    pub(super) inbox: Inbox,
    /// The right to send the last frame has been taken.
    has_ended: AtomicBool,
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
    pub(super) fn new(connection: Arc<Connection>, head: Head) -> Self {
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
            inbox: Inbox::default(),
            has_ended: AtomicBool::new(false),
            cancellation: Cancellation::default(),
        }
    }

    /// What is told of the call.
    pub(super) fn info(&self) -> CallInfo {
        let Call { service, method, stream_id, started, deadline, .. } = *self;
        CallInfo { service, method, stream_id: Some(stream_id), started, deadline }
    }

    /// The call at this moment. It does not wait for room: those that do are known elsewhere.
    pub(super) fn snapshot(&self) -> CallSnapshot {
        let (messages, bytes, handler_waits) = self.inbox.fill();
        let wait = if handler_waits { CallWait::Message } else { CallWait::Handler };
        CallSnapshot::new(self.info(), wait, (messages, bytes))
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

    /// Ends the call with its reply.
    pub(super) async fn respond<M: Message>(&self, result: Result<M, Status>) {
        if !self.claim_end(code_of(&result)) {
            return;
        }
        let reply = match &result {
            Ok(reply) => self.response(ResponseParts(reply)),
            Err(status) => Err(status.clone()),
        };
        match reply {
            Ok(frame) => self.connection.send(&frame, Some(self)).await,
            // Boxed, so that the successful calls' futures need no room for it.
            Err(status) => Box::pin(self.send_status(&status)).await,
        }
    }

    /// Ends a stream of replies.
    pub(super) async fn finish_stream(&self, result: Result<(), Status>) {
        if !self.claim_end(code_of(&result)) {
            return;
        }
        match result {
            Ok(()) => {
                let end = Frame::new(FrameType::Data, Flags::END, self.stream_id, &[][..]);
                self.connection.send(&end.expect("no data fits into any frame"), Some(self)).await;
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

    /// Ends the call with a failure that is not the handler's.
    async fn fail(&self, status: Status) {
        if self.claim_end(status.code()) {
            self.send_status(&status).await;
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
        loop {
            let mut changed = pin!(self.cancellation.changed.notified());
            changed.as_mut().enable();
            if self.is_cancelled() {
                return;
            }
            changed.await;
        }
    }

    /// Puts what came with the Request of a stream into its inbox, before the stream is open. An
    /// empty payload is a message only where the method needs one.
    pub(super) fn fill_inbox(&self, payload: Payload<'_>, flags: Flags, needs_message: bool) {
        let remote_open = flags.contains(Flags::REMOTE_OPEN);
        let has_message = payload.has_remaining() || (needs_message && !remote_open);
        if has_message {
            self.connection.force_inbox(payload.remaining());
            self.inbox.push(payload.to_bytes(), &self.connection.stalls);
        }
        if !remote_open {
            self.inbox.end(None, Ok(()), || {});
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.leave_inbox(self.inbox.abandon());
    }
}

/// A call in flight, counted by the gates until this is dropped.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) connection: Arc<Connection>,
    pub(super) load: Load,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.connection.leave_call(self.load);
    }
}

/// Says that a handler's task is about to run, until it has.
struct Announcement(Arc<Connection>);

impl Drop for Announcement {
    fn drop(&mut self) {
        self.0.queue.retract();
    }
}

fn code_of<T>(result: &Result<T, Status>) -> Code {
    result.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

enum Outcome {
    Finished,
    Panicked,
    DeadlinePassed,
    Cancelled,
}

/// Starts the task of a call whose handler's future this is.
pub(super) fn spawn(call: Arc<Call>, handler: BoxFuture<'static, ()>, admission: Admission) {
    let connection = call.connection.clone();
    let Call { stream_id, service, method, .. } = *call;
    let span = tracing::debug_span!("call", stream_id, service, method);
    connection.queue.announce();
    let announcement = Announcement(connection.clone());
    let task = drive(call, handler, admission, announcement);
    if span.is_disabled() {
        connection.server.handlers.spawn(task);
    } else {
        connection.server.handlers.spawn(task.instrument(span));
    }
}

/// Runs the handler to its end, or to the call's.
///
/// A task is as large as the largest thing that it may ever have to wait for. Most handlers end when
/// they are first polled, so what the others need is boxed, and made when it is needed.
async fn drive(
    call: Arc<Call>,
    mut handler: BoxFuture<'static, ()>,
    admission: Admission,
    announcement: Announcement,
) {
    match run_until(&call, &mut handler, call.deadline, Some(announcement)).await {
        Outcome::Finished => {}
        outcome => Box::pin(end_early(&call, handler, outcome)).await,
    }
    // What the handler held is gone; only now does its place go to another call.
    drop(admission);
}

/// Ends a call whose handler has not ended well.
async fn end_early(call: &Arc<Call>, mut handler: BoxFuture<'static, ()>, mut outcome: Outcome) {
    loop {
        match outcome {
            Outcome::Finished => return,
            Outcome::Panicked => {
                tracing::warn!(service = call.service, method = call.method, "a handler panicked");
                return call.fail(Status::internal("the handler panicked")).await;
            }
            // The handler may have ended the call already and wait for room for its reply.
            Outcome::DeadlinePassed if !call.claim_end(Code::DeadlineExceeded) => {
                outcome = run_until(call, &mut handler, None, None).await;
            }
            Outcome::DeadlinePassed => {
                call.cancel();
                let status = Status::new(Code::DeadlineExceeded, "the call's deadline passed");
                let say_so = call.send_status(&status);
                tokio::join!(say_so, linger(call, handler));
                return;
            }
            Outcome::Cancelled => return linger(call, handler).await,
        }
    }
}

/// Polls the handler until it ends or its time is over. It is polled first, so that it sees a token
/// that has fired before it is dropped.
async fn run_until(
    call: &Arc<Call>,
    handler: &mut BoxFuture<'static, ()>,
    deadline: Option<Instant>,
    mut announcement: Option<Announcement>,
) -> Outcome {
    let mut end_of_time = None;
    poll_fn(|cx| {
        let polled = poll_handler(handler, cx);
        announcement.take();
        if polled.is_ready() {
            return polled;
        }
        let wait = || Box::pin(time_is_over(call.clone(), deadline));
        end_of_time.get_or_insert_with(wait).as_mut().poll(cx)
    })
    .await
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

/// Polls the handler; a panic is an end of it.
fn poll_handler(handler: &mut BoxFuture<'static, ()>, cx: &mut task::Context<'_>) -> Poll<Outcome> {
    match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(())) => Poll::Ready(Outcome::Finished),
        Err(_) => Poll::Ready(Outcome::Panicked),
    }
}

/// Gives a handler that has asked for its token the time to act on it, and drops it then. Once the
/// server has ended, or its limit has passed, that is one more poll.
async fn linger(call: &Call, mut handler: BoxFuture<'static, ()>) {
    if call.cancellation.token.get().is_none() {
        return;
    }
    let server = &call.connection.server;
    tokio::select! {
        biased;
        _ = poll_fn(|cx| poll_handler(&mut handler, cx)) => {}
        () = server.lifecycle.limit_passed() => {}
        () = sleep(server.config.cancellation_grace) => {}
    }
}
