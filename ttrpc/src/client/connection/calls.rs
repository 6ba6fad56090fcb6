//! The calls of a client's connection, in one table behind the lock of its queue.
//!
//! A call is in the table from the moment its Request is queued until its owner lets go of it, ended or not. Its protocol
//! state ([`Stream`](crate::proto::stream::Stream)) and its [`CallState`] lie side by side and change together. These are
//! all ways in which a call ends; the first end counts:
//!
//! | who | method |
//! |---|---|
//! | the receiver | [`Calls::end_by_response`], [`CallEntry::close_remote`], [`Calls::receive_message`], [`Calls::fail`] |
//! | the caller's deadline | [`Calls::fail`] |
//! | the caller, who drops the call or takes its reply | [`ClientTable::remove`], [`Calls::take_ended`] |
//! | the caller, whose sender gives the call up (with `cancel_at_server`) | [`Calls::fail`] |
//! | the connection's end | [`Calls::fail_all`] |
//!
//! What runs code of the program (wakers, observers) runs when the table is unlocked: a method returns it as a [`Change`].

use std::{
    mem,
    sync::Arc,
    task::{Poll, Waker},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    record::CallRecord,
    state::{CallEnd, CallState},
};
use crate::{
    Name, Status,
    client::meta::{CallHead, MethodKind},
    contain::wake,
    observer::EndCause,
    proto::{
        frame::Header,
        stream::{DataEvent, Violation},
        table::ClientTable,
    },
    transport::{inbox::Inbox, registry::CallInfo},
};

/// The messages of a call with streams. They end well always: how the call ended is in the table.
pub(in crate::client) type Messages = Inbox;

/// One call, in the table.
pub(in crate::client) struct CallEntry {
    pub(super) kind: MethodKind,
    service: Name,
    method: Name,
    started: Instant,
    deadline: Option<Instant>,
    pub(in crate::client) state: CallState,
    /// The task that waits for the reply of a unary call.
    pub(in crate::client) caller: Option<Waker>,
    /// `None` for a unary call.
    pub(in crate::client) messages: Option<Arc<Messages>>,
    /// `None` if nobody observes the call.
    pub(in crate::client) record: Option<Arc<CallRecord>>,
}

debug_in_short!(CallEntry);

impl CallEntry {
    pub(in crate::client) fn new(
        head: &CallHead,
        caller: Option<Waker>,
        messages: Option<Arc<Messages>>,
        record: Option<Arc<CallRecord>>,
    ) -> Self {
        CallEntry {
            kind: head.kind,
            service: head.service.clone(),
            method: head.method.clone(),
            started: head.options.started(),
            deadline: head.options.deadline,
            state: CallState::default(),
            caller,
            messages,
            record,
        }
    }

    pub(in crate::client) fn info(&self, stream_id: u32) -> CallInfo {
        let CallEntry { started, deadline, .. } = *self;
        let (service, method) = (self.service.clone(), self.method.clone());
        CallInfo { service, method, stream_id: Some(stream_id), started, deadline }
    }

    /// The server has answered, which ends the call for both sides.
    pub(super) fn answer(&mut self, response: Bytes) -> Change {
        let is_changed = self.state.answer(response);
        self.changed(is_changed, false)
    }

    /// The server is done sending; this side may go on.
    pub(super) fn close_remote(&mut self) -> Change {
        let is_changed = self.state.close_remote();
        self.changed(is_changed, false)
    }

    /// The call fails on this side.
    fn fail(&mut self, cause: EndCause, status: Status) -> Change {
        // What has arrived is lost, unless the replies had ended well before.
        let drops_messages = self.state.is_open();
        let is_changed = self.state.fail(cause, status);
        self.changed(is_changed, drops_messages)
    }

    fn changed(&mut self, is_changed: bool, drops_messages: bool) -> Change {
        if !is_changed {
            return Change::default();
        }
        let (caller, messages) = (self.caller.take(), self.messages.clone());
        // The end of a unary call is reported by its caller, which takes the reply.
        let record = self.record.as_ref().filter(|_| messages.is_some());
        let end = record.and_then(|record| {
            let end = self.state.outcome()?;
            // So is the good end of any other call with one reply.
            let is_reported = end.1.is_some() || !self.kind.has_one_reply();
            is_reported.then(|| (record.clone(), end))
        });
        Change { caller, messages, drops_messages, end }
    }
}

/// The consequences of a call's change, for when the table is unlocked.
#[derive(Default)]
#[must_use = "tasks wait to be woken"]
pub(super) struct Change {
    caller: Option<Waker>,
    messages: Option<Arc<Messages>>,
    drops_messages: bool,
    end: Option<(Arc<CallRecord>, CallEnd)>,
}

impl Change {
    /// Wakes the tasks that wait for the change, and reports the call's end to its observers.
    pub(super) fn publish(self) {
        if let Some(caller) = self.caller {
            wake(caller);
        }
        if let Some(messages) = self.messages {
            messages.end(Ok(()), self.drops_messages);
        }
        if let Some((record, end)) = self.end {
            record.ended(end);
        }
    }
}

