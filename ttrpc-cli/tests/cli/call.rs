//! `ttrpc call`, from the shell, with every method of the conformance service.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    process::{Pid, Signal, kill_process},
};
use serde_json::json;

use crate::common::*;

fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn unary_methods_answer() {
    let server = conformance();
    let call =
        |method: &str, data: &[&str]| run(&[&["call", &*server.address, method], data].concat());
    assert_eq!(call("Conformance/Echo", &["payload=aGk="]).json(), json!({ "payload": "aGk=" }));
    let sized = call("Echo", &["{\"responseSize\": 3}"]).json();
    assert_eq!(sized["payload"].as_str().unwrap().len(), 4, "three bytes in base64");
    assert_eq!(call("Conformance.Sleep", &["millis=1"]).json(), json!({}));
    assert_eq!(call("Release", &["key=a"]).json(), json!({}));
    assert_eq!(call("Wait", &["key=a"]).json(), json!({}));
    assert!(call("Stats", &[]).json()["callsTotal"].is_string());
    let inspected = call("Inspect", &["-H", "User: ann", "-H", "b:c", "--timeout", "3h"]).json();
    assert_eq!(
        inspected["metadata"],
        json!([{ "key": "user", "value": "ann" }, { "key": "b", "value": "c" }])
    );
    let timeout: u64 = inspected["timeoutNano"].as_str().unwrap().parse().unwrap();
    // What is left of it when the call leaves.
    let hour = 3_600_000_000_000;
    assert!((2 * hour..=3 * hour).contains(&timeout), "{timeout}");
    assert_eq!(call("Panic", &[]).code, 64 + 13);
}

/// Clients that nobody accepts, in all the room that there is for them.
fn waiting_clients(server: &TcpListener) -> Vec<OwnedFd> {
    rustix::net::listen(server, 0).unwrap();
    let address = server.local_addr().unwrap();
    let connect = |_| {
        let client = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        );
        let client = client.unwrap();
        assert_eq!(rustix::net::connect(&client, &address), Err(Errno::INPROGRESS));
        client
    };
    (0..4).map(connect).collect()
}

#[test]
fn connecting_takes_no_longer_than_the_timeout() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let _waiting = waiting_clients(&tcp);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.sock");
    let unix = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&unix, 0).unwrap();
    let _waiting_too = UnixStream::connect(&path).unwrap();
    for address in [&*format!("tcp://{}", tcp.local_addr().unwrap()), path.to_str().unwrap()] {
        for command in [&["list"][..], &["call", "Echo"], &["load", "Echo", "-n", "1"]] {
            let more = ["--timeout", "300ms"];
            let ran = run(&[&command[..1], &[address], &command[1..], &more].concat());
            assert_eq!(ran.code, 3, "{command:?} of {address}: {}", ran.stderr);
            assert!(ran.stderr.contains("not accepted within 300ms"), "{}", ran.stderr);
        }
    }
}

#[test]
fn requests_are_json_files_input_and_fields() {
    let server = conformance();
    let address = &*server.address;
    let file = server.folder.path().join("request.json");
    std::fs::write(&file, "{\"payload\": \"aGk=\"}").unwrap();
    let at = format!("@{}", file.display());
    let expected = json!({ "payload": "aGk=" });
    assert_eq!(run(&["call", address, "Echo", &at]).json(), expected);
    let piped = run_with_input(&["call", address, "Echo", "-"], "{\"payload\": \"aGk=\"}");
    assert_eq!(piped.json(), expected);
    // With a byte order mark, as editors on Windows write it.
    std::fs::write(&file, "\u{feff}{\"payload\": \"aGk=\"}").unwrap();
    assert_eq!(run(&["call", address, "Echo", &at]).json(), expected);
    let piped = run_with_input(&["call", address, "Echo", "-"], "\u{feff}{\"payload\": \"aGk=\"}");
    assert_eq!(piped.json(), expected);
    let both = run(&["call", address, "Fail", "{\"code\": 5}", "message=gone"]);
    assert_eq!(both.code, 64 + 5);
    assert!(both.stderr.contains("NOT_FOUND: gone"), "{}", both.stderr);
}

