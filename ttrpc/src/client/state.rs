//! The state of one call on the client, in one enum.
//!
//! ```text
//!            ┌─ the server closes its side ─► RemoteClosed ─ any failure, a Response ─► RequestsFailed
//!     Open ──┼─ a Response ─────────────────► Answered
//!            └─ any failure ────────────────► Failed
//! ```
//!
//! | who | may do |
//! |---|---|
//! | the receiver | answer, close the server's side, fail the call for a violation, an oversized frame or a consumer that stands still |
//! | the caller | fail the call since its deadline has passed |
//! | the connection's end | fail the call |
//!
//! The first end of the replies counts: what came in time may be taken later, whatever happens to the
//! requests meanwhile. A call that the caller drops keeps its state; it is taken out of the
//! connection's table, and its state is not read again.
//!
//! What is owed to the server reads off the state, too, see [`CallState::close`]: `Open` and
//! `RemoteClosed` are the states in which messages may be sent, and a stream of requests is closed
//! when its sender goes. So is one that has failed on this side for a reason that the server does not
//! know, since its handler would wait for ever otherwise.

use std::mem;

use bytes::Bytes;

use crate::{
    Code, Status,
    observer::EndCause,
    proto::{message::decode_response, payload::Payload},
    transport::inbox::StreamState,
};

/// The state of a call.
#[derive(Debug, Default)]
pub(super) enum CallState {
    /// Both sides may go on.
    #[default]
    Open,
    /// The server has said that nothing more comes; this side may go on.
    RemoteClosed,
    /// The same, and the requests cannot go on.
    RequestsFailed(Refusal),
    /// The server has answered, which ends the call for both sides.
    Answered(Answer),
    /// The call has failed on this side.
    Failed(CallFailure),
}

/// Why a call failed on this side.
#[derive(Clone, Debug)]
pub(super) struct CallFailure {
    pub(super) cause: EndCause,
    pub(super) status: Status,
    /// The server does not know, and its side of the stream may go on.
    pub(super) is_unknown_to_server: bool,
}

/// Why no message may be sent any more.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server has answered. The answer is decoded when it is asked for.
    Answered(Answer),
    /// The call has failed on this side.
    Failed(Status),
}

impl Refusal {
    fn status(&self) -> Status {
        match self {
            Refusal::Answered(answer) => answer.refusal(),
            Refusal::Failed(status) => status.clone(),
        }
    }
}

/// What is sent when the sender of a stream of requests is dropped.
#[derive(Debug, PartialEq)]
pub(super) enum RequestsEnd {
    /// A close, if the stream is in the connection's table.
    CloseIfInTable,
    /// A close.
    Close,
    /// Nothing.
    Nothing,
}

/// A Response.
#[derive(Debug)]
pub(super) struct Answer {
    /// The data of the frame: decoded when it is taken, so that it costs no more than its bytes
    /// until then, and by the caller's task instead of the receiver's.
    response: Bytes,
    /// It ends a stream of replies: a payload is the last one, and an empty one is none.
    ends_stream: bool,
    /// It has been taken.
    is_taken: bool,
}

impl CallState {
    /// The server has answered. Returns whether that changes anything.
    pub(super) fn answer(&mut self, response: Bytes, ends_stream: bool) -> bool {
        let answer = Answer { response, ends_stream, is_taken: false };
        match self {
            CallState::Open => *self = CallState::Answered(answer),
            CallState::RemoteClosed => *self = CallState::RequestsFailed(Refusal::Answered(answer)),
            CallState::RequestsFailed(_) | CallState::Answered(_) | CallState::Failed(_) => {
                return false;
            }
        }
        true
    }

    /// The server has closed its side.
    pub(super) fn close_remote(&mut self) -> bool {
        let is_open = matches!(self, CallState::Open);
        if is_open {
            *self = CallState::RemoteClosed;
        }
        is_open
    }

    /// The call fails on this side. Returns whether that changes anything.
    pub(super) fn fail(&mut self, failure: &CallFailure) -> bool {
        match self {
            CallState::Open => *self = CallState::Failed(failure.clone()),
            CallState::RemoteClosed => {
                *self = CallState::RequestsFailed(Refusal::Failed(failure.status.clone()));
            }
            CallState::RequestsFailed(_) | CallState::Answered(_) | CallState::Failed(_) => {
                return false;
            }
        }
        true
    }

    /// Whether messages may be sent.
    pub(super) fn may_send(&self) -> bool {
        matches!(self, CallState::Open | CallState::RemoteClosed)
    }

