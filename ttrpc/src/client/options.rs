//! What a caller may say of a call before it starts.

use std::time::Duration;

use tokio::time::Instant;

use super::head::Times;
use crate::Metadata;

/// A call's metadata and its time.
#[derive(Clone, Debug, Default)]
pub(super) struct CallOptions {
    pub(super) metadata: Metadata,
    /// From the moment when the call is first polled.
    pub(super) timeout: Option<Duration>,
    pub(super) deadline: Option<Instant>,
}

impl CallOptions {
    /// The times of a call that starts now: the earlier end counts.
    pub(super) fn times(&self) -> Times {
        let started = Instant::now();
        let end = self.timeout.and_then(|timeout| started.checked_add(timeout));
        let deadline = match (end, self.deadline) {
            (Some(end), Some(deadline)) => Some(end.min(deadline)),
            (end, deadline) => end.or(deadline),
        };
        Times { started, deadline }
    }

    /// `timeout_nano` for a call with these times: what is left, at least 1 since 0 means none.
    pub(super) fn timeout_nano(&self, times: Times) -> i64 {
        let left = times.deadline.map(|deadline| deadline - Instant::now());
        let Some(left) = left.or(self.timeout) else { return 0 };
        i64::try_from(left.as_nanos()).unwrap_or(i64::MAX).max(1)
    }

    /// The call ends at this moment at the latest.
    pub(super) fn end_by(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }
}
