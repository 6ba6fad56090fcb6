//! Letting calls and messages in: a connection's limit, and behind it the limit of the whole server.
//!
//! Each of the two is a [`Limiter`]. What passes is counted at both until it is released; what does
//! not waits in line as long as something is released now and then, and is refused after
//! [`stall_timeout`](crate::ServerConfig::stall_timeout) without that.
//!
//! A connection that holds nothing always gets something: its only short call and its only message
//! pass the server's limit where others have filled it. So a few clients that hold everything shut
//! nobody out, and a limit of the server may be passed by one such call and one such message per
//! connection. Such calls are counted apart: else they would keep those out who wait in line.

use std::time::Duration;

use crate::server::call::shared::Connection;
use crate::{
    snapshot::ReceiverWait,
    transport::{
        limiter::{Limiter, Load, Refused},
        stall::Condition,
    },
};

/// Cost of a call, in bytes, that is let in for the sake of its connection.
const SHORT_CALL: usize = 4 << 10;

/// A connection's limiter, and those that it shares with all others.
#[derive(Clone, Copy)]
struct Limits<'a> {
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

    fn try_acquire(&self, load: Load) -> Option<AdmittedLoad> {
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

    async fn acquire(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: Condition<'a, bool>,
    ) -> Result<AdmittedLoad, Refused> {
        let own = self.own.acquire_while_moving(load, stall_timeout, is_paused).await?;
        let stall = |limiter: &'a Limiter| limiter.stall(stall_timeout, is_paused);
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
            _ = async { tokio::join!(stall(self.own), stall(self.all)) } => return Err(Refused::Stalled),
        };
        own.into_load();
        Ok(AdmittedLoad { load, is_reserved })
    }

    fn release(&self, AdmittedLoad { load, is_reserved }: AdmittedLoad) {
        self.own.release(load);
        if is_reserved { self.reserved.release(load) } else { self.all.release(load) }
    }
}

impl Connection {
    fn call_limits(&self) -> Limits<'_> {
        let (all, reserved) = (&self.server.calls, &self.server.reserved_calls);
        Limits { own: &self.calls, all, reserved, reserve: SHORT_CALL }
    }

    /// Messages are not counted apart: handlers take them in portions of any size.
    fn inbox_limits(&self) -> Limits<'_> {
        let all = &self.server.inboxes;
        Limits { own: &self.limits().inboxes, all, reserved: all, reserve: usize::MAX }
    }

    /// Lets a call in if it need not wait.
    pub(in crate::server) fn try_admit_call(&self, load: Load) -> Option<AdmittedLoad> {
        self.call_limits().try_acquire(load)
    }

    /// Lets a call in, waiting for others to end.
    pub(in crate::server) async fn admit_call(&self, load: Load) -> Result<AdmittedLoad, Refused> {
        self.admit(self.call_limits(), load).await
    }

    /// Releases the load of a call that was admitted.
    pub(in crate::server) fn release_call(&self, admitted: AdmittedLoad) {
        self.call_limits().release(admitted);
    }

    /// Returns whether the number of calls, not their bytes, has reached its limit.
    pub(in crate::server) fn is_full_of_calls(&self) -> bool {
        let is_full = |limiter: &Limiter| limiter.load().count >= limiter.limit().count;
        [&self.calls, &self.server.calls].into_iter().any(is_full)
    }

    /// Lets a message of this cost into an inbox if it need not wait.
    pub(in crate::server) fn try_admit_message(&self, cost: usize) -> bool {
        self.inbox_limits().try_acquire(Load::cost(cost)).is_some()
    }

    /// Lets a message of this cost into an inbox, waiting for handlers to take others.
    pub(in crate::server) async fn admit_message(&self, cost: usize) -> Result<(), Refused> {
        if self.try_admit_message(cost) {
            return Ok(());
        }
        self.admit(self.inbox_limits(), Load::cost(cost)).await.map(drop)
    }

    /// Counts a message that came with its Request, which has been let in.
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

    /// Time during which the client does not read what it is sent does not count against handlers.
    async fn admit(&self, limits: Limits<'_>, load: Load) -> Result<AdmittedLoad, Refused> {
        let _held_up = self.stall(ReceiverWait::Admission);
        let is_paused = self.is_unread();
        limits.acquire(load, self.server.config.stall_timeout, &is_paused).await
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
        assert!(connection.try_admit_call(Load::one(SHORT_CALL + 1)).is_none());
        let permit = connection.try_admit_call(Load::one(SHORT_CALL)).expect("it is the only one");
        assert!(connection.try_admit_call(Load::one(1)).is_none());
        assert_eq!(connection.server.call_load(), Load { count: 2, cost: SHORT_CALL + 1 });
        connection.release_call(permit);
        assert_eq!(connection.server.call_load(), Load::one(1));
        drop(server);
    }

    /// Else it would keep those out who wait for the server's limit in line.
    #[tokio::test]
    async fn a_call_that_becomes_the_only_one_while_it_waits_is_counted_apart() {
        let (_server, connection) = idle_connection(ServerConfig::default().max_calls(1));
        let calls = &connection.server.calls;
        // That of another connection.
        calls.force(Load::one(1));
        let first = connection.try_admit_call(Load::one(1)).expect("it is the only one");
        let mut second = pin!(connection.admit_call(Load::one(1)));
        assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        connection.release_call(first);
        let second = second.await.expect("it is the only one now");
        assert_eq!(calls.load(), Load::one(1));
        assert_eq!(connection.server.call_load(), Load { count: 2, cost: 2 });
        connection.release_call(second);
        assert_eq!(connection.server.call_load(), Load::one(1));
    }

    #[tokio::test]
    async fn messages_are_let_in_at_once_up_to_the_limit_and_counted_until_they_are_taken() {
        let config = ServerConfig { inbox_bytes_per_connection: 100, ..ServerConfig::default() };
        let (_server, connection) = idle_connection(config);
        assert!(connection.try_admit_message(100));
        assert!(!connection.try_admit_message(1));
        connection.release_messages(100);
        assert!(connection.try_admit_message(1));
        assert_eq!(connection.server.inboxes.load(), Load::cost(1));
    }
}