    /// Why no message may be sent; `None` if it may.
    pub(super) fn refusal(&self) -> Option<Status> {
        match self {
            CallState::Open | CallState::RemoteClosed => None,
            CallState::RequestsFailed(refusal) => Some(refusal.status()),
            CallState::Failed(failure) => Some(failure.status.clone()),
            CallState::Answered(answer) => Some(answer.refusal()),
        }
    }

    /// What is sent when the sender of the stream of requests is dropped now.
    pub(super) fn close(&self) -> RequestsEnd {
        match self {
            CallState::Open | CallState::RemoteClosed => RequestsEnd::CloseIfInTable,
            CallState::Failed(CallFailure { is_unknown_to_server: true, .. }) => RequestsEnd::Close,
            CallState::RequestsFailed(_) | CallState::Answered(_) | CallState::Failed(_) => {
                RequestsEnd::Nothing
            }
        }
    }

    /// How the call ended, and why; `None` as long as it goes on.
    pub(super) fn outcome(&self) -> Option<(EndCause, Option<Status>)> {
        match self {
            CallState::Open => None,
            CallState::RemoteClosed | CallState::RequestsFailed(_) => {
                Some((EndCause::Replied, None))
            }
            CallState::Answered(answer) => Some(answer.outcome()),
            CallState::Failed(failure) => Some((failure.cause, Some(failure.status.clone()))),
        }
    }

    /// The payload of a good Response.
    pub(super) fn reply_bytes(&self) -> Option<Bytes> {
        match self {
            CallState::Answered(answer) => answer.decode().ok(),
            _ => None,
        }
    }

    /// How the call has ended for its caller: with this Response, which stays here only if somebody else may ask for
    /// it, or without one.
    pub(super) fn take_response(&mut self, is_kept: bool) -> Option<Result<Option<Bytes>, Status>> {
        let CallState::Answered(answer) = self else { return self.end() };
        if mem::replace(&mut answer.is_taken, true) {
            return Some(Ok(None));
        }
        let response = &mut answer.response;
        Some(Ok(Some(if is_kept { response.clone() } else { mem::take(response) })))
    }

    /// Whether what was taken last is the payload of a Response.
    pub(super) fn is_reply_taken(&self) -> bool {
        matches!(self, CallState::Answered(Answer { is_taken: true, .. }))
    }
}

impl StreamState for CallState {
    fn end(&mut self) -> Option<Result<Option<Bytes>, Status>> {
        match self {
            CallState::Open => None,
            CallState::RemoteClosed | CallState::RequestsFailed(_) => Some(Ok(None)),
            CallState::Answered(answer) => Some(answer.take()),
            CallState::Failed(failure) => Some(Err(failure.status.clone())),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self, CallState::Open)
    }
}

impl Answer {
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
        Ok(Payload::shared(self.payload()?, &self.response).to_bytes())
    }

    fn payload(&self) -> Result<&[u8], Status> {
        payload_of(&self.response)
    }

    fn outcome(&self) -> (EndCause, Option<Status>) {
        match decode_response(&self.response) {
            Ok(Ok(_)) => (EndCause::Replied, None),
            Ok(Err(status)) if status.code() == Code::DeadlineExceeded => {
                (EndCause::DeadlineAtPeer, Some(status))
            }
            Ok(Err(status)) => (EndCause::Failed, Some(status)),
            Err(_) => (EndCause::ProtocolViolation, self.payload().err()),
        }
    }

    /// Why nothing can be sent any more.
    fn refusal(&self) -> Status {
        let ended = |_| Status::cancelled("the server has ended the call");
        self.payload().map_or_else(|status| status, ended)
    }
}

