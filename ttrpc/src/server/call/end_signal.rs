//! The signal that a call is over, for its handler, its driver, and clones of its context.

use tokio_util::sync::CancellationToken;

use crate::{
    contain::contain,
    observer::EndCause,
    sync::{
        Mutex,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    transport::lock,
};

/// Tells all holders of a part of the call that it is over, in whatever way.
#[derive(Debug, Default)]
pub(in crate::server) struct EndSignal {
    /// Bits of what has happened.
    events: AtomicU8,
    /// State that few calls need.
    waiting: Mutex<Waiting>,
}

const IS_OVER: u8 = 1;
/// A token was made, for the first task that waits.
const HAS_TOKEN: u8 = 1 << 1;
/// The program has asked for the token, which earns the handler its grace.
const IS_GRACEFUL: u8 = 1 << 2;

#[derive(Debug, Default)]
struct Waiting {
    token: Option<CancellationToken>,
    /// The cause to report if the handler fails, where it is not the handler's own.
    blame: Option<EndCause>,
}

impl EndSignal {
    fn set(&self, event: u8) -> u8 {
        self.events.fetch_or(event, SeqCst)
    }

    fn has(&self, event: u8) -> bool {
        self.events.load(SeqCst) & event != 0
    }

    /// The call is over.
    pub(in crate::server) fn fire(&self) {
        // A token that is made later sees that the call is over.
        if self.set(IS_OVER) & HAS_TOKEN != 0 {
            let token = lock(&self.waiting).token.clone();
            if let Some(token) = token {
                let _ = contain(|| token.cancel());
            }
        }
    }

    pub(in crate::server) fn is_over(&self) -> bool {
        self.has(IS_OVER)
    }

    /// Whether somebody may wait for it without a hold on the call.
    pub(in crate::server) fn has_token(&self) -> bool {
        self.has(HAS_TOKEN)
    }

    /// A token that fires when the call is over, for the library itself.
    pub(in crate::server) fn token(&self) -> CancellationToken {
        let token = lock(&self.waiting).token.get_or_insert_default().clone();
        if self.set(HAS_TOKEN) & IS_OVER != 0 {
            token.cancel();
        }
        token
    }

    /// The same for the program.
    pub(in crate::server) fn graceful_token(&self) -> CancellationToken {
        self.set(IS_GRACEFUL);
        self.token()
    }

    pub(in crate::server) fn is_graceful(&self) -> bool {
        self.has(IS_GRACEFUL)
    }

    /// Sets the cause to report if the handler fails. The first one counts.
    pub(in crate::server) fn blame(&self, cause: EndCause) {
        lock(&self.waiting).blame.get_or_insert(cause);
    }

    /// The cause to report if the handler fails now.
    pub(in crate::server) fn failure(&self) -> EndCause {
        lock(&self.waiting).blame.unwrap_or(EndCause::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_first_cause_that_was_set() {
        let end = EndSignal::default();
        assert_eq!(end.failure(), EndCause::Failed);
        end.blame(EndCause::Limit);
        end.blame(EndCause::Refused);
        assert_eq!(end.failure(), EndCause::Limit);
    }
}
