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
//! Messages may be sent until the call has ended. When the sender of a stream of requests is dropped before that, the
//! server receives a close. It also does after a failure of this side that it does not know: its handler would wait for
//! ever.

use bytes::Bytes;

use crate::{
    Code, Status,
    observer::EndCause,
    proto::{message::decode_response, payload::Payload},
};

/// How a call has ended, for observers: why, and with which status if not well.
pub(super) type CallEnd = (EndCause, Option<Status>);

/// Why a call failed, for observers, and its status.
pub(in crate::client) type Failure = (EndCause, Status);

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
    /// The server has answered, with a Response of this data. It is decoded when it is taken: so it costs no more than its
    /// bytes until then, and the caller's task decodes it instead of the receiver's.
    Answered(Bytes),
    /// The call has failed on this side.
    Failed(EndCause, Status),
}

impl CallState {
    /// The server has answered. Returns whether that changes anything.
    pub(super) fn answer(&mut self, response: Bytes) -> bool {
        self.end(End::Answered(response))
    }

    /// The call fails on this side. Returns whether that changes anything.
    pub(super) fn fail(&mut self, cause: EndCause, status: Status) -> bool {
        self.end(End::Failed(cause, status))
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
        Some(match self.end.as_ref()?.result() {
            Ok(_) => Status::cancelled("the server has ended the call"),
            Err((_, status)) => status,
        })
    }

    /// Returns whether requests may be sent.
    pub(in crate::client) fn may_send(&self) -> bool {
        self.end.is_none()
    }

    /// Returns whether a close is to be sent when the sender of the stream of requests is dropped now, on a stream that is open
    /// or not. Of a deadline the server knows, and could take a close for a good end; it is told of a call that was given up.
    pub(super) fn is_close_due(&self, is_stream_open: bool) -> bool {
        match &self.end {
            None => is_stream_open,
            Some(End::Failed(cause, _)) => {
                let is_unknown = matches!(cause, EndCause::Limit | EndCause::ProtocolViolation);
                is_unknown && !self.is_remote_closed
            }
            Some(End::Answered(_)) => false,
        }
    }

    /// Returns how the call ended, and why; `None` while it goes on.
    pub(in crate::client) fn outcome(&self) -> Option<CallEnd> {
        Some(match self.last(|_| ())? {
            Ok(_) => (EndCause::Replied, None),
            Err((cause, status)) => (cause, Some(status)),
        })
    }

