//! What arrives for a call with streams: messages until their end, each within the call's deadline.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
};

use prost::{DecodeError, Message};

use super::owner::CallOwner;
use crate::{
    Raw, RawEnd, Status,
    client::meta::DeadlineTimer,
    contain::{Panicked, contain},
    proto::payload::Payload,
    transport::messages::Batch,
};

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
    fn is_reply(&self) -> bool {
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

/// A message or the end that a server sends on a [`RawCall`](crate::client::RawCall).
#[derive(Clone, Debug, PartialEq)]
pub enum RawReply {
    /// A message of a stream.
    Message(Raw),
    /// The end of the call; nothing more comes.
    End(RawEnd),
}

/// Takes what a server sends, whatever the kind of the call is.
///
/// Messages come in the order in which the server sent them. A caller that takes none for long blocks the
/// connection, and loses the stream after [`ClientConfig::stall_timeout`].
///
/// [`ClientConfig::stall_timeout`]: crate::ClientConfig::stall_timeout
#[must_use = "dropping the receiver gives the replies up"]
pub struct RawReceiver {
    incoming: Incoming,
}

impl RawReceiver {
    pub(in crate::client) fn new(owner: Arc<CallOwner>) -> Self {
        RawReceiver { incoming: Incoming::new(owner) }
    }

    /// Waits for the next message, or the end. After the end it returns [`RawEnd::Closed`].
    ///
    /// Cancel safe: dropped before it is done, nothing is lost.
    ///
    /// # Errors
    /// The status with which the call failed. The call is over then.
    pub async fn recv(&mut self) -> Result<RawReply, Status> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<RawReply, Status>> {
        Poll::Ready(Ok(
            match ready!(self.incoming.poll_take(cx, |payload| Raw(payload.to_bytes())))? {
                Some(payload) if self.incoming.is_reply() => RawReply::End(RawEnd::Reply(payload)),
                Some(message) => RawReply::Message(message),
                None => RawReply::End(RawEnd::Closed),
            },
        ))
    }
}

debug_in_short!(RawReceiver);
