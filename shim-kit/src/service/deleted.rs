//! What became of containers that are deleted, until containerd has taken note of it.
//!
//! A containerd that dies while it deletes a container asks the shim again when it is back. It keeps the id until it has
//! got an answer, and then tells the shim to shut down, in the name of that container.

use std::collections::VecDeque;

use crate::proto::task::{DeleteResponse, StateResponse};

/// Answers that are kept, of some 300 bytes each; the oldest goes when another comes. containerd takes note of a
/// deletion at once, so that one is enough for each of its calls under way.
const CAPACITY: usize = 256;

/// The last states of containers that are deleted.
#[derive(Debug, Default)]
pub struct Deleted(VecDeque<StateResponse>);

impl Deleted {
    /// Keeps the last state of a container.
    pub fn keep(&mut self, state: StateResponse) {
        self.forget(&state.id);
        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(state);
    }

    /// The last state of a container that is deleted.
    pub fn state(&self, id: &str) -> Option<&StateResponse> {
        self.0.iter().find(|state| state.id == id)
    }

    /// The answer to its deletion.
    pub fn delete(&self, id: &str) -> Option<DeleteResponse> {
        self.state(id).map(|state| DeleteResponse {
            pid: state.pid,
            exit_status: state.exit_status,
            exited_at: state.exited_at,
        })
    }

    /// Forgets a container, or all if there is no id.
    pub fn forget(&mut self, id: &str) {
        self.0.retain(|state| !id.is_empty() && state.id != id);
        if self.0.is_empty() {
            self.0 = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_fits_and_the_newest_stays() {
        let mut deleted = Deleted::default();
        for number in 0..CAPACITY + 10 {
            deleted.keep(StateResponse { id: number.to_string(), ..StateResponse::default() });
        }
        assert_eq!(deleted.0.len(), CAPACITY);
        assert!(deleted.state("9").is_none() && deleted.state("10").is_some());
        deleted.forget("10");
        assert!(deleted.delete("10").is_none() && deleted.delete("11").is_some());
        deleted.forget("");
        assert!(deleted.0.is_empty());
    }
}