/// The payload of a Response.
///
/// # Errors
/// The status that it carries, and INTERNAL if it is malformed.
#[inline]
pub(super) fn payload_of(response: &[u8]) -> Result<&[u8], Status> {
    decode_response(response).unwrap_or_else(|error| {
        Err(Status::internal(format!("the server's Response is malformed: {error}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::message::encode_status;

    fn failure(is_unknown_to_server: bool) -> CallFailure {
        CallFailure {
            cause: EndCause::DeadlineHere,
            status: Status::deadline_exceeded("late"),
            is_unknown_to_server,
        }
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
        assert!(!state.fail(&failure(true)) && !state.close_remote() && !state.may_send());
        assert_eq!(state.close(), RequestsEnd::Nothing);
        assert_eq!(state.refusal().unwrap().code(), Code::Cancelled);
        assert_eq!(state.end(), Some(Ok(Some(Bytes::from_static(b"reply")))));
        assert_eq!(state.end(), Some(Ok(None)));
        assert_eq!(state.outcome(), Some((EndCause::Replied, None)));
    }

    #[test]
    fn reply_bytes_are_those_of_a_good_answer_taken_or_not() {
        let mut state = CallState::default();
        assert_eq!(state.reply_bytes(), None);
        assert!(state.answer(ok(b"reply"), false));
        for _ in 0..2 {
            assert_eq!(state.reply_bytes(), Some(Bytes::from_static(b"reply")));
            assert!(state.end().is_some());
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
        let reply = state.end().unwrap().unwrap().unwrap();
        assert_eq!(reply, b"reply"[..]);
        assert!(!response.as_ptr_range().contains(&reply.as_ptr()));
    }

    #[test]
    fn a_response_is_taken_once_and_stays_for_those_who_may_ask_for_it() {
        for is_kept in [false, true] {
            let mut state = CallState::default();
            assert_eq!(state.take_response(is_kept), None);
            assert!(state.answer(ok(b"reply"), false));
            assert_eq!(state.take_response(is_kept), Some(Ok(Some(ok(b"reply")))));
            assert_eq!(state.take_response(is_kept), Some(Ok(None)));
            let kept = if is_kept { Bytes::from_static(b"reply") } else { Bytes::new() };
            assert_eq!(state.reply_bytes(), Some(kept));
        }
        let mut state = CallState::default();
        assert!(state.answer(not_found(), false));
        assert!(state.take_response(true).is_some());
        let (cause, status) = state.outcome().expect("it has ended");
        assert_eq!((cause, status.unwrap().code()), (EndCause::Failed, Code::NotFound));
        let mut state = CallState::default();
        assert!(state.fail(&failure(true)));
        let ended = state.take_response(false).expect("it has ended");
        assert_eq!(ended.unwrap_err().code(), Code::DeadlineExceeded);
    }

    #[test]
    fn a_good_end_of_the_replies_stays_when_the_requests_fail() {
        for fail in [
            |state: &mut CallState| state.fail(&failure(true)),
            |state: &mut CallState| state.answer(not_found(), true),
        ] {
            let mut state = CallState::default();
            assert!(state.close_remote() && state.may_send());
            assert_eq!(state.close(), RequestsEnd::CloseIfInTable);
            assert_eq!(state.end(), Some(Ok(None)));
            assert!(fail(&mut state) && !state.may_send() && state.refusal().is_some());
            assert_eq!(state.end(), Some(Ok(None)));
            assert!(!fail(&mut state), "the first failure counts");
        }
    }

    #[test]
    fn a_status_ends_both_sides_and_is_said_to_both() {
        let mut state = CallState::default();
        assert!(state.answer(not_found(), true));
        assert_eq!(state.refusal().unwrap().code(), Code::NotFound);
        for _ in 0..2 {
            assert_eq!(state.end().unwrap().unwrap_err().code(), Code::NotFound);
        }
    }

    #[test]
    fn an_empty_response_ends_a_stream_and_is_a_reply_elsewhere() {
        for (ends_stream, reply) in [(true, None), (false, Some(Bytes::new()))] {
            let mut state = CallState::default();
            assert!(state.answer(Bytes::new(), ends_stream));
            assert_eq!(state.end(), Some(Ok(reply)));
            assert_eq!(state.end(), Some(Ok(None)));
        }
        let mut state = CallState::default();
        assert!(state.answer(ok(b"last"), true));
        assert_eq!(state.end(), Some(Ok(Some(Bytes::from_static(b"last")))));
        assert_eq!(state.end(), Some(Ok(None)));
    }

    #[test]
    fn a_failure_is_the_end_and_the_first_one_counts() {
        for is_unknown_to_server in [true, false] {
            let mut state = CallState::default();
            let first = failure(is_unknown_to_server);
            assert!(state.end().is_none() && state.fail(&first));
            let later = CallFailure { status: Status::unavailable(""), ..failure(false) };
            assert!(!state.fail(&later) && !state.answer(ok(b""), false));
            assert_eq!(state.end(), Some(Err(first.status.clone())));
            assert_eq!(state.refusal(), Some(first.status));
            let close =
                if is_unknown_to_server { RequestsEnd::Close } else { RequestsEnd::Nothing };
            assert_eq!(state.close(), close);
        }
    }
}
