//! `ttrpc shims`, from the shell: with processes that are stopped, and with containerd if it is here.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, ChildStdout, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{common::*, greeter, kernel};

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; a stopped one is killed all the same.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A state directory of containerd with bundles of our own.
fn add_bundle(state: &Path, id: &str, address: &Path) {
    let folder = state.join("io.containerd.runtime.v2.task/default").join(id);
    fs::create_dir_all(&folder).unwrap();
    let address = format!("unix://{}", address.display());
    let bootstrap = json!({ "version": 3, "address": address, "protocol": "ttrpc" });
    fs::write(folder.join("bootstrap.json"), bootstrap.to_string()).unwrap();
}

fn shims(state: &Path, more: &[&str]) -> (i32, Vec<Value>) {
    let state = state.to_str().unwrap();
    let ran = run(&[&["shims", "--json", "--state", state], more].concat());
    assert_eq!(ran.stderr, "");
    (ran.code, serde_json::from_str(&ran.stdout).unwrap())
}

/// A process that answers as the server behind it does.
fn start_proxy(socket: &Path, upstream: &str) -> Process {
    let addresses = ["--listen", socket.to_str().unwrap(), "--upstream", upstream];
    let mut child = ttrpc(&[&["trace", "--schema", "builtin"], &addresses[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("are shown"), "{line}");
    Process(child)
}

#[test]
fn a_shim_that_hangs_is_first_while_fifty_others_answer() {
    let folder = tempfile::tempdir().unwrap();
    let answering = conformance();
    for index in 0..50 {
        // One server under many addresses: each link is a shim of its own.
        let link = folder.path().join(format!("{index}.sock"));
        std::os::unix::fs::symlink(&answering.address, &link).unwrap();
        add_bundle(folder.path(), &format!("c{index}"), &link);
    }
    let (code, all) = shims(folder.path(), &[]);
    assert_eq!((code, all.len()), (0, 50));
    assert!(all.iter().all(|shim| shim["answer"] == "answered"), "{all:?}");
    assert_eq!(all[0]["containers"][0]["status"], "UNIMPLEMENTED", "the server is no shim");

    let socket = folder.path().join("hanging.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    add_bundle(folder.path(), "hanging", &socket);
    for timeout in doubled(Duration::from_secs(1)) {
        let (code, all) = shims(folder.path(), &["--timeout", &timeout]);
        assert_eq!((code, all.len()), (1, 51), "one hangs");
        if all.iter().filter(|shim| shim["answer"] == "answered").count() < 50 {
            continue;
        }
        assert_eq!(all[0]["containers"][0]["id"], "hanging");
        assert_eq!(all[0]["answer"], "timed out");
        if kernel::lists_sockets("whose socket it is") {
            assert_eq!(all[0]["pid"], std::process::id(), "found by its socket");
        }
        return;
    }
}

/// What clients that wait for it leave behind of a shim that hangs for days.
#[test]
fn a_shim_whose_backlog_is_full_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("full.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waiting = UnixStream::connect(&socket).unwrap();
    add_bundle(folder.path(), "full", &socket);
    let (code, all) = shims(folder.path(), &["--timeout", "300ms"]);
    assert_eq!((code, &all[0]["answer"]), (1, &json!("timed out")), "{all:?}");
    if kernel::lists_sockets("whose socket it is") {
        assert_eq!(all[0]["pid"], std::process::id(), "found by its socket");
    }
}

#[test]
fn dead_shims_and_others_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("dead.sock");
    drop(UnixListener::bind(&socket).unwrap());
    add_bundle(folder.path(), "dead", &socket);
    add_bundle(folder.path(), "gone", &folder.path().join("gone.sock"));
    let nothing = folder.path().join("io.containerd.runtime.v2.task/default/nothing");
    fs::create_dir_all(nothing).unwrap();
    let (code, all) = shims(folder.path(), &[]);
    assert_eq!(code, 0, "none hangs");
    let answers: Vec<_> = all.iter().map(|shim| shim["answer"].as_str().unwrap()).collect();
    assert_eq!(answers, ["refused", "refused", "not asked"]);
    assert!(all[0]["reason"].as_str().unwrap().contains("refused"), "{}", all[0]);
    let (_, other) = shims(folder.path(), &["--namespace", "other"]);
    assert!(other.is_empty());
}

#[test]
fn a_directory_that_is_not_there_says_what_to_do() {
    let ran = run(&["shims", "--state", "/no/such/state"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("--state names"), "{}", ran.stderr);
}

#[test]
fn where_shims_were_looked_for_is_told_if_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let none = run(&["shims", "--state", state, "--namespace", "k8s.io"]).ok();
    assert!(none.contains(&format!("no shims in namespace k8s.io below {state}; ")), "{none}");
    assert!(none.contains("--state names"), "{none}");
    let debugged = run(&["shims", "debug", "web", "--state", state]);
    assert_eq!(debugged.code, 1);
    assert!(debugged.stderr.contains(&format!("no shims below {state}; ")), "{}", debugged.stderr);
}

#[test]
fn no_shim_answers_in_no_time() {
    for command in [&["shims"][..], &["shims", "debug", "web"]] {
        let ran = run(&[command, &["--timeout", "0"]].concat());
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains("300ms"), "{}", ran.stderr);
    }
}

#[test]
fn a_snapshot_is_asked_for_by_the_start_of_an_id() {
    let folder = tempfile::tempdir().unwrap();
    let server = conformance();
    add_bundle(folder.path(), "web-1", Path::new(&server.address));
    let state = folder.path().to_str().unwrap();
    let text = run(&["shims", "debug", "web", "--state", state]).ok();
    assert!(text.contains("ttrpc.debug.v1.Debug/Snapshot"), "{text}");
    let snapshot = run(&["shims", "--state", state, "debug", "web-1", "--json"]).json();
    assert_eq!(snapshot["pid"], std::process::id());
    assert_eq!(run(&["shims", "debug", "db", "--state", state]).code, 1);
    assert_eq!(run(&["shims", "--watch", "debug", "web", "--state", state]).code, 2);
}

/// A folder with the bundle of a shim that is stopped, and the shim: a proxy to this server.
fn stopped_shim(upstream: &str) -> (tempfile::TempDir, Process) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("a.sock");
    let server = start_proxy(&socket, upstream);
    add_bundle(folder.path(), "stopped", &socket);
    stop(&server.0);
    (folder, server)
}

