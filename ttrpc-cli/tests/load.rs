//! `ttrpc load`, from the shell.

mod common;

use common::*;

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
    let more = ["--rate", "100", "-c", "1", "-n", "30", "-d", data, "--duration", "20s"];
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
