//! A unary call that the library makes for itself. Neither limits nor interceptors nor observers know of it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Metadata, Raw, Status,
    client::{
        connection::{
            ClientConnection,
            calls::{CallEntry, Calls},
            state::CallState,
        },
        meta::{CallTimes, MethodKind},
    },
    proto::{
        frame::FrameType,
        message::{Measured, RequestParts},
        stream::Kind,
    },
    transport::frames::Frame,
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
        let kind = MethodKind::from(Kind::Unary);
        let started = Instant::now();
        let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
        let mut entry = Some(Box::new(CallEntry {
            kind,
            service: service.into(),
            method: method.into(),
            times: CallTimes { started, deadline },
            state: CallState::default(),
            caller: None,
            messages: None,
            record: None,
        }));
        let timeout_nano = timeout.map_or(0, |timeout| timeout.as_nanos());
        let payload = Raw::from(payload);
        let parts = RequestParts {
            service,
            method,
            payload: Some(Measured::new(&payload)),
            timeout_nano: i64::try_from(timeout_nano).unwrap_or(i64::MAX),
            metadata: &Metadata::new(),
        };
        let frame = Frame::new(FrameType::Request, kind.flags, 0, parts).ok()?;
        let mut stream_id = None;
        connection.queue.push_without_room(&mut frame.to_vec(), |calls| {
            stream_id = calls.open(&mut entry);
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
