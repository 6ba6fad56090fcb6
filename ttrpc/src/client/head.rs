//! What is known of a call before it has an entry in its connection's table: its shape, its names, its times.

use tokio::time::Instant;

use crate::{
    Metadata, Name, Status,
    proto::{frame::Flags, stream::Kind},
    trace::{self, Span},
};

/// How a call is opened and answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CallShape {
    pub(super) kind: Kind,
    /// The Request's flags.
    pub(super) flags: Flags,
    /// The method's kind is unknown: `kind` is what the flags allow, and a Response is one on any stream.
    is_raw: bool,
}

impl From<Kind> for CallShape {
    fn from(kind: Kind) -> Self {
        let flags = match kind {
            Kind::Unary => Flags::NONE,
            Kind::ServerStreaming => Flags::REMOTE_CLOSED,
            Kind::ClientStreaming | Kind::Bidirectional => Flags::REMOTE_OPEN,
        };
        CallShape { kind, flags, is_raw: false }
    }
}

impl CallShape {
    /// Whether the caller awaits one reply and nothing else.
    pub(super) fn is_unary(&self) -> bool {
        self.kind == Kind::Unary && !self.is_raw
    }

    /// Whether the caller awaits one reply, which may follow a stream of requests.
    pub(super) fn has_one_reply(&self) -> bool {
        matches!(self.kind, Kind::Unary | Kind::ClientStreaming) && !self.is_raw
    }

    /// Whether a Response ends a stream of replies: its payload is the last message, and an empty one is none.
    pub(super) fn is_ended_by_response(&self) -> bool {
        self.kind.server_streams() && !self.is_raw
    }

    /// Whether the Request opens a stream.
    pub(super) fn is_stream(&self) -> bool {
        self.flags.open_a_stream()
    }

    /// A call of which these flags are all that is known: what the server may send is what it may
    /// send on any stream that is opened so.
    pub(super) fn raw(flags: Flags) -> Self {
        let kind = match () {
            () if flags.contains(Flags::REMOTE_OPEN) => Kind::Bidirectional,
            () if flags.contains(Flags::REMOTE_CLOSED) => Kind::ServerStreaming,
            () => Kind::Unary,
        };
        CallShape { kind, flags, is_raw: true }
    }
}

/// When a call began, and when its time is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) started: Instant,
    /// `None` also where it is too far away to be named.
    pub(super) deadline: Option<Instant>,
}

/// What is known of a call when it begins.
#[derive(Clone, Copy)]
pub(super) struct CallHead<'a> {
    pub(super) shape: CallShape,
    pub(super) service: &'a Name,
    pub(super) method: &'a Name,
    pub(super) metadata: &'a Metadata,
    pub(super) times: Times,
}

impl CallHead<'_> {
    pub(super) fn span(self) -> Span {
        trace::span!("call", service = &**self.service, method = &**self.method)
    }
}

/// The status of a call whose deadline has passed.
pub(super) fn too_late() -> Status {
    Status::deadline_exceeded("the call's deadline passed")
}