#[test]
fn mistakes_are_exit_code_2_and_say_what_would_be_right() {
    let server = conformance();
    let refused = |data: &[&str]| {
        let ran = run(&[&["call", &*server.address], data].concat());
        assert_eq!(ran.code, 2, "{data:?}: {ran:?}");
        ran.stderr
    };
    assert!(refused(&["Nothing"]).contains("no service has a method `Nothing`"));
    assert!(refused(&["Conformance/Ech"]).contains("it has: Echo, Fail"));
    assert!(refused(&["Echo", "{"]).contains("is no JSON"));
    assert!(refused(&["Echo", "{\"payloat\": \"\"}"]).contains("payload, responseSize"));
    assert!(refused(&["Echo", "payloat=x"]).contains("it has: payload, response_size"));
    let many = refused(&["Echo", "responseSize=many"]);
    assert!(many.contains("does not fit") && many.contains("field `responseSize`: "), "{many}");
    assert!(refused(&["Echo", "{} {}"]).contains("several"));
    assert!(refused(&["Echo", "{}", "{}"]).contains("quote the JSON"));
    assert!(refused(&["Echo", "--timeout", "soon"]).contains("300ms"));
    let unknown = &["Echo", "{\"payloat\": \"\"}", "--allow-unknown-fields"];
    assert_eq!(run(&[&["call", &*server.address], &unknown[..]].concat()).json(), json!({}));
}

#[test]
fn a_method_that_no_schema_has_asks_for_one() {
    let server = conformance_without_reflection();
    for name in ["Echo", "Conformance/Echo"] {
        let ran = run(&["call", &server.address, name]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains("--proto FILE"), "{}", ran.stderr);
    }
}

#[test]
fn a_built_in_service_that_reflection_does_not_list_is_called() {
    let server = conformance();
    let checked = run(&["call", &server.address, "Health/Check"]);
    assert_eq!(checked.json(), json!({ "status": "SERVING" }));
    // The server does not have this one.
    let unknown = run(&["call", &server.address, "Task/State"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("`Task`"), "{}", unknown.stderr);
    let told = run(&["call", &server.address, "Health/Check", "--schema", "reflection"]);
    assert_eq!(told.code, 2, "{told:?}");
}

#[test]
fn garbage_as_input_ends_the_call() {
    let server = conformance();
    for input in ["nonsense", "{\"sequence\": \"x\"}", "[1, 2", "\u{0}\u{1}", "{}{}}"] {
        let ran = run_with_input(&["call", &server.address, "Collect"], input);
        assert_eq!(ran.code, 2, "{input:?}: {ran:?}");
        assert!(!ran.stderr.is_empty());
    }
}

#[test]
fn a_status_is_told_with_its_details() {
    let server = conformance();
    let data = ["Fail", "code=9", "message=not now", "detail=CgJoaQ=="];
    let ran = run(&[&["call", &*server.address], &data[..]].concat());
    assert_eq!(ran.code, 64 + 9);
    let expected = "error: FAILED_PRECONDITION: not now\n  detail: {\"@type\":\"type.googleapis.com/\
        ttrpc.conformance.v1.EchoResponse\",\"payload\":\"aGk=\"}\n";
    assert_eq!(ran.stderr, expected);
    let ran = run(&[&["--json", "call", &*server.address], &data[..]].concat());
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!((&error["code"], &error["number"]), (&json!("FAILED_PRECONDITION"), &json!(9)));
    assert_eq!(error["details"][0]["payload"], "aGk=");
}

#[test]
fn a_timeout_is_told_with_where_it_comes_from() {
    // Accepted by the kernel alone: a server that answers has the same deadline, and may say so first.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    // Without reflection, which has the same time for itself.
    let proto = conformance_proto();
    let call = ["call", path.to_str().unwrap(), "Echo", "--proto", proto.to_str().unwrap()];
    let (ran, timeout) = run_unanswered(&call);
    assert_eq!(ran.code, 64 + 4);
    let timeout = humantime::format_duration(timeout);
    assert!(
        ran.stderr.contains(&format!("it had not ended within {timeout}, as --timeout has it")),
        "{}",
        ran.stderr
    );
    let start = Instant::now();
    let ran = Ran::from(ttrpc_as_it_is(&call).output().unwrap());
    assert_eq!(ran.code, 64 + 4);
    assert!(
        ran.stderr.contains("it had not ended within 5s, the default; --timeout TIME"),
        "{}",
        ran.stderr
    );
    assert!(start.elapsed() >= Duration::from_secs(5));
}

#[test]
fn a_timeout_that_the_server_tells_is_told_as_its_own() {
    let server = conformance();
    let call = ["call", &*server.address, "Fail", "code=4", "message=too slow"];
    for (timeout, hint) in [("0", "says so\n"), ("1h", "says so; the call had 1h\n")] {
        let ran = run(&[&call[..], &["--timeout", timeout]].concat());
        assert_eq!(ran.code, 64 + 4);
        let expected = format!("error: DEADLINE_EXCEEDED: too slow\n  the server itself {hint}");
        assert_eq!(ran.stderr, expected);
    }
}

#[test]
fn a_server_that_stalls_does_not_hold_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    // Accepted by the kernel alone, and never read.
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (ran, _) = run_unanswered(&["call", path.to_str().unwrap(), "Echo"]);
    assert_eq!(ran.code, 64 + 4);
    assert!(ran.stderr.contains("--schema builtin"), "{}", ran.stderr);
}

