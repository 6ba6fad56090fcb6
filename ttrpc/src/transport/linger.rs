//! How long the sender lingers before it writes a batch.
//!
//! Requests of callers that were just answered cost a system call less if they join the batch of what
//! is queued already. So producers that were just woken are *announced*, and the sender steps back behind the tasks that are
//! scheduled, as long as the number of announced producers falls, for [`MAX_LINGER`] at most. A lone
//! call is not delayed, since nothing else is announced.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// For how long the sender steps back, not counting the last step: what a few hundred callers take.
const MAX_LINGER: Duration = Duration::from_micros(300);

/// Producers that will probably push soon. Only a hint: no order of it with anything else matters.
#[derive(Debug, Default)]
pub(crate) struct Announced(AtomicUsize);

impl Announced {
    /// So many tasks were woken that will probably push soon.
    pub(crate) fn announce(&self, count: usize) {
        if count > 0 {
            self.0.fetch_add(count, Relaxed);
        }
    }

    /// So many announced tasks have run, or never will.
    pub(crate) fn retract(&self, count: usize) {
        if count > 0 {
            self.0.fetch_sub(count, Relaxed);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// The sender's steps back before one batch.
#[derive(Default)]
pub(super) struct Linger {
    first: Option<Instant>,
    /// Producers that were announced at the last step.
    announced: Option<usize>,
}

impl Linger {
    /// Whether to step back once more.
    pub(super) fn is_worth_it(&mut self, announced: &Announced) -> bool {
        let announced = announced.count();
        announced > 0
            && self.announced.replace(announced).is_none_or(|before| announced < before)
            && self.first.get_or_insert_with(Instant::now).elapsed() <= MAX_LINGER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sender_lingers_as_long_as_announced_producers_become_fewer_and_not_for_long() {
        let announced = Announced::default();
        assert!(!Linger::default().is_worth_it(&announced), "there is nobody to wait for");
        (0..4).for_each(|_| announced.announce(1));
        assert_eq!(announced.count(), 4);
        let mut linger = Linger::default();
        assert!(linger.is_worth_it(&announced));
        assert!(!linger.is_worth_it(&announced), "nobody has run");
        announced.retract(1);
        assert!(linger.is_worth_it(&announced));
        announced.announce(1);
        assert!(!linger.is_worth_it(&announced), "more have come");
        announced.retract(1);
        tokio::time::advance(MAX_LINGER).await;
        assert!(linger.is_worth_it(&announced));
        announced.retract(1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!linger.is_worth_it(&announced), "it has waited for long enough");
    }
}
