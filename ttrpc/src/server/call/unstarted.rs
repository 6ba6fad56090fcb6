//! The calls of a connection whose tasks have been spawned and have not started.
//!
//! A receiver could spawn the calls of a whole socket buffer before the first of them runs. So it gives way to the
//! runtime while [`MAX_UNSTARTED`] tasks have not started: a connection has few tasks that only wait for the runtime,
//! and one with a thousand calls does not delay one with a single call.

use std::{
    future::{Future, poll_fn},
    mem,
    task::Poll,
};

use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Calls that may be spawned before the first of them starts: what a turn of the runtime takes up easily.
const MAX_UNSTARTED: u32 = 32;

/// Counts the tasks of a connection's calls that have not started.
#[derive(Debug, Default)]
pub(in crate::server) struct Unstarted(AtomicU32);

impl Unstarted {
    /// A task is about to be spawned.
    pub(in crate::server) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// A task has started, or was dropped before. This wakes nobody: the runtime may keep what a task wakes for that
    /// task's thread, where a handler that blocks would strand it.
    pub(in crate::server) fn remove(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// Whether the receiver gives way before it acts on another frame.
    pub(in crate::server) fn is_full(&self) -> bool {
        self.0.load(Relaxed) >= MAX_UNSTARTED
    }
}

/// Lets the tasks run that are scheduled at this moment.
///
/// The task wakes itself. Unlike [`tokio::task::yield_now`], which waits until the runtime has looked at sockets and
/// timers, this leaves the task in the queue of its worker, where other workers find it.
pub(in crate::server) fn give_way() -> impl Future<Output = ()> {
    let mut has_given_way = false;
    poll_fn(move |cx| {
        if mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}
