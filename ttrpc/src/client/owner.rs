//! The caller's hold on a call that has been queued.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::{
    connection::ClientConnection, entry::CallEntry, head::too_late, tasks::ConnectionTasks,
};
use crate::{
    Status,
    transport::{limiter::Load, registry::CallInfo},
};

/// The caller's hold on a call. Dropped, it gives the call up: its entry in the table goes, and if
/// its Request has not begun to be written it never is.
#[derive(Debug)]
pub struct CallOwner {
    tasks: Arc<ConnectionTasks>,
    pub(super) entry: Arc<CallEntry>,
    pub(super) stream_id: u32,
    /// Its end has been taken: nothing is left to give up.
    is_finished: bool,
}

impl CallOwner {
    /// Takes over a call that has been queued, and releases its permit when it is dropped.
    pub(super) fn new(tasks: Arc<ConnectionTasks>, entry: Arc<CallEntry>, stream_id: u32) -> Self {
        CallOwner { tasks, entry, stream_id, is_finished: false }
    }

    #[inline]
    pub(super) fn connection(&self) -> &ClientConnection {
        self.tasks.connection()
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.entry.times.deadline
    }

    pub(super) fn info(&self) -> CallInfo {
        self.entry.info(Some(self.stream_id))
    }

    /// The Response of a unary call: takes the call's end.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Status>> {
        let is_kept = self.entry.record().is_some();
        let end = ready!(self.entry.inbox.poll_end(cx, |state| state.take_response(is_kept)));
        self.is_finished = true;
        Poll::Ready(end)
    }

    /// Waits until the call has ended, and leaves the reply where it is. Returns the status of one that has failed.
    pub(super) fn poll_answered(&mut self, cx: &mut Context<'_>) -> Poll<Option<Status>> {
        self.entry.inbox.poll_end(cx, |state| state.outcome().map(|(_, failure)| failure))
    }

    /// Whether the deadline has passed.
    #[inline]
    pub(super) fn is_too_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Ends the call because its deadline has passed, if nothing has ended it before. The server
    /// knows the deadline and ends the stream itself, so no close is sent, which it could take for a
    /// good end.
    pub(super) fn pass_deadline(&self) -> Status {
        self.entry.pass_deadline(too_late());
        self.give_up();
        too_late()
    }

    /// Waits until all that is queued now has been written to the socket, within the call's deadline.
    pub(super) async fn flushed(&self) -> Result<(), Status> {
        let flushed = self.connection().queue.flushed();
        match self.deadline() {
            Some(deadline) => timeout_at(deadline, flushed).await.map_err(|_| self.pass_deadline()),
            None => {
                flushed.await;
                Ok(())
            }
        }
    }

    fn give_up(&self) {
        let id = self.stream_id;
        self.connection().queue.withdraw(|table| table.remove(id).map(|_| id));
    }
}

impl Drop for CallOwner {
    fn drop(&mut self) {
        self.tell_dropped();
        if !self.is_finished {
            self.entry.inbox.abandon(&mut Default::default());
            self.give_up();
        }
        self.connection().calls.release(Load::one(0));
        self.connection().end_if_spent();
    }
}