#[test]
fn an_interrupt_ends_the_wait_for_a_schema() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock").display().to_string();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let listen = folder.path().join("t.sock").display().to_string();
    for arguments in
        [&["call", &*path, "Echo"][..], &["trace", "--upstream", &path, "--listen", &listen]]
    {
        let waiting = ttrpc(arguments).spawn().unwrap();
        let (mut client, _) = listener.accept().unwrap();
        // It asks for the schema, and gets no answer.
        std::io::Read::read_exact(&mut client, &mut [0; 10]).unwrap();
        interrupt(&waiting);
        let ended = waiting.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{arguments:?}");
    }
}

/// A server that answers the first bytes of each client with these.
fn answering(folder: &tempfile::TempDir, answer: &'static [u8]) -> String {
    let path = folder.path().join("a.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let _ = std::io::Read::read(&mut client, &mut [0; 100]);
            let _ = client.write_all(answer);
        }
    });
    path.display().to_string()
}

#[test]
fn garbage_from_a_server_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    // Rubbish without frames; a reply that is no message; a status with colours in it.
    let cases: [(&'static [u8], i32, &str); 3] = [
        (&[0xff; 64], 64 + 14, "closed the connection"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x01\x02\x00\x12\x02\xff\xff", 1, "does not fit"),
        (
            b"\x00\x00\x00\x0b\x00\x00\x00\x01\x02\x00\x0a\x09\x08\x05\x12\x05\x1b[31m",
            64 + 5,
            "NOT_FOUND: \\u{1b}[31m",
        ),
    ];
    for (index, (answer, code, text)) in cases.into_iter().enumerate() {
        let folder_of_one = tempfile::tempdir_in(folder.path()).unwrap();
        let address = answering(&folder_of_one, answer);
        let proto = conformance_proto();
        let ran = run(&["call", &address, "Echo", "--proto", proto.to_str().unwrap()]);
        assert_eq!(ran.code, code, "{index}: {ran:?}");
        assert!(ran.stderr.contains(text), "{index}: {ran:?}");
        assert!(!ran.stderr.contains('\u{1b}'), "{index}: {ran:?}");
    }
}

#[test]
fn streams_of_replies_are_lines() {
    let server = conformance();
    let generated = run(&["call", &server.address, "Generate", "count=3", "size=2"]).ok();
    let expected = [
        json!({ "payload": "AAA=" }),
        json!({ "sequence": "1", "payload": "AAA=" }),
        json!({ "sequence": "2", "payload": "AAA=" }),
    ];
    let replies = lines(&generated);
    assert_eq!(replies.len(), 3);
    for (reply, expected) in replies.iter().zip(&expected) {
        assert_eq!(reply.get("sequence"), expected.get("sequence"));
    }
    let failed = run(&["call", &server.address, "Generate", "count=2", "fail_code=8"]);
    assert_eq!((failed.code, failed.stdout.lines().count()), (64 + 8, 2));
}

#[test]
fn streams_of_requests_come_from_the_input() {
    let server = conformance();
    let input = "{\"sequence\": 0, \"payload\": \"aGk=\"}{\"sequence\": \"1\"}\n\n {}";
    let collected = run_with_input(&["call", &server.address, "Collect"], input).json();
    assert_eq!(collected, json!({ "chunks": "3", "bytes": "2" }));
    let given = run(&["call", &server.address, "Collect", "{\"sequence\":0} {\"sequence\":1}"]);
    assert_eq!(given.json(), json!({ "chunks": "2", "inOrder": true }));
    let empty = run_with_input(&["call", &server.address, "Collect"], "").json();
    assert_eq!(empty, json!({ "inOrder": true }));
    run(&["call", &server.address, "Release", "key=hold"]).ok();
    let held = run_with_input(&["call", &server.address, "Hold"], "{}").json();
    assert_eq!(held["chunks"], "1");
}

/// A call whose input is open.
struct Open(Child);

impl Open {
    fn new(arguments: &[&str]) -> Self {
        let command = &mut ttrpc(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Open(command.spawn().unwrap())
    }

    fn finish(self) -> Ran {
        self.0.wait_with_output().unwrap().into()
    }
}

#[test]
fn both_streams_go_on_at_the_same_time() {
    let server = conformance();
    let mut open = Open::new(&["call", &server.address, "Exchange"]);
    let mut input = open.0.stdin.take().unwrap();
    let mut output = BufReader::new(open.0.stdout.take().unwrap());
    for sequence in 1..4 {
        writeln!(input, "{{\"sequence\": {sequence}}}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(lines(&line), [json!({ "sequence": sequence.to_string() })]);
    }
    drop(input);
    assert_eq!(open.finish().code, 0);
}

#[test]
fn an_interrupt_closes_the_stream_and_the_reply_comes() {
    let server = conformance();
    let mut open = Open::new(&["call", &server.address, "Exchange"]);
    let mut input = open.0.stdin.take().unwrap();
    let mut output = BufReader::new(open.0.stdout.take().unwrap());
    writeln!(input, "{{\"sequence\": 1}}").unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    // The input stays open: the interrupt alone ends the stream.
    interrupt(&open.0);
    let ran = open.finish();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("Ctrl-C again cancels the call"), "{}", ran.stderr);
    drop(input);
}

#[test]
fn a_second_interrupt_gives_up() {
    let server = conformance();
    // The service reads nothing and never answers.
    let mut open = Open::new(&["call", &server.address, "Hold", "-v"]);
    let _input = open.0.stdin.take().unwrap();
    let mut stderr = BufReader::new(open.0.stderr.take().unwrap());
    let mut read_until = |wanted: &str| {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "no {wanted}");
        }
    };
    read_until("Conformance/Hold");
    interrupt(&open.0);
    read_until("Ctrl-C again cancels the call");
    interrupt(&open.0);
    assert_eq!(open.0.wait().unwrap().code(), Some(130));
}

