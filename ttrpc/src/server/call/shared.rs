//! A server's connection: what its receiver, its sender and its handlers share, and how it admits calls and messages.
//!
//! Two limits admit a call, or a message to an inbox: the connection's, and after it that of the whole server. Each of
//! the two is a [`Limiter`]. What is admitted is counted at both until it is released. What is not waits in a queue while
//! something is released now and then, and is refused after [`stall_timeout`](crate::ServerConfig::stall_timeout)
//! without that.
//!
//! A connection that holds nothing always gets something: its only short call and its only message
//! pass the server's limit where others have filled it. So a few clients that hold everything shut
//! nobody out, and a limit of the server may be exceeded by one such call and one such message per
//! connection. Such calls are counted apart: otherwise they would take the capacity for which other calls
//! wait.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::server::{
    Peer, Shared,
    call::{reasons::EndReason, state::Call, task::Starts},
};
use crate::{
    Extensions,
    proto::table::ServerTable,
    snapshot::ReceiverWait,
    transport::{
        limiter::{
            Closed, Limiter, Load,
            Oversubscribe::{AnyLast, OnlyWhenEmpty},
        },
        queue::{PushPermit, Queue},
        registry::Registry,
        stall::StallBudget,
    },
};

/// A permit to push a frame into a connection's outgoing queue.
pub(in crate::server) type ReplyPermit<'a> = PushPermit<'a, ServerTable<Arc<Call>>>;

/// Limits that many connections never come near. They are boxed, so that an idle connection is small.
#[derive(Debug)]
pub(in crate::server) struct RareLimits {
    /// Counts what is in the inboxes of streams: apart from the calls, so that streams which nobody
    /// reads take no call's place.
    pub(super) inboxes: Limiter,
    /// Counts the bytes of replies that wait for capacity in the queue.
    pub(in crate::server) replies: Limiter,
    /// The one permit of the handler that resumes next whatever that limit says, or starts next after it has found the
    /// queue full.
    pub(super) permit: Limiter,
    pub(in crate::server) patience: StallBudget,
}

/// Shared by the connection's receiver, its sender and its handlers.
#[derive(Debug)]
pub(in crate::server) struct Connection {
    pub(in crate::server) server: Arc<Shared>,
    pub(in crate::server) peer: Peer,
    /// The outgoing queue and the calls that may still be answered.
    pub(in crate::server) queue: Queue<ServerTable<Arc<Call>>>,
    /// Counts calls, with what their Requests cost.
    pub(in crate::server) calls: Limiter,
    /// `None` while the connection has had neither a stream of requests nor a handler that waits.
    limits: OnceLock<Box<RareLimits>>,
    pub(in crate::server) starts: Starts,
    pub(in crate::server) registry: Registry,
    pub(in crate::server) id: u64,
    pub(in crate::server) accepted: Instant,
    pub(in crate::server) extensions: Extensions,
    /// Set when it has ended.
    pub(in crate::server) end_reason: OnceLock<EndReason>,
}

impl Connection {
    pub(in crate::server) fn new(
        server: Arc<Shared>,
        peer: Peer,
        extensions: Extensions,
        id: u64,
    ) -> Self {
        let config = &server.config;
        let (count, cost) = (config.max_calls_per_connection, config.request_bytes_per_connection);
        let calls = Load { count, cost };
        Connection {
            peer,
            queue: Queue::new(
                config.send_queue_frames,
                config.send_queue_bytes,
                ServerTable::default(),
            ),
            calls: Limiter::new(calls, AnyLast),
            limits: OnceLock::new(),
            starts: Starts::new(),
            registry: Registry::default(),
            id,
            accepted: Instant::now(),
            extensions,
            end_reason: OnceLock::new(),
            server,
        }
    }

    pub(in crate::server) fn limits(&self) -> &RareLimits {
        let config = &self.server.config;
        self.limits.get_or_init(|| {
            Box::new(RareLimits {
                inboxes: Limiter::new(Load::one(config.inbox_bytes_per_connection), AnyLast),
                replies: Limiter::new(Load::one(config.reply_bytes_per_connection), OnlyWhenEmpty),
                permit: Limiter::new(Load::one(1), AnyLast),
                patience: StallBudget::new(config.stall_timeout),
            })
        })
    }

