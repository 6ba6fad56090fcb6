//! The ways in which containerd starts a shim, with a program that is the shim and the test at once:
//! `start` finds itself, so that it can start its daemon.

use std::{
    env, fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Trial};
use shim_kit::{
    Launch, New, Outbox, Pid, Remains, Runtime, ServerBuilder, Started, Status, async_trait,
};
use ttrpc::{
    Any, Client, Code, Context, Server,
    prost::Message,
    server::{Interceptor, Next, Routes},
};

use ttrpc_containerd::{
    task::v3::{
        ConnectRequest, CreateTaskRequest, DeleteResponse, ShutdownRequest, TaskClient, WaitRequest,
    },
    types::RuntimeInfo,
};

const NAME: &str = "io.containerd.invocations.v1";
/// Far more than anything here takes, on a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(600);

/// A runtime whose containers sleep.
struct Nothing;

#[async_trait]
impl Runtime for Nothing {
    type Options = ();

    const VERSION: &'static str = "1.2.3";

    async fn create(
        _: New<'_, ()>,
        launch: &mut Launch,
    ) -> Result<(Nothing, Option<Started>), Status> {
        let child = launch.reaper().spawn(Command::new("sleep").arg("100000")).await;
        let child = child.map_err(|error| Status::internal(error.to_string()))?;
        Ok((Nothing, Some(child.pid.into())))
    }

    async fn start(&self, _: &mut Launch) -> Result<Option<Started>, Status> {
        Ok(None)
    }

    async fn kill(&self, _: u32, _: bool) -> Result<(), Status> {
        Ok(())
    }

    async fn delete(&self) -> Result<(), Status> {
        Ok(())
    }

    fn serve(server: ServerBuilder, events: &Outbox) -> ServerBuilder {
        let own = Routes::new(OWN).unary("Waiting", &Arc::new(events.clone()), |events, _, ()| {
            let waiting = events.counts().0.to_string();
            Box::pin(async move { Ok(waiting) })
        });
        server.add_service(own).intercept(Refuses)
    }

    async fn at_end() {
        if let Some(path) = env::var_os(AT_END) {
            fs::write(path, "the end").unwrap();
        }
    }

    fn clean_up(remains: Remains<'_, ()>) -> Result<(), String> {
        let what = format!("{} {} {:?}", remains.namespace, remains.id, remains.pid.is_some());
        fs::write(remains.bundle.path().join("cleaned"), what).map_err(|error| error.to_string())
    }
}

/// A service of the runtime's own, and the variable that names the file which its hook writes.
const OWN: &str = "invocations.v1.Own";
const AT_END: &str = "INVOCATIONS_AT_END";

/// Refuses calls that ask for it.
struct Refuses;

