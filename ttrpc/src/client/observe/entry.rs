//! What a call's entry and its owner report of the call.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::time::Instant;

use super::{Observed, ObservedConnection, OnEnd, UnaryCount, let_go, not_queued, reply_outcome};
use crate::{
    Extensions, Status,
    client::{connection::ClientConnection, entry::CallEntry, owner::CallOwner, state::CallState},
    observer::{CallOutcome, MessageInfo, nanos},
    proto::frame::HEADER_LEN,
};

impl ObservedConnection {
    /// A unary call of which there is no record has ended.
    fn unary_ended(&self, entry: &CallEntry, stream_id: Option<u32>, outcome: CallOutcome<'_>) {
        let Observed::Unary(UnaryCount { answered, received }) = &entry.observed else { return };
        let took = match answered.load(Relaxed) {
            0 => None,
            after => Some(Duration::from_nanos(after)),
        };
        let received = received.load(Relaxed).checked_sub(1);
        let extensions = Extensions::default();
        let call = self.call(entry.head(), stream_id, &extensions);
        self.observers.call_ended(&call, &entry.unary_end(outcome, received, took));
    }
}

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

    /// Calls this when the call, which was made through interceptors, ends; or now if that was told already.
    pub(in crate::client) fn on_end(&self, told: OnEnd) {
        match &self.observed {
            Observed::Nobody | Observed::Unary(_) => {}
            Observed::Intercepted(on_ends) => {
                on_ends.push(told, || self.inbox.with(|state| state.answer_len()) as u32);
            }
            Observed::Recorded(record) => {
                if record.on_end(told)
                    && let Some((cause, status)) = self.inbox.with(|state| state.outcome())
                {
                    record.call_on_end(CallOutcome { cause, status: status.as_ref() });
                }
            }
        }
    }

    /// Tells interceptors how a unary call that was answered has ended.
    fn tell_on_ends(&self, outcome: CallOutcome<'_>) {
        if let Observed::Intercepted(on_ends) = &self.observed {
            on_ends.call(|reply_len| self.unary_end(outcome, Some(reply_len), None));
        }
    }

    /// The call was not queued.
    pub(in crate::client) fn tell_not_queued(
        &self,
        connection: &ClientConnection,
        status: &Status,
    ) {
        match &self.observed {
            Observed::Nobody | Observed::Intercepted(_) => {}
            Observed::Unary(_) => {
                let outcome = CallOutcome { cause: not_queued(status), status: Some(status) };
                connection.observed.unary_ended(self, None, outcome);
            }
            Observed::Recorded(record) => record.not_queued(status),
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
        match &self.observed {
            Observed::Nobody | Observed::Intercepted(_) => {}
            Observed::Unary(count) => {
                let after = read_at().saturating_duration_since(self.times.started);
                count.answered.store(nanos(after).max(1), Relaxed);
                count.received.store(bytes.map_or(0, |bytes| bytes as u32 + 1), Relaxed);
            }
            Observed::Recorded(record) => {
                record.stats.answered(read_at());
                if let Some(bytes) = bytes {
                    record.tell_message(&record.stats.received(1, bytes));
                }
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
    /// Tells how a unary call has ended, whose reply may not be what the method's types allow.
    pub(in crate::client) fn tell_reply(&mut self, violation: Option<&Status>) {
        match self.entry.observed {
            Observed::Nobody => {}
            Observed::Intercepted(_) => self.entry.tell_on_ends(reply_outcome(violation)),
            Observed::Unary(_) => self.tell_unary(reply_outcome(violation)),
            Observed::Recorded(_) => self.entry.tell_reply(violation),
        }
    }

    /// The caller lets go of the call.
    pub(in crate::client) fn tell_dropped(&mut self) {
        match &self.entry.observed {
            Observed::Nobody => {}
            // Who waits has the answer.
            Observed::Intercepted(_) => self.entry.tell_on_ends(CallOutcome::REPLIED),
            Observed::Unary(_) if self.is_told => {}
            Observed::Unary(_) => {
                let outcome = self.entry.inbox.with(|state: &mut CallState| state.outcome());
                let (cause, status) = outcome.unwrap_or_else(|| {
                    let (cause, status) = let_go(self.entry.times);
                    (cause, Some(status))
                });
                self.tell_unary(CallOutcome { cause, status: status.as_ref() });
            }
            Observed::Recorded(record) if record.is_told() => {}
            Observed::Recorded(record) => {
                self.entry.tell_outcome();
                record.dropped();
            }
        }
    }

    fn tell_unary(&mut self, outcome: CallOutcome<'_>) {
        self.is_told = true;
        self.connection().observed.unary_ended(&self.entry, Some(self.stream_id), outcome);
    }
}
