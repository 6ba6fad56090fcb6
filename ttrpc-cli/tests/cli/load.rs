//! `ttrpc load`, from the shell.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::*;

fn load(arguments: &[&str]) -> serde_json::Value {
    run(&[&["load", "--json"], arguments].concat()).json()
}

#[test]
fn a_closed_loop_makes_as_many_calls_as_it_is_told() {
    let server = conformance();
    let data = "{\"payload\": \"aGk=\"}";
    let more = ["-n", "500", "-c", "8", "--connections", "3", "-d", data];
    let result = load(&[&[&*server.address, "Echo"], &more[..]].concat());
    assert_eq!((&result["calls"], &result["failed"]), (&500.into(), &0.into()));
    assert_eq!((&result["bytesSent"], &result["bytesReceived"]), (&2000.into(), &2000.into()));
    let latency = &result["latencySeconds"];
    let at = |name: &str| latency[name].as_f64().unwrap();
    assert!(0.0 < at("min") && at("min") <= at("p50") && at("p50") <= at("max"), "{latency}");
    assert_eq!(result["loop"], "closed");
}

#[test]
fn streams_of_every_kind_are_loaded() {
    let server = conformance();
    let address = &*server.address;
    let result = load(&[address, "Generate", "-d", "{\"count\": 5}", "-n", "20"]);
    assert_eq!((&result["calls"], &result["messagesReceived"]), (&20.into(), &100.into()));
    let result = load(&[address, "Collect", "--messages", "7", "-n", "20"]);
    assert_eq!((&result["calls"], &result["messagesSent"]), (&20.into(), &140.into()));
    let result = load(&[address, "Exchange", "-d", "{} {\"sequence\": 1}", "-n", "20"]);
    assert_eq!((&result["messagesSent"], &result["messagesReceived"]), (&40.into(), &40.into()));
}

#[test]
fn an_open_loop_counts_from_when_calls_were_due() {
    let server = conformance();
    // Each call takes 20 ms and 100 a second are due, one at a time: every call waits for longer.
    let data = "{\"millis\": 20}";
    let more = ["--rate", "100", "-c", "1", "-n", "30", "-d", data];
    let result = load(&[&[&*server.address, "Sleep"], &more[..]].concat());
    assert_eq!(result["calls"], 30);
    let due = result["latencySeconds"]["max"].as_f64().unwrap();
    let begun = result["serviceTimeSeconds"]["p50"].as_f64().unwrap();
    // The last of 30 is due after 290 ms and cannot end before 600 ms.
    assert!(due >= 0.3, "{result}");
    assert!(begun < due, "{result}");
}

#[test]
fn calls_that_never_begin_are_told() {
    let server = conformance();
    let more = ["--rate", "1000", "-c", "1", "--duration", "500ms", "-d", "{\"millis\": 100}"];
    let result = load(&[&[&*server.address, "Sleep"], &more[..]].concat());
    assert!(result["calls"].as_u64().unwrap() < 10, "{result}");
    assert!(result["dueNotBegun"].as_u64().unwrap() > 400, "{result}");
}

#[test]
fn failures_are_counted_by_code_and_all_of_them_are_an_error() {
    let server = conformance();
    let ran = run(&["load", &server.address, "Fail", "-d", "{\"code\": 5}", "-n", "10"]);
    assert_eq!(ran.code, 64 + 5);
    assert!(ran.stdout.contains("failed, NOT_FOUND"), "{}", ran.stdout);
    assert_eq!(run(&["load", &server.address, "Echo", "--rate", "0"]).code, 2);
    assert_eq!(run(&["load", &server.address, "Echo", "-d", "{} {}"]).code, 2);
}

#[test]
fn people_get_percentiles_a_histogram_and_a_picture() {
    let server = conformance();
    let picture = server.folder.path().join("load.svg");
    let svg = picture.to_str().unwrap();
    let text = run(&["load", &server.address, "Echo", "-n", "200", "--svg", svg]).ok();
    for wanted in ["ttrpc.conformance.v1.Conformance/Echo", "99.9 %", "█", "closed loop"] {
        assert!(text.contains(wanted), "{wanted} is not in:\n{text}");
    }
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("one call in so many is slower"));
}

/// A load that goes on, and what it says beside its report.
struct Loading {
    process: Child,
    stderr: BufReader<ChildStderr>,
}

impl Loading {
    fn start(arguments: &[&str]) -> Self {
        let mut command = ttrpc(&[&["load", "--json"], arguments].concat());
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        Loading { process, stderr }
    }

