//! The state of one call on the client: whether the server has closed its side, and how the call has ended.
//!
//! ```text
//!            ┌─ the server closes its side ─► closed ─ any failure, a Response ─► closed, ended
//!     open ──┤
//!            └─ any failure, a Response ────► ended
//! ```
//!
//! Who may make which of these changes: see [`calls`](super::calls). The first end of the replies counts: what came in
//! time may be taken later, whatever happens to the requests meanwhile.
//!
//! Messages may be sent until the call has ended. When the sender of a stream of requests goes before, the server is notified,
//! and so it is after a failure that the server does not know, since its handler would wait for ever.

use bytes::Bytes;

use crate::{
    Code, Status,
    observer::EndCause,
    proto::{message::decode_response, payload::Payload},
};

/// How a call has ended, for observers: why, and with which status if not well.
pub(super) type CallEnd = (EndCause, Option<Status>);

/// The state of a call.
#[derive(Debug, Default)]
pub(in crate::client) struct CallState {
    /// The server has said that nothing more comes, before the call ended. That is a good end of its replies.
    is_remote_closed: bool,
    /// The call has ended for both sides, and no message may be sent any more.
    end: Option<End>,
}

/// How a call has ended.
#[derive(Debug)]
enum End {
    /// The server has answered.
    Answered(Response),
    /// The call has failed on this side.
    Failed(CallFailure),
}

/// Why a call failed on this side.
#[derive(Clone, Debug)]
pub(in crate::client) struct CallFailure {
    pub(super) cause: EndCause,
    pub(super) status: Status,
    /// The server does not know, and its side of the stream may go on.
    is_unknown_to_server: bool,
    /// Messages that have arrived and were not taken are lost.
    pub(super) drops_messages: bool,
}

impl CallFailure {
    fn new(cause: EndCause, status: Status) -> Self {
        CallFailure { cause, status, is_unknown_to_server: false, drops_messages: true }
    }

    /// A failure of the server's or of the caller's, which this side has found.
    pub(super) fn here(cause: EndCause, status: Status) -> Self {
        CallFailure { is_unknown_to_server: true, ..CallFailure::new(cause, status) }
    }

    /// The call's deadline has passed. The server knows it, and could take a close for a good end.
    pub(in crate::client) fn deadline(status: Status) -> Self {
        CallFailure::new(EndCause::DeadlineHere, status)
    }

    /// The caller has given the call up, and the server is told so.
    pub(super) fn given_up() -> Self {
        CallFailure::new(EndCause::GivenUp, Status::cancelled("the call was given up"))
    }

    /// The connection has ended. What has arrived may still be taken.
    pub(super) fn lost(cause: EndCause, status: Status) -> Self {
        CallFailure { drops_messages: false, ..CallFailure::new(cause, status) }
    }
}

/// A Response.
#[derive(Debug)]
struct Response {
    /// The data of the frame: decoded when it is taken, so that it costs no more than its bytes
    /// until then, and by the caller's task instead of the receiver's.
    data: Bytes,
    /// It ends a stream of replies: a payload is the last one, and an empty one is none.
    ends_stream: bool,
    /// It has been taken.
    is_taken: bool,
}

impl CallState {
    /// The server has answered. Returns whether that changes anything.
    pub(super) fn answer(&mut self, data: Bytes, ends_stream: bool) -> bool {
        self.end(End::Answered(Response { data, ends_stream, is_taken: false }))
    }

    /// The call fails on this side. Returns whether that changes anything.
    pub(super) fn fail(&mut self, failure: CallFailure) -> bool {
        self.end(End::Failed(failure))
    }

    fn end(&mut self, end: End) -> bool {
        let is_first = self.end.is_none();
        if is_first {
            self.end = Some(end);
        }
        is_first
    }

    /// The server has closed its side. Returns whether that changes anything.
    pub(super) fn close_remote(&mut self) -> bool {
        let is_open = self.is_open();
        self.is_remote_closed |= is_open;
        is_open
    }

    /// Returns whether more replies may come.
    pub(in crate::client) fn is_open(&self) -> bool {
        !self.is_remote_closed && self.end.is_none()
    }

    /// Returns why no request may be sent; `None` if it may.
    pub(in crate::client) fn refusal(&self) -> Option<Status> {
        Some(match self.end.as_ref()? {
            End::Answered(response) => response.refusal(),
            End::Failed(failure) => failure.status.clone(),
        })
    }

    /// Returns whether requests may be sent.
    pub(in crate::client) fn may_send(&self) -> bool {
        self.end.is_none()
    }

