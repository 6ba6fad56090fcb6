//! Why a connection has ended, why a stream is refused or ends, and how the client hears of that.

use std::{io, time::Duration};

use crate::server::call::{shared::Connection, state::Call};
use crate::{
    Code, Raw, Status,
    observer::{CallOutcome, ConnectionEndCause, EndCause},
    proto::{
        frame::{Flags, FrameType, MAX_DATA_LEN},
        message::{DynData, Malformed, encode_status},
    },
    transport::frames::Frame,
};

/// Why a frame's stream is refused, or ends.
#[derive(Debug)]
pub(in crate::server) struct Refusal {
    pub(in crate::server) cause: EndCause,
    pub(in crate::server) status: Status,
}

impl Refusal {
    /// A limit of the server's: RESOURCE_EXHAUSTED.
    pub(in crate::server) fn limit(message: impl Into<String>) -> Self {
        Refusal { cause: EndCause::Limit, status: Status::resource_exhausted(message) }
    }

    /// What the client has sent is wrong: INVALID_ARGUMENT.
    pub(in crate::server) fn violation(message: impl Into<String>) -> Self {
        Refusal { cause: EndCause::ProtocolViolation, status: Status::invalid_argument(message) }
    }

    /// The call is over: nobody hears of this.
    pub(in crate::server) fn over() -> Self {
        Refusal { cause: EndCause::PeerGone, status: Status::cancelled("the call is over") }
    }

    /// The call's deadline has passed: DEADLINE_EXCEEDED.
    pub(in crate::server) fn too_late(message: &str) -> Self {
        Refusal { cause: EndCause::DeadlineHere, status: Status::deadline_exceeded(message) }
    }

    /// The call's deadline has passed before its handler began.
    pub(in crate::server) fn late_start() -> Self {
        Refusal::too_late("the call's deadline passed before it was started")
    }

    pub(in crate::server) fn outcome(&self) -> CallOutcome<'_> {
        CallOutcome { cause: self.cause, status: Some(&self.status) }
    }
}

/// A Request is malformed, or has more metadata than it may have.
impl From<Malformed> for Refusal {
    fn from(error: Malformed) -> Self {
        match error {
            Malformed::TooManyPairs(_) => Refusal::limit(error.to_string()),
            error => Refusal::violation(format!("the Request is malformed: {error}")),
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(in crate::server) struct EndReason {
    pub(in crate::server) cause: ConnectionEndCause,
    pub(in crate::server) message: String,
}

impl EndReason {
    pub(in crate::server) fn closed_by_client() -> Self {
        EndReason { cause: ConnectionEndCause::ClosedByPeer, message: String::new() }
    }

    pub(in crate::server) fn closed_here() -> Self {
        EndReason { cause: ConnectionEndCause::ClosedHere, message: String::new() }
    }

    /// No call was open and nothing arrived for this long.
    pub(in crate::server) fn idle(max_idle: Duration) -> Self {
        let message = format!("no call was open and nothing arrived for {max_idle:?}");
        EndReason { cause: ConnectionEndCause::Idle, message }
    }

    /// Writing has failed: most often since the client has gone.
    pub(in crate::server) fn not_written(error: &io::Error) -> Self {
        let is_gone =
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        let cause =
            if is_gone { ConnectionEndCause::ClosedByPeer } else { ConnectionEndCause::Failed };
        EndReason { cause, message: error.to_string() }
    }

    pub(in crate::server) fn failed(message: impl ToString) -> Self {
        EndReason { cause: ConnectionEndCause::Failed, message: message.to_string() }
    }
}

impl Connection {
    /// Why pending calls end when the connection ends.
    pub(in crate::server) fn lost_call(&self) -> Refusal {
        let (cause, message) = match self.end_reason.get() {
            None | Some(EndReason { cause: ConnectionEndCause::ClosedHere, .. }) => {
                (EndCause::Shutdown, "the server has closed the connection")
            }
            Some(_) => (EndCause::PeerGone, "the client has gone away"),
        };
        Refusal { cause, status: Status::cancelled(message) }
    }

    /// Returns whether the client learns from this side that a call has ended for this cause.
    pub(in crate::server) fn answers(&self, cause: EndCause) -> bool {
        cause != EndCause::DeadlineHere || self.server.config.answer_late_calls
    }

    /// Sends a Response that carries a failure, of a call that was taken out of the table or is refused; waits
    /// for capacity. A connection that has ended drops it, and so does one that answers no late calls.
    pub(in crate::server) async fn send_status(
        &self,
        stream_id: u32,
        failure: &Refusal,
        call: Option<&Call>,
    ) {
        if self.answers(failure.cause) {
            self.send_response(stream_id, encode_failure(&failure.status), call).await;
        }
    }

    /// Sends a Response of which no stream is in the table. A connection that has ended drops it.
    pub(in crate::server) async fn send_response(
        &self,
        stream_id: u32,
        data: Raw,
        call: Option<&Call>,
    ) {
        let data = DynData::of_message(&data);
        let frame = Frame::new(FrameType::Response, Flags::NONE, stream_id, data);
        let frame = frame.expect("it is no longer than a frame may be");
        if let Ok(permit) = self.reserve(frame.len(), call.map(Call::info)).await {
            let _ = self.queue.send(&frame, Some(permit), |_| Some(stream_id.into()));
        }
    }
}

/// The data of a Response that carries a failure, no longer than a frame may be. One of code 0 would
/// be a success.
pub(in crate::server) fn encode_failure(status: &Status) -> Raw {
    let data = match status.raw_code() {
        0 => encode_status(&Status::unknown(format!(
            "the handler failed with a status of code OK: {}",
            status.message()
        ))),
        _ => encode_status(status),
    };
    if data.len() <= MAX_DATA_LEN {
        return data.into();
    }
    let too_long = "the call failed with a status that is longer than a frame may be";
    encode_status(&Status::new(Code::ResourceExhausted, too_long)).into()
}
