//! What a caller may say of a call before it starts.

use std::time::Duration;

use tokio::time::Instant;

use crate::Metadata;

/// A call's metadata and timeout.
#[derive(Clone, Debug, Default)]
pub(super) struct CallOptions {
    pub(super) metadata: Metadata,
    pub(super) timeout: Option<Duration>,
}

impl CallOptions {
    /// The times of a call that starts now.
    pub(super) fn times(&self) -> Times {
        let started = Instant::now();
        Times { started, deadline: self.timeout.and_then(|timeout| started.checked_add(timeout)) }
    }

    /// `timeout_nano` for a call with these times: what is left, at least 1 since 0 means none.
    pub(super) fn timeout_nano(&self, times: Times) -> i64 {
        let Some(timeout) = self.timeout else { return 0 };
        let left = times.deadline.map_or(timeout, |deadline| deadline - Instant::now());
        i64::try_from(left.as_nanos()).unwrap_or(i64::MAX).max(1)
    }
}

/// When a call began, and when its time is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) started: Instant,
    /// `None` also where it is too far away to be named.
    pub(super) deadline: Option<Instant>,
}

/// The methods by which a call's options are set, for each kind of call.
macro_rules! option_methods {
    () => {
        /// Ends the call with DEADLINE_EXCEEDED when it takes longer than this, in whatever phase
        /// it is: waiting for room, being written, waiting for the answer. The time runs from the
        /// moment when the call is first awaited. The server is told, and ends its side too.
        ///
        /// # Panics
        /// When the call is awaited, outside of a tokio runtime.
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options.timeout = Some(timeout);
            self
        }

        /// Adds a pair of metadata, behind the values that the key already has.
        pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
            self.options.metadata.append(key, value);
            self
        }

        /// Replaces all metadata of the call.
        pub fn with_metadata(mut self, metadata: $crate::Metadata) -> Self {
            self.options.metadata = metadata;
            self
        }
    };
}
pub(super) use option_methods;
