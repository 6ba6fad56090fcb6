//! Reports a server's connections and calls to `tracing` and to observers.

use crate::server::{
    FailedConnection, Peer, Shared,
    call::{
        reasons::{EndReason, RefusedCall},
        shared::Connection,
        state::Call,
    },
};
use crate::{
    Extensions, Metadata, Status,
    observer::{
        CallInfo, CallOutcome, CallStats, ConnectionEnd, ConnectionEndCause, ConnectionInfo,
        EndCause, MessageInfo, Side,
    },
    proto::{frame::HEADER_LEN, stream::Violation},
    snapshot::ReceiverWait,
    trace,
    transport::registry::ReceiverRegistration,
};

impl Call {
    /// The call begins, before anything can end it.
    pub(in crate::server) fn begun(&self, request_bytes: usize, messages: u64) {
        if let Some(stats) = &self.stats {
            self.connection.server.observers.call_begun(&self.observed());
            let message = stats.received(messages, request_bytes);
            self.tell_message((messages > 0).then_some(&message));
        }
    }

    /// Tells of a message that was counted.
    pub(in crate::server) fn tell_message(&self, message: Option<&MessageInfo>) {
        let observers = &self.connection.server.observers;
        if let Some(message) = message
            && observers.want_messages()
        {
            observers.message(&self.observed(), message);
        }
    }

    /// Reports the end of the call: once, by the task that has taken it out of the table. `reply_len` is the length
    /// of the frame that ends the call, if that is its reply.
    pub(in crate::server) fn ended(&self, outcome: CallOutcome<'_>, reply_len: Option<usize>) {
        // The clock is read only where a subscriber listens.
        let started = self.head.started;
        self.span.in_scope(|| {
            let (code, cause) = (outcome.code(), outcome.cause);
            match outcome.status {
                None => trace::debug!(%code, %cause, duration = ?started.elapsed(), "call ended"),
                Some(status) => {
                    let error = status.message();
                    trace::debug!(%code, %cause, error, duration = ?started.elapsed(), "call ended");
                }
            }
        });
        if let Some(len) = reply_len {
            self.tell_message(self.count_sent(len).as_ref());
        }
        if let Some(stats) = &self.stats {
            let observers = &self.connection.server.observers;
            self.span.in_scope(|| observers.call_ended(&self.observed(), &stats.end(outcome)));
        }
    }

    /// A message is queued in a frame of this length. Counted with the queue locked, and told behind that.
    pub(in crate::server) fn count_sent(&self, frame_len: usize) -> Option<MessageInfo> {
        Some(self.stats.as_deref()?.sent(1, frame_len - HEADER_LEN))
    }

    /// A message of so many bytes has come, behind the Request.
    pub(in crate::server) fn count_received(&self, bytes: usize) {
        if let Some(stats) = &self.stats {
            self.tell_message(Some(&stats.received(1, bytes)));
        }
    }

    fn observed(&self) -> CallInfo<'_> {
        let head = &self.head;
        CallInfo {
            side: Side::Server,
            connection_id: self.connection.id,
            peer: &self.connection.peer,
            stream_id: Some(head.stream_id),
            service: &head.service,
            method: &head.method,
            is_known: head.is_known,
            is_stream: head.flags.open_a_stream(),
            metadata: &head.metadata,
            started: head.started,
            deadline: self.deadline(),
            extensions: &self.extensions,
        }
    }
}

impl Connection {
    pub(in crate::server) fn opened(&self) {
        trace::debug!("connection accepted");
        self.server.observers.connection_opened(&self.observed());
    }

    /// The connection has ended, and so have its calls.
    pub(in crate::server) fn closed(&self) {
        let duration = self.accepted.elapsed();
        let closed_here = EndReason::closed_here();
        let EndReason { cause, message } = self.end_reason.get().unwrap_or(&closed_here);
        trace::debug!(%cause, reason = message, ?duration, "connection ended");
        if *cause == ConnectionEndCause::Failed {
            let (peer, reason) = (self.peer.to_string(), message.clone());
            let _ = self.server.failed.set(FailedConnection { peer, reason });
        }
        let end = ConnectionEnd { cause: *cause, message, duration };
        self.server.observers.connection_closed(&self.observed(), &end);
    }

    /// The client has broken the protocol.
    pub(in crate::server) fn violated(&self, Violation(rule): Violation) {
        self.server.observers.protocol_violation(&self.observed(), rule);
    }

    /// The receiver is held up by this until the result is dropped.
    pub(in crate::server) fn hold_up(&self, wait: ReceiverWait) -> HeldUpReceiver<'_> {
        HeldUpReceiver { _registration: self.registry.hold_up(wait), connection: self }
    }

    /// The cause and the status with which pending calls end when the connection ends.
    pub(in crate::server) fn lost_call(&self) -> (EndCause, Status) {
        match self.end_reason.get() {
            None | Some(EndReason { cause: ConnectionEndCause::ClosedHere, .. }) => {
                (EndCause::Shutdown, Status::cancelled("the server has closed the connection"))
            }
            Some(_) => (EndCause::PeerGone, Status::cancelled("the client has gone away")),
        }
    }

    /// A call is refused: it begins and ends.
    pub(in crate::server) fn refused(&self, call: &RefusedCall<'_>, outcome: CallOutcome<'_>) {
        let RefusedCall { stream_id, flags, service, method, bytes, arrived, has_waited } = *call;
        let (code, cause, message) = (outcome.code(), outcome.cause, outcome.message());
        trace::debug!(stream_id, service, method, %code, %cause, error = message, "call refused");
        if self.server.observers.is_empty() {
            return;
        }
        let stats = CallStats::new(arrived);
        stats.received(0, bytes);
        if has_waited {
            stats.has_waited_for_admission();
        }
        let (metadata, extensions) = (Metadata::new(), Extensions::default());
        let call = CallInfo {
            side: Side::Server,
            connection_id: self.id,
            peer: &self.peer,
            stream_id: Some(stream_id),
            service,
            method,
            is_known: self.server.services.has_method(service, method),
            is_stream: flags.open_a_stream(),
            metadata: &metadata,
            started: arrived,
            deadline: None,
            extensions: &extensions,
        };
        self.server.observers.call_begun(&call);
        self.server.observers.call_ended(&call, &stats.end(outcome));
    }

    fn observed(&self) -> ConnectionInfo<'_> {
        let (side, extensions) = (Side::Server, &self.extensions);
        ConnectionInfo { side, id: self.id, peer: &self.peer, extensions }
    }
}

/// A receiver that is held up.
#[derive(Debug)]
pub(in crate::server) struct HeldUpReceiver<'a> {
    _registration: ReceiverRegistration<'a>,
    connection: &'a Connection,
}

impl Drop for HeldUpReceiver<'_> {
    fn drop(&mut self) {
        let Connection { server, registry, .. } = self.connection;
        if !server.observers.is_empty()
            && let Some(held_up) = registry.receiver()
        {
            server.observers.receiver_held_up(&self.connection.observed(), &held_up);
        }
    }
}

impl Shared {
    /// A connection is refused.
    pub(in crate::server) fn connection_refused(
        &self,
        peer: &Peer,
        extensions: &Extensions,
        reason: &str,
    ) {
        trace::warn!(%peer, reason, "a connection is refused");
        let connection = ConnectionInfo { side: Side::Server, id: 0, peer, extensions };
        self.observers.connection_refused(&connection, reason);
    }
}