    /// Returns whether no reply waits for capacity.
    pub(super) fn has_no_replies(&self) -> bool {
        self.limits.get().is_none_or(|limits| limits.replies.load().cost == 0)
    }

    /// Returns whether no call may begin and no frame is acted on: the queue is full, or too many replies wait.
    pub(in crate::server) fn is_full(&self) -> bool {
        self.queue.is_full_for_short() || self.has_too_many_replies()
    }

    /// Returns whether pending replies have reached the connection's limit, or the server's while this connection has
    /// some pending.
    fn has_too_many_replies(&self) -> bool {
        self.limits.get().is_some_and(|limits| {
            let (waiting, limit) = (limits.replies.load().cost, limits.replies.limit().cost);
            waiting >= limit || (waiting > 0 && self.server.replies.is_full())
        })
    }

    /// Waits until a call may begin: for capacity for a short frame and then, if too many replies wait, for a long one.
    pub(in crate::server) async fn wait_for_capacity(&self) -> Result<(), Closed> {
        self.queue.wait_for_short_capacity().await?;
        if self.has_too_many_replies() { self.queue.wait_for_long_capacity().await } else { Ok(()) }
    }

    /// Waits until every call is answered, answers written.
    pub(in crate::server) async fn answered(&self) {
        self.calls.at_most(Load::cost(usize::MAX)).await;
        self.queue.flushed().await;
    }
}

/// Cost of a call, in bytes, that is admitted for the sake of its connection.
const SHORT_CALL: usize = 4 << 10;

/// A connection's limiter, and those that it shares with all others.
#[derive(Clone, Copy)]
pub(in crate::server) struct Limits<'a> {
    connection: &'a Connection,
    own: &'a Limiter,
    all: &'a Limiter,
    /// Counts what passed the server's limit as all that its connection held.
    reserved: &'a Limiter,
    /// The most that may pass like that, in bytes.
    reserve: usize,
}

/// A load that has been admitted.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct AdmittedLoad {
    load: Load,
    is_reserved: bool,
}

impl<'a> Limits<'a> {
    fn is_short(&self, load: Load) -> bool {
        load.cost <= self.reserve
    }

    /// Admits a load if it need not wait.
    pub(in crate::server) fn try_acquire(&self, load: Load) -> Option<AdmittedLoad> {
        let own = self.own.try_acquire(load)?;
        let is_reserved = match self.all.try_acquire(load) {
            Some(all) => {
                all.into_load();
                false
            }
            None if self.is_short(load) && self.own.load().is_within(load) => {
                self.reserved.force(load);
                true
            }
            None => return None,
        };
        own.into_load();
        Some(AdmittedLoad { load, is_reserved })
    }

    /// Admits a load, waiting while others are released; `None` after `stall_timeout` without that. The time
    /// starts anew while the client does not read what it is sent.
    pub(in crate::server) async fn acquire(&self, load: Load) -> Option<AdmittedLoad> {
        let _held_up = self.connection.stall(ReceiverWait::Admission);
        let is_paused = self.connection.queue.is_stuck();
        let stall_timeout = self.connection.server.config.stall_timeout;
        let own = self.own.acquire_while_moving(load, stall_timeout, &is_paused).await?;
        let stall = |limiter: &'a Limiter| limiter.stall(stall_timeout, &is_paused);
        let is_reserved = tokio::select! {
            biased;
            // It is all that the connection holds.
            () = self.own.at_most(load), if self.is_short(load) => {
                self.reserved.force(load);
                true
            }
            Ok(all) = self.all.acquire(load) => {
                all.into_load();
                false
            }
            // Neither the others release anything nor the connection itself.
            _ = async { tokio::join!(stall(self.own), stall(self.all)) } => return None,
        };
        own.into_load();
        Some(AdmittedLoad { load, is_reserved })
    }

