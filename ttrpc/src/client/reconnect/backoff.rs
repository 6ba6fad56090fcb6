//! How long to wait between attempts, and when to give up.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Else a client without pauses would do nothing but connect.
const SHORTEST_BOUND: Duration = Duration::from_millis(1);

/// About 30 years, after which any clock can name a moment.
const LONGEST_BOUND: Duration = Duration::from_secs(1 << 30);

/// The pauses between a client's attempts to connect, or to [make a call](crate::client::Retry), and their limit.
///
/// A pause is drawn at random between zero and a bound: [`first`](Backoff::first) after the first failure, twice as long after
/// each later one, up to [`longest`](Backoff::longest). So clients whose server is gone do not come back at the same moment.
/// The first attempt after a connection is lost has no pause, since a call may wait for it. So when a server closes all
/// connections and lives on, clients that [keep connected](crate::client::ConnectOptions::keep_connected) reconnect at once,
/// and its listener's backlog has to take them. The others reconnect with their next calls. Without a limit a client tries
/// to connect for ever.
///
/// ```
/// # use ttrpc::client::Backoff; use std::time::Duration;
/// let seconds = Duration::from_secs;
/// let backoff = Backoff::new().longest(seconds(2)).give_up_after(seconds(60));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a client gets it with `ConnectOptions::reconnect` or `Retry::backoff`"]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    max_attempts: Option<u32>,
    max_time: Option<Duration>,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            max_attempts: None,
            max_time: None,
        }
    }
}

impl Backoff {
    /// Makes a backoff with pauses of up to 100 ms at first and 10 s at last, without a limit.
    pub fn new() -> Self {
        Backoff::default()
    }

    /// Sets the bound of the first pause, at least 1 ms. Default 100 ms.
    pub fn first(mut self, bound: Duration) -> Self {
        self.first = bound;
        self
    }

    /// Sets the bound of every pause. Default 10 s.
    pub fn longest(mut self, bound: Duration) -> Self {
        self.longest = bound;
        self
    }

    /// Gives up after so many failures in a row, at least one. Default: never.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts.max(1));
        self
    }

    /// Gives up at the first failure after this time. Default: never.
    ///
    /// The time runs from the loss of the connection, from the call that needed the first one, or, for a call that is made
    /// again, from its begin.
    pub fn give_up_after(mut self, time: Duration) -> Self {
        self.max_time = Some(time);
        self
    }

    /// Returns the bound of the pause after so many failures in a row.
    pub(super) fn bound(&self, failures: u32) -> Duration {
        let factor = 2u32.checked_pow(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest).clamp(SHORTEST_BOUND, LONGEST_BOUND)
    }

    /// Draws the pause after so many failures in a row.
    pub fn pause(&self, failures: u32) -> Duration {
        // Each state has random keys: its hash of anything is a random number.
        let random = RandomState::new().hash_one(failures);
        self.bound(failures).mul_f64(random as f64 / (u64::MAX as f64 + 1.0))
    }

    /// Returns whether to give up after so many failures in a row since this moment.
    pub fn is_exhausted(&self, failures: u32, since: Instant) -> bool {
        self.max_attempts.is_some_and(|max| failures >= max)
            || self.max_time.is_some_and(|max| since.elapsed() >= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_bound_of_a_pause_doubles_up_to_the_longest() {
        let backoff = Backoff::new().first(10 * MS).longest(70 * MS);
        assert_eq!(
            [1, 2, 3, 4, 100].map(|failures| backoff.bound(failures)),
            [10, 20, 40, 70, 70].map(|ms| ms * MS)
        );
    }

    #[test]
    fn a_pause_ends_at_a_moment_that_can_be_named_however_long_it_may_be() {
        let backoff = Backoff::new().first(Duration::MAX).longest(Duration::MAX);
        for failures in [1, 2, u32::MAX] {
            assert!(Instant::now().checked_add(backoff.bound(failures)).is_some());
            assert!(backoff.pause(failures) <= backoff.bound(failures));
        }
    }

    /// Else a thousand clients of a server that comes back would come back together.
    #[test]
    fn the_pauses_of_a_thousand_clients_are_spread_over_the_whole_bound() {
        let backoff = Backoff::new().first(1000 * MS);
        let mut tenths = [0; 10];
        for _ in 0..1000 {
            let pause = backoff.pause(1);
            assert!(pause < 1000 * MS);
            tenths[pause.as_millis() as usize / 100] += 1;
        }
        // A hundred are expected in each; fifty or less is a chance of one in a million.
        assert!(tenths.iter().all(|count| (50..=160).contains(count)), "{tenths:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_exhausted_by_failures_or_by_time() {
        let since = Instant::now();
        let (attempts, time) =
            (Backoff::new().max_attempts(2), Backoff::new().give_up_after(5 * MS));
        assert!(!attempts.is_exhausted(1, since) && attempts.is_exhausted(2, since));
        assert!(!time.is_exhausted(100, since));
        tokio::time::advance(5 * MS).await;
        assert!(time.is_exhausted(1, since));
        assert!(!Backoff::new().is_exhausted(u32::MAX, since));
    }
}
