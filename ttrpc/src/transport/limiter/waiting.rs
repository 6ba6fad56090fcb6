//! The waiters of a [`Limiter`]: their queue, and what a release does for them.

use std::{
    collections::BTreeMap,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{CLOSED, Closed, Limiter, Load, Permit, STALLED, WAITING, WATCHED};
use crate::{
    contain::{notify_waiters, wake_all},
    sync::{MutexGuard, atomic::Ordering::AcqRel},
};

/// The waiters, and what they have to know of releases.
#[derive(Debug, Default)]
pub(super) struct WaiterQueue {
    /// By ticket, so in the order in which they came. It takes no memory while it is empty, and a waiter
    /// leaves it as easily in the middle as at the front.
    waiters: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    watchers: usize,
    /// Releases that found a flag set.
    pub(super) releases: u64,
}

#[derive(Debug)]
struct Waiter {
    load: Load,
    /// `None` once it has been woken for the end.
    waker: Option<Waker>,
}

impl Limiter {
    #[cold]
    pub(super) fn note_release(&self) {
        let mut queue = self.queue();
        queue.releases += 1;
        self.used.fetch_and(!STALLED, AcqRel);
        self.note_room(queue);
    }

    /// A load that was granted is not used.
    #[cold]
    pub(super) fn note_unused(&self) {
        self.note_room(self.queue());
    }

    fn note_room(&self, queue: MutexGuard<'_, WaiterQueue>) {
        let is_watched = queue.watchers > 0;
        self.grant(queue);
        if is_watched {
            notify_waiters(&self.line().released);
        }
    }

    /// Lets in the first waiters that fit, and wakes them without the lock.
    fn grant(&self, mut queue: MutexGuard<'_, WaiterQueue>) {
        let mut granted = Vec::new();
        while let Some(first) = queue.waiters.first_entry()
            && self.add(first.get().load, true)
        {
            granted.extend(first.remove().waker);
        }
        self.unmark(queue);
        wake_all(granted);
    }

    /// Ends a change of the queue, in which no waiter may be left.
    fn unmark(&self, queue: MutexGuard<'_, WaiterQueue>) {
        if queue.waiters.is_empty() {
            self.used.fetch_and(!WAITING, AcqRel);
        }
        drop(queue);
    }

    /// Notes that a wait was in vain, unless something has been released after all.
    pub(in crate::transport) fn note_stall(&self, releases: u64) -> bool {
        let queue = self.queue();
        let is_stalled = queue.releases == releases;
        if is_stalled {
            self.used.fetch_or(STALLED, AcqRel);
        }
        is_stalled
    }

    /// Nothing is granted any more, and all waiters are woken.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        self.used.fetch_or(CLOSED, AcqRel);
        let waiters = queue.waiters.values_mut();
        let wakers: Vec<_> = waiters.filter_map(|waiter| waiter.waker.take()).collect();
        drop(queue);
        wake_all(wakers);
    }
}

/// Marks the limiter as watched until it is dropped.
pub(super) struct Watch<'a>(&'a Limiter);

impl<'a> Watch<'a> {
    pub(super) fn new(limiter: &'a Limiter) -> Self {
        limiter.queue().watchers += 1;
        limiter.used.fetch_or(WATCHED, AcqRel);
        Watch(limiter)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.watchers -= 1;
        if queue.watchers == 0 {
            self.0.used.fetch_and(!WATCHED, AcqRel);
        }
    }
}

/// A waiter, which enters the queue when it is first polled.
pub(super) struct Waiting<'a> {
    limiter: &'a Limiter,
    load: Load,
    /// `None` before the first poll and after the end.
    ticket: Option<u64>,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(limiter: &'a Limiter, load: Load) -> Self {
        Waiting { limiter, load, ticket: None }
    }

    /// Enters the queue. `Some` if it need not wait.
    fn enter(&mut self, waker: Waker) -> Option<Result<Permit<'a>, Closed>> {
        let (limiter, load) = (self.limiter, self.load);
        let mut queue = limiter.queue();
        // From here on a release is noticed.
        limiter.used.fetch_or(WAITING, AcqRel);
        // There may have been a release since it was found full.
        let is_granted = queue.waiters.is_empty() && limiter.add(load, true);
        if is_granted || limiter.is_closed() {
            limiter.unmark(queue);
            return Some(if is_granted { Ok(Permit { limiter, load }) } else { Err(Closed) });
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiters.insert(ticket, Waiter { load, waker: Some(waker) });
        self.ticket = Some(ticket);
        None
    }
}

impl<'a> Future for Waiting<'a> {
    type Output = Result<Permit<'a>, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (limiter, load) = (self.limiter, self.load);
        let mut waker = Some(cx.waker().clone());
        let Some(ticket) = self.ticket else {
            let entered = waker.take().and_then(|waker| self.enter(waker));
            return entered.map_or(Poll::Pending, Poll::Ready);
        };
        let mut queue = limiter.queue();
        let Some(waiter) = queue.waiters.get_mut(&ticket) else {
            self.ticket = None;
            return Poll::Ready(Ok(Permit { limiter, load }));
        };
        if limiter.is_closed() {
            let waiter = queue.waiters.remove(&ticket);
            limiter.unmark(queue);
            drop(waiter);
            self.ticket = None;
            return Poll::Ready(Err(Closed));
        }
        mem::swap(&mut waiter.waker, &mut waker);
        drop(queue);
        // What was there before is dropped without the lock.
        drop(waker);
        Poll::Pending
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let limiter = self.limiter;
        let mut queue = limiter.queue();
        let waiter = queue.waiters.remove(&ticket);
        match &waiter {
            // The next one may need less.
            Some(_) => limiter.grant(queue),
            None => {
                drop(queue);
                limiter.release(self.load);
            }
        }
    }
}
