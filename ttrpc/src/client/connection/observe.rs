//! Reports a client's connection and its calls to `tracing` and to observers.
//!
//! A call that is observed has a [`CallRecord`]; any other has none, and costs a branch.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::record::{CallRecord, Intercepted};
use crate::{
    ConnectionError, Extensions,
    client::meta::CallMeta,
    observer::{
        CallInfo, ConnectionEnd, ConnectionEndCause, ConnectionInfo, EndCause, Observers, Side,
    },
    proto::stream::Violation,
    snapshot::Stall,
    trace::{self, Span},
    transport::peer::Peer,
};

/// A client's connection as its observers see it.
#[derive(Debug)]
pub(in crate::client) struct ObservedConnection {
    pub(in crate::client) observers: Observers,
    id: u64,
    peer: Peer,
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
        let span = trace::span!("connection", id, %peer);
        let opened = std::time::Instant::now();
        let connection = ObservedConnection { observers, id, peer, opened, extensions, span };
        connection.observers.notify(|observer| observer.connection_opened(&connection.info()));
        Arc::new(connection)
    }

    /// What stands in for the connection of calls that have none yet, with the id 0.
    pub(in crate::client) fn none(observers: Observers) -> Arc<Self> {
        Arc::new(ObservedConnection {
            observers,
            id: 0,
            peer: Peer::unknown(),
            opened: std::time::Instant::now(),
            extensions: Extensions::default(),
            span: trace::span!("connection", id = 0),
        })
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

    /// Reports that a call begins. Returns its record, or `None` if nobody observes it.
    pub(in crate::client) fn begin(
        self: &Arc<Self>,
        call: CallMeta<'_>,
        intercepted: Option<Intercepted>,
    ) -> Option<Arc<CallRecord>> {
        let span = trace::span!("call", service = &**call.service, method = &**call.method);
        if self.observers.is_empty() && span.is_none() && intercepted.is_none() {
            return None;
        }
        let record = CallRecord::new(self, call, intercepted.unwrap_or_default(), span);
        record.begun();
        Some(record)
    }

    pub(super) fn call<'a>(
        &'a self,
        CallMeta { kind, service, method, metadata, times }: CallMeta<'a>,
        stream_id: Option<u32>,
        extensions: &'a Extensions,
    ) -> CallInfo<'a> {
        CallInfo {
            side: Side::Client,
            connection_id: self.id,
            peer: &self.peer,
            stream_id,
            service,
            method,
            is_known: true,
            is_stream: kind.is_stream(),
            metadata,
            started: times.started,
            deadline: times.deadline,
            extensions,
        }
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