    /// Ctrl-C, and what it answers.
    fn interrupt(&mut self) -> String {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    /// The exit code and the report.
    fn finish(self) -> (i32, serde_json::Value) {
        let ran: Ran = self.process.wait_with_output().unwrap().into();
        (ran.code, serde_json::from_str(&ran.stdout).unwrap())
    }
}

#[test]
fn a_second_interrupt_drops_calls_that_do_not_end() {
    let server = conformance();
    let data = ["-d", "{\"millis\": 100000000}", "--timeout", "0", "-c", "3"];
    for pace in [&[][..], &["--rate", "1000000"]] {
        let mut load = Loading::start(&[&[&*server.address, "Sleep"], &data[..], pace].concat());
        server.wait_for_calls("Sleep", 3);
        let answer = load.interrupt();
        assert!(answer.contains("Ctrl-C again drops those in flight"), "{answer}");
        load.interrupt();
        let (code, result) = load.finish();
        assert_eq!((&result["calls"], &result["notEnded"]), (&0.into(), &3.into()), "{result}");
        assert_eq!(code, 130, "{result}");
        server.settle();
    }
}

#[test]
fn an_interrupt_does_not_wait_for_the_next_call_to_be_due() {
    let server = conformance();
    // The second call is due in a day.
    let more = ["--rate", "0.00001", "--duration", "100d", "--timeout", "0"];
    let more = [&more[..], &["-d", "{\"key\": \"a\"}"]].concat();
    let mut load = Loading::start(&[&[&*server.address, "Wait"], &more[..]].concat());
    server.wait_for_call("Wait");
    load.interrupt();
    run(&["call", &server.address, "Release", "key=a"]).ok();
    let (code, result) = load.finish();
    assert_eq!((code, &result["calls"], &result["notEnded"]), (0, &1.into(), &0.into()));
    assert_eq!(result["dueNotBegun"], 0);
}

#[test]
fn a_load_ends_with_its_connection() {
    for pace in [&[][..], &["--rate", "1000000"]] {
        let server = conformance();
        let more = ["-c", "2", "--duration", "1d", "--timeout", "0", "-d", "{\"key\": \"a\"}"];
        let load = Loading::start(&[&[&*server.address, "Wait"], &more[..], pace].concat());
        server.wait_for_calls("Wait", 2);
        drop(server);
        let Loading { process, mut stderr } = load;
        let mut told = String::new();
        stderr.read_to_string(&mut told).unwrap();
        let ran: Ran = process.wait_with_output().unwrap().into();
        assert_eq!(ran.code, 64 + 14, "{told}");
        let failure: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert!(failure["hint"].as_str().unwrap().contains("a connection ended after"), "{told}");
        let result: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(result["errors"], serde_json::json!({ "UNAVAILABLE": 2 }));
        assert_eq!(result["bytesSent"], 0, "nobody knows whether they were");
        assert!(result["connectionEndedSeconds"].is_f64(), "{result}");
    }
}

#[test]
fn calls_in_flight_cost_little_memory() {
    let server = conformance();
    let program = env!("CARGO_BIN_EXE_ttrpc");
    // 1 GiB of data; with recorders for each call in flight it would be 4.
    let script = "ulimit -d 1048576; exec \"$0\" load \"$1\" Echo -c 8000 -n 8000 --json \
                  --timeout \"$2\" --duration \"$2\"";
    let mut command = Command::new("sh");
    as_in_a_shell(&mut command);
    // Each thread has a stack, and there would be one for each processor.
    command.env("TOKIO_WORKER_THREADS", "2");
    let output = command.args(["-c", script, program, &server.address, LONG]).output();
    let ran: Ran = output.unwrap().into();
    assert_eq!(ran.json()["calls"], 8000);
}

#[test]
fn no_measurement_is_lost_for_a_picture() {
    let server = conformance();
    let address = &*server.address;
    // Nothing is measured for a picture that cannot be written.
    let ran = run(&["load", address, "Echo", "-n", "5", "--svg", "/no/such/folder/a.svg"]);
    assert_eq!((ran.code, &*ran.stdout), (1, ""), "{ran:?}");
    assert_eq!(run(&["call", address, "Stats"]).json()["callsTotal"], "1");
    // A full device takes no picture; the figures stand before the failure.
    let ran = run(&["load", address, "Echo", "-n", "5", "--svg", "/dev/full", "--json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("cannot write /dev/full"), "{ran:?}");
    let result: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(result["calls"], 5);
    // Without a call that succeeded there is none.
    let picture = server.folder.path().join("a.svg").display().to_string();
    let fail = ["Fail", "-d", "{\"code\": 5}", "-n", "5", "--svg", &picture];
    let ran = run(&[&["load", address], &fail[..]].concat());
    assert_eq!(ran.code, 64 + 5, "{ran:?}");
    assert!(ran.stdout.contains("failed, NOT_FOUND"), "{ran:?}");
    assert!(ran.stderr.contains("no call succeeded"), "{ran:?}");
}

#[test]
fn a_rate_below_all_measure_is_no_panic() {
    let server = conformance();
    let result = load(&[&server.address, "Echo", "--rate", "1e-300", "--duration", "100d"]);
    assert_eq!(result["calls"], 1);
}
