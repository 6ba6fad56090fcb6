//! `ttrpc top`, from the shell and on a terminal.

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;
use ttrpc::Server;
use ttrpc_reflection::Debug;

use crate::common::*;

fn once(addresses: &[&str]) -> Ran {
    run(&[&["top", "--once", "--json", "--interval", "100ms"], addresses].concat())
}

#[test]
fn what_a_server_does_is_told_once_for_scripts() {
    let server = conformance();
    for _ in 0..3 {
        assert_eq!(run(&["call", &server.address, "Echo"]).code, 0);
    }
    let mut waiting =
        ttrpc(&["call", &server.address, "Wait", "key=a", "--timeout", "0"]).spawn().unwrap();
    server.wait_for_call("Wait");
    let told = once(&[&server.address]).json();
    let told = &told[0];
    assert_eq!((&told["trouble"], &told["counters"]), (&Value::Null, &Value::Bool(true)));
    assert_eq!(told["pid"], std::process::id());
    let waits = "ttrpc.conformance.v1.Conformance/Wait";
    assert_eq!(told["calls"][0]["method"], waits, "the oldest is first: {told}");
    assert_eq!(told["calls"][0]["waitsFor"], "its handler, which runs");
    let methods = told["methods"].as_array().unwrap();
    let of = |name: &str| methods.iter().find(|method| method["method"] == name).unwrap();
    assert_eq!(of(waits)["inFlight"], 1);
    assert_eq!(of("ttrpc.conformance.v1.Conformance/Echo")["ended"], 0, "not since a while");
    let text = run(&["top", "--once", "--interval", "100ms", &server.address]).ok();
    assert!(text.contains("METHOD") && text.contains("WAITS FOR"), "{text}");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
}

#[test]
fn servers_that_tell_less_are_told_with_why() {
    let server = conformance();
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("plain.sock").display().to_string();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let debug = Debug::new();
    let serving = {
        let _context = runtime.enter();
        let builder = Server::builder().add_service(debug.service());
        let server = builder.bind(&address).unwrap().build().unwrap();
        debug.show(server.handle());
        server.serve()
    };
    runtime.spawn(serving);
    let told = once(&[&server.address, &address, "/no/such.sock"]).json();
    assert_eq!(told[0]["counters"], true);
    assert_eq!((&told[1]["counters"], &told[1]["trouble"]), (&Value::Bool(false), &Value::Null));
    assert_eq!(told[1]["calls"][0]["method"], "ttrpc.debug.v1.Debug/Snapshot");
    assert!(told[2]["trouble"].as_str().unwrap().contains("no such socket"), "{told}");
    assert_eq!(once(&["/no/such.sock"]).code, 1);
    assert_eq!(run(&["top"]).code, 2);
    runtime.shutdown_background();
}

