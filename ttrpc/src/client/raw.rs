//! What arrives for a call of which only the Request is known.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{incoming::Incoming, owner::CallOwner};
use crate::{Raw, RawEnd, Status};

/// What a server sends on a [`RawCall`](super::RawCall).
#[derive(Clone, Debug, PartialEq)]
pub enum RawReply {
    /// A message of a stream.
    Message(Raw),
    /// The end of the call; nothing more comes.
    End(RawEnd),
}

/// Takes what a server sends, whatever the kind of the call is.
///
/// Messages come in the order in which the server sent them. A caller that takes none for long holds up the
/// connection, and loses the stream after [`ClientConfig::stall_timeout`].
///
/// [`ClientConfig::stall_timeout`]: crate::ClientConfig::stall_timeout
#[must_use = "dropping the receiver gives the replies up"]
pub struct RawReceiver {
    incoming: Incoming,
}

impl RawReceiver {
    pub(super) fn new(owner: Arc<CallOwner>) -> Self {
        RawReceiver { incoming: Incoming::new(owner) }
    }

    /// The next message, or the end. Behind the end, [`RawEnd::Closed`].
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

impl fmt::Debug for RawReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawReceiver").finish_non_exhaustive()
    }
}
