//! Places for calls in flight.
//!
//! Calls may wait for each other through the application, so the limit follows the rule of all
//! limits that others hold up (see [`stall`](crate::transport::stall)): a call waits for a place
//! while other calls end, and is refused when none does.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::{Semaphore, TryAcquireError};

use crate::{
    Status,
    transport::stall::{Ask, stands_still},
};

/// The places of one connection.
#[derive(Debug)]
pub(super) struct Places {
    free: Semaphore,
    /// Calls that have ended so far.
    ended: AtomicUsize,
    /// The value of `ended` at which calls stood still, plus one; 0 if they never did.
    stood_still_at: AtomicUsize,
}

/// Why a call has no place.
#[derive(Debug)]
pub(super) enum NoPlace {
    /// The connection has ended.
    Closed,
    /// Every place is taken and no call ends.
    Stalled,
}

impl Places {
    pub(super) fn new(max_calls: usize) -> Self {
        Places {
            free: Semaphore::new(max_calls.clamp(1, Semaphore::MAX_PERMITS)),
            ended: AtomicUsize::new(0),
            stood_still_at: AtomicUsize::new(0),
        }
    }

    /// Takes a place if there is one now; `Ok(false)` if there is none.
    pub(super) fn try_take(&self) -> Result<bool, NoPlace> {
        match self.free.try_acquire() {
            Ok(place) => {
                place.forget();
                Ok(true)
            }
            Err(TryAcquireError::NoPermits) => Ok(false),
            Err(TryAcquireError::Closed) => Err(NoPlace::Closed),
        }
    }

    /// Takes a place, waiting in turn as long as other calls end. Time during which `is_paused` holds
    /// does not count.
    ///
    /// Cancel safe: dropped, it gives up its turn.
    pub(super) async fn take(
        &self,
        stall_timeout: Duration,
        is_paused: Ask<'_, bool>,
    ) -> Result<(), NoPlace> {
        if self.try_take()? {
            return Ok(());
        }
        let ended = || self.ended.load(Relaxed);
        if self.stood_still_at.load(Relaxed) == ended().wrapping_add(1) {
            return Err(NoPlace::Stalled);
        }
        tokio::select! {
            biased;
            place = self.free.acquire() => match place {
                Ok(place) => {
                    place.forget();
                    Ok(())
                }
                Err(_) => Err(NoPlace::Closed),
            },
            () = stands_still(stall_timeout, &ended, is_paused) => {
                self.stood_still_at.store(ended().wrapping_add(1), Relaxed);
                Err(NoPlace::Stalled)
            }
        }
    }

    /// Gives a place back: its call has ended.
    pub(super) fn leave(&self) {
        self.ended.fetch_add(1, Relaxed);
        self.free.add_permits(1);
    }

    /// Nobody gets a place any more.
    pub(super) fn close(&self) {
        self.free.close();
    }
}

/// The status of a call that was refused since no other ends.
pub(super) fn stalled() -> Status {
    Status::resource_exhausted("too many calls are in flight on this connection and none ends")
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_for_each_other_are_refused_and_later_ones_are_not() {
        let places = Places::new(1);
        assert!(places.try_take().unwrap());
        let start = Instant::now();
        assert!(matches!(places.take(SECOND, &|| false).await, Err(NoPlace::Stalled)));
        assert_eq!(start.elapsed(), SECOND);
        assert!(matches!(places.take(SECOND, &|| false).await, Err(NoPlace::Stalled)));
        assert_eq!(start.elapsed(), SECOND, "refused at once until a call ends");
        places.leave();
        assert!(places.take(SECOND, &|| false).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_as_long_as_others_end() {
        let places = Places::new(1);
        assert!(places.try_take().unwrap());
        let mut turns = 0;
        // Each of many callers waits in turn, in all for much longer than the stall timeout.
        let calls = async {
            for _ in 0..100 {
                tokio::time::sleep(SECOND / 2).await;
                places.leave();
                places.take(SECOND, &|| false).await.unwrap();
                turns += 1;
            }
        };
        let patient = async {
            for _ in 0..3 {
                places.take(SECOND, &|| false).await.unwrap();
                places.leave();
            }
        };
        tokio::join!(patient, calls);
        assert_eq!(turns, 100);
    }
}
