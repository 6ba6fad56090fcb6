//! Reports a server's connections, and calls that are refused, to `tracing` and to observers.

use tokio::time::Instant;

use crate::server::{
    FailedConnection,
    call::{reasons::EndReason, shared::Connection},
    service::services::Target,
};
use crate::{
    Extensions, Metadata, Status,
    observer::{
        CallInfo, CallOutcome, CallStats, ConnectionEnd, ConnectionEndCause, ConnectionInfo,
        EndCause, Side,
    },
    proto::{frame::Header, stream::Violation},
    snapshot::ReceiverWait,
    trace,
};

impl Connection {
    pub(in crate::server) fn opened(&self) {
        trace::debug!("connection accepted");
        self.server.observers.notify(|observer| observer.connection_opened(&self.observed()));
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
        self.server.observers.notify(|observer| observer.connection_closed(&self.observed(), &end));
    }

    /// The client has broken the protocol.
    pub(in crate::server) fn violated(&self, Violation(rule): Violation) {
        self.server
            .observers
            .notify(|observer| observer.protocol_violation(&self.observed(), rule));
    }

    /// The receiver is stalled by this until the result is dropped.
    pub(in crate::server) fn stall(&self, wait: ReceiverWait) -> impl Drop {
        self.registry.stall(wait, |stall| {
            self.server
                .observers
                .notify(|observer| observer.receiver_stalled(&self.observed(), stall));
        })
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

    /// The call of this Request is refused: it begins and ends. The names are empty if they cannot be read.
    pub(in crate::server) fn refused(
        &self,
        Header { stream_id, flags, data_len, .. }: Header,
        (service, method): (&str, &str),
        arrived: Instant,
        has_waited: bool,
        outcome: CallOutcome<'_>,
    ) {
        let (code, cause, message) = (outcome.code(), outcome.cause, outcome.message());
        trace::debug!(stream_id, service, method, %code, %cause, error = message, "call refused");
        if self.server.observers.is_empty() {
            return;
        }
        let stats = CallStats::of_request(arrived, false, data_len as usize);
        if has_waited {
            stats.has_waited_for_admission();
        }
        let (metadata, extensions) = (Metadata::new(), Extensions::default());
        let target = self.server.services.find_method(service.as_bytes(), method.as_bytes());
        let call = CallInfo {
            side: Side::Server,
            connection_id: self.id,
            peer: &self.peer,
            stream_id: Some(stream_id),
            service,
            method,
            is_known: target.is_some(),
            method_id: target.as_ref().and_then(Target::method_id),
            is_stream: flags.open_a_stream(),
            metadata: &metadata,
            started: arrived,
            deadline: None,
            extensions: &extensions,
        };
        self.server.observers.notify(|observer| observer.call_begun(&call));
        let end = stats.end(outcome);
        self.server.observers.notify(|observer| observer.call_ended(&call, &end));
    }

    fn observed(&self) -> ConnectionInfo<'_> {
        let (side, extensions) = (Side::Server, &self.extensions);
        ConnectionInfo { side, id: self.id, peer: &self.peer, extensions }
    }
}
