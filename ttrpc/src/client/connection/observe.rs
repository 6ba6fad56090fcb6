//! Reports a client's connection to `tracing` and to observers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    ConnectionError, Extensions,
    observer::{ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause, Observers, Side},
    proto::stream::Violation,
    snapshot::Stall,
    trace::{self, Span},
    transport::peer::Peer,
};

/// A client's connection as its observers see it.
#[derive(Debug)]
pub(in crate::client) struct ObservedConnection {
    pub(in crate::client) observers: Observers,
    pub(super) id: u64,
    pub(super) peer: Peer,
    // A client may be dropped with its thread, where tokio's clock may be gone.
    opened: std::time::Instant,
    extensions: Extensions,
    pub(super) span: Span,
}

impl ObservedConnection {
    /// Reports that the connection is open.
    pub(super) fn open(observers: Observers, peer: Peer, extensions: Extensions) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let connection = ObservedConnection::new(observers, id, peer, extensions);
        connection.observers.notify(|observer| observer.connection_opened(&connection.info()));
        connection
    }

    /// What stands in for the connection of calls that have none yet, with the id 0.
    pub(in crate::client) fn none(observers: Observers) -> Arc<Self> {
        ObservedConnection::new(observers, 0, Peer::unknown(), Extensions::default())
    }

    fn new(observers: Observers, id: u64, peer: Peer, extensions: Extensions) -> Arc<Self> {
        let span = trace::span!("connection", id, %peer);
        let opened = std::time::Instant::now();
        Arc::new(ObservedConnection { observers, id, peer, opened, extensions, span })
    }

    /// Reports that the connection has ended.
    pub(super) fn closed(&self, reason: &ConnectionError) {
        let duration = self.opened.elapsed();
        self.span.in_scope(|| trace::debug!(%reason, ?duration, "connection ended"));
        if self.observers.is_empty() {
            return;
        }
        let cause = match reason {
            ConnectionError::ClosedByServer => ConnectionEndCause::ClosedByPeer,
            ConnectionError::ClosedLocally | ConnectionError::Forked => {
                ConnectionEndCause::ClosedHere
            }
            ConnectionError::IdsExhausted => ConnectionEndCause::IdsExhausted,
            ConnectionError::KeepaliveTimeout => ConnectionEndCause::KeepaliveTimeout,
            ConnectionError::Truncated
            | ConnectionError::NoConnection(_)
            | ConnectionError::Read(_)
            | ConnectionError::Write(_) => ConnectionEndCause::Failed,
        };
        let end = ConnectionEnd { cause, message: &reason.to_string(), duration };
        self.observers.notify(|observer| observer.connection_closed(&self.info(), &end));
    }

    /// Reports that the server has broken the protocol.
    pub(super) fn violated(&self, Violation(rule): Violation) {
        self.observers.notify(|observer| observer.protocol_violation(&self.info(), rule));
    }

    /// Reports that the receiver was blocked, and goes on.
    pub(super) fn receiver_stalled(&self, stall: &Stall) {
        self.observers.notify(|observer| observer.receiver_stalled(&self.info(), stall));
    }

    fn info(&self) -> ConnectionInfo<'_> {
        let ObservedConnection { id, peer, extensions, .. } = self;
        ConnectionInfo { side: Side::Client, id: *id, peer, extensions }
    }
}

/// Returns the cause with which pending calls end when their connection ends.
pub(super) fn lost_call(reason: Option<&ConnectionError>) -> EndCause {
    match reason {
        None | Some(ConnectionError::ClosedLocally | ConnectionError::Forked) => EndCause::Shutdown,
        Some(ConnectionError::IdsExhausted) => EndCause::Limit,
        Some(_) => EndCause::PeerGone,
    }
}
