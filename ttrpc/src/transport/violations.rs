//! Violations of the protocol by a peer: logged at a bounded rate.

use std::time::Duration;

use tokio::time::Instant;

use crate::{proto::stream::Violation, trace};

/// Time between two lines of the log.
const INTERVAL: Duration = Duration::from_secs(10);

/// The violations of one connection's peer.
#[derive(Debug)]
pub(crate) struct Violations {
    /// The kind of peer.
    peer: &'static str,
    /// Since the last line of the log.
    unlogged: u64,
    last_logged: Option<Instant>,
}

impl Violations {
    /// Those of the `client`, or of the `server`.
    pub(crate) fn of(peer: &'static str) -> Self {
        Violations { peer, unlogged: 0, last_logged: None }
    }

    /// Logs a violation, or counts it if another was logged a short time ago: a peer that breaks
    /// the protocol with every frame does not fill the log.
    pub(crate) fn note(&mut self, stream_id: u32, violation: Violation) {
        let peer = self.peer;
        if self.last_logged.is_some_and(|last| last.elapsed() < INTERVAL) {
            self.unlogged += 1;
            trace::debug!(stream_id, "the {peer} broke the protocol: {violation}");
            return;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        self.last_logged = Some(Instant::now());
        trace::warn!(stream_id, unlogged, "the {peer} broke the protocol: {violation}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_violation_in_ten_seconds_is_logged_and_the_others_are_counted() {
        let mut violations = Violations::of("client");
        let mut note = || {
            violations.note(1, Violation("a frame"));
            let since = violations.last_logged.expect("the first one is logged").elapsed();
            (violations.unlogged, since)
        };
        assert_eq!(note(), (0, Duration::ZERO));
        let second = Duration::from_secs(1);
        for unlogged in 1..10 {
            tokio::time::advance(second).await;
            assert_eq!(note(), (unlogged, second * unlogged as u32));
        }
        tokio::time::advance(second).await;
        assert_eq!(note(), (0, Duration::ZERO));
    }
}
