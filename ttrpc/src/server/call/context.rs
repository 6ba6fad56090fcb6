//! What a handler knows of its call.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::server::{
    Peer,
    call::state::{Call, CallHead},
};
use crate::{Extensions, Metadata, Name, observer::EndCause};

/// A handler's view of its call: the caller, the method, metadata, the deadline.
///
/// Cheap to clone, so that a handler can take it along into other tasks.
///
/// ```
/// use ttrpc::{Context, Status};
///
/// async fn say_hello(ctx: &Context, name: String) -> Result<String, Status> {
///     if ctx.peer().credentials().is_none_or(|peer| peer.uid != 0) {
///         return Err(Status::permission_denied("only root may be greeted"));
///     }
///     let greeting = ctx.metadata().get("greeting").unwrap_or("Hello");
///     Ok(format!("{greeting}, {name}!"))
/// }
/// ```
#[derive(Clone)]
pub struct Context {
    call: Arc<Call>,
    /// What an interceptor has made of the metadata.
    metadata: Option<Arc<Metadata>>,
}

impl Context {
    pub(in crate::server) fn new(call: Arc<Call>) -> Self {
        Context { call, metadata: None }
    }

    pub(in crate::server) fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// If the call fails now, it is for this cause.
    pub(crate) fn set_failure_cause(&self, cause: EndCause) {
        self.call.end.set_failure_cause(cause);
    }

    /// Returns the full protobuf name of the service, `containerd.task.v2.Task` for example.
    pub fn service(&self) -> &str {
        &self.call.head.service
    }

    /// Returns the bare name of the method, `State` for example.
    pub fn method(&self) -> &str {
        &self.call.head.method
    }

    /// Returns the names of the service and the method, without a copy of their text.
    pub(crate) fn names(&self) -> (Name, Name) {
        let head = &self.call.head;
        (head.service.clone(), head.method.clone())
    }

    /// Returns the metadata that came with the call, in order, with what interceptors have changed.
    pub fn metadata(&self) -> &Metadata {
        self.metadata.as_deref().unwrap_or(&self.call.head.metadata)
    }

    /// Returns the metadata for an interceptor to change, for later interceptors and the handler.
    ///
    /// In a handler, this changes this context and its later clones.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        let new = || Arc::new(self.call.head.metadata.clone());
        Arc::make_mut(self.metadata.get_or_insert_with(new))
    }

    /// Returns the values that interceptors, observers and this handler have added to the call.
    pub fn extensions(&self) -> &Extensions {
        &self.call.extensions
    }

    /// Returns the values that were added to the connection, by other calls as well.
    pub fn connection_extensions(&self) -> &Extensions {
        &self.call.connection.extensions
    }

    /// Returns what is known of the caller.
    ///
    /// For a Unix socket, these are the other side's credentials when it connected; for vsock and TCP, the
    /// address. The program may have added more.
    pub fn peer(&self) -> &Peer {
        &self.call.connection.peer
    }

    /// Returns the timeout that the client sent. Changes made here do not show in it.
    pub fn timeout(&self) -> Option<Duration> {
        let CallHead { started, deadline, .. } = self.call.head;
        deadline.map(|deadline| deadline - started)
    }

    /// Returns the call's deadline: its arrival plus [`Context::timeout`], or an earlier one that an
    /// interceptor set.
    pub fn deadline(&self) -> Option<Instant> {
        self.call.deadline()
    }

    /// Moves the deadline to this moment, after which the call ends with DEADLINE_EXCEEDED. For interceptors.
    ///
    /// A later moment than the present deadline changes nothing.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        self.call.end.shorten_deadline(deadline);
    }

    /// Returns the time until the deadline: zero when it has passed, `None` without one.
    pub fn remaining(&self) -> Option<Duration> {
        Some(self.deadline()?.saturating_duration_since(Instant::now()))
    }

    /// Returns a token that fires when the call is over. Tasks that work for the call can wait for it.
    ///
    /// A call is over when its handler has returned, its deadline has passed, its client has gone away, or the
    /// server shuts down without waiting for it.
    ///
    /// A handler whose call ends before it is dropped at once. One that has asked for the token is
    /// polled on, so that it can clean up, for [`ServerConfig::cancellation_grace`] at most. When the
    /// server itself closes, it is polled once more.
    ///
    /// [`ServerConfig::cancellation_grace`]: crate::ServerConfig::cancellation_grace
    pub fn cancellation_token(&self) -> CancellationToken {
        self.call.end.graceful_token()
    }

    /// Waits until the token of [`Context::cancellation_token`] fires.
    ///
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.cancellation_token().cancelled().await;
    }

    /// Returns whether the call's connection has ended: the client has gone, or the server has closed it.
    pub fn is_disconnected(&self) -> bool {
        self.call.connection.queue.is_closed()
    }

    /// Returns whether the call is over.
    pub fn is_cancelled(&self) -> bool {
        self.call.end.is_over()
    }
}

/// Without the metadata's keys and values, which may be secrets.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("service", &self.service())
            .field("method", &self.method())
            .field("metadata_pairs", &self.metadata().len())
            .field("timeout", &self.timeout())
            .field("peer", &self.peer())
            .finish()
    }
}