#[async_trait]
impl Interceptor for Refuses {
    async fn intercept(&self, ctx: &mut Context, next: Next<'_>) -> Result<(), Status> {
        match ctx.metadata().get("refuse") {
            Some(_) => Err(Status::permission_denied("as it was asked for")),
            None => next.run(ctx).await,
        }
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
    ("delete_fails_where_the_options_cannot_be_read", delete_fails_without_options),
    ("starts_of_a_group_at_once_find_one_daemon", starts_at_once_find_one_daemon),
    ("start_asks_the_shim_that_is_there_for_its_version", start_asks_for_the_version),
    ("a_signal_ends_a_daemon_whose_containers_are_waited_for", a_signal_ends_a_daemon),
    ("info_and_version_are_told", info_and_version_are_told),
    ("a_runtime_adds_to_the_server_and_has_the_last_word", a_runtime_adds_to_the_server),
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
    assert!(!bundle.path().join("address").exists());
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

/// runc was asked for the container in another folder, where it was not: the deletion succeeded.
fn delete_fails_without_options() {
    let containerd = tempfile::tempdir().unwrap();
    let bundle = Bundle::new("{}");
    fs::write(bundle.path().join("options.pb"), [0xff]).unwrap();
    let output = bundle.call(containerd.path(), "c1", &["delete"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("options.pb"), "{said}");
    assert!(!bundle.path().join("cleaned").exists());
}

fn shut_down(socket: &Path) {
    call(socket, async |task| task.shutdown(ShutdownRequest::default()).await).unwrap();
    wait_until("the daemon has removed its socket", || !socket.exists());
}

/// Two daemons were started for one group.
fn starts_at_once_find_one_daemon() {
    let containerd = tempfile::tempdir().unwrap();
    let spec = r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}"#;
    for is_dead_one_there in [false, true, true] {
        let bundles: Vec<Bundle> = (0..8).map(|_| Bundle::new(spec)).collect();
        let sockets: Vec<PathBuf> = thread::scope(|scope| {
            let start = |(number, bundle): (usize, &Bundle)| {
                bundle.start(containerd.path(), &format!("c{number}"))
            };
            let threads: Vec<_> =
                bundles.iter().enumerate().map(|pair| scope.spawn(move || start(pair))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(sockets.iter().all(|socket| *socket == sockets[0]));
        let daemon = pid_of_daemon(&sockets[0]);
        let address = containerd.path().to_str().unwrap();
        let daemons = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(address)
        });
        assert_eq!(daemons.count(), 1);
        if is_dead_one_there {
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
            wait_until("nobody listens", || UnixStream::connect(&sockets[0]).is_err());
        } else {
            shut_down(&sockets[0]);
        }
    }
}

/// containerd was told version 3 and found a shim that knew version 2.
fn start_asks_for_the_version() {
    let containerd = tempfile::tempdir().unwrap();
    let bundle = Bundle::new("{}");
    let version = || {
        let mut command = Command::new(env::current_exe().unwrap());
        command.current_dir(bundle.path()).args(["-namespace", "default", "-id", "c1", "-address"]);
        command.arg(containerd.path()).arg("start").env("MAX_SHIM_VERSION", "3");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let address = answer["address"].as_str().unwrap().strip_prefix("unix://").unwrap();
        (answer["version"].as_i64().unwrap(), PathBuf::from(address))
    };
    let (new, socket) = version();
    assert_eq!((new, version().0), (3, 3));
    shut_down(&socket);

    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    thread::scope(|scope| {
        let (serves, is_serving) = std::sync::mpsc::channel();
        let socket = socket.to_str().unwrap();
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let server = Server::builder().bind(socket).unwrap().build().unwrap();
                serves.send(()).unwrap();
                tokio::select! {
                    served = server.serve() => served.unwrap(),
                    _ = ended => {}
                }
            });
        });
        is_serving.recv().unwrap();
        assert_eq!(version().0, 2, "it has no such service");
        drop(end);
    });
}

/// It took five seconds, since somebody waited for the container.
fn a_signal_ends_a_daemon() {
    let containerd = tempfile::tempdir().unwrap();
    let bundle = Bundle::new("{}");
    let socket = bundle.start(containerd.path(), "c1");
    let daemon = pid_of_daemon(&socket);
    let (waited, took) = call(&socket, async |task| {
        let (id, bundle) = ("c1".to_owned(), bundle.path().to_str().unwrap().to_owned());
        let created =
            task.create(CreateTaskRequest { id, bundle, ..CreateTaskRequest::default() }).await;
        let pid = created.unwrap().pid;
        let wait = task.wait(WaitRequest { id: "c1".to_owned(), ..WaitRequest::default() });
        let begin = Instant::now();
        let signal = async {
            tokio::task::yield_now().await;
            rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
        };
        let (waited, ()) = tokio::join!(wait, signal);
        let took = begin.elapsed();
        // The container is not the signal's affair.
        let first = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::test_kill_process(first).unwrap();
        rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
        (waited, took)
    });
    assert!(waited.is_err(), "the container has not ended: {waited:?}");
    // A call that is open may take this long at the end that containerd asks for.
    assert!(took < Duration::from_secs(5), "{took:?}");
    wait_until("the daemon has removed its socket", || !socket.exists());
}

fn a_runtime_adds_to_the_server() {
    let containerd = tempfile::tempdir().unwrap();
    let (bundle, ends) = (Bundle::new("{}"), containerd.path().join("end"));
    let mut command = Command::new(env::current_exe().unwrap());
    command.current_dir(bundle.path()).args(["-namespace", "default", "-id", "c1", "-address"]);
    command.arg(containerd.path()).arg("start").env(AT_END, &ends);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let address = String::from_utf8(output.stdout).unwrap();
    let socket = Path::new(address.strip_prefix("unix://").unwrap());
    let (waiting, refused) = call(socket, async |task| {
        let own = task.client().unary::<(), String>(OWN, "Waiting", ());
        let refused = task.connect(ConnectRequest::default()).metadata("refuse", "1").await;
        (own.await, refused)
    });
    assert_eq!(waiting.unwrap(), "0", "no event waits");
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    assert!(!ends.exists());
    shut_down(socket);
    wait_until("the hook has run", || ends.exists());
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
