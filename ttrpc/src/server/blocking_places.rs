//! Permits to run a blocking handler: a bounded number, shared fairly by connections.
//!
//! Connections that run no handler come first, in order of arrival. Those that run some follow in rotation, one call
//! each. A part of the permits is for connections that run none, so that one client whose handlers never end does not
//! shut the others out. A wait without progress is refused, see [`stall`](crate::transport::stall).

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use crate::{
    contain::{contain, notify_waiters},
    sync::Mutex,
    transport::{lock, stall::stalled, wait_until},
};

/// One permit in so many is for connections that run no handler.
const RESERVED_PART: usize = 4;

/// The permits of a server's blocking handlers.
#[derive(Debug)]
pub(super) struct BlockingPermits {
    max: usize,
    /// Those that connections may take beyond their first.
    max_further: usize,
    state: Mutex<State>,
    /// Notified when no permit is taken any more.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Connections that have or await a permit, by their ids.
    connections: HashMap<u64, Connection>,
    /// Connections of which a call waits, in the order in which they get a permit. Those that run none come first.
    queue: BTreeMap<Position, u64>,
    next_ticket: u64,
    /// Connections that run a handler.
    running: usize,
    first: Progress,
    further: Progress,
}

/// The progress of handlers, as far as waiters depend on it.
#[derive(Debug, Default)]
struct Progress {
    /// Handlers that have ended and whose permits the waiters might have got.
    ends: u64,
    /// A wait was without progress, and there has been none since.
    is_stalled: bool,
}

impl Progress {
    fn note_end(&mut self) {
        self.ends += 1;
        self.is_stalled = false;
    }
}

/// A position in the queue: whether the connection runs a handler, and a ticket.
type Position = (bool, u64);

#[derive(Debug, Default)]
struct Connection {
    running: usize,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    position: Option<Position>,
}

/// No permit has become free in time.
#[derive(Debug, PartialEq)]
pub(super) struct Stalled;

/// A permit that no handler uses yet. Dropped, it goes to another call.
#[derive(Debug)]
pub(super) struct UnusedPermit<'a> {
    permits: &'a BlockingPermits,
    connection: u64,
}

impl UnusedPermit<'_> {
    /// Leaves it to the caller to release it.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnusedPermit<'_> {
    /// A permit that was not used is no progress for waiters.
    fn drop(&mut self) {
        self.permits.leave(self.connection, false);
    }
}

impl BlockingPermits {
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1);
        // With its first, a connection has no more than what is not reserved.
        let max_further = max - max / RESERVED_PART - 1;
        BlockingPermits { max, max_further, state: Mutex::default(), emptied: Notify::new() }
    }

    /// Waits until no handler runs.
    pub(super) async fn emptied(&self) {
        wait_until(&self.emptied, &|| lock(&self.state).taken == 0).await;
    }

    /// Returns a permit for a call of this connection, if one is free and no other call waits for it.
    pub(super) fn try_take(&self, connection: u64) -> Option<UnusedPermit<'_>> {
        let mut state = lock(&self.state);
        let is_first = state.running_of(connection) == 0;
        let is_next = match state.queue.first_key_value() {
            None => true,
            // Those that run some come after one that runs none.
            Some((&(runs_some, _), _)) => is_first && runs_some,
        };
        (is_next && self.is_free(&state, is_first)).then(|| {
            state.take(connection);
            UnusedPermit { permits: self, connection }
        })
    }

    /// Waits for a permit while other handlers end.
    ///
    /// # Errors
    /// If no handler has ended for `stall_timeout`, and at once from then on until one does.
    ///
    /// Cancel safe: dropped, it leaves the queue, or returns the permit that it had been granted.
    pub(super) async fn take(
        &self,
        connection: u64,
        stall_timeout: Duration,
    ) -> Result<UnusedPermit<'_>, Stalled> {
        if let Some(permit) = self.try_take(connection) {
            return Ok(permit);
        }
        let mut waiter = Waiter::new(self, connection).ok_or(Stalled)?;
        let ends = || {
            let mut state = lock(&self.state);
            state.progress(connection).ends
        };
        loop {
            tokio::select! {
                biased;
                _ = &mut waiter.granted => return Ok(waiter.into_permit()),
                seen = stalled(stall_timeout, &ends, &|| false) => {
                    let mut state = lock(&self.state);
                    let progress = state.progress(connection);
                    if progress.ends == seen {
                        progress.is_stalled = true;
                        drop(state);
                        return Err(Stalled);
                    }
                }
            }
        }
    }

    /// A handler of this connection has ended.
    pub(super) fn release(&self, connection: u64) {
        self.leave(connection, true);
    }

    fn leave(&self, connection: u64, is_end: bool) {
        let mut state = lock(&self.state);
        if is_end {
            state.first.note_end();
            if state.running_of(connection) > 1 || state.further() < self.max_further {
                state.further.note_end();
            }
        }
        state.taken -= 1;
        let entry = state.connections.get_mut(&connection).expect("it has a permit");
        entry.running -= 1;
        if entry.running == 0 {
            state.running -= 1;
        }
        state.list(connection, false);
        let granted = self.grant(&mut state);
        let is_empty = state.taken == 0;
        drop(state);
        wake_granted(granted);
        if is_empty {
            notify_waiters(&self.emptied);
        }
    }

    fn is_free(&self, state: &State, is_first: bool) -> bool {
        state.taken < self.max && (is_first || state.further() < self.max_further)
    }

    /// Grants what is free to the first waiters. Returns them, to be woken.
    fn grant(&self, state: &mut State) -> Vec<oneshot::Sender<()>> {
        let mut granted = Vec::new();
        while let Some((&(runs_some, _), &connection)) = state.queue.first_key_value()
            && self.is_free(state, !runs_some)
        {
            let entry = state.connections.get_mut(&connection).expect("it is listed");
            let (_, waiter) = entry.waiting.pop_first().expect("a listed connection waits");
            granted.push(waiter);
            state.take(connection);
        }
        granted
    }
}

