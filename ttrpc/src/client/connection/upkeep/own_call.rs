//! A unary call that the library makes for itself. Neither limits nor interceptors nor observers know of it.

use std::{sync::Arc, time::Duration};

use crate::{
    Raw, Status,
    client::{
        call::PendingCall,
        connection::{
            ClientConnection,
            calls::{CallEntry, Calls},
        },
        meta::{CallHead, CallOptions},
    },
    proto::stream::Kind,
};

/// A call that is queued. Dropped, it is forgotten.
pub(super) struct OwnCall {
    connection: Arc<ClientConnection>,
    stream_id: u32,
}

impl OwnCall {
    /// Queues a short Request, whatever else is queued. `None` if the connection has ended or has no stream id left.
    pub(super) fn start(
        connection: &Arc<ClientConnection>,
        (service, method): (&'static str, &'static str),
        payload: Vec<u8>,
        timeout: Option<Duration>,
    ) -> Option<Self> {
        let mut options = CallOptions { timeout, ..CallOptions::default() };
        options.start();
        let (kind, service, method) = (Kind::Unary.into(), service.into(), method.into());
        let head = CallHead { kind, service, method, options };
        let mut entry = Some(Box::new(CallEntry::new(&head, None, None, None)));
        let call = PendingCall { head, request: Some(Raw::from(payload)) };
        let frame = call.frame().ok()?;
        let mut stream_id = None;
        connection.queue.push_without_capacity(&frame, |calls| {
            stream_id = calls.open_call(&mut entry);
            stream_id
        });
        Some(OwnCall { connection: connection.clone(), stream_id: stream_id? })
    }

    /// Waits for the answer. Fails with the status of any other end.
    pub(super) async fn answer(&self) -> Result<(), Status> {
        self.connection.ended(self.stream_id).await;
        let outcome = |calls: &mut Calls| calls.read(self.stream_id, |state| state.outcome());
        let status = self.connection.queue.streams(outcome).and_then(|(_, status)| status);
        status.map_or(Ok(()), Err)
    }
}

impl Drop for OwnCall {
    fn drop(&mut self) {
        self.connection.remove(self.stream_id);
        self.connection.end_if_spent();
    }
}
