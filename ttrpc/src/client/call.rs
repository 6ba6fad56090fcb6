//! One call that has been queued: [`Call`] is what its caller and the receiver share, [`CallOwner`]
//! the caller's hold on it. The call is given up when its owner is dropped.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    connection::{Connection, ConnectionOwner},
    options::Times,
    state::{Failure, Phase},
};
use crate::{
    Code, Status,
    proto::stream::Kind,
    snapshot::CallSnapshot,
    transport::{
        inbox::{self, Inbox},
        limiter::Load,
        registry::{CallInfo, CallWait},
        wait_until,
    },
};

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    kind: Kind,
    service: &'static str,
    method: &'static str,
    times: Times,
    /// What has arrived, and the state of the call.
    pub(super) inbox: Inbox<Phase>,
}

impl Call {
    pub(super) fn new(
        kind: Kind,
        service: &'static str,
        method: &'static str,
        times: Times,
    ) -> Self {
        Call { kind, service, method, times, inbox: Inbox::default() }
    }

    /// The server has answered. The caller of a unary call will probably make another one: the
    /// sender is told.
    pub(super) fn answer(&self, response: Bytes, connection: &Connection) {
        self.inbox.change(|phase, caller_waits| {
            let is_announced = caller_waits && self.kind == Kind::Unary;
            let is_answered = phase.answer(response, self.kind.server_streams(), is_announced);
            if is_answered && is_announced {
                connection.queue.announced.announce();
            }
            is_answered
        });
    }

    /// The server is done sending on the stream; this side may go on.
    pub(super) fn close_remote(&self) {
        self.inbox.change(|phase, _| phase.close_remote());
    }

    /// The connection has ended. What has arrived may still be taken.
    pub(super) fn lose_connection(&self, status: &Status) {
        let failure = Failure { status: status.clone(), is_unknown_to_server: false };
        self.inbox.change(|phase, _| phase.fail(&failure));
    }

    /// The call fails on this side while the server may go on. What has arrived is lost, unless the
    /// replies had ended well before.
    pub(super) fn fail(&self, status: Status) {
        self.inbox.fail(|phase| phase.fail(&Failure { status, is_unknown_to_server: true }));
    }

    fn pass_deadline(&self, status: Status) {
        self.inbox.fail(|phase| phase.fail(&Failure { status, is_unknown_to_server: false }));
    }

    /// Waits until no message may be sent any more.
    pub(super) async fn requests_ended(&self) {
        let is_so = || !self.inbox.with(|phase| phase.may_send());
        wait_until(self.inbox.changed(), &is_so).await;
    }

    pub(super) fn info(&self, stream_id: Option<u32>) -> CallInfo {
        let Call { service, method, times: Times { started, deadline }, .. } = *self;
        CallInfo { service, method, stream_id, started, deadline }
    }

    /// The call at this moment; `stream_id` is `None` while its Request is queued. It does not wait
    /// for room: calls that do are registered elsewhere.
    pub(super) fn snapshot(&self, stream_id: Option<u32>) -> CallSnapshot {
        let (fill, consumer_waits) = self.inbox.fill();
        let wait = match self.kind {
            _ if stream_id.is_none() => CallWait::Sender,
            Kind::Unary | Kind::ClientStreaming => CallWait::Reply,
            Kind::ServerStreaming | Kind::Bidirectional if consumer_waits => CallWait::Message,
            Kind::ServerStreaming | Kind::Bidirectional => CallWait::Consumer,
        };
        CallSnapshot::new(self.info(stream_id), wait, fill)
    }
}

/// The caller's hold on a call. Dropped, it gives the call up: its entry in the table goes, and if
/// its Request has not begun to be written it never is.
#[derive(Debug)]
pub(super) struct CallOwner {
    pub(super) connection: Arc<ConnectionOwner>,
    pub(super) call: Arc<Call>,
    pub(super) stream_id: u32,
    /// Its end has been taken: nothing is left to give up.
    is_finished: bool,
}

impl CallOwner {
    /// Takes over a call that has been queued, with its place among the calls in flight.
    pub(super) fn new(connection: Arc<ConnectionOwner>, call: Arc<Call>, stream_id: u32) -> Self {
        CallOwner { connection, call, stream_id, is_finished: false }
    }

    pub(super) fn connection(&self) -> &Connection {
        self.connection.connection()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.call.times.deadline
    }

    pub(super) fn info(&self) -> CallInfo {
        self.call.info(Some(self.stream_id))
    }

    /// The reply of a call that has only one: takes the call's end.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let end = self.call.inbox.poll_phase(cx, |phase| {
            inbox::Phase::end(phase).map(|end| (end, phase.take_announcement()))
        });
        let (end, was_announced) = ready!(end);
        self.retract(was_announced);
        self.is_finished = true;
        Poll::Ready(end)
    }

    /// The caller runs, after it was woken with an answer.
    fn retract(&self, was_announced: bool) {
        if was_announced {
            self.connection().queue.announced.retract();
        }
    }

    /// Whether the deadline has passed.
    pub(super) fn is_too_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Ends the call because its deadline has passed, if nothing has ended it before. The server
    /// knows the deadline and ends the stream itself, so no close is sent, which it could take for a
    /// good end.
    pub(super) fn pass_deadline(&self) -> Status {
        self.call.pass_deadline(too_late());
        self.give_up();
        too_late()
    }

    fn give_up(&self) {
        let id = self.stream_id;
        self.connection().queue.withdraw(|table| table.remove(id).map(|_| id));
    }

    fn trace_end(&self) {
        if tracing::enabled!(tracing::Level::DEBUG) {
            match self.call.inbox.with(|phase| phase.outcome()) {
                Some(end) => trace_end(self.info(), &end),
                None => tracing::debug!(call = ?self.info(), "call given up"),
            }
        }
    }
}

impl Drop for CallOwner {
    fn drop(&mut self) {
        self.trace_end();
        if !self.is_finished {
            self.call.inbox.abandon(&mut Default::default());
            self.give_up();
            self.retract(self.call.inbox.with(Phase::take_announcement));
        }
        self.connection().calls.release(Load::one(0));
        self.connection().end_if_spent();
    }
}

/// The status of a call whose deadline has passed.
pub(super) fn too_late() -> Status {
    Status::deadline_exceeded("the call's deadline passed")
}

/// Traces how a call ended.
pub(super) fn trace_end(call: CallInfo, end: &Result<(), Status>) {
    tracing::debug!(
        service = call.service,
        method = call.method,
        stream_id = call.stream_id,
        code = ?end.as_ref().map_or_else(Status::code, |()| Code::Ok),
        duration = ?call.started.elapsed(),
        "call ended",
    );
}
