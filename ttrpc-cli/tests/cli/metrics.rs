//! A server's metrics beside what `ttrpc load` has counted: with deadlines, with calls that are dropped, and where one of
//! both is killed.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::Write,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use ttrpc::{
    Server,
    observer::{CallEnd, CallInfo, Observer},
};
use ttrpc_reflection::Reflection;
use ttrpc_telemetry::Metrics;
use ttrpc_tests::{
    conformance::{ConformanceServer, FILE_DESCRIPTOR_SET},
    service::ConformanceService,
};

use crate::common::*;

/// A server that counts.
struct Counting {
    server: Served,
    metrics: PrometheusHandle,
}

fn counting() -> Counting {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let server = serve(|builder| {
        builder
            .observe(Metrics::with_recorder(recorder))
            .add_service(ConformanceServer::new(ConformanceService::default()))
            .add_service(Reflection::new(FILE_DESCRIPTOR_SET).unwrap())
    });
    Counting { server, metrics }
}

impl Counting {
    fn start_load(&self, arguments: &[&str]) -> Child {
        let address = &*self.server.address;
        let (method, options) = arguments.split_first().unwrap();
        let mut load = ttrpc(&[&["load", "--json", address, method], options].concat());
        load.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// The sum of all series of this name with these labels, as a scraper reads it.
    fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let text = self.metrics.render();
        let series = text.lines().filter_map(|line| line.rsplit_once(' '));
        let chosen = series.filter(|(series, _)| {
            series.split('{').next() == Some(name)
                && labels.iter().all(|label| series.contains(label))
        });
        chosen.map(|(_, value)| value.parse::<f64>().unwrap() as u64).sum()
    }

    fn begun(&self, method: &str) -> u64 {
        self.sum("ttrpc_calls_begun_total", &[method])
    }

    /// Calls of the method by code and cause, when all have ended.
    fn ended(&self, method: &str, code: &str, cause: &str) -> u64 {
        eventually("the calls end", || self.sum("ttrpc_calls_in_flight", &[method]) == 0);
        let (code, cause) = (format!("code=\"{code}\""), format!("cause=\"{cause}\""));
        self.sum("ttrpc_calls_ended_total", &[method, &code, &cause])
    }
}

const ECHO: &str = "method=\"Echo\"";
const SLEEP: &str = "method=\"Sleep\"";
const WAIT: &str = "method=\"Wait\"";

