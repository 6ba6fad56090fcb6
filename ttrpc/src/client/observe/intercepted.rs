//! What interceptors add to a call.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    Extensions,
    observer::{CallEnd, MessageInfo},
    sync::Mutex,
    trace,
    transport::lock,
};

/// Called for each message of a call.
pub(in crate::client) type OnMessage = Arc<dyn Fn(&MessageInfo) + Send + Sync>;

/// Called when a call ends.
pub(in crate::client) type OnEnd = Box<dyn FnOnce(&CallEnd<'_>) + Send>;

/// What interceptors add to a call. What is to be called is the program's: a panic of it ends no task of the
/// library's.
#[derive(Default)]
pub(in crate::client) struct Intercepted {
    /// In place of the call's own.
    pub(in crate::client) extensions: Option<Arc<Extensions>>,
    pub(in crate::client) on_message: Option<OnMessage>,
    on_end: Mutex<Vec<OnEnd>>,
}

impl Intercepted {
    pub(in crate::client) fn new(
        extensions: Option<Arc<Extensions>>,
        on_message: Option<OnMessage>,
    ) -> Self {
        Intercepted { extensions, on_message, on_end: Mutex::default() }
    }

    pub(super) fn tell_message(&self, message: &MessageInfo) {
        if let Some(on_message) = &self.on_message
            && catch_unwind(AssertUnwindSafe(|| on_message(message))).is_err()
        {
            trace::warn!("what was to be called for a message panicked");
        }
    }

    pub(super) fn on_end(&self, told: OnEnd) {
        lock(&self.on_end).push(told);
    }

    /// Tells those who wait for the end.
    pub(super) fn call_on_end<'a>(&self, end: impl Fn() -> CallEnd<'a>) {
        let waiting = mem::take(&mut *lock(&self.on_end));
        for told in waiting {
            let end = end();
            if catch_unwind(AssertUnwindSafe(|| told(&end))).is_err() {
                trace::warn!("what was to be called at a call's end panicked");
            }
        }
    }
}
