//! When the batch began that waits for the sender.
//!
//! A call that nobody measures needs a time for its age in snapshots alone. To look at the clock takes as long as several
//! atomic operations. So the first who looks notes the time, and those who join the batch take it from there. The sender
//! is about to take the batch: while the socket is full, nothing is noted.

use std::time::Duration;

use tokio::time::Instant;

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// When the batch began that waits for the sender, if one does. It is changed under the queue's lock and read without.
#[derive(Debug)]
pub(super) struct BatchTime {
    epoch: Instant,
    /// Nanoseconds since then; 0 if it is not known.
    nanos: AtomicU64,
}

impl BatchTime {
    pub(super) fn new() -> Self {
        BatchTime { epoch: Instant::now(), nanos: AtomicU64::new(0) }
    }

    pub(super) fn get(&self) -> Option<Instant> {
        let nanos = self.nanos.load(Relaxed);
        (nanos > 0).then(|| self.epoch + Duration::from_nanos(nanos))
    }

    /// Notes when the batch began, unless that is known. Who has the time from here must not: a batch would pass it on
    /// to the next one.
    pub(super) fn set_first(&self, time: Instant) {
        if self.nanos.load(Relaxed) == 0 {
            let nanos = time.saturating_duration_since(self.epoch).as_nanos();
            self.nanos.store(u64::try_from(nanos).unwrap_or(0), Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        self.nanos.store(0, Relaxed);
    }
}