    /// Releases what was admitted.
    pub(in crate::server) fn release(&self, AdmittedLoad { load, is_reserved }: AdmittedLoad) {
        self.own.release(load);
        if is_reserved { self.reserved.release(load) } else { self.all.release(load) }
    }
}

impl Connection {
    pub(in crate::server) fn call_limits(&self) -> Limits<'_> {
        let (all, reserved) = (&self.server.calls, &self.server.reserved_calls);
        Limits { connection: self, own: &self.calls, all, reserved, reserve: SHORT_CALL }
    }

    /// Those of messages in inboxes. None is counted apart: handlers take them in portions of any size.
    pub(in crate::server) fn inbox_limits(&self) -> Limits<'_> {
        let (own, all) = (&self.limits().inboxes, &self.server.inboxes);
        Limits { connection: self, own, all, reserved: all, reserve: usize::MAX }
    }

    /// Returns whether the number of calls, not their bytes, has reached its limit.
    pub(in crate::server) fn is_full_of_calls(&self) -> bool {
        let is_full = |limiter: &Limiter| limiter.load().count >= limiter.limit().count;
        [&self.calls, &self.server.calls].into_iter().any(is_full)
    }

    /// Counts a message that came with its Request, which has been admitted.
    pub(in crate::server) fn force_message(&self, cost: usize) {
        self.limits().inboxes.force(Load::cost(cost));
        self.server.inboxes.force(Load::cost(cost));
    }

    /// Messages of this cost have been taken, or dropped.
    pub(in crate::server) fn release_messages(&self, cost: usize) {
        if cost > 0 {
            let load = Load::cost(cost);
            self.inbox_limits().release(AdmittedLoad { load, is_reserved: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{ServerConfig, server::tests::idle_connection};

    #[tokio::test]
    async fn a_short_call_passes_the_servers_limit_as_the_only_one_of_its_connection() {
        let (server, connection) = idle_connection(ServerConfig::default().max_calls(1));
        // That of another connection.
        connection.server.calls.force(Load::one(1));
        assert!(connection.call_limits().try_acquire(Load::one(SHORT_CALL + 1)).is_none());
        let permit = connection
            .call_limits()
            .try_acquire(Load::one(SHORT_CALL))
            .expect("it is the only one");
        assert!(connection.call_limits().try_acquire(Load::one(1)).is_none());
        assert_eq!(connection.server.call_load(), Load { count: 2, cost: SHORT_CALL + 1 });
        connection.call_limits().release(permit);
        assert_eq!(connection.server.call_load(), Load::one(1));
        drop(server);
    }

    /// Else it would keep those out who wait for the server's limit.
    #[tokio::test]
    async fn a_call_that_becomes_the_only_one_while_it_waits_is_counted_apart() {
        let (_server, connection) = idle_connection(ServerConfig::default().max_calls(1));
        let calls = &connection.server.calls;
        // That of another connection.
        calls.force(Load::one(1));
        let first = connection.call_limits().try_acquire(Load::one(1)).expect("it is the only one");
        let second_limits = connection.call_limits();
        let mut second = pin!(second_limits.acquire(Load::one(1)));
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        connection.call_limits().release(first);
        let second = second.await.expect("it is the only one now");
        assert_eq!(calls.load(), Load::one(1));
        assert_eq!(connection.server.call_load(), Load { count: 2, cost: 2 });
        connection.call_limits().release(second);
        assert_eq!(connection.server.call_load(), Load::one(1));
    }

    #[tokio::test]
    async fn messages_are_admitted_at_once_up_to_the_limit_and_counted_until_they_are_taken() {
        let config = ServerConfig { inbox_bytes_per_connection: 100, ..ServerConfig::default() };
        let (_server, connection) = idle_connection(config);
        let admits = |cost| connection.inbox_limits().try_acquire(Load::cost(cost)).is_some();
        assert!(admits(100));
        assert!(!admits(1));
        connection.release_messages(100);
        assert!(admits(1));
        assert_eq!(connection.server.inboxes.load(), Load::cost(1));
    }
}
