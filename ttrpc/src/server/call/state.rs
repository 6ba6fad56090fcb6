//! One call on the server, and the ways in which it can end.
//!
//! A call is in its connection's table from its Request to its end, and the entry is the right to end
//! it. There are two ways to take it out:
//!
//! ```text
//!            ┌─ the handler returns: the last frame enters the queue in the same step ─┐
//!     open ──┤                                                                         ├─► over
//!            └─ anything else: the entry goes, and a status may follow ────────────────┘
//! ```
//!
//! | who | ends a call | and sends |
//! |---|---|---|
//! | its handler | when it returns | its reply or its status |
//! | its task | when its handler has panicked | a status |
//! | its task | when its deadline has passed | a status, unless `answer_late_calls` is off |
//! | the receiver | when the client breaks the protocol, or sends an oversized frame | a status |
//! | the receiver | when an inbox is full and nobody empties it | a status |
//! | the receiver | when the client cancels it ([`control`](crate::server::control)) | nothing |
//! | the connection's end | all that are left | nothing |
//!
//! A reply that waits for capacity leaves its call open: the deadline may still pass. After the entry has gone, the
//! task that took it sends at most that status on the stream. By [`CallEnd`] all holders of a part of the call learn
//! that it is over.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::call::{
    handler::BoxHandler,
    reasons::{Refusal, encode_failure},
    shared::{AdmittedLoad, Connection, ReplyPermit},
};
use crate::{
    Code, Extensions, Metadata, Name, Status,
    contain::contain,
    observer::{CallOutcome, CallStats, EndCause},
    proto::{
        frame::{Flags, FrameType, HEADER_LEN},
        message::DynData,
        table::ServerTable,
    },
    sync::Mutex,
    trace::{self, Span},
    transport::{
        frames::Frame,
        inbox::Inbox,
        lock,
        queue::{PushDecision, Pushed},
    },
};

/// A last frame that waits for capacity, and is not encoded meanwhile: the handler's reply, or the end of its stream of
/// replies, unless the call ends with a failure.
pub(super) struct Unsent {
    pub(super) failure: Option<Refusal>,
    /// The length of the frame.
    pub(super) len: usize,
}

impl Unsent {
    pub(super) fn failure(failure: Refusal) -> Self {
        let len = HEADER_LEN + encode_failure(&failure.status).0.len();
        Unsent { failure: Some(failure), len }
    }
}

/// One call, shared by its handler, its task and the connection's receiver.
#[derive(Debug)]
pub(crate) struct Call {
    pub(in crate::server) connection: Arc<Connection>,
    pub(in crate::server) head: CallHead,
    /// Its load, which counts until its handler has ended.
    pub(in crate::server) load: AdmittedLoad,
    /// The messages that the client streams. A call whose method streams no requests has none.
    pub(in crate::server) inbox: Option<Box<Inbox>>,
    pub(in crate::server) end: CallEnd,
    pub(in crate::server) extensions: Extensions,
    /// Its counters; `None` if nobody observes it.
    pub(in crate::server) stats: Option<CallStats>,
    pub(in crate::server) span: Span,
}

/// The part of a Request that describes its call.
#[derive(Debug)]
pub(in crate::server) struct CallHead {
    pub(in crate::server) stream_id: u32,
    /// The Request's flags, and the length of its data.
    pub(in crate::server) flags: Flags,
    pub(in crate::server) data_len: usize,
    /// Frames had arrived after the Request: the reply may not be the only one to be written.
    pub(in crate::server) more_to_come: bool,
    pub(in crate::server) service: Name,
    pub(in crate::server) method: Name,
    /// The payload is a message.
    pub(in crate::server) has_message: bool,
    /// Identifies the method, if the names are those of one that the server has.
    pub(in crate::server) method_id: Option<u64>,
    pub(in crate::server) metadata: Metadata,
    pub(in crate::server) started: Instant,
    pub(in crate::server) deadline: Option<Instant>,
}

/// When and why a call ends, and what its handler waits for until then. Its handler, its task, the receiver and clones of
/// its context share this.
#[derive(Debug, Default)]
pub(in crate::server) struct CallEnd {
    state: Mutex<EndState>,
}

