//! Why a connection has ended, and why a stream is refused or ends.

use std::{io, time::Duration};

use crate::{
    Status,
    observer::{CallOutcome, ConnectionEndCause, EndCause},
    proto::message::Malformed,
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
