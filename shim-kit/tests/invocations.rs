//! The ways in which containerd starts a shim, with a program that is the shim and the test at once:
//! `start` finds itself, so that it can start its daemon.

#[allow(dead_code, unused_imports)]
#[path = "../src/proto.rs"]
mod proto;

use std::{
    env, fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Trial};
use prost::Message;
use shim_kit::{Launch, New, Pid, Remains, Runtime, Status, async_trait};
use ttrpc::{Any, Client, prost};

use proto::{
    task::{ConnectRequest, DeleteResponse, ShutdownRequest},
    types::RuntimeInfo,
    v3::TaskClient,
};

const NAME: &str = "io.containerd.invocations.v1";
/// Far more than anything here takes, on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(600);

/// A runtime that can clean up, and nothing else.
struct Nothing;

#[async_trait]
impl Runtime for Nothing {
    type Options = ();

    const VERSION: &'static str = "1.2.3";

    async fn create(_: New<'_, ()>, _: &mut Launch) -> Result<(Nothing, Option<Pid>), Status> {
        Err(Status::unimplemented("no containers"))
    }

    async fn start(&self, _: &mut Launch) -> Result<Option<Pid>, Status> {
        Ok(None)
    }

    async fn kill(&self, _: u32, _: bool) -> Result<(), Status> {
        Ok(())
    }

    async fn delete(&self) -> Result<(), Status> {
        Ok(())
    }

    fn clean_up(remains: Remains<'_, ()>) -> Result<(), String> {
        let what = format!("{} {} {:?}", remains.namespace, remains.id, remains.pid.is_some());
        fs::write(remains.bundle.path().join("cleaned"), what).map_err(|error| error.to_string())
    }
}

fn main() -> ExitCode {
    // Whatever tells tests what to run has no flag that containerd has.
    if env::args().any(|arg| arg == "-namespace" || arg == "-info" || arg == "-v") {
        return shim_kit::run::<Nothing>(NAME);
    }
    let trial = |&(name, test): &(&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), TESTS.iter().map(trial).collect()).exit_code()
}

const TESTS: &[(&str, fn())] = &[
    ("start_gives_the_address_of_one_daemon_for_a_group", start_gives_one_daemon_for_a_group),
    ("start_that_fails_leaves_no_socket", start_that_fails_leaves_no_socket),
    ("delete_cleans_up_after_a_daemon_that_died", delete_cleans_up),
    ("delete_leaves_a_daemon_that_lives", delete_leaves_a_daemon_that_lives),
    ("info_and_version_are_told", info_and_version_are_told),
];

/// A bundle, and the way to call the shim in it.
struct Bundle(tempfile::TempDir);

impl Bundle {
    fn new(spec: &str) -> Bundle {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), spec).unwrap();
        Bundle(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Calls the shim for a container. containerd's address makes the socket this test's own.
    fn call(&self, containerd: &Path, id: &str, words: &[&str]) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        command.current_dir(self.path()).env_remove("TTRPC_ADDRESS");
        command.args(["-namespace", "default", "-id", id]).arg("-address").arg(containerd);
        command.args(words).stdin(Stdio::null()).output().unwrap()
    }

    fn start(&self, containerd: &Path, id: &str) -> PathBuf {
        let output = self.call(containerd, id, &["start"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let address = String::from_utf8(output.stdout).unwrap();
        let kept = fs::read_to_string(self.path().join("address")).unwrap();
        assert_eq!(kept, address, "`delete` finds it");
        address.strip_prefix("unix://").unwrap().into()
    }
}

fn call<T>(socket: &Path, act: impl AsyncFnOnce(TaskClient) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(socket.to_str().unwrap()).await.unwrap();
        act(TaskClient::new(client)).await
    })
}

