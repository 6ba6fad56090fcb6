//! One call as its connection knows it: what its caller and the receiver share.

use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    head::{CallShape, Times},
    observe::CallRecord,
    state::{CallFailure, CallState},
};
use crate::{
    Name, Status,
    observer::EndCause,
    proto::{message::begins_with_status, stream::Kind},
    snapshot::CallSnapshot,
    transport::{
        inbox::Inbox,
        registry::{CallInfo, CallWait},
        wait_until,
    },
};

/// One call, in the connection's table.
#[derive(Debug)]
pub(super) struct CallEntry {
    shape: CallShape,
    service: Name,
    method: Name,
    pub(super) times: Times,
    /// `None` if nobody observes the call.
    record: Option<Box<CallRecord>>,
    /// What has arrived, and the state of the call.
    pub(super) inbox: Inbox<CallState>,
}

impl CallEntry {
    /// An entry of a call whose caller, if it gives its waker, waits for the reply from now on. All of it is put together
    /// where it stays, and not moved there.
    #[inline]
    pub(super) fn new(
        shape: CallShape,
        service: Name,
        method: Name,
        times: Times,
        record: Option<Box<CallRecord>>,
        caller: Option<Waker>,
    ) -> Self {
        let inbox = Inbox::awaited(caller);
        CallEntry { shape, service, method, times, record, inbox }
    }

    /// The call's record, if somebody observes it.
    pub(super) fn record(&self) -> Option<&CallRecord> {
        self.record.as_deref()
    }

    /// Whether the caller awaits one reply and nothing else.
    pub(super) fn is_unary(&self) -> bool {
        self.shape.is_unary()
    }

    /// Whether the caller awaits one reply.
    pub(super) fn has_one_reply(&self) -> bool {
        self.shape.has_one_reply()
    }

    /// Whether a call of this shape may be answered with this one, which an interceptor may have kept from another
    /// call. A unary answer is there already.
    ///
    /// # Errors
    /// INTERNAL, if this one is of another kind or may go on behind the deadline.
    pub(super) fn may_answer(
        &self,
        shape: CallShape,
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        let ends_in_time =
            deadline.is_none_or(|deadline| self.times.deadline.is_some_and(|own| own <= deadline));
        if self.shape == shape && (ends_in_time || self.is_unary()) {
            return Ok(());
        }
        Err(Status::internal("an interceptor has returned another call's answer"))
    }

    /// The status with which the call has failed.
    pub(super) fn failure(&self) -> Option<Status> {
        self.inbox.with(|state| state.outcome())?.1
    }

    /// The reply, if the call is one that has only that.
    pub(super) fn reply_bytes(&self) -> Option<Bytes> {
        let is_unary = self.shape.is_unary();
        self.inbox.with(|state| state.reply_bytes()).filter(|_| is_unary)
    }

    /// Whether messages may follow the Request.
    pub(super) fn may_stream(&self) -> bool {
        self.shape.kind.client_streams()
    }

    /// The server has answered.
    pub(super) fn answer(&self, response: Bytes, read_at: impl FnOnce() -> Instant) {
        let ends_stream = self.shape.is_ended_by_response();
        let is_bare_end = ends_stream && response.is_empty();
        let has_message = !is_bare_end && !begins_with_status(&response);
        self.count_answer(has_message.then_some(response.len()), read_at);
        self.inbox.change(|state| state.answer(response, ends_stream));
        self.tell_end();
    }

    /// The server is done sending on the stream; this side may go on.
    pub(super) fn close_remote(&self) {
        self.inbox.change(|state| state.close_remote());
        self.tell_end();
    }

    /// The connection has ended. What has arrived may still be taken.
    pub(super) fn lose_connection(&self, cause: EndCause, status: &Status) {
        let failure = CallFailure { cause, status: status.clone(), is_unknown_to_server: false };
        self.inbox.change(|state| state.fail(&failure));
        self.tell_end();
    }

    /// The call fails on this side while the server may go on. What has arrived is lost, unless the
    /// replies had ended well before.
    pub(super) fn fail(&self, cause: EndCause, status: Status) {
        let failure = CallFailure { cause, status, is_unknown_to_server: true };
        self.inbox.fail(|state| state.fail(&failure));
        self.tell_end();
    }

    /// The call's deadline has passed, which the server knows.
    pub(super) fn pass_deadline(&self, status: Status) {
        let cause = EndCause::DeadlineHere;
        let failure = CallFailure { cause, status, is_unknown_to_server: false };
        self.inbox.fail(|state| state.fail(&failure));
        self.tell_end();
    }

    /// Waits until no message may be sent any more.
    pub(super) async fn requests_ended(&self) {
        let is_so = || !self.inbox.with(|state| state.may_send());
        wait_until(self.inbox.changed(), &is_so).await;
    }

    pub(super) fn info(&self, stream_id: Option<u32>) -> CallInfo {
        let Times { started, deadline } = self.times;
        let (service, method) = (self.service.clone(), self.method.clone());
        CallInfo { service, method, stream_id, started, deadline }
    }

    /// The call at this moment; `stream_id` is `None` while its Request is queued. It does not wait
    /// for room: calls that do are registered elsewhere.
    pub(super) fn snapshot(&self, stream_id: Option<u32>) -> CallSnapshot {
        let (fill, consumer_waits) = self.inbox.fill();
        let wait = match self.shape.kind {
            _ if stream_id.is_none() => CallWait::Sender,
            Kind::Unary | Kind::ClientStreaming => CallWait::Reply,
            Kind::ServerStreaming | Kind::Bidirectional if consumer_waits => CallWait::Message,
            Kind::ServerStreaming | Kind::Bidirectional => CallWait::Consumer,
        };
        CallSnapshot::new(self.info(stream_id), wait, fill)
    }
}
