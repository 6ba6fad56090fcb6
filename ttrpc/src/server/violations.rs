//! Violations of the protocol by a client: logged at a bounded rate.

use std::time::Duration;

use tokio::time::Instant;

use crate::{proto::stream::Violation, trace};

/// Time between two lines of the log.
const INTERVAL: Duration = Duration::from_secs(10);

/// The violations of one connection's client.
#[derive(Debug, Default)]
pub(super) struct Violations {
    /// Since the last line of the log.
    unlogged: u64,
    last_logged: Option<Instant>,
}

impl Violations {
    /// Logs a violation, or counts it if another was logged a short time ago: a client that breaks
    /// the protocol with every frame does not fill the log.
    pub(super) fn note(&mut self, stream_id: u32, violation: Violation) {
        if self.last_logged.is_some_and(|last| last.elapsed() < INTERVAL) {
            self.unlogged += 1;
            trace::debug!(stream_id, "the client broke the protocol: {violation}");
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        self.last_logged = Some(Instant::now());
        trace::warn!(stream_id, unlogged, "the client broke the protocol: {violation}");
    }
}