fn pid_of_daemon(socket: &Path) -> Pid {
    let connected = call(socket, async |task| task.connect(ConnectRequest::default()).await);
    let connected = connected.unwrap();
    assert_eq!(connected.version, "1.2.3");
    Pid::from_raw(i32::try_from(connected.shim_pid).unwrap()).unwrap()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "gave up waiting until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn start_gives_one_daemon_for_a_group() {
    let containerd = tempfile::tempdir().unwrap();
    let spec = r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}"#;
    let (first, second, other) = (Bundle::new(spec), Bundle::new(spec), Bundle::new("{}"));
    let socket = first.start(containerd.path(), "c1");
    assert_eq!(second.start(containerd.path(), "c2"), socket);
    let others = other.start(containerd.path(), "c3");
    assert_ne!(others, socket);
    assert_ne!(pid_of_daemon(&others), pid_of_daemon(&socket));
    for socket in [socket, others] {
        call(&socket, async |task| task.shutdown(ShutdownRequest::default()).await).unwrap();
        wait_until("the daemon has removed its socket", || !socket.exists());
    }
}

fn start_that_fails_leaves_no_socket() {
    let containerd = tempfile::tempdir().unwrap();
    let bundle = Bundle::new("no JSON");
    let output = bundle.call(containerd.path(), "c1", &["start"]);
    assert!(!output.status.success());
    assert!(!output.stderr.is_empty(), "containerd shows what it says");
    assert!(!bundle.path().join("address").exists());

    // Options that this runtime does not take: the daemon is not started.
    let bundle = Bundle::new("{}");
    let options = Any { type_url: "a.v1.Options".to_owned(), value: vec![8, 1] };
    fs::write(bundle.path().join("options"), options.encode_to_vec()).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.current_dir(bundle.path()).args(["-namespace", "default", "-id", "c1", "-address"]);
    command.arg(containerd.path()).arg("start");
    command.stdin(fs::File::open(bundle.path().join("options")).unwrap());
    let output = command.output().unwrap();
    assert!(!output.status.success());
    // containerd puts it into the error that clients get: a line of a log is none.
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with(NAME) && said.contains("a.v1.Options"), "{said}");
    let address = fs::read_to_string(bundle.path().join("address")).unwrap();
    assert!(!Path::new(address.strip_prefix("unix://").unwrap()).exists());
}

fn delete_cleans_up() {
    let containerd = tempfile::tempdir().unwrap();
    let bundle = Bundle::new("{}");
    let socket = bundle.start(containerd.path(), "c1");
    let daemon = pid_of_daemon(&socket);
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    wait_until("nobody listens", || UnixStream::connect(&socket).is_err());
    assert!(socket.exists(), "a daemon that was killed leaves it");

    fs::write(bundle.path().join("init.pid"), "4194303").unwrap();
    // A sandbox's files, where the daemon has died before it could remove them.
    fs::create_dir_all(bundle.path().join("pod/shm")).unwrap();
    let path = bundle.path().to_str().unwrap();
    let output = bundle.call(containerd.path(), "c1", &["-bundle", path, "delete"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let deleted = DeleteResponse::decode(&*output.stdout).unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (4194303, 137));
    assert!(deleted.exited_at.is_some());
    let cleaned = fs::read_to_string(bundle.path().join("cleaned")).unwrap();
    assert_eq!(cleaned, "default c1 true");
    assert!(!socket.exists());
    assert!(!bundle.path().join("pod").exists());
}

fn delete_leaves_a_daemon_that_lives() {
    let containerd = tempfile::tempdir().unwrap();
    let bundle = Bundle::new("{}");
    let socket = bundle.start(containerd.path(), "c1");
    // One of a group's containers was not made, and the others have the same shim.
    let output = bundle.call(containerd.path(), "c1", &["delete"]);
    let deleted = DeleteResponse::decode(&*output.stdout).unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (0, 137));
    pid_of_daemon(&socket);
    call(&socket, async |task| task.shutdown(ShutdownRequest::default()).await).unwrap();
    wait_until("the daemon has removed its socket", || !socket.exists());
}

fn info_and_version_are_told() {
    let run = |word: &str| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.arg(word).stdin(Stdio::null()).output().unwrap().stdout
    };
    let info = RuntimeInfo::decode(&*run("-info")).unwrap();
    assert_eq!(info.name, NAME);
    assert_eq!(info.version.unwrap().version, "1.2.3");
    assert_eq!(run("-v"), format!("{NAME} 1.2.3\n").into_bytes());
}