fn counted(load: Child) -> Value {
    serde_json::from_slice(&load.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn sums_of_calls_that_are_answered_are_those_of_the_loads() {
    let counting = counting();
    let data = "{\"payload\": \"aGk=\"}";
    let echo = ["Echo", "-n", "2000", "-c", "16", "--connections", "2", "-d", data];
    // However slow the machine is, above all where each panic prints a backtrace.
    let echo = [&echo[..], &["--timeout", "0"]].concat();
    // Both at once.
    let (first, second) = (counting.start_load(&echo), counting.start_load(&echo));
    for load in [first, second] {
        let load = counted(load);
        assert_eq!((&load["calls"], &load["failed"]), (&2000.into(), &0.into()), "{load}");
    }
    assert_eq!(counting.begun(ECHO), 4000);
    assert_eq!(counting.ended(ECHO, "OK", "replied"), 4000);
    assert_eq!(counting.sum("ttrpc_messages_received_total", &[ECHO]), 4000);
    assert_eq!(counting.sum("ttrpc_messages_sent_total", &[ECHO]), 4000);

    let fail = ["Fail", "-n", "300", "-d", "{\"code\": 5, \"message\": \"no\"}", "--timeout", "0"];
    let load = counted(counting.start_load(&fail));
    assert_eq!(load["errors"], json!({"NOT_FOUND": 300}), "{load}");
    assert_eq!(counting.ended("method=\"Fail\"", "NOT_FOUND", "failed"), 300);
    let load = counted(counting.start_load(&["Panic", "-n", "100", "--timeout", "0"]));
    assert_eq!(load["errors"], json!({"INTERNAL": 100}), "{load}");
    assert_eq!(counting.ended("method=\"Panic\"", "INTERNAL", "panicked"), 100);
}

/// A caller whose deadline passes says nothing to the server, and goes. So the server's call ends at its own deadline,
/// or with the connection; never well. A call that was not yet written when its time was over is not known to the server.
#[test]
fn no_call_whose_deadline_has_passed_is_counted_as_replied() {
    let counting = counting();
    // The schema is not asked for, which would have no more time than a call.
    let proto = conformance_proto().display().to_string();
    let data = "{\"millis\": 3600000}";
    let address = &*counting.server.address;
    let load = ["load", "--json", address, "Sleep", "--proto", &proto, "-d", data];
    let (load, _) = run_unanswered(&[&load[..], &["-n", "200", "-c", "50"]].concat());
    assert_eq!(load.code, 64 + 4, "{load:?}");
    let load: Value = serde_json::from_str(&load.stdout).unwrap();
    assert_eq!(load["errors"], json!({"DEADLINE_EXCEEDED": 200}), "{load}");
    counting.server.settle();
    let late = counting.ended(SLEEP, "DEADLINE_EXCEEDED", "deadline_here");
    let cut_off = counting.ended(SLEEP, "CANCELLED", "peer_gone");
    assert_eq!(late + cut_off, counting.begun(SLEEP));
    assert!(counting.begun(SLEEP) <= 200);
}

#[test]
fn calls_of_a_load_that_is_killed_end_with_it_each_once() {
    let counting = counting();
    for killed in 1..=3 {
        let options =
            ["-c", "20", "--connections", "4", "--timeout", "0", "-d", "{\"key\": \"k\"}"];
        let mut load = counting.start_load(&[&["Wait"], &options[..]].concat());
        let in_flight = || counting.sum("ttrpc_calls_in_flight", &[WAIT]);
        eventually("20 calls are in flight", || in_flight() >= 20);
        load.kill().unwrap();
        load.wait().unwrap();
        counting.server.settle();
        assert_eq!(counting.begun(WAIT), 20 * killed);
        assert_eq!(counting.ended(WAIT, "CANCELLED", "peer_gone"), 20 * killed);
    }
}

#[test]
fn a_load_that_is_interrupted_has_counted_what_the_server_has() {
    let counting = counting();
    let load = counting.start_load(&["Echo", "-c", "8", "--duration", "1h"]);
    eventually("500 calls have begun", || counting.begun(ECHO) >= 500);
    let pid = Pid::from_child(&load);
    kill_process(pid, Signal::INT).unwrap();
    let load = counted(load);
    assert_eq!(load["failed"], 0, "{load}");
    assert_eq!(counting.ended(ECHO, "OK", "replied"), load["calls"].as_u64().unwrap());
    assert_eq!(counting.begun(ECHO), load["calls"].as_u64().unwrap());
}

/// Where [`serve_until_killed`] listens and writes.
const FOLDER: &str = "TTRPC_TEST_KILLED_SERVER";

/// The server kills itself when a call has ended that came behind this many.
const CALLS_BEFORE_THE_KILL: u32 = 500;

/// Writes each event, since what a process has in its memory goes with it, and kills the process.
struct WritesAndKills(File);

impl WritesAndKills {
    fn write(&self, event: &str, call: &CallInfo<'_>) {
        if call.method == "Echo" {
            (&self.0).write_all(format!("{event}\n").as_bytes()).unwrap();
        }
    }
}

impl Observer for WritesAndKills {
    fn call_begun(&self, call: &CallInfo<'_>) {
        self.write("begun", call);
    }

    fn call_ended(&self, call: &CallInfo<'_>, end: &CallEnd<'_>) {
        self.write(end.code.name(), call);
        // Ids are odd.
        if call.stream_id >= Some(2 * CALLS_BEFORE_THE_KILL) {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
    }
}

/// The server of the next test, in a process of its own.
fn serve_until_killed(folder: &Path) {
    let events = File::options().append(true).create(true).open(folder.join("events")).unwrap();
    let server = Server::builder()
        .observe(WritesAndKills(events))
        .add_service(ConformanceServer::new(ConformanceService::default()))
        .add_service(Reflection::new(FILE_DESCRIPTOR_SET).unwrap());
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let address = folder.join("a.sock");
        server.bind(address.to_str().unwrap()).unwrap().serve().await.unwrap();
    });
}

/// What was answered was counted before, and no more was begun than is answered or in flight. With [`FOLDER`], which
/// it sets itself, this is the server.
#[test]
fn counts_of_a_server_that_is_killed_are_no_less_than_its_replies() {
    const IN_FLIGHT: usize = 16;
    if let Some(folder) = env::var_os(FOLDER) {
        return serve_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("a.sock");
    let mut server = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "metrics::counts_of_a_server_that_is_killed_are_no_less_than_its_replies",
        ])
        .env(FOLDER, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the server listens", || {
        assert_eq!(server.try_wait().unwrap(), None, "the server ended before it listened");
        UnixStream::connect(&address).is_ok()
    });
    let in_flight = IN_FLIGHT.to_string();
    let address = address.to_str().unwrap();
    let ran = run(&["load", "--json", address, "Echo", "-n", "2000", "-c", &in_flight]);
    assert!(!server.wait().unwrap().success());
    assert_eq!(ran.code, 64 + 14, "{ran:?}");
    let load: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();

    let number = |name: &str| load[name].as_u64().unwrap() as usize;
    let failed = number("failed");
    assert_eq!(load["errors"], json!({"UNAVAILABLE": failed}), "{load}");
    let replied = number("calls");
    // With the connection the load ends: what was in flight has failed, and nothing else.
    assert!((1..=IN_FLIGHT).contains(&failed), "{load}");
    let mut events = BTreeMap::<_, usize>::new();
    let text = fs::read_to_string(folder.path().join("events")).unwrap();
    for event in text.lines() {
        *events.entry(event).or_default() += 1;
    }
    let (begun, ok) = (events["begun"], events["OK"]);
    assert!(replied <= ok && ok <= begun && begun <= replied + IN_FLIGHT, "{load} {events:?}");
}
