//! Servers in a runtime of their own, and the program as a user runs it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use ttrpc::{
    Server,
    server::{ServerBuilder, ServerHandle, Service},
};
use ttrpc_reflection::{Debug, Health, Reflection};
use ttrpc_tests::{
    conformance::{ConformanceServer, FILE_DESCRIPTOR_SET},
    service::ConformanceService,
};

/// A server that ends with this.
pub struct Served {
    pub folder: TempDir,
    pub address: String,
    handle: ServerHandle,
    debug: Debug,
    runtime: Option<Runtime>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Served {
    /// Waits until the server has seen its last client go.
    pub fn settle(&self) {
        while !self.handle.snapshot().connections.is_empty() {
            std::thread::yield_now();
        }
    }

    /// Waits until a call of this method is under way.
    pub fn wait_for_call(&self, method: &str) {
        self.wait_for_calls(method, 1);
    }

    /// Waits until as many calls of this method are under way.
    pub fn wait_for_calls(&self, method: &str, count: usize) {
        let under_way = || {
            let connections = self.handle.snapshot().connections;
            let calls = connections.iter().flat_map(|connection| &connection.calls);
            calls.filter(|call| call.method == method).count()
        };
        while under_way() < count {
            std::thread::yield_now();
        }
    }
}

/// A server of these services.
pub fn serve(add: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("a.sock").display().to_string();
    let runtime = Runtime::new().unwrap();
    let debug = Debug::new();
    let (handle, serving) = {
        let _context = runtime.enter();
        let builder = add(Server::builder().add_service(debug.service()));
        let server = builder.bind(&address).unwrap().build().unwrap();
        (server.handle(), server.serve())
    };
    runtime.spawn(serving);
    debug.show(handle.clone());
    Served { folder, address, handle, debug, runtime: Some(runtime) }
}

/// The conformance service, with reflection and health.
pub fn conformance() -> Served {
    serve(|builder| {
        let reflection = Reflection::new(FILE_DESCRIPTOR_SET).unwrap();
        builder
            .add_service(ConformanceServer::new(ConformanceService::default()))
            .add_service(reflection)
            .add_service(Health::new().service())
    })
}

/// The conformance service alone.
pub fn conformance_without_reflection() -> Served {
    serve(|builder| builder.add_service(ConformanceServer::new(ConformanceService::default())))
}

/// Any service alone.
pub fn only(service: impl Service) -> Served {
    serve(|builder| builder.add_service(service))
}

/// The program.
pub fn ttrpc(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttrpc"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            code: output.status.code().expect("no signal ended it"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Ran {
    ttrpc(arguments).output().unwrap().into()
}

/// Runs the program with this as its standard input.
pub fn run_with_input(arguments: &[&str], input: &str) -> Ran {
    let mut child = ttrpc(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap().into()
}

impl Ran {
    /// The standard output of a run that went well.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// The standard output as JSON, of a run that went well.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// Waits until a process that was told to stop has stopped.
pub fn wait_until_stopped(child: &Child) {
    let stat = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&stat).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
}

/// The conformance service's .proto file.
pub fn conformance_proto() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/proto/conformance.proto")
}
