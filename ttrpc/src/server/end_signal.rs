//! The signal that a call is over: for its handler, its driver, and clones of its context.

use tokio_util::sync::CancellationToken;

use crate::{observer::EndCause, sync::Mutex, transport::lock};

/// Tells all holders of a part of a call that it is over, in whatever way.
#[derive(Debug, Default)]
pub(super) struct EndSignal(Mutex<EndState>);

#[derive(Debug, Default)]
struct EndState {
    is_over: bool,
    has_begun: bool,
    /// Made for the first task that waits.
    token: Option<CancellationToken>,
    /// The program has asked for the token, which earns the handler its grace.
    is_graceful: bool,
    /// Interceptors have let the handler run.
    is_handled: bool,
    /// Why the handler's failure is not the handler's.
    blame: Option<EndCause>,
}

impl EndSignal {
    /// The call is over.
    pub(super) fn fire(&self) {
        let mut state = lock(&self.0);
        state.is_over = true;
        let token = state.token.clone();
        drop(state);
        if let Some(token) = token {
            token.cancel();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.0).is_over
    }

    /// The handler is about to begin. `false` if the call is over already.
    pub(super) fn begin(&self) -> bool {
        let mut state = lock(&self.0);
        state.has_begun = true;
        !state.is_over
    }

    pub(super) fn has_begun(&self) -> bool {
        lock(&self.0).has_begun
    }

    /// A token that fires when the call is over, for the library itself.
    pub(super) fn token(&self) -> CancellationToken {
        let mut state = lock(&self.0);
        let is_over = state.is_over;
        let token = state.token.get_or_insert_default().clone();
        drop(state);
        if is_over {
            token.cancel();
        }
        token
    }

    /// The same for the program.
    pub(super) fn graceful_token(&self) -> CancellationToken {
        lock(&self.0).is_graceful = true;
        self.token()
    }

    pub(super) fn is_graceful(&self) -> bool {
        lock(&self.0).is_graceful
    }

    /// Interceptors let the handler run.
    pub(super) fn handle(&self) {
        lock(&self.0).is_handled = true;
    }

    /// Whether they have.
    pub(super) fn is_handled(&self) -> bool {
        lock(&self.0).is_handled
    }

    /// If the call fails now, it is for this cause. The first one counts.
    pub(super) fn blame(&self, cause: EndCause) {
        lock(&self.0).blame.get_or_insert(cause);
    }

    /// Why the call fails if it fails now.
    pub(super) fn failure(&self) -> EndCause {
        lock(&self.0).blame.unwrap_or(EndCause::Failed)
    }
}