#[test]
fn an_interrupt_ends_the_wait_for_a_single_request() {
    let server = conformance();
    for method in ["Echo", "Generate"] {
        let mut open = Open::new(&["call", &server.address, method, "-"]);
        let mut input = open.0.stdin.take().unwrap();
        write!(input, "{{}}").unwrap();
        // It reads until the end of the input, which does not come.
        eventually("the request is read", || rustix::io::ioctl_fionread(&input).unwrap() == 0);
        interrupt(&open.0);
        assert_eq!(open.0.wait().unwrap().code(), Some(130), "{method}");
    }
}

#[test]
fn verbose_shows_frames_and_times() {
    let server = conformance();
    let ran = run(&["call", &server.address, "Echo", "payload=aGk=", "-v", "-H", "a:b"]);
    for wanted in [
        " Request, ",
        "ttrpc.conformance.v1.Conformance/Echo, timeout ",
        ", a: b",
        " Response, 6 bytes",
        "* the call took ",
    ] {
        assert!(ran.stderr.contains(wanted), "{wanted} is not in:\n{}", ran.stderr);
    }
    assert_eq!(ran.stderr.lines().count(), 3, "how the schema came is not shown: {}", ran.stderr);
    assert!(!ran.stderr.contains('\u{1b}'), "colours are for terminals: {}", ran.stderr);
    assert_eq!(ran.json(), json!({ "payload": "aGk=" }));
}