#[derive(Debug, Default)]
struct EndState {
    is_over: bool,
    /// The Request's, or an earlier one that an interceptor has set.
    deadline: Option<Instant>,
    /// Made for the first task that waits.
    token: Option<CancellationToken>,
    /// The program has asked for the token, which earns the handler its grace.
    is_graceful: bool,
    /// The cause to report if the handler fails, where it is not the handler's own.
    failure_cause: Option<EndCause>,
    /// Waits of the handler inside of the library: for capacity for a reply, to be polled again, for a thread.
    waits: u32,
}

impl EndState {
    fn is_too_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

impl CallEnd {
    /// The call is over.
    pub(in crate::server) fn fire(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        let token = state.token.clone();
        drop(state);
        if let Some(token) = token {
            let _ = contain(|| token.cancel());
        }
    }

    pub(in crate::server) fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    /// A token that fires when the call is over, for the library itself.
    pub(in crate::server) fn token(&self) -> CancellationToken {
        let mut state = lock(&self.state);
        let (token, is_over) = (state.token.get_or_insert_default().clone(), state.is_over);
        drop(state);
        if is_over {
            let _ = contain(|| token.cancel());
        }
        token
    }

    /// The token for the program.
    pub(in crate::server) fn graceful_token(&self) -> CancellationToken {
        lock(&self.state).is_graceful = true;
        self.token()
    }

    pub(in crate::server) fn is_graceful(&self) -> bool {
        lock(&self.state).is_graceful
    }

    /// Shortens the deadline. A later one is ignored.
    pub(in crate::server) fn shorten_deadline(&self, deadline: Instant) {
        let earliest = &mut lock(&self.state).deadline;
        *earliest = Some(earliest.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Sets the cause to report if the handler fails. The first one counts.
    pub(in crate::server) fn set_failure_cause(&self, cause: EndCause) {
        lock(&self.state).failure_cause.get_or_insert(cause);
    }

    /// Counts a wait of the handler until the result is dropped.
    pub(in crate::server) fn wait(&self) -> HandlerWait<'_> {
        lock(&self.state).waits += 1;
        HandlerWait(self)
    }

    /// Returns whether the handler waits inside of the library.
    pub(in crate::server) fn has_waits(&self) -> bool {
        lock(&self.state).waits > 0
    }
}

/// A handler waits until this is dropped.
#[derive(Debug)]
pub(in crate::server) struct HandlerWait<'a>(&'a CallEnd);

impl Drop for HandlerWait<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waits -= 1;
    }
}

impl Call {
    pub(in crate::server) fn new(
        connection: Arc<Connection>,
        head: CallHead,
        load: AdmittedLoad,
        has_inbox: bool,
    ) -> Arc<Self> {
        let inbox = has_inbox.then(Box::default);
        let end = EndState { deadline: head.deadline, ..EndState::default() };
        let (stream_id, service, method) = (head.stream_id, &*head.service, &*head.method);
        let span = trace::span!("call", stream_id, service, method);
        let is_observed = !connection.server.observers.is_empty();
        let stats = is_observed
            .then(|| CallStats::of_request(head.started, head.has_message, head.data_len));
        Arc::new(Call {
            connection,
            head,
            load,
            inbox,
            end: CallEnd { state: Mutex::new(end) },
            extensions: Extensions::default(),
            stats,
            span,
        })
    }

    /// Returns the call's deadline, which an interceptor may have shortened.
    pub(in crate::server) fn deadline(&self) -> Option<Instant> {
        lock(&self.end.state).deadline
    }

    /// Checks whether a handler may begin.
    ///
    /// # Errors
    /// The failure of a call that is over, or whose deadline has passed.
    pub(in crate::server) fn check_time(&self) -> Result<(), Refusal> {
        let state = lock(&self.end.state);
        match state.is_over {
            true => Err(Refusal::over()),
            false if state.is_too_late() => Err(Refusal::late_start()),
            false => Ok(()),
        }
    }

