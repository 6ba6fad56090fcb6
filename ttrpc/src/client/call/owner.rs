//! The caller's hold on a call that has been queued, and what it takes from it: a reply, or messages until their end.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use prost::Message;
use tokio::time::Instant;

use crate::{
    Status,
    client::{
        connection::{
            ClientConnection, ConnectionTasks,
            calls::Messages,
            observe::CallRecord,
            state::{CallFailure, CallState},
        },
        meta::{DeadlineTimer, MethodKind, is_over, too_late, within},
    },
    contain::{Panicked, contain},
    proto::payload::Payload,
    transport::{limiter::Load, messages::Batch},
};

/// The caller's hold on a call. Dropped, it gives the call up: its entry in the table goes, and if
/// its Request has not begun to be written it never is.
#[derive(Debug)]
pub struct CallOwner {
    pub(super) tasks: Arc<ConnectionTasks>,
    pub(in crate::client) stream_id: u32,
    pub(in crate::client) kind: MethodKind,
    pub(in crate::client) deadline: Option<Instant>,
    /// `None` for a unary call.
    pub(super) messages: Option<Arc<Messages>>,
    /// `None` if nobody observes the call.
    pub(in crate::client) record: Option<Arc<CallRecord>>,
    /// Its end has been taken: nothing is left to give up.
    pub(super) is_finished: bool,
}

impl CallOwner {
    pub(in crate::client) fn connection(&self) -> &ClientConnection {
        &self.tasks.connection
    }

    pub(super) fn is_too_late(&self) -> bool {
        is_over(self.deadline)
    }

    /// The messages of a call with streams.
    pub(super) fn messages(&self) -> &Messages {
        self.messages.as_ref().expect("a call with streams has messages")
    }

    pub(in crate::client) fn record(&self) -> Option<&CallRecord> {
        self.record.as_deref()
    }

    /// Returns what `read` says of the call's state.
    pub(in crate::client) fn read<R>(
        &self,
        read: impl FnOnce(&mut CallState) -> Option<R>,
    ) -> Option<R> {
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
                Some(end @ (_, Some(_))) => record.ended(end),
                _ => record.reply_taken(reply.as_ref().err()),
            }
        }
        Poll::Ready(reply)
    }

    /// Ends the call because its deadline has passed, if nothing has ended it before. The server
    /// knows the deadline and ends the stream itself, so no close is sent, which it could take for a
    /// good end.
    pub(in crate::client) fn expire(&self) -> Status {
        self.connection().withdraw(self.stream_id, CallFailure::deadline(too_late()), false);
        too_late()
    }

    /// Waits for the reply of a unary call; for any other one, until its Request has been written. The deadline ends both.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED if a Request was not written in time. What a unary call ends with is left where it is.
    pub(in crate::client) async fn wait_for_progress(&self) -> Result<(), Status> {
        if !self.kind.is_unary() {
            return self.flushed().await;
        }
        let ended = within(self.deadline, self.connection().ended(self.stream_id));
        if ended.await.is_err() {
            self.expire();
        }
        Ok(())
    }

    /// Waits until all that is queued now has been written to the socket, within the call's deadline.
    pub(super) async fn flushed(&self) -> Result<(), Status> {
        let flushed = within(self.deadline, self.connection().queue.flushed());
        flushed.await.map_err(|_| self.expire())
    }

    /// Fails with INTERNAL if an interceptor has kept this answer from another call: one of another kind, or, as a unary
    /// answer is there already, one that may go on after the deadline of this one.
    pub(in crate::client) fn may_answer(
        &self,
        kind: MethodKind,
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        let ends_in_time =
            |deadline| self.deadline.is_some_and(|own_deadline| own_deadline <= deadline);
        if self.kind == kind && (kind.is_unary() || deadline.is_none_or(ends_in_time)) {
            return Ok(());
        }
        Err(Status::internal("an interceptor has returned another call's answer"))
    }

    /// Reports how the call ended that its caller drops.
    fn report_dropped(&self) {
        let Some(record) = &self.record else { return };
        match self.read(|state| state.outcome()) {
            Some(end) => record.ended(end),
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
    pub(super) owner: Arc<CallOwner>,
    batch: Batch,
    timer: DeadlineTimer,
}

impl Incoming {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        Incoming { owner, batch: Batch::default(), timer: DeadlineTimer::default() }
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
                    ready!(self.timer.poll(owner.deadline, cx));
                    // The end is taken next: this one, or another that came just before it.
                    owner.expire();
                }
            }
        }
        let end = owner.read(|state| state.take_end());
        let last = end.unwrap_or_else(|| Err(owner.connection().unavailable()))?;
        Poll::Ready(Ok(last.map(|last| read(Payload::shared(&last, &last)))))
    }

    /// Returns the next message, decoded. Reports one that does not decode.
    pub(super) fn poll_decoded<M: Message + Default>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<M>, Status>> {
        let taken = ready!(self.poll_take(cx, decode_reply))?;
        if let (Some(Err(status)), Some(record)) = (&taken, &self.owner.record) {
            record.reply_taken(Some(status));
        }
        Poll::Ready(taken.transpose())
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
    let status = match contain(|| M::decode(payload)) {
        Ok(Ok(message)) => return Ok(message),
        Ok(Err(error)) => format!("the server's reply does not decode: {error}"),
        Err(Panicked) => "the reply's type panicked while it was decoded".to_owned(),
    };
    Err(Status::internal(status))
}