#[test]
fn a_reader_that_goes_away_ends_the_call() {
    let server = conformance();
    let mut open = Open::new(&["call", &server.address, "Generate", "count=1000000000"]);
    let mut output = BufReader::new(open.0.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    drop(output);
    let ran = open.finish();
    assert_eq!((ran.code, &*ran.stderr), (0, ""));
}

#[test]
fn servers_without_reflection_are_called_with_what_is_built_in() {
    let server = serve(|builder| builder.add_service(ttrpc_reflection::Health::new().service()));
    let reply = run(&["call", &server.address, "Health/Check"]).json();
    assert_eq!(reply, json!({ "status": "SERVING" }));
    let reply = run(&["call", &server.address, "Health/Check", "service=a.B"]);
    assert_eq!(reply.code, 64 + 5);
    let snapshot = run(&["call", &server.address, "Debug/Snapshot"]).json();
    assert_eq!(snapshot["pid"], std::process::id());
}

#[test]
fn notes_are_json_where_that_is_asked_for() {
    let server = conformance();
    let ran = run(&["--json", "call", &server.address, "Fail", "code=5", "-v", "-H", "a:b"]);
    let [request, response, end, failure] = &lines(&ran.stderr)[..] else { panic!("{ran:?}") };
    assert_eq!(failure["code"], "NOT_FOUND");
    let request = &request["frame"];
    assert_eq!((&request["sent"], &request["type"]), (&json!(true), &json!("Request")));
    assert_eq!(request["service"], "ttrpc.conformance.v1.Conformance");
    assert_eq!((&request["method"], &request["metadata"]), (&json!("Fail"), &json!([["a", "b"]])));
    assert!(request["timeoutSeconds"].as_f64().unwrap() > 1.0, "{request}");
    let response = &response["frame"];
    assert_eq!((&response["sent"], &response["type"]), (&json!(false), &json!("Response")));
    assert_eq!((&response["code"], &response["stream"]), (&json!("NOT_FOUND"), &request["stream"]));
    assert!(response["bytes"].as_u64().unwrap() > 0 && response["seconds"].is_f64(), "{response}");
    assert!(end["note"].as_str().unwrap().starts_with("* the call took"), "{end}");
}

#[test]
fn fields_replace_what_the_json_has() {
    let server = conformance();
    for (data, len) in [
        (&["{\"response_size\": 3}", "response_size=4"][..], 8),
        (&["{\"response_size\": 3}", "responseSize=4"], 8),
        (&["{\"responseSize\": 3}", "response_size=9"], 12),
    ] {
        let echoed = run(&[&["call", &*server.address, "Echo"], data].concat()).json();
        assert_eq!(echoed["payload"].as_str().unwrap().len(), len, "{data:?}");
    }
    let twice = run(&["call", &server.address, "Echo", "{}", "payload=aGk=", "payload=aGk="]);
    assert_eq!(twice.code, 2);
    assert!(twice.stderr.contains("`payload` is given twice"), "{}", twice.stderr);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let server = conformance();
    for data in ["sequence=18446744073709551616", "{\"sequence\": 18446744073709551616}"] {
        let ran = run(&["call", &server.address, "Exchange", data]);
        assert_eq!((ran.code, &*ran.stdout), (2, ""), "{ran:?}");
        assert!(ran.stderr.contains("field `sequence`: "), "{}", ran.stderr);
    }
    let largest = run(&["call", &server.address, "Exchange", "sequence=18446744073709551615"]);
    assert_eq!(largest.json()["sequence"], "18446744073709551615");
}

#[test]
fn a_deadline_of_the_server_is_not_told_as_the_calls_own() {
    let server = conformance();
    let failed = run(&["call", &server.address, "Fail", "code=4", "message=mine"]);
    assert_eq!(failed.code, 64 + 4);
    assert!(failed.stderr.contains("DEADLINE_EXCEEDED: mine"), "{}", failed.stderr);
    assert!(!failed.stderr.contains("it had not ended within"), "{}", failed.stderr);
    assert!(failed.stderr.contains("the server itself"), "{}", failed.stderr);
}