    /// The inbox of a call whose method streams requests.
    pub(in crate::server) fn inbox(&self) -> &Inbox {
        self.inbox.as_ref().expect("a stream has an inbox")
    }

    /// Ends the call for another reason than its handler's reply. `false` if it is over already;
    /// else the caller sends a status.
    pub(in crate::server) fn take_end(&self, failure: &Refusal) -> bool {
        let id = self.head.stream_id;
        let is_taken = self.connection.queue.streams(|table| table.remove(id)).is_some();
        if is_taken {
            self.taken_out(failure);
        }
        is_taken
    }

    /// The call has been taken out of the table.
    pub(in crate::server) fn taken_out(&self, failure: &Refusal) {
        self.ended(Some(failure), None);
        self.end.fire();
    }

    /// Ends the call with what its handler returns: a reply, the end of a stream of replies, or a status. Returns the frame
    /// if it has to wait for capacity.
    pub(super) fn respond(
        &self,
        result: Result<(), Status>,
        handler: &BoxHandler,
    ) -> Option<Unsent> {
        let failure = result.err().map(|status| Refusal { cause: self.failure(&status), status });
        match failure {
            Some(failure) if !self.connection.answers(failure.cause) => {
                self.take_end(&failure);
                None
            }
            failure => self.send_last(failure, handler, None),
        }
    }

    /// Ends the call with its handler's reply, or with a failure, with a permit or with the capacity that there is. Returns
    /// the frame if it has to wait.
    pub(super) fn send_last(
        &self,
        failure: Option<Refusal>,
        handler: &BoxHandler,
        permit: Option<ReplyPermit<'_>>,
    ) -> Option<Unsent> {
        let (mut frame_type, mut flags) = (FrameType::Response, Flags::NONE);
        let status = failure.as_ref().map(|failure| encode_failure(&failure.status));
        let data = match (&status, handler.as_ref().reply()) {
            (Some(status), _) => DynData::of_message(status),
            (None, Some(reply)) => DynData::of_response(reply),
            (None, None) => {
                (frame_type, flags) = (FrameType::Data, Flags::END);
                DynData::of_message(&())
            }
        };
        let id = self.head.stream_id;
        let frame = match Frame::new(frame_type, flags, id, data) {
            Ok(frame) => frame,
            // The reply is too long.
            Err(status) => {
                let failure = Refusal { cause: EndCause::Limit, status };
                return self.send_last(Some(failure), handler, permit);
            }
        };
        let len = frame.len();
        let claim_end = |table: &mut ServerTable<Arc<Call>>| {
            table.remove(id)?;
            // No other call is open, or about to be, that could reply.
            let is_only = table.is_empty() && !self.head.more_to_come;
            Some(PushDecision { stream_id: id, is_only })
        };
        match self.connection.queue.send(&frame, permit, claim_end) {
            Pushed::Queued(_) => {
                let is_reply = status.is_none() && frame_type == FrameType::Response;
                self.ended(failure.as_ref(), is_reply.then_some(len));
                None
            }
            Pushed::Refused => None,
            Pushed::Full => Some(Unsent { failure, len }),
        }
    }

    /// Why the call fails with this status. A handler, or an interceptor, whose own calls end with the deadline that
    /// it hands down fails at the moment at which the deadline passes here.
    fn failure(&self, status: &Status) -> EndCause {
        let state = lock(&self.end.state);
        let cause = state.failure_cause.unwrap_or(EndCause::Failed);
        let is_own = matches!(cause, EndCause::Failed | EndCause::Refused);
        match status.code() {
            Code::DeadlineExceeded if is_own && state.is_too_late() => EndCause::DeadlineHere,
            _ => cause,
        }
    }

    /// The call begins, before anything can end it.
    pub(in crate::server) fn begun(&self) {
        if self.stats.is_some() {
            self.report_begin();
        }
    }

