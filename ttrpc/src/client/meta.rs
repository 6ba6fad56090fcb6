//! What is known of a call before it is made: its kind, its names, its options, its times.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::{Interceptor, MethodDefaults, Retry};
use crate::{
    Metadata, Name, Status,
    proto::{frame::Flags, stream::Kind},
    transport::registry::CallInfo,
};

/// How a method is called and answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MethodKind {
    pub(super) kind: Kind,
    /// The Request's flags.
    pub(super) flags: Flags,
    /// The method is known by its Request alone: `kind` is what the flags allow, and a Response may end any stream.
    is_raw: bool,
}

impl From<Kind> for MethodKind {
    fn from(kind: Kind) -> Self {
        let flags = match kind {
            Kind::Unary => Flags::NONE,
            Kind::ServerStreaming => Flags::REMOTE_CLOSED,
            Kind::ClientStreaming | Kind::Bidirectional => Flags::REMOTE_OPEN,
        };
        MethodKind { kind, flags, is_raw: false }
    }
}

impl MethodKind {
    /// Returns the kind of a method of which only the Request's flags are known.
    pub(super) fn raw(flags: Flags) -> Self {
        let kind = match () {
            () if flags.contains(Flags::REMOTE_OPEN) => Kind::Bidirectional,
            () if flags.contains(Flags::REMOTE_CLOSED) => Kind::ServerStreaming,
            () => Kind::Unary,
        };
        MethodKind { kind, flags, is_raw: true }
    }

    /// The caller awaits one reply and nothing else.
    pub(super) fn is_unary(self) -> bool {
        self.kind == Kind::Unary && !self.is_raw
    }

    /// The caller awaits one reply, which may follow a stream of requests.
    pub(super) fn has_one_reply(self) -> bool {
        matches!(self.kind, Kind::Unary | Kind::ClientStreaming) && !self.is_raw
    }

    /// A Response ends a stream of replies: its payload is the last message, and an empty one is none.
    pub(super) fn is_ended_by_response(self) -> bool {
        self.kind.server_streams() && !self.is_raw
    }

    /// The Request opens a stream.
    pub(super) fn is_stream(self) -> bool {
        self.flags.open_a_stream()
    }
}

/// What a client or a call has set. Small, since a call is moved several times before it is polled.
#[derive(Clone, Default)]
pub(super) struct CallOptions {
    /// From the moment when the call is first polled. It becomes a deadline then, unless it is too long for that.
    pub(super) timeout: Option<Duration>,
    /// When the call was first polled, or made again by an interceptor.
    pub(super) started: Option<Instant>,
    pub(super) deadline: Option<Instant>,
    /// Without a connection, waits for one also after an attempt has failed.
    pub(super) waits_for_ready: bool,
    /// The call has set its deadline itself.
    pub(super) has_own_deadline: bool,
    /// It may be executed more than once: the call says so.
    pub(super) is_idempotent: bool,
    /// The method's defaults say so, or else the .proto.
    pub(super) is_method_idempotent: bool,
    /// The client's, until the call has its own.
    pub(super) metadata: Option<Arc<Metadata>>,
    /// `None` without any, and once the call has started.
    pub(super) policies: Option<Arc<Policies>>,
}

/// What is done to a call beyond making it.
#[derive(Clone, Default)]
pub(super) struct Policies {
    /// Outermost first.
    pub(super) interceptors: Vec<Arc<dyn Interceptor>>,
    pub(super) retry: Option<Arc<Retry>>,
    pub(super) defaults: Option<Arc<MethodDefaults>>,
}

/// What runs around one call.
pub(super) struct Around {
    pub(super) policies: Arc<Policies>,
    pub(super) retry: Option<Arc<Retry>>,
}

impl CallOptions {
    pub(super) fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        self.metadata.as_deref().unwrap_or(&NONE)
    }

    pub(super) fn metadata_mut(&mut self) -> &mut Metadata {
        Arc::make_mut(self.metadata.get_or_insert_default())
    }

    /// Replaces all metadata.
    pub(super) fn set_metadata(&mut self, metadata: Metadata) {
        self.metadata = Some(Arc::new(metadata));
    }

    /// Returns the policies of one client or call, and of no other one that shares them.
    pub(super) fn policies_mut(&mut self) -> &mut Policies {
        Arc::make_mut(self.policies.get_or_insert_default())
    }

    /// Starts the call's time. The earlier one of timeout and deadline counts.
    pub(super) fn start(&mut self) {
        let started = Instant::now();
        if let Some(end) = self.timeout.and_then(|timeout| started.checked_add(timeout)) {
            self.timeout = None;
            self.end_by(end);
        }
        self.started = Some(started);
    }

    /// Returns when the call started.
    pub(super) fn started(&self) -> Instant {
        self.started.expect("a call starts when it is first polled")
    }

    /// Returns `timeout_nano` for a Request of now: the time left, at least 1 since 0 means none.
    pub(super) fn timeout_nano(&self) -> i64 {
        let left = self.deadline.map(|deadline| deadline - Instant::now());
        let Some(left) = left.or(self.timeout) else { return 0 };
        i64::try_from(left.as_nanos()).unwrap_or(i64::MAX).max(1)
    }

    /// Ends the call at this moment, unless an earlier deadline is set.
    pub(super) fn end_by(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }
}

/// All that is known of a call but its request.
#[derive(Clone)]
pub(super) struct CallHead {
    pub(super) kind: MethodKind,
    pub(super) service: Name,
    pub(super) method: Name,
    pub(super) options: CallOptions,
}

impl CallHead {
    /// Identifies a call that has started, for snapshots.
    pub(super) fn info(&self) -> CallInfo {
        CallInfo {
            service: self.service.clone(),
            method: self.method.clone(),
            stream_id: None,
            started: self.options.started(),
            deadline: self.options.deadline,
        }
    }
}

/// Returns whether a deadline has passed.
pub(super) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Runs a part of a call, and fails with DEADLINE_EXCEEDED at the call's deadline.
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    part: impl Future<Output = T>,
) -> Result<T, Status> {
    match deadline {
        Some(deadline) => timeout_at(deadline, part).await.map_err(|_| too_late()),
        None => Ok(part.await),
    }
}

/// The timer of a call's deadline. It is made when the call first has to wait.
#[derive(Debug, Default)]
pub(super) struct DeadlineTimer(Option<Pin<Box<Sleep>>>);

impl DeadlineTimer {
    /// Is ready when the deadline has passed, and never without one.
    pub(super) fn poll(&mut self, deadline: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline))).as_mut().poll(cx)
    }
}

/// Returns the status of a call whose deadline has passed.
pub(super) fn too_late() -> Status {
    Status::deadline_exceeded("the call's deadline passed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_changes_its_metadata_changes_no_other() {
        let mut options = CallOptions::default();
        options.metadata_mut().append("key", "value");
        let (mut replaced, mut longer) = (options.clone(), options.clone());
        replaced.set_metadata(Metadata::new());
        longer.metadata_mut().append("key", "value");
        for (options, len) in [(&options, 1), (&replaced, 0), (&longer, 2)] {
            assert_eq!(options.metadata().len(), len);
        }
    }
}