/// The meaning of a Data frame for a call.
pub(super) enum DataReceived {
    Message {
        messages: Arc<Messages>,
        record: Option<Arc<CallRecord>>,
        event: DataEvent,
    },
    /// The server broke the protocol, which has ended the call.
    Violation(Violation, Change),
    /// The call has ended, or there was none.
    Ignore,
}

/// The calls of one connection.
pub(in crate::client) type Calls = ClientTable<Box<CallEntry>>;

impl Calls {
    /// Opens a call, which gets its stream id. Takes the entry, unless all ids have been used.
    pub(in crate::client) fn open_call(
        &mut self,
        entry: &mut Option<Box<CallEntry>>,
    ) -> Option<u32> {
        if self.is_spent() {
            return None;
        }
        let entry = entry.take()?;
        let record = entry.record.clone();
        let stream_id = self.open(entry.kind.kind, entry)?;
        if let Some(record) = record {
            record.queued(stream_id);
        }
        Some(stream_id)
    }

    /// Acts on a Data frame, before its message is in the inbox.
    pub(super) fn receive_message(&mut self, header: Header) -> DataReceived {
        match self.receive_data(header.stream_id, header.flags) {
            Some((call, Ok(event))) => match &call.messages {
                Some(messages) => {
                    let record = call.record.clone();
                    DataReceived::Message { messages: messages.clone(), record, event }
                }
                None => DataReceived::Ignore,
            },
            Some((call, Err(violation))) => {
                let status =
                    Status::internal(format!("the server broke the protocol: {violation}"));
                let change = call.fail(EndCause::ProtocolViolation, status);
                DataReceived::Violation(violation, change)
            }
            None => DataReceived::Ignore,
        }
    }

    /// Ends the stream that a Response answers. Answers its call, unless somebody observes it: then the record is
    /// returned with the Response, for [`CallEntry::answer`].
    pub(super) fn end_by_response(
        &mut self,
        id: u32,
        response: Bytes,
    ) -> Result<Change, (Arc<CallRecord>, Bytes)> {
        let Some(call) = self.end(id) else { return Ok(Change::default()) };
        match &call.record {
            None => Ok(call.answer(response)),
            Some(record) => Err((record.clone(), response)),
        }
    }

    /// Changes a call that its owner has not let go of.
    pub(super) fn change_call(
        &mut self,
        id: u32,
        change: impl FnOnce(&mut CallEntry) -> Change,
    ) -> Change {
        self.get_mut(id).map_or_else(Change::default, |call| change(call))
    }

    /// The call fails on this side, whatever the server does.
    pub(super) fn fail(&mut self, id: u32, cause: EndCause, status: Status) -> Change {
        self.end(id);
        self.change_call(id, |call| call.fail(cause, status))
    }

    /// All calls fail that have not ended, since the connection has. What has arrived may still be taken. The end of the calls
    /// from `unsent` on is left to their owners to report, who may make them again.
    pub(super) fn fail_all(
        &mut self,
        cause: EndCause,
        status: &Status,
        unsent: Option<u32>,
    ) -> Vec<Change> {
        let fail = |(id, call): (u32, &mut Box<CallEntry>)| {
            let change = call.fail(cause, status.clone());
            let is_unsent = unsent.is_some_and(|first| id >= first);
            Change { drops_messages: false, end: change.end.filter(|_| !is_unsent), ..change }
        };
        self.end_all().map(fail).collect()
    }

    /// Removes a call that has ended, unless its owner has let go of it. `None` while it goes on.
    pub(in crate::client) fn take_ended(&mut self, id: u32) -> Option<Option<Box<CallEntry>>> {
        let goes_on = self.get(id).is_some_and(|call| call.state.is_open());
        (!goes_on).then(|| self.remove(id))
    }