#[test]
fn a_stopped_process_is_described_from_outside() {
    let upstream = conformance();
    let (folder, server) = stopped_shim(&upstream.address);
    let lists_sockets = kernel::lists_sockets("what is known of the process");
    let mut places = kernel::waits(server.0.id());
    let (code, all) = shims(folder.path(), &["--timeout", "300ms"]);
    assert_eq!((code, all.len()), (1, 1));
    if lists_sockets {
        assert_eq!(all[0]["processState"], "stopped (SIGSTOP)");
        assert_eq!(all[0]["pid"], server.0.id());
        // A thread that is stopped may still be on its way to where it waits.
        places.extend(kernel::waits(server.0.id()));
        let waits = all[0]["waits"].as_array().unwrap();
        assert!(!waits.is_empty());
        for wait in waits {
            assert!(places.contains(wait["place"].as_str().unwrap()), "{wait}: {places:?}");
        }
    }
    let state = folder.path().to_str().unwrap();
    let table = run(&["shims", "--timeout", "300ms", "--state", state]);
    assert_eq!(table.code, 1);
    assert!(table.stdout.contains("\nTIMED OUT"), "{}", table.stdout);
    assert_eq!(table.stdout.contains("is stopped (SIGSTOP)"), lists_sockets, "{}", table.stdout);
    assert!(table.stdout.contains("1 did not answer, 0 did"), "{}", table.stdout);
    server.signal(Signal::CONT);
    let (code, all) = shims(folder.path(), &[]);
    assert_eq!((code, &all[0]["answer"]), (0, &json!("answered")));
}