    /// Returns what comes after all messages: what `read` makes of the payload of a Response, `Ok(None)` at any other good end,
    /// or why the call failed. `None` while more may come.
    pub(in crate::client) fn last<R>(
        &self,
        read: impl FnOnce(&mut Payload<'_>) -> R,
    ) -> Option<Result<Option<R>, Failure>> {
        if self.is_remote_closed {
            return Some(Ok(None));
        }
        Some(self.end.as_ref()?.result().map(|mut payload| Some(read(&mut payload))))
    }
}

impl End {
    /// Returns the payload of the Response, or why the call failed. A malformed Response is INTERNAL.
    fn result(&self) -> Result<Payload<'_>, Failure> {
        let response = match self {
            End::Answered(response) => response,
            End::Failed(cause, status) => return Err((*cause, status.clone())),
        };
        match decode_response(response) {
            Ok(Ok(payload)) => Ok(Payload::shared(payload, response)),
            Ok(Err(status)) if status.code() == Code::DeadlineExceeded => {
                Err((EndCause::DeadlineAtPeer, status))
            }
            Ok(Err(status)) => Err((EndCause::Failed, status)),
            Err(error) => {
                let status = format!("the server's Response is malformed: {error}");
                Err((EndCause::ProtocolViolation, Status::internal(status)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::message::encode_status;

    /// Causes of which the server is to be notified, and of which it knows.
    const CAUSES: [(EndCause, bool); 2] =
        [(EndCause::Limit, true), (EndCause::DeadlineHere, false)];

    fn late() -> Status {
        Status::deadline_exceeded("late")
    }

    fn ok(payload: &'static [u8]) -> Bytes {
        Bytes::from([&[0x12, payload.len() as u8], payload].concat())
    }

    fn not_found() -> Bytes {
        Bytes::from(encode_status(&Status::not_found("gone")))
    }

    fn last(state: &CallState) -> Option<Result<Option<Bytes>, Status>> {
        Some(state.last(|payload| payload.to_bytes())?.map_err(|(_, status)| status))
    }

    #[test]
    fn an_answer_stays_whatever_fails_later() {
        let mut state = CallState::default();
        assert!(state.answer(ok(b"reply")));
        assert!(!state.fail(EndCause::Limit, late()) && !state.close_remote());
        assert!(!state.may_send() && !state.is_close_due(true));
        assert_eq!(state.refusal().unwrap().code(), Code::Cancelled);
        for _ in 0..2 {
            assert_eq!(last(&state), Some(Ok(Some(Bytes::from_static(b"reply")))));
        }
        assert_eq!(state.outcome(), Some((EndCause::Replied, None)));
    }

    #[test]
    fn a_short_reply_in_a_long_response_does_not_keep_all_of_it() {
        let mut state = CallState::default();
        // A field that nobody knows, of 10,000 × 128 bytes.
        let unknown = [&[0x7a, 0x80, 0x90, 0x4e][..], &vec![0; 1_280_000]].concat();
        let response = Bytes::from([&unknown[..], &ok(b"reply")].concat());
        assert!(state.answer(response.clone()));
        let reply = last(&state).unwrap().unwrap().unwrap();
        assert_eq!(reply, b"reply"[..]);
        assert!(!response.as_ptr_range().contains(&reply.as_ptr()));
    }

    #[test]
    fn a_good_end_of_the_replies_stays_when_the_requests_fail() {
        for fail in [
            |state: &mut CallState| state.fail(EndCause::Limit, late()),
            |state: &mut CallState| state.answer(not_found()),
        ] {
            let mut state = CallState::default();
            assert!(state.close_remote() && state.may_send());
            assert!(state.is_close_due(true) && !state.is_close_due(false));
            assert_eq!(last(&state), Some(Ok(None)));
            assert!(fail(&mut state) && !state.may_send() && state.refusal().is_some());
            assert_eq!(last(&state), Some(Ok(None)));
            assert!(!fail(&mut state), "the first failure counts");
        }
    }

    #[test]
    fn a_status_ends_both_sides_and_is_said_to_both() {
        let mut state = CallState::default();
        assert!(state.answer(not_found()));
        assert_eq!(state.refusal().unwrap().code(), Code::NotFound);
        assert_eq!(last(&state).unwrap().unwrap_err().code(), Code::NotFound);
        let (cause, status) = state.outcome().expect("it has ended");
        assert_eq!((cause, status.unwrap().code()), (EndCause::Failed, Code::NotFound));
    }

    #[test]
    fn a_response_that_is_malformed_is_internal_and_a_violation() {
        let mut state = CallState::default();
        assert!(state.answer(Bytes::from_static(&[0x12, 9])));
        assert_eq!(last(&state).unwrap().unwrap_err().code(), Code::Internal);
        let (cause, status) = state.outcome().expect("it has ended");
        assert_eq!((cause, status.unwrap().code()), (EndCause::ProtocolViolation, Code::Internal));
    }

    #[test]
    fn a_failure_is_the_end_and_the_first_one_counts() {
        for (cause, is_close_due) in CAUSES {
            let mut state = CallState::default();
            assert!(last(&state).is_none() && state.fail(cause, late()));
            let later = Status::unavailable("");
            assert!(!state.fail(EndCause::PeerGone, later) && !state.answer(ok(b"")));
            assert_eq!(last(&state), Some(Err(late())));
            assert_eq!(state.refusal(), Some(late()));
            for is_open in [true, false] {
                assert_eq!(state.is_close_due(is_open), is_close_due);
            }
        }
    }
}
