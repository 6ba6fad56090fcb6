//! Where handlers block their threads until a test lets them go.

use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::harness::eventually;

/// Closed at first. Threads that come to it while it is closed are blocked.
#[derive(Debug, Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    came: AtomicUsize,
}

impl Gate {
    /// Counts one that has come, and blocks its thread until the gate is open.
    pub fn wait(&self) {
        self.come();
        let is_open = self.is_open.lock().expect("nobody panics with it");
        drop(self.opened.wait_while(is_open, |is_open| !*is_open));
    }

    /// Counts one that has come and does not wait.
    pub fn come(&self) {
        self.came.fetch_add(1, SeqCst);
    }

    /// Lets all go who have come, and who come while it is open.
    pub fn open(&self) {
        *self.is_open.lock().expect("nobody panics with it") = true;
        self.opened.notify_all();
    }

    /// Blocks those who come from now on.
    pub fn close(&self) {
        *self.is_open.lock().expect("nobody panics with it") = false;
    }

    /// How many have come so far.
    pub fn came(&self) -> usize {
        self.came.load(SeqCst)
    }

    /// Waits until so many have come.
    pub async fn has_come(&self, count: usize) {
        eventually(&format!("{count} come to the gate"), || self.came() == count).await;
    }
}
