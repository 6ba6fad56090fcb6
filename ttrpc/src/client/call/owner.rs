//! The caller's hold on a call that has been queued, and what it takes from it: a reply, or messages until their end.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use prost::{DecodeError, Message};
use tokio::time::Instant;

use crate::{
    ConnectionError, Status,
    client::{
        connection::{
            ClientConnection, ConnectionTasks,
            calls::Messages,
            record::{CallRecord, OnEnd},
            state::CallState,
        },
        meta::{CallTimes, DeadlineTimer, MethodKind, too_late, within},
    },
    contain::{Panicked, contain},
    observer::CallOutcome,
    proto::payload::Payload,
    transport::{limiter::Load, messages::Batch},
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
        // A waker is the program's: it is copied and dropped without the lock.
        let mut waker = Some(cx.waker().clone());
        let (id, queue) = (self.stream_id, &self.connection().queue);
        let call =
            ready!(queue.streams(|calls| {
                calls.poll_ended(id, &mut waker).map(|()| calls.release(id).1)
            }));
        self.is_finished = true;
        let Some(call) = call else { return Poll::Ready(Err(self.connection().unavailable())) };
        let reply = call.state.reply(decode);
        if let Some(record) = &self.record {
            match call.state.outcome() {
                Some((cause, Some(status))) => {
                    record.ended(CallOutcome { cause, status: Some(&status) });
                }
                _ => record.reply_taken(reply.as_ref().err()),
            }
        }
        Poll::Ready(reply)
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

    /// Ends the connection, with all of its calls.
    pub(super) fn close_connection(&self) {
        self.tasks.close(ConnectionError::ClosedLocally);
    }

    /// Waits for the reply of a unary call; for any other one, until its Request has been written. The deadline ends both.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED if a Request was not written in time. What a unary call ends with is left where it is.
    pub(in crate::client) async fn wait_for_progress(&self) -> Result<(), Status> {
        if !self.kind.is_unary() {
            return self.flushed().await;
        }
        let ended = within(self.deadline(), self.connection().ended(self.stream_id));
        if ended.await.is_err() {
            self.expire();
        }
        Ok(())
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

/// The consumer of a call's messages.
pub(super) struct Incoming {
    owner: Arc<CallOwner>,
    batch: Batch,
    timer: DeadlineTimer,
}

impl Incoming {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        Incoming { owner, batch: Batch::default(), timer: DeadlineTimer::default() }
    }

    pub(super) fn owner(&self) -> &CallOwner {
        &self.owner
    }

    /// Returns what `read` makes of the next message, `None` at a good end. See [`Inbox::poll_take`].
    ///
    /// [`Inbox::poll_take`]: crate::transport::inbox::Inbox::poll_take
    pub(super) fn poll_take<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(Payload<'_>) -> R,
    ) -> Poll<Result<Option<R>, Status>> {
        // A server may go on for ever. What ended in time may be read later.
        if self.owner.is_too_late()
            && self.owner.read(|state| state.is_open().then_some(())).is_some()
        {
            return Poll::Ready(Err(self.owner.expire()));
        }
        let (owner, batch) = (&self.owner, &mut self.batch);
        let patience = &owner.connection().patience;
        loop {
            match owner.messages().poll_take(batch, cx, patience, &mut read) {
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(taken) => return Poll::Ready(taken),
                Poll::Pending => {
                    ready!(self.timer.poll(owner.deadline(), cx));
                    // The end is taken next: this one, or another that came just before it.
                    owner.expire();
                }
            }
        }
        let end = owner.read(|state| state.take_end());
        let last = end.unwrap_or_else(|| Err(owner.connection().unavailable()))?;
        Poll::Ready(Ok(last.map(|last| read(Payload::shared(&last, &last)))))
    }

    /// Returns whether the message that was taken last is the payload of a Response.
    pub(super) fn is_reply(&self) -> bool {
        self.owner.read(|state| state.is_reply_taken().then_some(())).is_some()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.owner.messages().abandon(&mut self.batch);
    }
}

/// Decodes a reply.
///
/// # Errors
/// INTERNAL if the bytes are not a message of this type, or its code panics.
pub(in crate::client) fn decode_reply<M: Message + Default>(
    payload: Payload<'_>,
) -> Result<M, Status> {
    let decoded = contain(|| M::decode(payload));
    decoded.map_or_else(|Panicked| Err(decoder_panicked()), |decoded| decoded.map_err(undecodable))
}

/// Returns INTERNAL: the type of the reply is the program's, and panicked.
pub(super) fn decoder_panicked() -> Status {
    Status::internal("the reply's type panicked while it was decoded")
}

/// Returns INTERNAL: the server has sent no message of the type that was expected.
pub(super) fn undecodable(error: DecodeError) -> Status {
    Status::internal(format!("the server's reply does not decode: {error}"))
}
