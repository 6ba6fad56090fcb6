//! The conformance suite against this library: its own server and its own client.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixListener,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use ttrpc::Client;
use ttrpc_tests::{
    conformance::*,
    conformance_suite::{all_cases, client_cases, run_case, trial},
    harness::{chunk, eventually},
};

/// How long a case may take. Reached only where something hangs.
const CASE_LIMIT: Duration = Duration::from_secs(1200);

/// The server's binary, listening.
struct Server {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Server {
    /// That the machine does not run a handler for a while is nobody's failure.
    fn start() -> Self {
        Server::start_with("600")
    }

    fn start_with(stall_timeout: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let address = format!("unix://{}", folder.path().join("conformance.sock").display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_ttrpc-conformance-server"))
            .args(["--listen", &address, "--drain-timeout", "600"])
            .args(["--stall-timeout", stall_timeout])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the server says that it listens");
        assert_eq!(line, format!("listening {address}\n"));
        Server { child, address, _folder: folder }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended can't be ended again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(arguments: &[&str]) -> Output {
    let client = env!("CARGO_BIN_EXE_ttrpc-conformance-client");
    Command::new(client).args(arguments).output().expect("the client runs")
}

/// Clients in other languages read the list; what a case expects is said in the table.
#[test]
fn the_list_for_other_clients_says_what_the_table_says() {
    let list = include_str!("../../interop/cases.json");
    let list: Vec<serde_json::Value> = serde_json::from_str(list).unwrap();
    for entry in list {
        let name = entry["name"].as_str().unwrap();
        let case = ttrpc_conformance::CASES.iter().find(|case| case.name == name);
        let case = case.unwrap_or_else(|| panic!("no case is called {name}"));
        assert_eq!(entry["expected"], case.expected, "{name}");
        assert_eq!(entry["needs"] == serde_json::json!(["streams"]), case.needs_streams, "{name}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the output is text")
}

/// Runs the chosen cases as a strict trial of our own server, which has to pass all of them. Ends with the first
/// that fails: what it has left behind may fail the next ones, each after its patience.
async fn passes(is_chosen: impl Fn(&str) -> bool) {
    let (patient, impatient) = (Server::start(), Server::start_with("1"));
    for case in all_cases().iter().filter(|case| is_chosen(&case.name)) {
        // Its call goes on when the handler that stands still is waited for no more.
        let server = if case.name == "unread_stream_on_server" { &impatient } else { &patient };
        let row = run_case(case, &trial(&server.address, true), CASE_LIMIT).await;
        assert!(row.has_passed(), "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_and_server_pass_every_case_of_the_api() {
    passes(|name| !name.starts_with("wire/")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_server_passes_every_wire_case() {
    passes(|name| name.starts_with("wire/")).await;
}

#[tokio::test(start_paused = true)]
async fn our_client_passes_every_case_with_a_played_server() {
    let mut failures = Vec::new();
    for case in client_cases::all() {
        let played = tokio::spawn({
            let case = case.clone();
            async move { case.play().await }
        });
        let played = played.await.unwrap_or_else(|error| Err(format!("it panicked: {error}")));
        if let Err(error) = played {
            failures.push(format!("{}: {error}\n    {}", case.name, case.text));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_client_reports_what_it_saw_and_exits_accordingly() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("results.json");
    let json_argument = json.to_str().expect("the path is text");
    let chosen = "empty_unary|metadata_order|wire/ids_*";
    let address = &server.address[..];
    let output = client(&["--connect", address, "--case", chosen, "--json", json_argument]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let table = text(&output.stdout);
    assert!(table.contains("empty_unary") && table.contains(" 0 failed"), "{table}");

    let listed = client(&["--list", "--case", chosen]);
    assert_eq!(listed.status.code(), Some(0));
    let names: Vec<String> = text(&listed.stdout).lines().map(str::to_owned).collect();
    let lines = fs::read_to_string(json).unwrap();
    let rows: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let reported: Vec<_> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(reported, names);
    assert!(rows.iter().all(|row| row["result"] == "pass" && row["millis"].is_u64()));
}

#[test]
fn the_client_exits_with_one_where_a_case_failed_and_says_what_came() {
    // A server that accepts nothing, so that no case can end.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent.sock");
    let _silent = UnixListener::bind(&path).unwrap();
    let arguments = ["--connect", path.to_str().unwrap(), "--case", "concurrent_unary"];
    let output = client(&[&arguments[..], &["--case-timeout", "0.2"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let table = text(&output.stdout);
    assert!(
        table.contains("expected: 64 callers") && table.contains("came:     no end"),
        "{table}"
    );
}

#[test]
fn the_client_exits_with_two_where_nothing_can_be_run() {
    let server = Server::start();
    let nowhere = format!("{}.gone", server.address);
    let arguments: [&[&str]; 4] = [
        &[],
        &["--connect", &nowhere],
        &["--connect", &server.address, "--case", "no_such_case"],
        &["--connect", &server.address, "--dance"],
    ];
    for arguments in arguments {
        let output = client(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "the reason is named for {arguments:?}");
    }
}

#[tokio::test]
async fn the_server_ends_gracefully_when_it_is_told_to() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start();
        let conformance = ConformanceClient::new(Client::connect(&server.address).await.unwrap());
        let (mut requests, reply) = conformance.collect().await.unwrap();
        while conformance.stats(Empty {}).await.unwrap().calls_in_flight < 2 {}
        let pid = Pid::from_child(&server.child);
        kill_process(pid, signal).expect("the server is there");
        let path = server.address.trim_start_matches("unix://").to_owned();
        eventually("the shutdown begins", || !fs::exists(&path).unwrap()).await;
        requests.send(chunk(0)).await.unwrap();
        requests.finish();
        assert_eq!(reply.await.expect("a call that was accepted is answered").chunks, 1);
        let status = server.child.wait().expect("the server can be waited for");
        assert_eq!(status.code(), Some(0), "after {signal:?}");
    }
}