#[test]
fn a_terminal_shows_it_live_takes_keys_and_is_left_as_it_was() {
    let server = conformance();
    let (mut master, slave) = terminal_of(100, 30);
    let mut top = ttrpc(&["top", "--interval", "100ms", &server.address])
        .stdin(Stdio::from(slave.try_clone().unwrap()))
        .stdout(Stdio::from(slave.try_clone().unwrap()))
        .stderr(Stdio::from(slave))
        .env("TERM", "xterm")
        .spawn()
        .unwrap();
    read_until(&mut master, &["METHOD", "Debug/Watch"]);
    master.write_all(b"3").unwrap();
    read_until(&mut master, &["WAITS"]);
    let size = Winsize { ws_row: 10, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    kill_process(Pid::from_child(&top), Signal::WINCH).unwrap();
    master.write_all(b"1").unwrap();
    read_until(&mut master, &["METHOD"]);
    master.write_all(b"q").unwrap();
    // The alternate screen is left.
    read_until(&mut master, &["\u{1b}[?1049l"]);
    assert!(top.wait().unwrap().success());
}

#[test]
fn a_server_without_the_debug_service_is_seen_from_between() {
    let server = conformance();
    let between = server.folder.path().join("between.sock").display().to_string();
    let mut top = ttrpc(&["top", "--json", "--interval", "100ms", "--listen", &between]);
    let mut top = top.args(["--upstream", &server.address]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    next();
    assert_eq!(run(&["call", &between, "Echo"]).code, 0);
    let mut waiting =
        ttrpc(&["call", &between, "Wait", "key=a", "--timeout", "0"]).spawn().unwrap();
    server.wait_for_call("Wait");
    let told = loop {
        let told = next();
        if told[0]["calls"][0]["method"] == "ttrpc.conformance.v1.Conformance/Wait" {
            break told;
        }
    };
    assert_eq!((&told[0]["trouble"], &told[0]["counters"]), (&Value::Null, &Value::Bool(true)));
    assert_eq!(told[0]["calls"][0]["waitsFor"], "the server's answer");
    let of = |name: &str| {
        let methods = told[0]["methods"].as_array().unwrap().iter();
        methods.filter(|method| method["method"] == name).count()
    };
    assert_eq!(
        (of("ttrpc.conformance.v1.Conformance/Echo"), told[0]["callsInFlight"].clone()),
        (1, 1.into())
    );
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    kill_process(Pid::from_child(&top), Signal::INT).unwrap();
    assert!(top.wait().unwrap().success());
}

#[test]
fn a_wrapped_socket_is_put_back_however_top_ends() {
    use std::os::unix::fs::MetadataExt;
    let server = conformance();
    let inode = || std::fs::metadata(&server.address).unwrap().ino();
    let own = inode();
    for signal in [Signal::INT, Signal::TERM, Signal::QUIT, Signal::HUP, Signal::KILL] {
        let mut top = ttrpc(&["top", "--json", "--interval", "100ms", "--wrap", &server.address]);
        let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(top.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_ne!(inode(), own);
        kill_process(Pid::from_child(&top), signal).unwrap();
        top.wait().unwrap();
        eventually(&format!("the socket is back after {signal:?}"), || inode() == own);
    }
}

#[test]
fn a_recording_is_played() {
    let server = conformance();
    let path = |name: &str| server.folder.path().join(name).display().to_string();
    let (between, file) = (path("between.sock"), path("a.trace"));
    let mut trace =
        ttrpc(&["trace", "--listen", &between, "--upstream", &server.address, "--record", &file]);
    let mut trace = trace.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(trace.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    for _ in 0..3 {
        assert_eq!(run(&["call", &between, "Echo"]).code, 0);
    }
    assert_eq!(run(&["call", &between, "Fail", "code=5"]).code, 69);
    kill_process(Pid::from_child(&trace), Signal::INT).unwrap();
    trace.wait().unwrap();
    let told = run(&["top", "--once", "--json", "--recording", &file]).json();
    let methods = told[0]["methods"].as_array().unwrap();
    let of = |name: &str| {
        methods.iter().find(|method| method["method"].as_str().unwrap().ends_with(name)).unwrap()
    };
    assert_eq!((&of("/Echo")["ended"], &of("/Fail")["failed"]), (&3.into(), &1.into()), "{told}");
    assert_eq!(of("/Fail")["codes"], serde_json::json!({ "NOT_FOUND": 1 }));
    assert!(of("/Echo")["p99"].as_f64().unwrap() > 0.0);
    let (mut master, slave) = terminal_of(100, 30);
    let mut top = ttrpc(&["top", "--recording", &file, "--speed", "0"]);
    let mut top = top
        .stdin(Stdio::from(slave.try_clone().unwrap()))
        .stdout(Stdio::from(slave.try_clone().unwrap()))
        .stderr(Stdio::from(slave))
        .env("TERM", "xterm")
        .spawn()
        .unwrap();
    read_until(&mut master, &["Conformance/Echo"]);
    master.write_all(b"q").unwrap();
    read_until(&mut master, &["\u{1b}[?1049l"]);
    assert!(top.wait().unwrap().success());
    for wrong in ["/no/such/file", "/dev/null"] {
        assert_eq!(run(&["top", "--once", "--recording", wrong]).code, 2);
    }
    assert_eq!(run(&["top", "--once", "--recording", &file, "--speed", "-1"]).code, 2);
}
