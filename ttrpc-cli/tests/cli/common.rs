//! Servers in a runtime of their own, and the program as a user runs it.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    iter,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
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
    harness::patient_server,
    service::ConformanceService,
};

/// A server that ends with this.
pub struct Served {
    pub folder: TempDir,
    pub address: String,
    handle: ServerHandle,
    /// Shows the server for as long as it is kept.
    _debug: Debug,
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
        eventually("the last client goes", || self.handle.snapshot().connections.is_empty());
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
        eventually(&format!("{count} calls of {method} are under way"), || under_way() >= count);
    }
}

/// A server of these services.
pub fn serve(add: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("a.sock").display().to_string();
    let runtime = Runtime::new().unwrap();
    let debug = Debug::with_counters();
    let (handle, serving) = {
        let _context = runtime.enter();
        // That the machine does not run a handler for a while is nobody's failure.
        let builder = Server::builder().config(patient_server()).observe(debug.observer());
        let builder = builder.add_service(debug.service());
        let builder = add(builder);
        let server = builder.bind(&address).unwrap().build().unwrap();
        (server.handle(), server.serve())
    };
    runtime.spawn(serving);
    debug.show(handle.clone());
    Served { folder, address, handle, _debug: debug, runtime: Some(runtime) }
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

/// The commands that give up after some seconds unless `--timeout` says otherwise.
const WITH_TIMEOUT: [&str; 9] =
    ["list", "describe", "schema", "call", "explore", "load", "shims", "top", "trace"];

/// Longer than any machine takes.
pub const LONG: &str = "1h";

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until something holds that must come to hold.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "in time, {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// How long a command waits for something that hangs: where the machine was too slow for the others meanwhile, it is
/// tried with twice of it. A program for which none is enough fails the test after [`PATIENCE`].
pub fn doubled(first: Duration) -> impl Iterator<Item = String> {
    doubled_limits(first).map(in_millis)
}

/// The limits of [`doubled`].
fn doubled_limits(first: Duration) -> impl Iterator<Item = Duration> {
    let begin = Instant::now();
    let limits = iter::successors(Some(first), |limit| Some(*limit * 2));
    limits.inspect(move |limit| {
        assert!(begin.elapsed() < PATIENCE, "less than {limit:?} was not enough");
    })
}

fn in_millis(limit: Duration) -> String {
    format!("{}ms", limit.as_millis())
}

/// Runs the program for a server that accepts and never answers. Connecting has the same `--timeout` as the answer: where
/// the machine was too slow for that, the next one is twice as long. Returns the run that has connected, and its timeout.
pub fn run_unanswered(arguments: &[&str]) -> (Ran, Duration) {
    let mut runs = doubled_limits(Duration::from_millis(100)).map(|limit| {
        let timeout = in_millis(limit);
        (run(&[arguments, &["--timeout", &timeout]].concat()), limit)
    });
    let has_connected = |ran: &Ran| ran.code != 3 || !ran.stderr.contains("not accepted within");
    runs.find(|(ran, _)| has_connected(ran)).expect("it is tried until it fails")
}

/// The program. However long the machine takes, it waits for answers, and makes all the calls of a load, unless the
/// arguments name a time for that.
pub fn ttrpc(arguments: &[&str]) -> Command {
    let mut command = ttrpc_as_it_is(arguments);
    let name = arguments.iter().find(|argument| !argument.starts_with('-'));
    let has = |option| arguments.iter().any(|argument| argument.starts_with(option));
    if arguments.contains(&"compare") {
        return command;
    }
    if name.is_some_and(|name| WITH_TIMEOUT.contains(name)) && !has("--timeout") {
        command.args(["--timeout", LONG]);
    }
    if name == Some(&"load") && !has("--duration") {
        command.args(["--duration", LONG]);
    }
    command
}

/// The program with its own defaults for how long it waits.
pub fn ttrpc_as_it_is(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ttrpc"));
    command.args(arguments).stdin(Stdio::null());
    as_in_a_shell(&mut command);
    command
}

/// The program, asked by this shell to complete words. It waits for the server however long the machine takes.
pub fn completing(shell: &str, words: &[&str]) -> Command {
    let mut command = ttrpc_as_it_is(&[&["--"], words].concat());
    command.env("TTRPC_COMPLETE", shell).env("TTRPC_COMPLETE_TIMEOUT", LONG);
    command
}

/// The program behaves as in a shell, whatever the tests' environment wants.
pub fn as_in_a_shell(command: &mut Command) {
    // Cargo's OUT_DIR is a build script's, which is told what was read.
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "OUT_DIR"] {
        command.env_remove(variable);
    }
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
pub fn run_with_input(arguments: &[&str], input: impl AsRef<[u8]>) -> Ran {
    let mut child = ttrpc(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may end before it has read all.
    let _ = child.stdin.take().unwrap().write_all(input.as_ref());
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

/// Stops a process, and waits until all of its threads stand.
pub fn stop(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
}

/// The conformance service's .proto file.
pub fn conformance_proto() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/proto/conformance.proto")
}

/// A terminal: the side of who sits there, and the side of the program.
pub fn terminal_of(columns: u16, rows: u16) -> (File, OwnedFd) {
    let here = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&here).unwrap();
    unlockpt(&here).unwrap();
    let name = ptsname(&here, Vec::new()).unwrap();
    let there = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&there, size).unwrap();
    (here.into(), there.into())
}

/// Reads from a terminal until all of these have come.
#[track_caller]
pub fn read_until(here: &mut File, wanted: &[&str]) -> String {
    let mut shown = String::new();
    while !wanted.iter().all(|word| shown.contains(word)) {
        let mut buffer = [0; 4096];
        let len = here.read(&mut buffer).unwrap();
        assert_ne!(len, 0, "{shown}");
        shown.push_str(&String::from_utf8_lossy(&buffer[..len]));
    }
    shown
}
