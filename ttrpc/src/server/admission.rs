//! Letting calls and messages in: a connection's limit, and behind it the limit of the whole server.
//!
//! Each of the two is a [`Limiter`]. What passes is counted at both until it is released; what does
//! not waits in line as long as something is released now and then, and is refused after
//! [`stall_timeout`](crate::ServerConfig::stall_timeout) without that.
//!
//! A connection that holds nothing always gets something: its only short call and its only message
//! pass the server's limit even where others have filled it. So a few clients that hold everything
//! shut nobody out, and a limit of the server may be passed by one such call and one such message per
//! connection.

use std::time::Duration;

use super::connection::Connection;
use crate::{
    snapshot::ReceiverWait,
    transport::limiter::{Limiter, Load, Refused},
};

/// Cost of a call, in bytes, that is let in for the sake of its connection.
const SHORT_CALL: usize = 4 << 10;

/// A connection's limiter, and the one that it shares with all others.
#[derive(Clone, Copy)]
struct Pair<'a> {
    own: &'a Limiter,
    all: &'a Limiter,
    /// What passes if it is all that the connection holds.
    reserve: Load,
}

impl Pair<'_> {
    fn is_reserved(&self, load: Load) -> bool {
        let held = self.own.load();
        let is_short = load.cost <= self.reserve.cost;
        is_short && held.count <= self.reserve.count && held.cost <= load.cost
    }

    fn try_acquire(&self, load: Load) -> bool {
        let Some(own) = self.own.try_acquire(load) else { return false };
        if self.is_reserved(load) {
            self.all.force(load);
        } else {
            let Some(all) = self.all.try_acquire(load) else { return false };
            all.into_load();
        }
        own.into_load();
        true
    }

    async fn acquire(
        &self,
        load: Load,
        stall_timeout: Duration,
        is_paused: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Refused> {
        let own = self.own.acquire_while_moving(load, stall_timeout, is_paused).await?;
        let is_short = load.cost <= self.reserve.cost;
        let only = Load { count: self.reserve.count, cost: load.cost };
        tokio::select! {
            biased;
            () = self.own.at_most(only), if is_short => self.all.force(load),
            all = self.all.acquire_while_moving(load, stall_timeout, is_paused) => {
                all?.into_load();
            }
        }
        own.into_load();
        Ok(())
    }

    fn force(&self, load: Load) {
        self.own.force(load);
        self.all.force(load);
    }

    fn release(&self, load: Load) {
        self.own.release(load);
        self.all.release(load);
    }
}

impl Connection {
    fn call_limits(&self) -> Pair<'_> {
        let reserve = Load { count: 1, cost: SHORT_CALL };
        Pair { own: &self.calls, all: &self.server.calls, reserve }
    }

    fn inbox_limits(&self) -> Pair<'_> {
        let reserve = Load::cost(usize::MAX);
        Pair { own: &self.inboxes, all: &self.server.inboxes, reserve }
    }

    /// Lets a call in if it need not wait.
    pub(super) fn try_admit_call(&self, load: Load) -> Option<CallPermit<'_>> {
        let is_admitted = self.call_limits().try_acquire(load);
        is_admitted.then(|| CallPermit::new(self, load))
    }

    /// Lets a call in, waiting for others to end.
    pub(super) async fn admit_call(&self, load: Load) -> Result<CallPermit<'_>, Refused> {
        self.admit(self.call_limits(), load).await?;
        Ok(CallPermit::new(self, load))
    }

    /// Takes back what a [`CallPermit`] let in.
    pub(super) fn release_call(&self, load: Load) {
        self.call_limits().release(load);
    }

    /// Whether it is the number of calls, and not their bytes, that leaves no room for a call.
    pub(super) fn is_full_of_calls(&self) -> bool {
        let is_full = |limiter: &Limiter| limiter.load().count >= limiter.limit().count;
        [&self.calls, &self.server.calls].into_iter().any(is_full)
    }

    /// Lets a message of this cost into an inbox if it need not wait.
    pub(super) fn try_admit_message(&self, cost: usize) -> bool {
        self.inbox_limits().try_acquire(Load::cost(cost))
    }

    /// Lets a message of this cost into an inbox, waiting for handlers to take others.
    pub(super) async fn admit_message(&self, cost: usize) -> Result<(), Refused> {
        let load = Load::cost(cost);
        if self.inbox_limits().try_acquire(load) {
            return Ok(());
        }
        self.admit(self.inbox_limits(), load).await
    }

    /// Counts a message that came with its Request, which has been let in.
    pub(super) fn force_message(&self, cost: usize) {
        self.inbox_limits().force(Load::cost(cost));
    }

    /// Messages of this cost have been taken, or dropped.
    pub(super) fn release_messages(&self, cost: usize) {
        if cost > 0 {
            self.inbox_limits().release(Load::cost(cost));
        }
    }

    /// Time during which the client does not read what it is sent does not count against handlers.
    async fn admit(&self, limits: Pair<'_>, load: Load) -> Result<(), Refused> {
        let _held_up = self.registry.hold_up(ReceiverWait::Admission);
        let is_paused = || self.queue.is_full();
        limits.acquire(load, self.server.config.stall_timeout, &is_paused).await
    }
}

/// A call that is counted until this is dropped, or until the call's driver releases it.
#[derive(Debug)]
pub(super) struct CallPermit<'a> {
    connection: &'a Connection,
    load: Load,
}

impl<'a> CallPermit<'a> {
    fn new(connection: &'a Connection, load: Load) -> Self {
        CallPermit { connection, load }
    }

    /// Leaves it to the caller to release the load.
    pub(super) fn into_load(self) -> Load {
        let load = self.load;
        std::mem::forget(self);
        load
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        self.connection.release_call(self.load);
    }
}
