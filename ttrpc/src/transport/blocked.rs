//! How long the socket has been full, for snapshots.

use std::time::Duration;

use tokio::time::Instant;

/// For how long the socket has been full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blocked {
    since: Option<Instant>,
    /// Without the time since `since`.
    before: Duration,
}

impl Blocked {
    /// For how long the socket has refused to take more, if it does.
    pub(crate) fn now(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed())
    }

    /// For how long it has in all.
    pub(crate) fn total(&self) -> Duration {
        self.before + self.now().unwrap_or_default()
    }

    pub(super) fn set(&mut self, is_blocked: bool) {
        *self = Blocked { since: is_blocked.then(Instant::now), before: self.total() };
    }
}
