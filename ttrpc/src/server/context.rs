//! What a handler knows of its call.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{call::Call, peer::Peer};
use crate::Metadata;

/// What a handler knows of its call: who calls, what for, until when.
///
/// Cheap to clone, so that a handler can take it along into other tasks.
#[derive(Clone)]
pub struct Context {
    call: Arc<Call>,
}

impl Context {
    pub(super) fn new(call: Arc<Call>) -> Self {
        Context { call }
    }

    pub(super) fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// Full protobuf name of the service, `containerd.task.v2.Task` for example.
    pub fn service(&self) -> &'static str {
        self.call.service
    }

    /// Bare name of the method, `State` for example.
    pub fn method(&self) -> &'static str {
        self.call.method
    }

    /// The metadata that came with the call, in order.
    pub fn metadata(&self) -> &Metadata {
        &self.call.metadata
    }

    /// What is known of who calls: the credentials of a Unix socket's other side, taken when it
    /// connected; the address of a vsock or TCP socket; and what the program has added.
    pub fn peer(&self) -> &Peer {
        &self.call.connection.peer
    }

    /// The time that the client gave the call, as it arrived.
    pub fn timeout(&self) -> Option<Duration> {
        self.call.timeout
    }

    /// When the call's time is over: its arrival plus [`Context::timeout`].
    pub fn deadline(&self) -> Option<Instant> {
        self.call.deadline
    }

    /// What is left of the call's time; zero when it is over, `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        Some(self.call.deadline?.saturating_duration_since(Instant::now()))
    }

    /// A token that fires when the deadline passes, the client goes away, or the server shuts down
    /// without waiting for this call.
    ///
    /// Without it, a handler is dropped at that moment. A handler that has asked for its token
    /// is given [`ServerConfig::cancellation_grace`] to see it and to clean up. When the server
    /// itself closes, that is only one more poll: the token is for those outside of the handler.
    ///
    /// [`ServerConfig::cancellation_grace`]: crate::ServerConfig::cancellation_grace
    pub fn cancellation_token(&self) -> CancellationToken {
        self.call.cancellation_token().clone()
    }

    /// Waits until the token of [`Context::cancellation_token`] fires.
    ///
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.call.cancellation_token().cancelled().await;
    }

    /// Whether the call has been cancelled already.
    pub fn is_cancelled(&self) -> bool {
        self.call.is_cancelled()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("service", &self.service())
            .field("method", &self.method())
            .field("metadata", self.metadata())
            .field("timeout", &self.timeout())
            .field("peer", &self.peer())
            .finish()
    }
}