    /// Returns whether a close is to be sent when the sender of the stream of requests is dropped now, on a stream that is open
    /// or not.
    pub(super) fn is_close_due(&self, is_stream_open: bool) -> bool {
        match &self.end {
            None => is_stream_open,
            Some(End::Failed(failure)) => failure.is_unknown_to_server && !self.is_remote_closed,
            Some(End::Answered(_)) => false,
        }
    }

    /// Returns how the call ended, and why; `None` while it goes on.
    pub(in crate::client) fn outcome(&self) -> Option<CallEnd> {
        if self.is_remote_closed {
            return Some((EndCause::Replied, None));
        }
        Some(match self.end.as_ref()? {
            End::Answered(response) => response.outcome(),
            End::Failed(failure) => (failure.cause, Some(failure.status.clone())),
        })
    }

    /// Returns the payload of a good Response.
    pub(in crate::client) fn reply_bytes(&self) -> Option<Bytes> {
        match &self.end {
            Some(End::Answered(response)) => response.decode().ok(),
            _ => None,
        }
    }

    /// Decodes the reply of a unary call that has ended. Fails with the status of any other end.
    pub(in crate::client) fn reply<R>(
        &self,
        decode: impl FnOnce(Payload<'_>) -> Result<R, Status>,
    ) -> Result<R, Status> {
        match &self.end {
            Some(End::Answered(response)) => {
                decode(Payload::shared(response.payload()?, &response.data))
            }
            Some(End::Failed(failure)) => Err(failure.status.clone()),
            None => Err(Status::internal("the call ended without a reply")),
        }
    }

    /// Takes what comes after all messages: a last one, `Ok(None)` at a good end, or how the call failed. `None` while
    /// more may come.
    pub(in crate::client) fn take_end(&mut self) -> Option<Result<Option<Bytes>, Status>> {
        if self.is_remote_closed {
            return Some(Ok(None));
        }
        Some(match self.end.as_mut()? {
            End::Answered(response) => response.take(),
            End::Failed(failure) => Err(failure.status.clone()),
        })
    }

    /// Returns whether the payload of a Response was taken.
    pub(in crate::client) fn is_reply_taken(&self) -> bool {
        matches!(self.end, Some(End::Answered(Response { is_taken: true, .. })))
    }
}

impl Response {
    fn take(&mut self) -> Result<Option<Bytes>, Status> {
        if self.is_taken {
            return Ok(None);
        }
        let payload = self.decode()?;
        self.is_taken = true;
        let is_over = self.ends_stream && payload.is_empty();
        Ok((!is_over).then_some(payload))
    }

    fn decode(&self) -> Result<Bytes, Status> {
        Ok(Payload::shared(self.payload()?, &self.data).to_bytes())
    }

    /// Returns the payload, or the status that the Response carries, or INTERNAL if it is malformed.
    fn payload(&self) -> Result<&[u8], Status> {
        decode_response(&self.data).unwrap_or_else(|error| {
            Err(Status::internal(format!("the server's Response is malformed: {error}")))
        })
    }

    fn outcome(&self) -> CallEnd {
        match decode_response(&self.data) {
            Ok(Ok(_)) => (EndCause::Replied, None),
            Ok(Err(status)) if status.code() == Code::DeadlineExceeded => {
                (EndCause::DeadlineAtPeer, Some(status))
            }
            Ok(Err(status)) => (EndCause::Failed, Some(status)),
            Err(_) => (EndCause::ProtocolViolation, self.payload().err()),
        }
    }

