//! Why a connection has ended, and why a call comes to no handler.

use std::io;

use tokio::time::Instant;

use crate::{
    Status,
    observer::{CallOutcome, ConnectionEndCause, EndCause},
    proto::frame::Flags,
};

/// A call that comes to no handler.
pub(super) struct RefusedCall<'a> {
    pub(super) stream_id: u32,
    pub(super) flags: Flags,
    pub(super) service: &'a str,
    pub(super) method: &'a str,
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
    /// It was not refused at once, but had to wait to be let in.
    pub(super) has_waited: bool,
}

/// Why a frame's stream is refused, or ends.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) cause: EndCause,
    pub(super) status: Status,
}

impl Refusal {
    /// A limit of the server's: RESOURCE_EXHAUSTED.
    pub(super) fn limit(message: impl Into<String>) -> Self {
        Refusal { cause: EndCause::Limit, status: Status::resource_exhausted(message) }
    }

    /// What the client has sent is wrong: INVALID_ARGUMENT.
    pub(super) fn violation(message: impl Into<String>) -> Self {
        Refusal { cause: EndCause::ProtocolViolation, status: Status::invalid_argument(message) }
    }

    pub(super) fn outcome(&self) -> CallOutcome<'_> {
        CallOutcome { cause: self.cause, status: Some(&self.status) }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) struct EndReason {
    pub(super) cause: ConnectionEndCause,
    pub(super) message: String,
}

impl EndReason {
    pub(super) fn closed_by_client() -> Self {
        EndReason { cause: ConnectionEndCause::ClosedByPeer, message: String::new() }
    }

    pub(super) fn closed_here() -> Self {
        EndReason { cause: ConnectionEndCause::ClosedHere, message: String::new() }
    }

    /// Writing has failed: most often since the client has gone.
    pub(super) fn not_written(error: &io::Error) -> Self {
        let is_gone =
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        let cause =
            if is_gone { ConnectionEndCause::ClosedByPeer } else { ConnectionEndCause::Failed };
        EndReason { cause, message: error.to_string() }
    }

    pub(super) fn failed(message: impl ToString) -> Self {
        EndReason { cause: ConnectionEndCause::Failed, message: message.to_string() }
    }
}
