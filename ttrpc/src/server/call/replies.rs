//! Replies that wait for capacity in the outgoing queue, and the handlers that have to wait for them.
//!
//! No call begins while its connection's queue is full. But handlers that have begun, and have been
//! waiting for something, may go on together, and each of them makes a reply, which waits as a value
//! until it has capacity. And calls for long replies begin while the queue has capacity for short ones. What waits is
//! counted, by its encoded length, for each connection ([`reply_bytes_per_connection`]) and in all
//! ([`reply_bytes`]); replies and messages of streams alike. When as much waits as may, no call begins.
//!
//! A handler that goes on after a wait may be about to reply. It does so freely while little waits. When
//! the limit is near, it waits in a queue for a permit, and counts for a part of the limit while it is
//! polled ([`ResumePermit`]). So there wait no more replies than the limit allows, and one for each
//! thread of the runtime.
//!
//! Streams of a client that reads may always have messages that wait, as many as the limit allows. So one call, and
//! one handler, go on beside the limit whenever all that waited before them has capacity.
//!
//! It is the client who holds such handlers up, and they may hold what others need. So they wait
//! only as long as the client reads. When it has read nothing for a whole [`stall_timeout`] they go
//! on, and replies that exceed the limit are dropped, until it allows some.
//!
//! [`reply_bytes_per_connection`]: field@crate::ServerConfig::reply_bytes_per_connection
//! [`reply_bytes`]: field@crate::ServerConfig::reply_bytes
//! [`stall_timeout`]: field@crate::ServerConfig::stall_timeout

use std::future::pending;

use crate::server::call::{
    shared::{Connection, ReplyPermit},
    state::{Call, HandlerWait, HandlerWaits},
    task::give_way,
};
use crate::{
    Status,
    snapshot::CallWait,
    transport::limiter::{Closed, Limiter, Load, Permit},
};

/// A handler that is polled counts for this part of its connection's limit.
const SHARES: usize = 4;

impl Connection {
    /// Returns whether a reply of this length may wait too. The only reply of a connection always may.
    fn may_wait_too(&self, len: usize) -> bool {
        let waiting = self.limits().replies.load().cost;
        waiting == 0
            || (waiting + len <= self.limits().replies.limit().cost
                && !self.server.replies.is_full())
    }

    /// The load of a handler that is polled. When the limit of the whole server is reached, a handler goes
    /// on only if nothing of its connection waits.
    fn reply_share(&self) -> Load {
        let limit = self.limits().replies.limit().cost;
        Load::cost(if self.server.replies.is_full() { limit } else { limit.div_ceil(SHARES) })
    }
}

/// A reply, or a message, that waits for capacity. It counts until this is dropped.
#[derive(Debug)]
pub(in crate::server) struct WaitingReply<'a> {
    call: &'a Call,
    _wait: HandlerWaits<'a>,
    load: Load,
}

impl<'a> WaitingReply<'a> {
    /// # Errors
    /// RESOURCE_EXHAUSTED if the client reads nothing and others take all capacity.
    pub(in crate::server) fn new(call: &'a Call, len: usize) -> Result<Self, Status> {
        let connection = &call.connection;
        if connection.limits().replies.is_stalled() && !connection.may_wait_too(len) {
            return Err(Status::resource_exhausted(
                "too many replies wait for a client that does not read them",
            ));
        }
        Ok(WaitingReply::of_any_length(call, len))
    }

    /// A reply that waits whatever the limit says: for the few bytes of a status that takes a reply's place.
    pub(in crate::server) fn of_any_length(call: &'a Call, len: usize) -> Self {
        let load = Load::cost(len);
        call.connection.limits().replies.force(load);
        call.connection.server.replies.force(load);
        WaitingReply { call, _wait: call.end.enter(HandlerWait::Capacity), load }
    }

    /// Waits for capacity in the queue.
    pub(in crate::server) async fn permit(&self) -> Result<ReplyPermit<'a>, Closed> {
        self.call.connection.reserve(self.load.cost, Some(self.call.info())).await
    }
}

impl Drop for WaitingReply<'_> {
    fn drop(&mut self) {
        self.call.connection.limits().replies.release(self.load);
        self.call.connection.server.replies.release(self.load);
    }
}

/// The permission to poll a handler, which it holds while it is polled. `None` while few replies wait.
pub(in crate::server) type ResumePermit<'a> = Option<Permit<'a>>;

/// A permit for a call's handler, if it need not wait for it.
pub(in crate::server) fn try_resume(call: &Call) -> Option<ResumePermit<'_>> {
    let connection = &call.connection;
    // One that has been granted something for which others wait must be polled.
    if connection.has_no_replies() || call.end.has_waits() {
        return Some(None);
    }
    let share = connection.limits().replies.try_acquire(connection.reply_share())?;
    Some(Some(share.used()))
}

