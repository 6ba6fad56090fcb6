//! `ttrpc.debug.v1.Debug`.

use std::{
    process,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use ttrpc::{
    Context, Status, async_trait, prost_types,
    server::{Routes, ServerHandle, Service},
    snapshot::{CallSnapshot, CallWait, ConnectionSnapshot, ServerSnapshot},
};

use crate::proto::debug::{self, Call, Connection, DebugServer, SnapshotRequest, SnapshotResponse};

/// Tells operators what a server is waiting for: its snapshot, as text and as a message.
///
/// A snapshot names every client's process and every call. Serve it where that is no secret to
/// those who may connect.
///
/// The service is added before the server exists, so the server is told to it afterwards:
///
/// ```
/// # use ttrpc::Server; use ttrpc_reflection::Debug;
/// # fn example() -> Result<(), ttrpc::Error> {
/// let debug = Debug::new();
/// let server = Server::builder().add_service(debug.service()).bind("/run/greeter.sock")?.build()?;
/// debug.show(server.handle());
/// # Ok(()) }
/// ```
///
/// It answers for as long as this value lives. The service alone does not keep the server alive.
#[derive(Debug, Default)]
pub struct Debug {
    server: Arc<OnceLock<ServerHandle>>,
}

impl Debug {
    /// Shows nothing until [`Debug::show`].
    pub fn new() -> Self {
        Debug::default()
    }

    /// The service that answers clients.
    pub fn service(&self) -> DebugService {
        DebugService { server: Arc::downgrade(&self.server) }
    }

    /// Shows this server. The first one that is given stays.
    pub fn show(&self, server: ServerHandle) {
        // A second one has nowhere to go.
        let _ = self.server.set(server);
    }
}

/// The service that answers clients. Made by [`Debug::service`].
#[derive(Debug)]
pub struct DebugService {
    /// Not a strong reference, since the server owns this service.
    server: Weak<OnceLock<ServerHandle>>,
}

#[async_trait]
impl debug::Debug for DebugService {
    async fn snapshot(
        &self,
        _ctx: &Context,
        _request: SnapshotRequest,
    ) -> Result<SnapshotResponse, Status> {
        let server = self.server.upgrade();
        match server.as_ref().and_then(|server| server.get()) {
            Some(server) => Ok(describe(&server.snapshot())),
            None => Err(Status::failed_precondition("this program shows no server")),
        }
    }
}

impl Service for DebugService {
    fn into_routes(self) -> Routes {
        DebugServer::new(self).into_routes()
    }
}

fn describe(snapshot: &ServerSnapshot) -> SnapshotResponse {
    SnapshotResponse {
        pid: process::id(),
        text: snapshot.to_string(),
        calls: snapshot.calls.used as u64,
        max_calls: snapshot.calls.limit as u64,
        connections: snapshot.connections.iter().map(describe_connection).collect(),
    }
}

fn describe_connection(connection: &ConnectionSnapshot) -> Connection {
    let queue = &connection.queue;
    Connection {
        id: connection.id,
        age: to_proto(connection.age),
        peer_pid: connection.peer.credentials().and_then(|credentials| credentials.pid),
        peer_uid: connection.peer.credentials().map(|credentials| credentials.uid),
        queue_frames: (queue.frames.used + queue.long_frames.used) as u64,
        queue_bytes: (queue.bytes.used + queue.long_bytes.used) as u64,
        blocked: queue.blocked.and_then(to_proto),
        held_up_by: connection.receiver.map_or(String::new(), |held| held.by.to_string()),
        calls: connection.calls.iter().map(describe_call).collect(),
    }
}

fn describe_call(call: &CallSnapshot) -> Call {
    Call {
        stream_id: call.stream_id.unwrap_or_default(),
        service: call.service.to_string(),
        method: call.method.to_string(),
        age: to_proto(call.age),
        timeout: call.timeout.and_then(to_proto),
        waits_for: match call.wait {
            CallWait::Handler => "its handler, which runs".to_owned(),
            wait => wait.to_string(),
        },
    }
}

/// `None` for what protobuf's durations cannot hold.
fn to_proto(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
