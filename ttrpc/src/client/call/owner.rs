//! The caller's hold on a call that has been queued.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    Status,
    client::{
        connection::{
            ClientConnection, ConnectionTasks,
            calls::{Calls, Messages, Polled},
            record::{CallRecord, OnEnd},
            state::CallState,
        },
        meta::{CallTimes, MethodKind, too_late, within},
    },
    observer::CallOutcome,
    proto::payload::Payload,
    transport::limiter::Load,
};

/// The caller's hold on a call. Dropped, it gives the call up: its entry in the table goes, and if
/// its Request has not begun to be written it never is.
#[derive(Debug)]
pub struct CallOwner {
    tasks: Arc<ConnectionTasks>,
    pub(in crate::client) stream_id: u32,
    pub(in crate::client) kind: MethodKind,
    times: CallTimes,
    /// `None` for a unary call.
    messages: Option<Arc<Messages>>,
    /// `None` if nobody observes the call.
    record: Option<Arc<CallRecord>>,
    /// Its end has been taken: nothing is left to give up.
    is_finished: bool,
}

impl CallOwner {
    /// Takes over a call that has been queued. Releases its permit when it is dropped.
    pub(super) fn new(
        tasks: Arc<ConnectionTasks>,
        stream_id: u32,
        kind: MethodKind,
        times: CallTimes,
        messages: Option<Arc<Messages>>,
        record: Option<Arc<CallRecord>>,
    ) -> Self {
        CallOwner { tasks, stream_id, kind, times, messages, record, is_finished: false }
    }

    pub(super) fn connection(&self) -> &ClientConnection {
        self.tasks.connection()
    }

    pub(in crate::client) fn deadline(&self) -> Option<Instant> {
        self.times.deadline
    }

    pub(super) fn is_too_late(&self) -> bool {
        self.times.are_over()
    }

    /// The messages of a call with streams.
    pub(super) fn messages(&self) -> &Messages {
        self.messages.as_ref().expect("a call with streams has messages")
    }

    pub(super) fn record(&self) -> Option<&CallRecord> {
        self.record.as_deref()
    }

    /// Returns what `read` says of the call's state.
    pub(super) fn read<R>(&self, read: impl FnOnce(&mut CallState) -> Option<R>) -> Option<R> {
        self.connection().queue.streams(|calls| calls.read(self.stream_id, read))
    }

    /// Waits for the end of a unary call, and decodes its reply.
    pub(in crate::client) fn poll_reply<R>(
        &mut self,
        cx: &mut Context<'_>,
        decode: impl FnOnce(Payload<'_>) -> Result<R, Status>,
    ) -> Poll<Result<R, Status>> {
        let id = self.stream_id;
        self.poll_end(cx, |calls, cx, copy| calls.poll_reply(id, cx.waker(), copy)).map(|call| {
            self.is_finished = true;
            let Some(call) = call else { return Err(self.connection().unavailable()) };
            let reply = call.state.reply(decode);
            if let Some(record) = &self.record {
                match call.state.outcome() {
                    Some((cause, Some(status))) => {
                        record.ended(CallOutcome { cause, status: Some(&status) });
                    }
                    _ => record.reply_taken(reply.as_ref().err()),
                }
            }
            reply
        })
    }

    /// Waits until the call has ended, and leaves the reply where it is. Returns the status of one that has failed.
    pub(in crate::client) fn poll_answered(&self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        let id = self.stream_id;
        self.poll_end(cx, |calls, cx, copy| calls.poll_answered(id, cx.waker(), copy))
    }

    /// Polls with the table locked. Wakers are copied and dropped without the lock.
    fn poll_end<R>(
        &self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Calls, &Context<'_>, &mut Option<Waker>) -> Polled<R>,
    ) -> Poll<R> {
        let mut copy = None;
        loop {
            match self.connection().queue.streams(|calls| poll(calls, cx, &mut copy)) {
                Polled::Ended(end) => return Poll::Ready(end),
                Polled::Waits { before } => {
                    drop(before);
                    return Poll::Pending;
                }
                Polled::NeedsWaker => copy = Some(cx.waker().clone()),
            }
        }
    }

    /// Ends the call because its deadline has passed, if nothing has ended it before. The server
    /// knows the deadline and ends the stream itself, so no close is sent, which it could take for a
    /// good end.
    pub(in crate::client) fn expire(&self) -> Status {
        self.connection().expire(self.stream_id, too_late());
        too_late()
    }

    /// Gives a call up whose parts are still there.
    pub(super) fn give_up(&self) {
        self.connection().give_up(self.stream_id);
    }

    /// Waits for the reply of a unary call; for any other one, until its Request has been written. The deadline ends both.
    pub(in crate::client) async fn wait_for_progress(&self) {
        if !self.kind.is_unary() {
            let _ = self.flushed().await;
        } else if within(self.deadline(), poll_fn(|cx| self.poll_answered(cx))).await.is_err() {
            self.expire();
        }
    }

    /// Returns whether the connection was lost before the Request began to be written, so that nobody can have seen it.
    pub(in crate::client) fn is_unsent(&self) -> bool {
        self.connection().queue.is_unsent(self.stream_id)
    }

    /// Gives up a call that was not sent. Returns its record, to which no end was reported.
    pub(in crate::client) fn into_record(mut self) -> Option<Arc<CallRecord>> {
        self.record.take()
    }

    /// Waits until all that is queued now has been written to the socket, within the call's deadline.
    pub(super) async fn flushed(&self) -> Result<(), Status> {
        let flushed = within(self.deadline(), self.connection().queue.flushed());
        flushed.await.map_err(|_| self.expire())
    }

    /// Fails with INTERNAL if an interceptor has kept this answer from another call: one of another kind, or, as a unary
    /// answer is there already, one that may go on after the deadline of this one.
    pub(in crate::client) fn may_answer(
        &self,
        kind: MethodKind,
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        if self.kind == kind && (kind.is_unary() || self.times.end_by(deadline)) {
            return Ok(());
        }
        Err(Status::internal("an interceptor has returned another call's answer"))
    }

    /// Returns the status with which the call has failed.
    pub(in crate::client) fn failure(&self) -> Option<Status> {
        self.read(|state| state.outcome()?.1)
    }

    /// Returns the reply of a unary call that has one.
    pub(in crate::client) fn reply_bytes(&self) -> Option<Bytes> {
        self.read(|state| state.reply_bytes()).filter(|_| self.kind.is_unary())
    }

    /// Calls this when the call, which was made through interceptors, ends; at once if that was reported already.
    pub(in crate::client) fn on_end(&self, on_end: OnEnd) {
        if let Some(record) = &self.record {
            record.on_end(on_end);
        }
    }

    /// Reports how the call ended that its caller drops.
    fn report_dropped(&self) {
        let Some(record) = self.record().filter(|record| !record.has_ended()) else { return };
        match self.read(|state| state.outcome()) {
            Some((cause, status)) => record.ended(CallOutcome { cause, status: status.as_ref() }),
            None => record.dropped(),
        }
    }
}

impl Drop for CallOwner {
    fn drop(&mut self) {
        self.report_dropped();
        if !self.is_finished {
            if let Some(messages) = &self.messages {
                messages.abandon(&mut Default::default());
            }
            self.connection().release(self.stream_id);
        }
        self.connection().calls.release(Load::one(0));
        self.connection().end_if_spent();
    }
}