/// Waits until the handler of a call that has been admitted may begin: until the queue has capacity, and not too many
/// replies wait. Such handlers begin one at a time, each after what the one before it has replied at once is counted.
pub(in crate::server) async fn wait_to_start(call: &Call) -> ResumePermit<'_> {
    let _waiting = call.connection.registry.enter(call.info(), CallWait::Capacity);
    let _wait = call.end.enter(HandlerWait::Capacity);
    match next_with_capacity(&call.connection, &call.connection.limits().next_start).await {
        Ok(permit) => {
            // The tasks that were woken meanwhile run first: the handler may block its thread.
            give_way().await;
            permit
        }
        // A connection that has ended drops its handlers.
        Err(Closed) => pending().await,
    }
}

/// Waits until a handler may be polled again, while the client reads.
///
/// Endless streams may hold more than the limit at any time. So the first that waits goes on as well when a call might
/// begin, however much waits then, and no other does before it has been polled.
pub(in crate::server) async fn wait_to_resume(call: &Call) -> ResumePermit<'_> {
    let connection = &*call.connection;
    let _waiting = connection.registry.enter(call.info(), CallWait::Capacity);
    let _wait = call.end.enter(HandlerWait::Capacity);
    let (load, stall_timeout) = (connection.reply_share(), connection.server.config.stall_timeout);
    let is_reading = connection.queue.is_moving();
    tokio::select! {
        biased;
        share = connection.limits().replies.acquire_while_moving(load, stall_timeout, &is_reading) => {
            share.map(Permit::used)
        }
        // A connection that has ended drops its handlers.
        Ok(permit) = next_with_capacity(connection, &connection.limits().next_resume) => permit,
    }
}

/// Waits for the one permit of a limiter, and with it until a call might begin.
async fn next_with_capacity<'a>(
    connection: &'a Connection,
    limiter: &'a Limiter,
) -> Result<ResumePermit<'a>, Closed> {
    let permit = limiter.acquire(Load::one(0)).await?;
    connection.wait_for_capacity().await?;
    Ok(Some(permit.used()))
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{
        ServerConfig,
        server::tests::{idle_connection, unary_call},
    };

    fn config() -> ServerConfig {
        ServerConfig {
            reply_bytes_per_connection: 100,
            reply_bytes: 150,
            ..ServerConfig::default()
        }
    }

    #[tokio::test]
    async fn a_reply_may_wait_if_both_limits_allow_all_or_it_is_the_only_one() {
        let (_server, connection) = idle_connection(config());
        assert!(connection.may_wait_too(1000), "it is the only one");
        let call = unary_call(connection.clone(), 1);
        let waiting = WaitingReply::of_any_length(&call, 60);
        assert!(connection.may_wait_too(40) && !connection.may_wait_too(41));
        // Those of other connections.
        connection.server.replies.force(Load::cost(89));
        assert!(connection.may_wait_too(40));
        connection.server.replies.force(Load::cost(1));
        assert!(!connection.may_wait_too(1));
        drop(waiting);
        assert_eq!(connection.server.replies.load(), Load::cost(90));
    }

    #[tokio::test]
    async fn a_handler_goes_on_freely_if_nothing_waits_or_its_own_reply_does() {
        let (_server, connection) = idle_connection(config());
        let [of_call, of_another] = [1, 3].map(|id| unary_call(connection.clone(), id));
        let share = |of_call| {
            let before = connection.limits().replies.load().cost;
            let _permit = try_resume(of_call)?;
            Some(connection.limits().replies.load().cost - before)
        };
        assert_eq!(share(&of_call), Some(0));
        let waiting = WaitingReply::of_any_length(&of_another, 60);
        assert_eq!((share(&of_call), share(&of_another)), (Some(25), Some(0)));
        let permit = try_resume(&of_call).expect("there is capacity for one");
        assert_eq!((share(&of_call), share(&of_another)), (None, Some(0)), "the limit is near");
        drop(permit);
        assert_eq!(connection.limits().replies.load(), Load::cost(60));
        drop(waiting);
        assert_eq!(
            (share(&of_call), connection.limits().replies.load()),
            (Some(0), Load::default())
        );
    }

    #[tokio::test]
    async fn a_handler_that_waits_for_its_permit_holds_back_no_call() {
        let (_server, connection) = idle_connection(config());
        let call = unary_call(connection.clone(), 1);
        let _waiting = WaitingReply::of_any_length(&call, 80);
        let mut turn = pin!(connection.limits().replies.acquire(connection.reply_share()));
        assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(!connection.is_full());
        connection.limits().replies.force(Load::cost(20));
        assert!(connection.is_full());
    }

    /// Else a handler that blocks its thread would have the receiver wait for handlers without end.
    #[tokio::test]
    async fn a_permit_is_no_reply_that_the_client_does_not_read() {
        let (_server, connection) = idle_connection(config());
        connection.limits().replies.force(connection.limits().replies.limit());
        let is_unread = connection.queue.is_stuck();
        assert!(!is_unread() && !is_unread());
    }
}