impl State {
    fn running_of(&self, connection: u64) -> usize {
        self.connections.get(&connection).map_or(0, |connection| connection.running)
    }

    /// Permits that connections have beyond their first.
    fn further(&self) -> usize {
        self.taken - self.running
    }

    fn progress(&mut self, connection: u64) -> &mut Progress {
        if self.running_of(connection) == 0 { &mut self.first } else { &mut self.further }
    }

    fn take(&mut self, connection: u64) {
        self.taken += 1;
        let entry = self.connections.entry(connection).or_default();
        if entry.running == 0 {
            self.running += 1;
        }
        entry.running += 1;
        self.list(connection, true);
    }

    /// Puts a connection where it belongs in the queue: at its end if it has got a permit, or has just come.
    fn list(&mut self, connection: u64, has_got_permit: bool) {
        let Some(entry) = self.connections.get_mut(&connection) else { return };
        let before = entry.position.take();
        if let Some(position) = before {
            self.queue.remove(&position);
        }
        if !entry.waiting.is_empty() {
            let ticket = before.filter(|_| !has_got_permit).map(|(_, ticket)| ticket);
            let position = (entry.running > 0, ticket.unwrap_or(self.next_ticket));
            self.next_ticket += 1;
            entry.position = Some(position);
            self.queue.insert(position, connection);
        } else if entry.running == 0 {
            self.connections.remove(&connection);
        }
    }
}

/// A call that waits. Dropped, it leaves the queue.
struct Waiter<'a> {
    permits: &'a BlockingPermits,
    connection: u64,
    ticket: u64,
    granted: oneshot::Receiver<()>,
    /// What it was granted belongs to its [`UnusedPermit`].
    is_used: bool,
}

impl<'a> Waiter<'a> {
    /// `None` if waits are without progress.
    fn new(permits: &'a BlockingPermits, connection: u64) -> Option<Self> {
        let mut state = lock(&permits.state);
        if state.progress(connection).is_stalled {
            return None;
        }
        let (sender, granted) = oneshot::channel();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let entry = state.connections.entry(connection).or_default();
        entry.waiting.insert(ticket, sender);
        if entry.position.is_none() {
            state.list(connection, false);
        }
        // A permit may have become free since the last look.
        let granted_now = permits.grant(&mut state);
        drop(state);
        wake_granted(granted_now);
        Some(Waiter { permits, connection, ticket, granted, is_used: false })
    }

    /// Returns the permit that was granted.
    fn into_permit(mut self) -> UnusedPermit<'a> {
        self.is_used = true;
        UnusedPermit { permits: self.permits, connection: self.connection }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        let mut state = lock(&self.permits.state);
        let entry = state.connections.get_mut(&self.connection);
        if entry.is_some_and(|entry| entry.waiting.remove(&self.ticket).is_some()) {
            state.list(self.connection, false);
        } else {
            // It was granted a permit that it does not use.
            drop(state);
            self.permits.leave(self.connection, false);
        }
    }
}

