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
    assert_eq!(run(&["load", &server.address, "Echo", "-d", ""]).code, 2);
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
fn a_load_of_no_time_is_refused() {
    let ran = run(&["load", "/no/such.sock", "A/B", "--duration", "0s"]);
    assert!(ran.code == 2 && ran.stderr.contains("above 0"), "{ran:?}");
}

#[test]
fn a_rate_below_all_measure_is_no_panic() {
    let server = conformance();
    let result = load(&[&server.address, "Echo", "--rate", "1e-300", "--duration", "100d"]);
    assert_eq!(result["calls"], 1);
}

#[test]
fn requests_take_turns_and_templates_are_made_for_each_call() {
    let server = conformance();
    let folder = server.folder.path();
    let file = folder.join("requests.json");
    std::fs::write(&file, "{\"payload\": \"YQ==\"}\n{\"payload\": \"YmI=\"}\n").unwrap();
    let data = format!("@{}", file.display());
    let more = ["-n", "10", "-c", "1", "-d", "{\"payload\": \"Y2Nj\"}", "-d", &data];
    let result = load(&[&[&*server.address, "Echo"], &more[..]].concat());
    // Payloads of 3, 1 and 2 bytes and two more each, and the first again.
    assert_eq!((&result["calls"], &result["bytesSent"]), (&10.into(), &41.into()));
    let field = "key={{.RequestNumber}}";
    let mut loading =
        ttrpc(&["load", &server.address, "Wait", field, "-c", "3", "-n", "3", "--timeout", "0"]);
    let mut loading = loading.stdout(Stdio::null()).spawn().unwrap();
    server.wait_for_calls("Wait", 3);
    for key in ["key=0", "key=1", "key=2"] {
        run(&["call", &server.address, "Release", key]).ok();
    }
    assert!(loading.wait().unwrap().success());
    let ran = run(&["load", &server.address, "Echo", "payload={{nothing}}"]);
    assert!(ran.code == 2 && ran.stderr.contains("--literal"), "{ran:?}");
    // The server sends back what it has received.
    let literal = ["code=5", "message={{nothing}}", "--literal", "-n", "1"];
    let ran = run(&[&["load", &*server.address, "Fail"], &literal[..]].concat());
    assert_eq!(ran.code, 64 + 5, "{ran:?}");
    assert!(ran.stderr.contains("NOT_FOUND: {{nothing}}"), "{ran:?}");
}

#[test]
fn several_methods_are_called_as_their_weights_say() {
    let server = conformance();
    let more = [
        "--weight",
        "3",
        "--also",
        "1 Generate {\"count\": 2}",
        "--also",
        "1 Fail code=5",
        "-n",
        "50",
    ];
    let result = load(&[&[&*server.address, "Echo", "payload=YQ=="], &more[..]].concat());
    let of = |at: usize, name: &str| result["methods"][at][name].clone();
    assert_eq!((of(0, "calls"), of(1, "calls")), (30.into(), 10.into()), "{result}");
    assert_eq!((of(2, "calls"), of(2, "failed")), (0.into(), 10.into()), "{result}");
    assert_eq!(result["errors"], serde_json::json!({ "NOT_FOUND": 10 }));
    let text = run(&[&["load", &*server.address, "Echo"], &more[..]].concat()).ok();
    assert!(text.contains("WEIGHT") && text.contains("Conformance/Generate"), "{text}");
    for wrong in
        ["Echo", "0 Echo", "x Echo", "1 Nothing", "1", "999999 Echo", "1 Echo no", "1 Echo {"]
    {
        let ran = run(&["load", &server.address, "Echo", "-n", "1", "--also", wrong]);
        assert_eq!(ran.code, 2, "{wrong}: {ran:?}");
    }
}

