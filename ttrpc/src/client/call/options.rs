//! What a caller may set before a call starts.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{Metadata, client::meta::CallTimes};

/// A call's time and metadata. Small, since a call is moved several times before it is polled.
#[derive(Clone, Debug, Default)]
pub(in crate::client) struct CallOptions {
    /// From the moment when the call is first polled.
    pub(in crate::client) timeout: Option<Duration>,
    pub(in crate::client) deadline: Option<Instant>,
    /// Without a connection, waits for one also after an attempt has failed.
    pub(in crate::client) waits_for_ready: bool,
    /// The call has set its deadline itself.
    pub(in crate::client) has_own_deadline: bool,
    /// It may be executed more than once.
    pub(in crate::client) is_idempotent: bool,
    /// The client's, until the call has its own.
    metadata: Option<Arc<Metadata>>,
}

impl CallOptions {
    pub(in crate::client) fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        self.metadata.as_deref().unwrap_or(&NONE)
    }

    pub(in crate::client) fn metadata_mut(&mut self) -> &mut Metadata {
        Arc::make_mut(self.metadata.get_or_insert_default())
    }

    /// Replaces all metadata.
    pub(in crate::client) fn set_metadata(&mut self, metadata: Metadata) {
        self.metadata = Some(Arc::new(metadata));
    }

    /// Returns the times of a call that starts now. The earlier one of timeout and deadline counts.
    pub(in crate::client) fn times(&self) -> CallTimes {
        let started = Instant::now();
        let end = self.timeout.and_then(|timeout| started.checked_add(timeout));
        let deadline = match (end, self.deadline) {
            (Some(end), Some(deadline)) => Some(end.min(deadline)),
            (end, deadline) => end.or(deadline),
        };
        CallTimes { started, deadline }
    }

    /// Returns `timeout_nano` for a call with these times: the time left, at least 1 since 0 means none.
    pub(in crate::client) fn timeout_nano(&self, times: CallTimes) -> i64 {
        let left = times.deadline.map(|deadline| deadline - Instant::now());
        let Some(left) = left.or(self.timeout) else { return 0 };
        i64::try_from(left.as_nanos()).unwrap_or(i64::MAX).max(1)
    }

    /// Ends the call at this moment, unless an earlier deadline is set.
    pub(in crate::client) fn end_by(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_changes_its_metadata_changes_no_other() {
        let mut options = CallOptions::default();
        options.metadata_mut().append("key", "value");
        let (mut replaced, mut longer) = (options.clone(), options.clone());
        replaced.set_metadata(Metadata::new());
        longer.metadata_mut().append("key", "value");
        for (options, len) in [(&options, 1), (&replaced, 0), (&longer, 2)] {
            assert_eq!(options.metadata().len(), len);
        }
    }
}
