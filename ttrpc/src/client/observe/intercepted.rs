//! What interceptors add to a call.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
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
    pub(super) on_ends: OnEnds,
}

impl Intercepted {
    pub(in crate::client) fn new(
        extensions: Option<Arc<Extensions>>,
        on_message: Option<OnMessage>,
    ) -> Self {
        Intercepted { extensions, on_message, on_ends: OnEnds::default() }
    }

    pub(super) fn tell_message(&self, message: &MessageInfo) {
        if let Some(on_message) = &self.on_message
            && catch_unwind(AssertUnwindSafe(|| on_message(message))).is_err()
        {
            trace::warn!("what was to be called for a message panicked");
        }
    }
}

/// What is to be called when a call ends.
#[derive(Default)]
pub(super) struct OnEnds(Mutex<Vec<OnEnd>>);

impl OnEnds {
    pub(super) fn push(&self, told: OnEnd) {
        lock(&self.0).push(told);
    }

    /// Calls all that wait.
    pub(super) fn call<'a>(&self, end: impl Fn() -> CallEnd<'a>) {
        let waiting = mem::take(&mut *lock(&self.0));
        for told in waiting {
            let end = end();
            if catch_unwind(AssertUnwindSafe(|| told(&end))).is_err() {
                trace::warn!("what was to be called at a call's end panicked");
            }
        }
    }
}

/// The same of a unary call that has no record, and was answered. Most have none.
#[derive(Default)]
pub(in crate::client) struct UnaryOnEnds(OnceLock<Box<AnsweredOnEnds>>);

struct AnsweredOnEnds {
    reply_len: u32,
    on_ends: OnEnds,
}

impl UnaryOnEnds {
    pub(super) fn push(&self, told: OnEnd, reply_len: impl FnOnce() -> u32) {
        let new =
            || Box::new(AnsweredOnEnds { reply_len: reply_len(), on_ends: OnEnds::default() });
        self.0.get_or_init(new).on_ends.push(told);
    }

    /// Calls all that wait with an end that is made for the length of the reply.
    pub(super) fn call<'a>(&self, end: impl Fn(u32) -> CallEnd<'a>) {
        if let Some(AnsweredOnEnds { reply_len, on_ends }) = self.0.get().map(|ends| &**ends) {
            on_ends.call(|| end(*reply_len));
        }
    }
}

impl fmt::Debug for UnaryOnEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryOnEnds").finish_non_exhaustive()
    }
}