#[test]
fn a_rate_rises_in_a_ramp_or_in_steps() {
    let server = conformance();
    let result = load(&[&server.address, "Echo", "--rate", "100..500", "--duration", "500ms"]);
    let calls = |result: &serde_json::Value| {
        result["calls"].as_u64().unwrap() + result["dueNotBegun"].as_u64().unwrap()
    };
    // 300 a second on average, for half a second.
    assert_eq!((calls(&result), &result["rate"]), (150, &"100..500".into()));
    let result = load(&[&server.address, "Echo", "--rate", "50,500", "--duration", "400ms"]);
    assert_eq!(calls(&result), 10 + 100);
    // Steps of 200 ms, of which two are needed: calls that are late have the time of the others.
    let rates = format!("50{}", ",500".repeat(299));
    let more = ["--rate", &*rates, "--duration", "1m", "-n", "110"];
    let arguments = [&[&*server.address, "Echo"], &more[..]].concat();
    let result = load(&arguments);
    let steps = result["timeline"].as_array().unwrap();
    let counts: Vec<_> = steps.iter().map(|step| step["calls"].as_u64().unwrap()).collect();
    assert_eq!(counts, [10, 100], "{result}");
    let text = run(&[&["load"], &arguments[..]].concat()).ok();
    assert!(text.contains("DUE/S"), "{text}");
}

#[test]
fn calls_in_flight_rise_in_steps() {
    let server = conformance();
    let wait = ["--timeout", "0", "-d", "{\"key\": \"a\"}"];
    // Steps of a second. The later ones are time for workers that the machine does not run.
    let counts = format!("2{}", ",5".repeat(599));
    let arguments = ["-c", &*counts, "--duration", "10m"];
    let mut load =
        Loading::start(&[&[&*server.address, "Wait"], &wait[..], &arguments[..]].concat());
    // Two of them at first, and then three more.
    server.wait_for_calls("Wait", 5);
    load.interrupt();
    run(&["call", &server.address, "Release", "key=a"]).ok();
    let (code, result) = load.finish();
    assert_eq!((code, &result["calls"], &result["concurrency"]), (0, &5.into(), &counts.into()));
    // Workers that wait for their step do not wait for the end of a load that is over.
    let result = load_of_one_call(&server.address);
    assert_eq!(result["calls"], 1);
    assert_eq!(run(&["load", &server.address, "Echo", "-c", "1,2", "--rate", "5"]).code, 2);
}

fn load_of_one_call(address: &str) -> serde_json::Value {
    load(&[address, "Echo", "-c", "1,2", "-n", "1", "--duration", "10000d"])
}

#[test]
fn a_report_is_one_page_with_pictures() {
    let server = conformance();
    let page = server.folder.path().join("load.html");
    run(&["load", &server.address, "Echo", "-n", "200", "--html", page.to_str().unwrap()]).ok();
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 3);
    for wanted in ["<!DOCTYPE html>", "calls a second", "99.9 %", "callsPerSecond", "</html>"] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(!page.contains("src=") && !page.contains("href="), "it needs no other file");
}

#[test]
fn two_loads_are_compared_with_a_verdict() {
    let server = conformance();
    let folder = server.folder.path();
    let write = |name: &str, text: &str| {
        let path = folder.join(name).display().to_string();
        std::fs::write(&path, text).unwrap();
        path
    };
    let result = load(&[&server.address, "Echo", "-n", "100"]);
    let good = write("good.json", &result.to_string());
    let mut slow = result.clone();
    slow["latencySeconds"]["p99"] =
        (result["latencySeconds"]["p99"].as_f64().unwrap() * 3.0).into();
    let slow = write("slow.json", &slow.to_string());
    let ran = run(&["load", "compare", &good, &good]);
    assert!(ran.code == 0 && ran.stdout.contains("same"), "{ran:?}");
    let ran = run(&["load", "compare", &good, &slow]);
    assert!(
        ran.code == 1 && ran.stdout.contains("+200.0 %") && ran.stdout.contains("worse"),
        "{ran:?}"
    );
    assert_eq!(run(&["load", "compare", &slow, &good]).code, 0);
    assert_eq!(run(&["load", "compare", &good, &slow, "--tolerance", "250"]).code, 0);
    let ran = run(&["load", "compare", &good, &slow, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &told["verdict"]), (1, &"worse".into()));
    let rubbish = write("rubbish.json", "{\"calls\": 1}");
    for wrong in [&*rubbish, "/no/such/file", "/dev/null"] {
        let ran = run(&["load", "compare", &good, wrong]);
        assert!(ran.code == 2 && ran.stderr.contains("ttrpc load … --json"), "{ran:?}");
    }
}