    /// The call has ended: said once, by the task that has taken it out of the table. `reply_len` is the length of the
    /// frame that ends the call, if that is its reply.
    fn ended(&self, failure: Option<&Refusal>, reply_len: Option<usize>) {
        let outcome = failure.map_or(CallOutcome::REPLIED, Refusal::outcome);
        // The clock is read only where a subscriber listens.
        self.span.in_scope(|| {
            trace::debug!(
                code = %outcome.code(),
                cause = %outcome.cause,
                error = outcome.status.map(Status::message),
                duration = ?self.head.started.elapsed(),
                "call ended",
            );
        });
        if let Some(stats) = &self.stats {
            self.report_end(stats, outcome, reply_len);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(inbox) = &self.inbox {
            self.connection.release_messages(inbox.drop_messages());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::{Pin, pin},
        task::Poll,
    };

    use super::*;
    use crate::{
        ServerConfig,
        proto::{payload::Payload, stream::Kind},
        server::{
            call::{
                handler::{Context, boxed},
                task::CallOwner,
            },
            tests::{idle_connection, unary_call},
        },
        transport::{fake_socket::FakeSocket, wire::Sender},
    };

    /// Polls the sender until it waits for frames. Before it writes, it gives way once.
    async fn poll_sender<F: Future>(sender: &mut Pin<&mut F>) {
        for _ in 0..2 {
            assert!(poll_fn(|cx| Poll::Ready(sender.as_mut().poll(cx))).await.is_pending());
        }
    }

    #[tokio::test]
    async fn a_failure_has_the_first_cause_that_was_set() {
        let (_server, connection) = idle_connection(ServerConfig::default());
        let (call, status) = (unary_call(connection, 1), Status::internal(""));
        assert_eq!(call.failure(&status), EndCause::Failed);
        call.end.set_failure_cause(EndCause::Limit);
        call.end.set_failure_cause(EndCause::Refused);
        assert_eq!(call.failure(&status), EndCause::Limit);
    }

    fn replies() -> BoxHandler {
        boxed(|_, ()| async { Ok(()) })
    }

    /// Ends a call with a reply.
    async fn reply(call: Arc<Call>) {
        let (mut handler, ctx) = (replies(), Context::new(call.clone()));
        poll_fn(|cx| handler.as_mut().poll(&ctx, cx)).await.expect("it replies");
        assert!(call.respond(Ok(()), &handler).is_none(), "there is capacity");
    }

    /// Replies that are made together are not: each would cost a system call.
    #[tokio::test]
    async fn the_reply_of_a_lone_call_is_sent_by_its_handler() {
        let (_server, connection) = idle_connection(ServerConfig::default());
        let socket = FakeSocket::with_room(100);
        let mut sender = Sender::new(socket.writer(), &connection.queue);
        let mut sender = pin!(sender.run());
        poll_sender(&mut sender).await;
        let [first, second, third] = [1, 3, 5].map(|id| {
            let call = unary_call(connection.clone(), id);
            connection.queue.streams(|table| table.open(id, Flags::NONE, call.clone()));
            call
        });
        for call in [second, first] {
            reply(call).await;
            assert_eq!(socket.len(), 0);
        }
        poll_sender(&mut sender).await;
        assert_eq!(socket.stream_ids(), [3, 1]);
        reply(third).await;
        assert_eq!(socket.stream_ids(), [3, 1, 5]);
    }

    /// Each reply of a burst was a system call of its own where the receiver makes the first steps.
    #[tokio::test]
    async fn a_reply_is_sent_by_its_handler_only_if_no_other_request_has_arrived() {
        let (_server, connection) = idle_connection(ServerConfig::default());
        let socket = FakeSocket::with_room(100);
        let mut sender = Sender::new(socket.writer(), &connection.queue);
        let mut sender = pin!(sender.run());
        poll_sender(&mut sender).await;
        for (stream_id, more_to_come, sent) in [(1, true, &[][..]), (3, false, &[1, 3])] {
            let mut call = unary_call(connection.clone(), stream_id);
            Arc::get_mut(&mut call).expect("nobody has it yet").head.more_to_come = more_to_come;
            let (handler, payload) = (replies(), Payload::borrowed(&[]));
            let owner = CallOwner::new(call);
            owner.start(handler, Kind::Unary, None, payload).expect("it decodes");
            assert_eq!(socket.stream_ids(), sent);
            poll_sender(&mut sender).await;
        }
    }
}
