//! Looks after the leaders of a server's connections: a handler that blocks its thread holds up no other call of its
//! connection for long.
//!
//! The threads of the runtime may all be asleep, or in handlers. So this is a thread of its own. It runs while there are
//! leaders that have handlers begin, and ends when they have had nothing to begin for some time.

use std::{
    mem,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use tokio::runtime::Handle;

use super::leader::{Led, Sight};
use crate::{sync::Mutex, transport::lock};

/// How often a leader is looked at. A handler that is found running twice blocks its thread.
const PERIOD: Duration = Duration::from_millis(1);

/// Leaders that are looked at in this time. With more of them it takes longer, so that the looks cost little beside the
/// calls.
const LEADERS_PER_PERIOD: u32 = 64;

/// Looks in a row that find no handler that has begun, until a leader is not looked after any more.
const IDLE_LOOKS: u32 = 16;

/// The watchdog of a server.
#[derive(Default)]
pub(super) struct Watchdog(Arc<Mutex<Watched>>);

#[derive(Default)]
struct Watched {
    leaders: Vec<Watch>,
    has_thread: bool,
}

/// A leader that is looked after.
struct Watch {
    led: Weak<Led>,
    runtime: Handle,
    /// At the last look.
    sight: Sight,
    /// Looks in a row that have seen the same.
    looks: u32,
}

impl Watchdog {
    /// Looks after the leader of this connection, who asks for it. `false` if there can be no thread for that.
    pub(super) fn watch(&self, led: &Arc<Led>) -> bool {
        let mut watched = lock(&self.0);
        if !watched.has_thread {
            let state = self.0.clone();
            let thread = thread::Builder::new().name("ttrpc-watchdog".to_owned());
            if thread.spawn(move || run(&state)).is_err() {
                return false;
            }
            watched.has_thread = true;
        }
        let (runtime, sight) = (Handle::current(), Sight::Polls);
        watched.leaders.push(Watch { led: Arc::downgrade(led), runtime, sight, looks: 0 });
        true
    }
}

/// Looks at the leaders until there are none.
fn run(watched: &Mutex<Watched>) {
    let mut leaders = Vec::new();
    loop {
        let count = u32::try_from(leaders.len()).unwrap_or(u32::MAX);
        thread::sleep(PERIOD * (1 + count / LEADERS_PER_PERIOD));
        leaders.append(&mut lock(watched).leaders);
        leaders.retain_mut(Watch::look);
        let mut watched = lock(watched);
        if leaders.is_empty() && watched.leaders.is_empty() {
            watched.has_thread = false;
            watched.leaders = Vec::new();
            return;
        }
    }
}

impl Watch {
    /// Looks at the leader, and has another one take over from it if a handler blocks its thread. Returns whether it is to
    /// be looked at again.
    fn look(&mut self) -> bool {
        // What goes with the last holder of a connection may need the runtime.
        let _runtime = self.runtime.enter();
        let Some(led) = self.led.upgrade() else { return false };
        let is_idle = self.looks == IDLE_LOOKS && matches!(self.sight, Sight::Waits(_));
        let idle = is_idle.then_some(self.sight);
        let sight = led.look(idle);
        let is_same = mem::replace(&mut self.sight, sight) == sight;
        self.looks = if is_same { self.looks + 1 } else { 0 };
        if let (Sight::Runs(handler), true) = (sight, is_same)
            && let Some(leader) = led.replace_leader(handler)
        {
            // A runtime that has ended drops the task at once.
            self.runtime.spawn(leader);
        }
        idle != Some(sight)
    }
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watchdog").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::mpsc,
        task::{Context, Waker},
    };

    use super::*;
    use crate::server::leader::tests::{call, leader};

    fn watch(led: &Arc<Led>) -> Watch {
        Watch {
            led: Arc::downgrade(led),
            runtime: Handle::current(),
            sight: Sight::Polls,
            looks: 0,
        }
    }

    #[tokio::test]
    async fn a_leader_is_looked_after_until_it_has_had_nothing_to_begin_for_some_time() {
        let (_server, led, mut leader) = leader([call(|| ()), call(|| ())]);
        let mut poll = || Pin::new(&mut leader).poll(&mut Context::from_waker(Waker::noop()));
        let mut watch = watch(&led);
        assert!(poll().is_pending());
        for _ in 0..2 {
            assert!(poll().is_pending());
            for _ in 0..=IDLE_LOOKS {
                assert!(watch.look() && led.is_watched());
            }
        }
        assert!(!watch.look() && !led.is_watched());
    }

    #[tokio::test]
    async fn one_that_has_ended_is_not_looked_after() {
        let (_server, led, leader) = leader([]);
        let mut watch = watch(&led);
        drop((led, leader));
        assert!(!watch.look());
    }

    /// The thread is the test's: the handler blocks it, and goes on when another one has led.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_handler_that_blocks_its_thread_is_found_and_the_next_one_begins_elsewhere() {
        let (tell, told) = mpsc::channel();
        let blocks = move || told.recv().expect("the next one begins");
        let (server, led, mut leader) =
            leader([call(blocks), call(move || tell.send(()).unwrap())]);
        led.set_watched(false);
        let mut poll = || Pin::new(&mut leader).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert!(poll().is_ready());
        drop((server, led));
    }
}
