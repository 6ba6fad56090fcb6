//! What a server does when the system has nothing left to give: a sentence that names what lacks, or
//! waiting for it without spinning.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::{net::UnixStream, time::sleep};
use ttrpc::{Client, ClientConfig};
use ttrpc_tests::{
    conformance::*,
    harness::{echo_request, eventually},
    process::Process,
};

/// The user who owns nothing, on every Unix.
const NOBODY: u32 = 65534;

const SERVER: &str = env!("CARGO_BIN_EXE_ttrpc-conformance-server");

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

fn socket_in(folder: &Path) -> String {
    folder.join("a.sock").to_string_lossy().into_owned()
}

#[tokio::test]
async fn without_descriptors_a_server_waits_without_spinning_and_goes_on_when_there_are_some() {
    const LIMIT: u64 = 30;
    let folder = folder();
    let address = socket_in(folder.path());
    let server = Process::start_conformance_server(SERVER, &address).expect("it starts");
    server.limit_descriptors(LIMIT);
    let mut streams = Vec::new();
    for _ in 0..LIMIT * 2 {
        streams.push(UnixStream::connect(&address).await.expect("the backlog takes it"));
    }
    let has_none_left = || server.usage().unwrap().descriptors >= LIMIT;
    eventually("it has no descriptors left", has_none_left).await;
    let (begin, before) = (Instant::now(), server.cpu_time().unwrap());
    sleep(Duration::from_secs(3)).await;
    let used = server.cpu_time().unwrap() - before;
    let passed = begin.elapsed();
    println!("{used:?} of CPU time in {passed:?} without descriptors");
    assert!(used < passed / 3, "a loop that spins uses all of it: {used:?}");

    let client =
        |stream| ConformanceClient::new(Client::from_unix_stream(stream, ClientConfig::default()));
    // Those that were accepted are served, and the others when there is room for them.
    let last = client(streams.pop().expect("there are many"));
    let first = client(streams.swap_remove(0));
    first.echo(echo_request(*b"first")).await.expect("it is served meanwhile");
    let waiting = tokio::spawn(last.echo(echo_request(*b"last")).into_future());
    sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished(), "there are no descriptors");
    streams.truncate(5);
    waiting.await.unwrap().expect("it is served now");
}

/// What a server says that cannot start.
fn complaint(command: &mut Command) -> String {
    let output = command.output().expect("it can be run");
    assert!(!output.status.success(), "it cannot listen there");
    let text = String::from_utf8(output.stderr).expect("it is text");
    println!("{}", text.trim());
    assert_eq!(text.lines().count(), 1, "one sentence: {text}");
    text
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The server, run by a user who has no rights: by nobody, where this one is root. Nothing where nobody cannot run it.
///
/// Another process copies it. While this one had it open for writing, a test on another thread could
/// start a process, which would for a moment have it open too, and no file can be run that somebody
/// may write to (execve(2), ETXTBSY).
fn server_without_rights(folder: &Path) -> Option<Command> {
    if !is_root() {
        return Some(Command::new(SERVER));
    }
    let copy = folder.join("server");
    let copied = Command::new("cp").arg(SERVER).arg(&copy).status().expect("it can be run");
    assert!(copied.success(), "the folder can be written");
    let command = || {
        let mut command = Command::new(&copy);
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let helped = command().arg("--help").output();
    helped.is_ok_and(|output| output.status.success()).then(command)
}

#[test]
fn a_folder_without_permission_is_named_with_the_cause() {
    let folder = folder();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let Some(mut command) = server_without_rights(folder.path()) else {
        println!("skipped: nobody but root can run a program in {}", folder.path().display());
        return;
    };
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o555)).unwrap();
    let address = socket_in(&closed);
    let text = complaint(command.args(["--listen", &address]));
    assert!(text.contains(&address) && text.contains("Permission denied"), "{text}");
}

#[test]
fn a_full_disk_is_named_with_the_path() {
    let folder = folder();
    let address = socket_in(folder.path());
    // A program, on a file system of its own that has no room.
    let on_full_disk = |program: &[&str]| {
        let script = "mount -t tmpfs -o nr_inodes=1 none \"$0\" && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).arg(folder.path()).args(program);
        command
    };
    let may_mount = on_full_disk(&["true"]).output();
    if !may_mount.is_ok_and(|output| output.status.success()) {
        println!("skipped: this user may not mount a file system of its own");
        return;
    }
    let text = complaint(&mut on_full_disk(&[SERVER, "--listen", &address]));
    assert!(text.contains(&address) && text.contains("No space left"), "{text}");
}
