//! What a call's entry and its owner report of the call.

use tokio::time::Instant;

use super::{OnEnd, reply_outcome};
use crate::{
    Status,
    client::{entry::CallEntry, owner::CallOwner, state::CallState},
    observer::{CallOutcome, MessageInfo},
    proto::frame::HEADER_LEN,
};

impl CallEntry {
    /// The call's state has changed: reports the end of the call, if it is that. The end of a call with a single reply
    /// is reported by its caller, when the reply is decoded.
    pub(in crate::client) fn tell_end(&self) {
        if !self.is_unary() {
            self.tell_outcome_if(|status| status.is_some() || !self.has_one_reply());
        }
    }

    /// Tells how the call has ended, if it has.
    pub(in crate::client) fn tell_outcome(&self) {
        self.tell_outcome_if(|_| true);
    }

    fn tell_outcome_if(&self, is_told: impl FnOnce(Option<&Status>) -> bool) {
        let Some(record) = self.record() else { return };
        let outcome = self.inbox.with(|state: &mut CallState| state.outcome());
        if let Some((cause, status)) = outcome
            && is_told(status.as_ref())
        {
            record.ended(CallOutcome { cause, status: status.as_ref() });
        }
    }

    /// Tells how a call with one reply has ended, which the caller has taken, and which may not be what it allows.
    pub(in crate::client) fn tell_reply(&self, violation: Option<&Status>) {
        if let Some(record) = self.record() {
            record.ended(reply_outcome(violation));
        }
    }

    /// The server's answer is not what the method's types allow.
    pub(in crate::client) fn tell_violation(&self, status: &Status) {
        self.tell_reply(Some(status));
    }

    /// Calls this when the call, which was made through interceptors, ends; at once if that was reported already.
    pub(in crate::client) fn on_end(&self, on_end: OnEnd) {
        if let Some(record) = self.record() {
            record.on_end(on_end);
        }
    }

    /// The call was not queued.
    pub(in crate::client) fn tell_not_queued(&self, status: &Status) {
        if let Some(record) = self.record() {
            record.not_queued(status);
        }
    }

    /// A message is queued in a frame of this length. Counted with the queue locked, and told behind that.
    pub(in crate::client) fn count_sent(&self, frame_len: usize) -> Option<MessageInfo> {
        Some(self.record()?.stats.sent(1, frame_len - HEADER_LEN))
    }

    /// Tells of a message that was counted.
    pub(in crate::client) fn tell_message(&self, message: Option<&MessageInfo>) {
        if let (Some(record), Some(message)) = (self.record(), message) {
            record.tell_message(message);
        }
    }

    /// The answer was read at this moment, with a message of so many bytes if it has one.
    pub(in crate::client) fn count_answer(
        &self,
        bytes: Option<usize>,
        read_at: impl FnOnce() -> Instant,
    ) {
        if let Some(record) = self.record() {
            record.stats.answered(read_at());
            if let Some(bytes) = bytes {
                record.tell_message(&record.stats.received(1, bytes));
            }
        }
    }

    /// A message of so many bytes has come.
    pub(in crate::client) fn count_received(&self, bytes: usize) {
        if let Some(record) = self.record() {
            record.tell_message(&record.stats.received(1, bytes));
        }
    }
}

impl CallOwner {
    /// The caller lets go of the call.
    pub(in crate::client) fn tell_dropped(&self) {
        if let Some(record) = self.entry.record()
            && !record.has_ended()
        {
            self.entry.tell_outcome();
            record.dropped();
        }
    }
}