/// `ttrpc shims --watch`, and what it has told so far.
struct Watch {
    process: Process,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watch {
    fn start(state: &Path, timeout: &str) -> Self {
        let state = state.to_str().unwrap();
        let arguments = ["--watch=10ms", "--timeout", timeout, "--json", "--state", state];
        let mut child =
            ttrpc(&[&["shims"], &arguments[..]].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watch { process: Process(child), lines }
    }

    /// The next round.
    fn round(&mut self) -> Vec<Value> {
        let round = self.lines.next().unwrap().unwrap();
        serde_json::from_str(&round).unwrap()
    }

    /// The first round of which this is true. A program for which it never is fails the test after [`PATIENCE`].
    fn until(&mut self, is_wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let begin = Instant::now();
        loop {
            let round = self.round();
            if is_wanted(&round) {
                return round;
            }
            assert!(begin.elapsed() < PATIENCE, "the last round was {round:?}");
        }
    }

    /// The only shim in the next round.
    fn next(&mut self) -> Value {
        self.round().remove(0)
    }

    fn end(mut self) {
        self.process.signal(Signal::INT);
        assert!(self.process.0.wait().unwrap().success());
    }
}

#[test]
fn a_watch_sees_a_shim_answer_again() {
    let upstream = conformance();
    for timeout in doubled(Duration::from_millis(300)) {
        let (folder, server) = stopped_shim(&upstream.address);
        let mut watch = Watch::start(folder.path(), &timeout);
        for _ in 0..3 {
            assert_eq!(watch.next()["answer"], "timed out");
        }
        server.signal(Signal::CONT);
        // The first of these rounds may have been as good as over.
        if !(0..3).any(|_| watch.next()["answer"] == "answered") {
            continue;
        }
        stop(&server.0);
        watch.until(|round| round[0]["answer"] == "timed out");
        watch.end();
        return;
    }
}

#[test]
fn the_containers_of_a_pod_are_all_named() {
    let folder = tempfile::tempdir().unwrap();
    let pod = only(greeter::Shim);
    let ids = ["0123456789abcdef0123456789abcdef", "sidecar", "web"];
    for id in ids {
        add_bundle(folder.path(), id, Path::new(&pod.address));
    }
    let table = run(&["shims", "--state", folder.path().to_str().unwrap()]).ok();
    for id in ids {
        assert!(table.contains(id), "{id} is not in: {table}");
    }
    assert!(table.contains("3 running"), "{table}");
    assert!(table.contains("sidecar running"), "{table}");
}

#[test]
fn a_snapshot_that_does_not_come_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hanging.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    add_bundle(folder.path(), "web", &socket);
    let state = folder.path().to_str().unwrap();
    let (hung, timeout) = run_unanswered(&["shims", "debug", "web", "--state", state]);
    assert_eq!(hung.code, 64 + 4);
    assert!(hung.stderr.contains(&format!("within {timeout:?}")), "{}", hung.stderr);
    assert!(hung.stderr.contains("`ttrpc shims`"), "{}", hung.stderr);
}

#[test]
fn a_bootstrap_file_that_is_damaged_is_told() {
    let folder = tempfile::tempdir().unwrap();
    add_bundle(folder.path(), "web", Path::new("/no/such.sock"));
    let file = "io.containerd.runtime.v2.task/default/web/bootstrap.json";
    fs::write(folder.path().join(file), "{\"version\": 3, \"addr").unwrap();
    let (_, all) = shims(folder.path(), &[]);
    assert_eq!(all[0]["answer"], "not asked");
    assert!(all[0]["reason"].as_str().unwrap().contains("bootstrap.json"), "{}", all[0]);
}

#[test]
fn shims_of_later_versions_are_asked_as_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let shim = only(greeter::Shim);
    add_bundle(folder.path(), "web", Path::new(&shim.address));
    let file = "io.containerd.runtime.v2.task/default/web/bootstrap.json";
    let file = folder.path().join(file);
    let text = fs::read_to_string(&file).unwrap().replace("\"version\":3", "\"version\":4");
    fs::write(&file, text).unwrap();
    let (_, all) = shims(folder.path(), &[]);
    assert_eq!(
        (&all[0]["version"], &all[0]["containers"][0]["status"]),
        (&json!(4), &json!("RUNNING"))
    );
}

#[test]
fn what_bundles_are_called_does_not_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gone.sock");
    add_bundle(folder.path(), "evil\u{1b}]0;title\u{7}\nname", &socket);
    let state = folder.path().to_str().unwrap();
    let table = run(&["shims", "--color", "always", "--state", state]).ok();
    assert!(table.contains("title") && !table.contains("\u{1b}]"), "{table:?}");
    assert!(!table.contains("\nname"), "{table:?}");
}
