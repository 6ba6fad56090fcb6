//! The service of shims. Its versions 2 and 3 have the same methods, and here the same messages.

use ttrpc::{Client, client::UnaryCall};

#[doc(inline)]
pub use crate::proto::containerd::{
    task::{v2, v3},
    v1::types,
};

/// A client of a shim that speaks version 2 or 3. An empty `exec_id` in a request is the container's first process.
#[derive(Clone, Debug)]
pub struct Tasks {
    client: Client,
    service: &'static str,
}

impl Tasks {
    /// A client of a shim that speaks this version, as `bootstrap.json` in its bundle or its answer to `start` says. A bare
    /// address is version 2.
    pub fn new(client: Client, version: i32) -> Tasks {
        let is_old = version < 3;
        let service = if is_old { v2::TaskClient::NAME } else { v3::TaskClient::NAME };
        Tasks { client, service }
    }

    /// Returns the connection.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident $name:literal ($request:ident) -> $response:ty;)*) => {
        impl Tasks {
            $($(#[$doc])*
            pub fn $method(&self, request: v3::$request) -> UnaryCall<v3::$request, $response> {
                self.client.unary(self.service, $name, request)
            })*
        }
    };
}

methods! {
    /// What a process is doing.
    state "State" (StateRequest) -> v3::StateResponse;
    /// Prepares a container from its bundle; nothing runs yet.
    create "Create" (CreateTaskRequest) -> v3::CreateTaskResponse;
    /// Starts a process that was created or added.
    start "Start" (StartRequest) -> v3::StartResponse;
    /// Removes a process that has ended, and returns how it ended.
    delete "Delete" (DeleteRequest) -> v3::DeleteResponse;
    /// The processes of a container as the kernel lists them.
    pids "Pids" (PidsRequest) -> v3::PidsResponse;
    /// Freezes a container.
    pause "Pause" (PauseRequest) -> ();
    /// Thaws it.
    resume "Resume" (ResumeRequest) -> ();
    /// Writes a container's state to disk.
    checkpoint "Checkpoint" (CheckpointTaskRequest) -> ();
    /// Sends a signal.
    kill "Kill" (KillRequest) -> ();
    /// Adds a process, which `start` starts.
    exec "Exec" (ExecProcessRequest) -> ();
    /// Sets the size of a terminal.
    resize_pty "ResizePty" (ResizePtyRequest) -> ();
    /// Closes the standard input of a process.
    close_io "CloseIO" (CloseIoRequest) -> ();
    /// Changes a container's resources.
    update "Update" (UpdateTaskRequest) -> ();
    /// Returns when a process has ended.
    wait "Wait" (WaitRequest) -> v3::WaitResponse;
    /// What a container uses: `io.containerd.cgroups.v1.Metrics` or `.v2.Metrics` in an `Any`.
    stats "Stats" (StatsRequest) -> v3::StatsResponse;
    /// Who answers: the pid of the shim, and that of a container.
    connect "Connect" (ConnectRequest) -> v3::ConnectResponse;
    /// Ends the shim if it has no container left.
    shutdown "Shutdown" (ShutdownRequest) -> ();
}
