//! The caller's hold on a call that has been queued, until it has taken the reply or dropped the call.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use prost::{DecodeError, Message};
use tokio::time::Instant;

use crate::{
    Status,
    client::{
        connection::{
            ClientConnection, ConnectionTasks, calls::Messages, record::CallRecord,
            state::CallState,
        },
        meta::{MethodKind, is_over, too_late, within},
    },
    contain::{Contained, Panicked, contain},
    observer::EndCause,
    proto::payload::Payload,
    transport::limiter::Load,
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

    /// Returns what `read` says of the call's state.
    pub(in crate::client) fn read<R>(
        &self,
        read: impl FnOnce(&CallState) -> Option<R>,
    ) -> Option<R> {
        self.connection().queue.streams(|calls| calls.read(self.stream_id, read))
    }

    /// Waits for the end of a unary call, and decodes its reply.
    pub(in crate::client) fn poll_reply<M: Message + Default>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<M, Status>> {
        let (id, queue) = (self.stream_id, &self.connection().queue);
        let call = loop {
            if let Some(call) = queue.streams(|calls| calls.take_ended(id)) {
                break call;
            }
            // A waker is the program's: it is copied and dropped without the lock.
            let waker = contain(|| cx.waker().clone());
            let waker = waker.map_err(|Panicked| Status::internal("the task's waker panicked"))?;
            let mut waker = Contained::new(Some(waker));
            ready!(queue.streams(|calls| calls.poll_ended(id, &mut waker)));
        };
        self.is_finished = true;
        let Some(call) = call else { return Poll::Ready(Err(self.connection().unavailable())) };
        let violation = |status| (EndCause::ProtocolViolation, status);
        let reply = match call.state.last(decode_reply) {
            Some(Ok(Some(reply))) => reply.map_err(violation),
            Some(Ok(None)) | None => Err(violation(no_reply())),
            Some(Err(failure)) => Err(failure),
        };
        if let Some(record) = &self.record {
            record.ended(match &reply {
                Ok(_) => (EndCause::Replied, None),
                Err((cause, status)) => (*cause, Some(status.clone())),
            });
        }
        Poll::Ready(reply.map_err(|(_, status)| status))
    }

    /// Ends the call because its deadline has passed, if nothing has ended it before. The server
    /// knows the deadline and ends the stream itself, so no close is sent, which it could take for a
    /// good end.
    pub(in crate::client) fn expire(&self) -> Status {
        self.connection().withdraw(self.stream_id, EndCause::DeadlineHere, too_late());
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
        let ends_in_time = |deadline| self.deadline.is_some_and(|own| own <= deadline);
        if self.kind == kind && (kind.is_unary() || deadline.is_none_or(ends_in_time)) {
            return Ok(());
        }
        Err(Status::internal("an interceptor has returned another call's answer"))
    }
}

impl Drop for CallOwner {
    fn drop(&mut self) {
        if let Some(record) = &self.record {
            match self.read(|state| state.outcome()) {
                Some(end) => record.ended(end),
                None => record.dropped(),
            }
        }
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

/// Decodes a reply.
///
/// # Errors
/// INTERNAL if the bytes are not a message of this type, or its code panics.
fn decode_reply<M: Message + Default>(payload: &mut Payload<'_>) -> Result<M, Status> {
    or_status(contain(|| {
        let mut reply = M::default();
        reply.merge(payload).map(|()| reply)
    }))
}

/// Decodes a reply into its place, which is empty and stays so if that fails.
pub(super) fn decode_into<M: Message + Default>(
    reply: &mut Option<M>,
    payload: &mut Payload<'_>,
) -> Result<(), Status> {
    let decoded = or_status(contain(|| reply.insert(M::default()).merge(payload)));
    if decoded.is_err() {
        drop(Contained::new(reply.take()));
    }
    decoded
}

/// Returns what was decoded, or INTERNAL.
fn or_status<T>(decoded: Result<Result<T, DecodeError>, Panicked>) -> Result<T, Status> {
    let status = match decoded {
        Ok(Ok(reply)) => return Ok(reply),
        Ok(Err(error)) => format!("the server's reply does not decode: {error}"),
        Err(Panicked) => "the reply's type panicked while it was decoded".to_owned(),
    };
    Err(Status::internal(status))
}

/// The status of a call that has one reply, and ended well without it.
pub(super) fn no_reply() -> Status {
    Status::internal("the call ended without a reply")
}