    /// Returns why nothing can be sent any more.
    fn refusal(&self) -> Status {
        let ended = |_| Status::cancelled("the server has ended the call");
        self.payload().map_or_else(|status| status, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::message::encode_status;

    fn failure(is_unknown_to_server: bool) -> CallFailure {
        let status = Status::deadline_exceeded("late");
        CallFailure { is_unknown_to_server, ..CallFailure::deadline(status) }
    }

    fn ok(payload: &'static [u8]) -> Bytes {
        Bytes::from([&[0x12, payload.len() as u8], payload].concat())
    }

    fn not_found() -> Bytes {
        Bytes::from(encode_status(&Status::not_found("gone")))
    }

    #[test]
    fn an_answer_stays_whatever_fails_later() {
        let mut state = CallState::default();
        assert!(state.answer(ok(b"reply"), false));
        assert!(!state.fail(failure(true)) && !state.close_remote() && !state.may_send());
        assert!(!state.is_close_due(true));
        assert_eq!(state.refusal().unwrap().code(), Code::Cancelled);
        assert_eq!(state.take_end(), Some(Ok(Some(Bytes::from_static(b"reply")))));
        assert_eq!(state.take_end(), Some(Ok(None)));
        assert_eq!(state.outcome(), Some((EndCause::Replied, None)));
    }

    #[test]
    fn reply_bytes_are_those_of_a_good_answer_taken_or_not() {
        let mut state = CallState::default();
        assert_eq!(state.reply_bytes(), None);
        assert!(state.answer(ok(b"reply"), false));
        for _ in 0..2 {
            assert_eq!(state.reply_bytes(), Some(Bytes::from_static(b"reply")));
            assert!(state.take_end().is_some());
        }
        let mut state = CallState::default();
        assert!(state.answer(not_found(), false));
        assert_eq!(state.reply_bytes(), None);
    }

    #[test]
    fn a_short_reply_in_a_long_response_does_not_keep_all_of_it() {
        let mut state = CallState::default();
        // A field that nobody knows, of 10,000 × 128 bytes.
        let unknown = [&[0x7a, 0x80, 0x90, 0x4e][..], &vec![0; 1_280_000]].concat();
        let response = Bytes::from([&unknown[..], &ok(b"reply")].concat());
        assert!(state.answer(response.clone(), false));
        let reply = state.take_end().unwrap().unwrap().unwrap();
        assert_eq!(reply, b"reply"[..]);
        assert!(!response.as_ptr_range().contains(&reply.as_ptr()));
    }

    #[test]
    fn a_unary_call_has_its_reply_or_the_status_of_its_end() {
        let reply = |state: &CallState| state.reply(|payload| Ok(payload.to_bytes()));
        let mut state = CallState::default();
        assert!(state.answer(ok(b"reply"), false));
        assert_eq!(reply(&state), Ok(Bytes::from_static(b"reply")));
        let mut state = CallState::default();
        assert!(state.answer(not_found(), false));
        assert_eq!(reply(&state).unwrap_err().code(), Code::NotFound);
        let (cause, status) = state.outcome().expect("it has ended");
        assert_eq!((cause, status.unwrap().code()), (EndCause::Failed, Code::NotFound));
        let mut state = CallState::default();
        assert!(state.fail(failure(true)));
        assert_eq!(reply(&state).unwrap_err().code(), Code::DeadlineExceeded);
        let mut state = CallState::default();
        assert!(state.close_remote());
        assert_eq!(reply(&state).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn a_good_end_of_the_replies_stays_when_the_requests_fail() {
        for fail in [
            |state: &mut CallState| state.fail(failure(true)),
            |state: &mut CallState| state.answer(not_found(), true),
        ] {
            let mut state = CallState::default();
            assert!(state.close_remote() && state.may_send());
            assert!(state.is_close_due(true) && !state.is_close_due(false));
            assert_eq!(state.take_end(), Some(Ok(None)));
            assert!(fail(&mut state) && !state.may_send() && state.refusal().is_some());
            assert_eq!(state.take_end(), Some(Ok(None)));
            assert!(!fail(&mut state), "the first failure counts");
        }
    }

    #[test]
    fn a_status_ends_both_sides_and_is_said_to_both() {
        let mut state = CallState::default();
        assert!(state.answer(not_found(), true));
        assert_eq!(state.refusal().unwrap().code(), Code::NotFound);
        for _ in 0..2 {
            assert_eq!(state.take_end().unwrap().unwrap_err().code(), Code::NotFound);
        }
    }

    #[test]
    fn an_empty_response_ends_a_stream_and_is_a_reply_elsewhere() {
        for (ends_stream, reply) in [(true, None), (false, Some(Bytes::new()))] {
            let mut state = CallState::default();
            assert!(state.answer(Bytes::new(), ends_stream));
            assert_eq!(state.take_end(), Some(Ok(reply)));
            assert_eq!(state.take_end(), Some(Ok(None)));
        }
        let mut state = CallState::default();
        assert!(state.answer(ok(b"last"), true));
        assert_eq!(state.take_end(), Some(Ok(Some(Bytes::from_static(b"last")))));
        assert_eq!(state.take_end(), Some(Ok(None)));
    }

    #[test]
    fn a_failure_is_the_end_and_the_first_one_counts() {
        for is_unknown_to_server in [true, false] {
            let mut state = CallState::default();
            let first = failure(is_unknown_to_server);
            assert!(state.take_end().is_none() && state.fail(first.clone()));
            let later = CallFailure { status: Status::unavailable(""), ..failure(false) };
            assert!(!state.fail(later) && !state.answer(ok(b""), false));
            assert_eq!(state.take_end(), Some(Err(first.status.clone())));
            assert_eq!(state.refusal(), Some(first.status));
            for is_open in [true, false] {
                assert_eq!(state.is_close_due(is_open), is_unknown_to_server);
            }
        }
    }
}
