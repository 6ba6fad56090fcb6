//! What a caller may say of a call before it starts.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{head::Times, interceptor::Chain};
use crate::Metadata;

/// A call's time, and what few calls have. Small, since a call is moved several times before it is polled.
#[derive(Clone, Debug, Default)]
pub(super) struct CallOptions {
    /// From the moment when the call is first polled.
    pub(super) timeout: Option<Duration>,
    pub(super) deadline: Option<Instant>,
    /// The client's, until the call has its own.
    shared: Option<Arc<SharedOptions>>,
}

#[derive(Clone, Default)]
struct SharedOptions {
    metadata: Metadata,
    interceptors: Option<Chain>,
}

impl fmt::Debug for SharedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedOptions").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

impl CallOptions {
    pub(super) fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        self.shared.as_ref().map_or(&NONE, |shared| &shared.metadata)
    }

    pub(super) fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.shared_mut().metadata
    }

    /// Replaces all metadata.
    pub(super) fn set_metadata(&mut self, metadata: Metadata) {
        let interceptors = self.interceptors().cloned();
        self.shared = Some(Arc::new(SharedOptions { metadata, interceptors }));
    }

    pub(super) fn interceptors(&self) -> Option<&Chain> {
        self.shared.as_ref()?.interceptors.as_ref()
    }

    pub(super) fn set_interceptors(&mut self, chain: Chain) {
        self.shared_mut().interceptors = Some(chain);
    }

    fn shared_mut(&mut self) -> &mut SharedOptions {
        Arc::make_mut(self.shared.get_or_insert_default())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_changes_its_metadata_keeps_its_interceptors_and_changes_no_other() {
        let mut options = CallOptions::default();
        options.set_interceptors(Arc::from([]));
        options.metadata_mut().append("key", "value");
        let (mut replaced, mut longer) = (options.clone(), options.clone());
        replaced.set_metadata(Metadata::new());
        longer.metadata_mut().append("key", "value");
        for (options, len) in [(&options, 1), (&replaced, 0), (&longer, 2)] {
            assert_eq!(options.metadata().len(), len);
            assert!(options.interceptors().is_some());
        }
    }
}