/// Wakes waiters that were granted a permit, without the lock: their wakers are the program's.
fn wake_granted(granted: Vec<oneshot::Sender<()>>) {
    for waiter in granted {
        // One that goes at this moment finds that it was granted.
        let _ = contain(|| waiter.send(()));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future, poll_fn},
        pin::{Pin, pin},
        task::Poll,
    };

    use tokio::{
        task::yield_now,
        time::{Instant, advance, timeout},
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn is_ready<F: Future>(future: &mut Pin<&mut F>) -> bool {
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
    }

    fn run(permits: &BlockingPermits, connection: u64) -> bool {
        permits.try_take(connection).map(UnusedPermit::forget).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_run_than_may_however_many_connections_there_are() {
        let permits = BlockingPermits::new(8);
        let running = (1..=700).filter(|connection| run(&permits, *connection)).count();
        assert_eq!(running, 8);
        let refused = timeout(2 * SECOND, permits.take(701, SECOND)).await;
        assert_eq!(refused.expect("it is refused in time").err(), Some(Stalled));
        assert_eq!(permits.take(702, SECOND).await.err(), Some(Stalled), "at once");
        permits.release(1);
        permits.take(703, SECOND).await.expect("a permit is free").forget();
        assert_eq!(lock(&permits.state).taken, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_leaves_a_part_of_the_permits_to_others() {
        let permits = BlockingPermits::new(8);
        assert_eq!((0..8).filter(|_| run(&permits, 1)).count(), 6);
        assert!(run(&permits, 2) && !run(&permits, 2) && run(&permits, 3) && !run(&permits, 4));
        assert_eq!(permits.take(1, SECOND).await.err(), Some(Stalled));
        // Others that come and go are no progress for it.
        permits.release(2);
        assert!(run(&permits, 2));
        assert_eq!(time_until_stalled(&permits, 1).await, Duration::ZERO);
        // One of its own, and another one with which there would have been a permit for it, are.
        permits.release(1);
        assert!(run(&permits, 4));
        assert_eq!(time_until_stalled(&permits, 1).await, SECOND);
        permits.release(4);
        assert!(run(&permits, 5));
        assert_eq!(time_until_stalled(&permits, 1).await, SECOND);
    }

    async fn time_until_stalled(permits: &BlockingPermits, connection: u64) -> Duration {
        let start = Instant::now();
        assert_eq!(permits.take(connection, SECOND).await.err(), Some(Stalled));
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_run_some_get_further_permits_in_rotation() {
        let permits = BlockingPermits::new(8);
        assert!(run(&permits, 1) && run(&permits, 2) && (0..6).all(|_| run(&permits, 3)));
        let granted = Mutex::new(Vec::new());
        let waits = |name, connection| {
            let (permits, granted) = (&permits, &granted);
            async move {
                permits.take(connection, 9 * SECOND).await.expect("others end").forget();
                lock(granted).push(name);
            }
        };
        let ends = async {
            for count in 0..4 {
                while lock(&granted).len() < count {
                    yield_now().await;
                }
                permits.release(3);
            }
        };
        tokio::join!(waits("1a", 1), waits("1b", 1), waits("2a", 2), waits("2b", 2), ends);
        assert_eq!(*lock(&granted), ["1a", "2a", "1b", "2b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_runs_none_comes_first_and_others_follow_in_rotation() {
        let permits = BlockingPermits::new(2);
        assert!(run(&permits, 1) && run(&permits, 1));
        let mut further = [pin!(permits.take(1, 9 * SECOND)), pin!(permits.take(1, 9 * SECOND))];
        let mut first = pin!(permits.take(2, 9 * SECOND));
        let mut second = pin!(permits.take(2, 9 * SECOND));
        for waiting in &mut further {
            assert!(!is_ready(waiting).await);
        }
        assert!(!is_ready(&mut first).await && !is_ready(&mut second).await);
        assert!(!run(&permits, 1), "others wait");
        permits.release(1);
        first.await.expect("it runs none, and comes first").forget();
        assert!(!is_ready(&mut further[0]).await && !is_ready(&mut second).await);
        permits.release(1);
        // Now it is the other connection that runs none.
        let [first_further, mut second_further] = further;
        first_further.await.expect("it comes first").forget();
        permits.release(1);
        second_further.as_mut().await.expect("its connection runs none again").forget();
        assert!(!is_ready(&mut second).await);
        permits.release(2);
        second.await.expect("nobody else waits").forget();
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_goes_leaves_its_permit_to_the_next() {
        let permits = BlockingPermits::new(1);
        assert!(run(&permits, 1));
        {
            let mut gone = pin!(permits.take(2, 9 * SECOND));
            assert!(!is_ready(&mut gone).await);
        }
        let mut next = Box::pin(permits.take(3, 9 * SECOND));
        let mut last = pin!(permits.take(4, 9 * SECOND));
        assert!(!is_ready(&mut next.as_mut()).await && !is_ready(&mut last).await);
        permits.release(1);
        // It was granted the permit and does not use it.
        drop(next);
        drop(last.await.expect("it comes next"));
        let state = lock(&permits.state);
        assert!(state.connections.is_empty() && state.queue.is_empty());
        assert_eq!((state.taken, state.running), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_while_others_end() {
        let permits = BlockingPermits::new(1);
        assert!(run(&permits, 1));
        let mut waits = pin!(permits.take(2, SECOND));
        for _ in 0..5 {
            assert!(!is_ready(&mut waits).await);
            advance(SECOND / 2).await;
            // Another one ends and begins.
            lock(&permits.state).first.note_end();
        }
        assert_eq!(waits.await.err(), Some(Stalled));
    }

    #[tokio::test(start_paused = true)]
    async fn no_permit_is_taken_when_no_handler_runs() {
        let permits = BlockingPermits::new(1);
        permits.emptied().await;
        assert!(run(&permits, 1));
        let mut emptied = pin!(permits.emptied());
        assert!(!is_ready(&mut emptied).await);
        permits.release(1);
        emptied.await;
    }
}
