//! What arrives for a call with streams.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use prost::{DecodeError, Message};
use tokio::time::{Sleep, sleep_until};

use super::owner::CallOwner;
use crate::{
    Status,
    contain::{Panicked, contain},
    proto::payload::Payload,
    transport::{inbox::StreamState, messages::Batch},
};

/// What arrives for a call, within its deadline.
pub(super) struct Incoming {
    owner: Arc<CallOwner>,
    batch: Batch,
    /// Made when the consumer first has to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        Incoming { owner, batch: Batch::default(), timer: None }
    }

    pub(super) fn owner(&self) -> &CallOwner {
        &self.owner
    }

    /// What `read` makes of the next message; see [`Inbox::poll_take`].
    ///
    /// [`Inbox::poll_take`]: crate::transport::inbox::Inbox::poll_take
    #[inline]
    pub(super) fn poll_take<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(Payload<'_>) -> R,
    ) -> Poll<Result<Option<R>, Status>> {
        let inbox = &self.owner.entry.inbox;
        // A server may go on for ever. What ended in time may be read later.
        if self.owner.is_too_late() && inbox.with(|state| state.is_open()) {
            return Poll::Ready(Err(self.owner.pass_deadline()));
        }
        let patience = &self.owner.connection().patience;
        loop {
            let taken = inbox.poll_take(&mut self.batch, cx, patience, &mut read);
            if let Poll::Ready(taken) = taken {
                return Poll::Ready(taken);
            }
            let Some(deadline) = self.owner.deadline() else { return Poll::Pending };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            ready!(timer.as_mut().poll(cx));
            // The end is taken next: this one, or another that came just before it.
            self.owner.pass_deadline();
        }
    }

    /// Whether what was taken last is the payload of a Response.
    pub(super) fn is_reply(&self) -> bool {
        self.owner.entry.inbox.with(|state| state.is_reply_taken())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.owner.entry.inbox.abandon(&mut self.batch);
    }
}

/// Decodes a reply.
///
/// # Errors
/// INTERNAL if the bytes are not a message of this type, or its code panics.
pub(super) fn decode_reply<M: Message + Default>(payload: Payload<'_>) -> Result<M, Status> {
    match contain(|| M::decode(payload)) {
        Ok(decoded) => decoded.map_err(undecodable),
        Err(Panicked) => Err(decoder_panicked()),
    }
}

/// INTERNAL: the type of the reply is the program's, and panicked.
pub(super) fn decoder_panicked() -> Status {
    Status::internal("the reply's type panicked while it was decoded")
}

/// INTERNAL: what the server has sent is not a message of the type that was expected.
pub(super) fn undecodable(error: DecodeError) -> Status {
    Status::internal(format!("the server's reply does not decode: {error}"))
}