    /// Polls whether a call has ended. While it goes on, the waker changes places with the one that waited before, which is to
    /// be dropped without the lock.
    pub(in crate::client) fn poll_ended(&mut self, id: u32, waker: &mut Option<Waker>) -> Poll<()> {
        match self.get_mut(id) {
            Some(call) if call.state.is_open() => {
                mem::swap(&mut call.caller, waker);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Ends the stream of requests from this side. Returns whether the server is to be notified.
    pub(in crate::client) fn close_requests(&mut self, id: u32) -> bool {
        let is_open = self.contains(id);
        let is_notified = self.get(id).is_some_and(|call| call.state.is_close_due(is_open));
        self.end_requests(id);
        is_notified
    }

    /// Returns what `read` says of the state of a call that its owner has not let go of.
    pub(in crate::client) fn read<R>(
        &self,
        id: u32,
        read: impl FnOnce(&CallState) -> Option<R>,
    ) -> Option<R> {
        self.get(id).and_then(|call| read(&call.state))
    }

    /// Returns when the oldest call began that has not ended.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.iter().map(|(_, call)| call.started).min()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::{
        Code,
        client::meta::CallOptions,
        proto::{frame::Flags, stream::Kind},
    };

    type End = fn(&mut Calls, u32);

    fn open(calls: &mut Calls, kind: Kind) -> u32 {
        let kind = MethodKind::from(kind);
        let mut options = CallOptions::default();
        options.start();
        let head = CallHead { kind, service: "S".into(), method: "M".into(), options };
        let messages = (!kind.is_unary()).then(Arc::default);
        let mut entry = Some(Box::new(CallEntry::new(&head, None, messages, None)));
        let id = calls.open_call(&mut entry).expect("ids are left");
        assert!(entry.is_none());
        id
    }

    fn answer(calls: &mut Calls, id: u32) {
        let change = calls.end_by_response(id, Bytes::new());
        change.unwrap_or_else(|_| panic!("nobody observes it")).publish();
    }

    fn fail(calls: &mut Calls, id: u32) {
        calls.fail(id, EndCause::Limit, Status::resource_exhausted("full")).publish();
    }

    fn expire(calls: &mut Calls, id: u32) {
        calls.fail(id, EndCause::DeadlineHere, Status::deadline_exceeded("late")).publish();
    }

    fn fail_all(calls: &mut Calls, _: u32) {
        let status = Status::unavailable("gone");
        calls.fail_all(EndCause::PeerGone, &status, None).into_iter().for_each(Change::publish);
    }

    #[tokio::test]
    async fn the_first_of_two_ends_counts_whichever_they_are() {
        let ends: [(End, EndCause, Code); 4] = [
            (answer, EndCause::Replied, Code::Ok),
            (fail, EndCause::Limit, Code::ResourceExhausted),
            (expire, EndCause::DeadlineHere, Code::DeadlineExceeded),
            (fail_all, EndCause::PeerGone, Code::Unavailable),
        ];
        for kind in [Kind::Unary, Kind::ServerStreaming, Kind::ClientStreaming, Kind::Bidirectional]
        {
            for (first, cause, code) in ends {
                for (second, ..) in ends {
                    let mut calls = Calls::default();
                    let id = open(&mut calls, kind);
                    assert!(calls.contains(id) && calls.len() == 1);
                    first(&mut calls, id);
                    assert!(!calls.contains(id) && calls.is_empty());
                    second(&mut calls, id);
                    let outcome = calls.read(id, |state| state.outcome()).expect("it has ended");
                    assert_eq!(outcome.0, cause, "{kind:?}");
                    assert_eq!(outcome.1.map_or(Code::Ok, |status| status.code()), code);
                    assert!(calls.remove(id).is_some() && calls.remove(id).is_none());
                }
            }
        }
    }

    /// Else the end of the connection would not find a call whose last message waits for its consumer.
    #[tokio::test]
    async fn a_call_whose_stream_has_ended_fails_until_its_state_says_so() {
        let mut calls = Calls::default();
        let id = open(&mut calls, Kind::ServerStreaming);
        let frame_type = crate::proto::frame::FrameType::Data;
        let last = Header { data_len: 1, stream_id: id, frame_type, flags: Flags::REMOTE_CLOSED };
        assert!(matches!(calls.receive_message(last), DataReceived::Message { .. }));
        assert!(!calls.contains(id));
        fail_all(&mut calls, id);
        let outcome = calls.read(id, |state| state.outcome());
        assert_eq!(outcome.map(|(cause, _)| cause), Some(EndCause::PeerGone));
        assert!(matches!(calls.receive_message(last), DataReceived::Ignore));
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counts(std::sync::atomic::AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// A waker is the program's: to copy or drop it may take the lock again, or panic.
    #[tokio::test]
    async fn a_caller_that_waits_gets_the_waker_of_the_one_that_waited_before() {
        let mut calls = Calls::default();
        let id = open(&mut calls, Kind::Unary);
        let woken = Arc::new(Counts::default());
        let [mut first, mut second] = [woken.clone().into(), Waker::noop().clone()].map(Some);
        assert!(calls.poll_ended(id, &mut first).is_pending() && first.is_none());
        assert!(calls.poll_ended(id, &mut second).is_pending());
        second.expect("it is the first one's").wake();
        assert_eq!(woken.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        answer(&mut calls, id);
        assert!(calls.poll_ended(id, &mut first).is_ready());
        assert!(calls.remove(id).is_some_and(|call| call.caller.is_none()));
        assert!(calls.poll_ended(id, &mut first).is_ready());
    }

    #[tokio::test]
    async fn the_server_is_notified_of_the_end_of_requests_unless_it_knows() {
        let cases: [(End, bool); 5] =
            [(|_, _| {}, true), (fail, true), (answer, false), (expire, false), (fail_all, false)];
        for (end, is_notified) in cases {
            let mut calls = Calls::default();
            let id = open(&mut calls, Kind::ClientStreaming);
            end(&mut calls, id);
            assert_eq!(calls.close_requests(id), is_notified);
        }
        assert!(!Calls::default().close_requests(1));
    }
}
