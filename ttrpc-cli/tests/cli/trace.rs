//! `ttrpc trace`, `ttrpc show`, `ttrpc replay`, from the shell.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{self, Child, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    net::sockopt::socket_send_buffer_size,
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value, json};
use ttrpc::Client;
use ttrpc_tests::conformance::{
    Chunk, ConformanceClient, EchoRequest, GenerateRequest, KeyRequest,
};

use crate::common::*;

/// A trace that is running.
struct Trace {
    process: Child,
    /// Where its clients connect to.
    listening: String,
}

impl Trace {
    fn start(arguments: &[&str]) -> Self {
        let mut command = ttrpc(&[&["trace", "--json"], arguments].concat());
        if !arguments.contains(&"--schema") {
            // A trace that asked for the schema would be a client of the trace behind it.
            command.arg("--proto").arg(conformance_proto());
        }
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("are shown"), "{line}");
        let note: Value = serde_json::from_str(&line).unwrap();
        Trace { process, listening: note["listening"].as_str().unwrap().to_owned() }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Ends it as Ctrl-C does: the calls, and the summary behind them.
    fn finish(mut self) -> (Vec<Value>, Value) {
        kill_process(self.pid(), Signal::INT).unwrap();
        let mut text = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.process.wait().unwrap().success());
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = lines.pop().unwrap();
        (lines, summary)
    }

    /// Ends it as Ctrl-C does, and waits until it waits for connections alone.
    fn end_with_connections(&mut self) {
        kill_process(self.pid(), Signal::INT).unwrap();
        let mut stdout = BufReader::new(self.process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("linesDropped") {
            line.clear();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the table is written");
        }
    }
}

fn path(server: &Served, name: &str) -> String {
    server.folder.path().join(name).display().to_string()
}

impl Drop for Trace {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// All calls of which a trace told, also those that it had not seen end.
fn told(calls: &[Value], summary: &Value) -> usize {
    calls.len() + summary["pending"].as_array().unwrap().len()
}

/// Makes calls of every kind, several at a time; returns how many.
fn hammer(address: &str, count: usize) -> usize {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = ConformanceClient::new(Client::connect(address).await.unwrap());
        let echoes = (0..count).map(|index| {
            let payload = vec![index as u8; index * 100];
            client.echo(EchoRequest { payload, response_size: 0 }).into_future()
        });
        let echoes: Vec<_> = echoes.map(tokio::spawn).collect();
        let mut chunks = client
            .generate(GenerateRequest { count: 10, size: 1000, ..Default::default() })
            .await
            .unwrap();
        let (mut sender, collected) = client.collect().await.unwrap();
        for sequence in 0..10 {
            sender.send(Chunk { sequence, payload: vec![1; 10_000] }).await.unwrap();
        }
        sender.finish();
        assert_eq!(collected.await.unwrap().bytes, 100_000);
        let mut generated = 0;
        while let Some(chunk) = chunks.recv().await.unwrap() {
            generated += chunk.payload.len();
        }
        assert_eq!(generated, 10_000);
        for (index, echo) in echoes.into_iter().enumerate() {
            let reply = echo.await.unwrap().unwrap();
            assert_eq!(reply.payload, vec![index as u8; index * 100]);
        }
        count + 2
    })
}

fn of_method<'a>(summary: &'a Value, method: &str) -> &'a Value {
    let methods = summary["methods"].as_array().unwrap();
    let name = format!("ttrpc.conformance.v1.Conformance/{method}");
    methods.iter().find(|known| known["method"] == *name).unwrap()
}

#[test]
fn nothing_is_lost_and_what_is_told_adds_up() {
    let server = conformance();
    let listen = path(&server, "t.sock");
    let trace = Trace::start(&["--listen", &listen, "--upstream", &server.address]);
    let made = hammer(&listen, 200);
    let (calls, summary) = trace.finish();
    assert_eq!(calls.len(), made);
    assert_eq!(of_method(&summary, "Echo")["calls"], 200);
    let sum = |key: &str, method: &str| -> u64 {
        let calls = calls.iter().filter(|call| call["method"] == method);
        calls.map(|call| call[key].as_u64().unwrap()).sum()
    };
    for method in ["Echo", "Generate", "Collect"] {
        for key in ["bytesSent", "bytesReceived"] {
            assert_eq!(of_method(&summary, method)[key], sum(key, method), "{method} {key}");
        }
    }
    // An EchoResponse has the payload behind its key and length, as an EchoRequest has.
    assert_eq!(sum("bytesSent", "Echo"), sum("bytesReceived", "Echo"));
    assert_eq!(sum("messagesReceived", "Generate"), 10);
    assert_eq!(sum("messagesSent", "Collect"), 10);
    assert_eq!(summary["linesDropped"], 0);
    assert!(summary["pending"].as_array().unwrap().is_empty());
    let echo = calls.iter().find(|call| call["method"] == "Echo").unwrap();
    assert!(echo["request"].is_object() && echo["reply"].is_object(), "{echo}");
    assert!(!Path::new(&listen).exists(), "the socket is removed");
}

#[test]
fn failures_deadlines_metadata_and_pending_calls_are_told() {
    let server = conformance();
    let listen = path(&server, "t.sock");
    let trace = Trace::start(&["--listen", &listen, "--upstream", &server.address]);
    let schema = ["--schema", "reflection"];
    let call = |data: &[&str]| run(&[&["call", &*listen], data, &schema[..]].concat());
    assert_eq!(call(&["Fail", "code=7", "message=no"]).code, 64 + 7);
    assert_eq!(call(&["Echo", "-H", "user:ann", "--timeout", "3h"]).code, 0);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(Client::connect(&listen)).unwrap();
    let waiting = ConformanceClient::new(client).wait(KeyRequest { key: "k".into() });
    runtime.spawn(waiting.into_future());
    // Then its Request has passed.
    server.wait_for_call("Wait");
    let (calls, summary) = trace.finish();
    let of = |method: &str| calls.iter().find(|call| call["method"] == method).unwrap();
    assert_eq!(
        (&of("Fail")["end"], &of("Fail")["message"]),
        (&json!("PERMISSION_DENIED"), &json!("no"))
    );
    let echo = calls.iter().find(|call| call["metadata"] == json!([["user", "ann"]])).unwrap();
    assert!(echo["timeoutSeconds"].as_f64().unwrap() > 7200.0, "{echo}");
    let mut pending = summary["pending"].as_array().unwrap().iter();
    // The shell's questions for the schema may be open for a little longer than the shell.
    let is_wait = |call: &Value| call["method"] == "ttrpc.conformance.v1.Conformance/Wait";
    assert!(pending.any(is_wait), "{summary}");
}

#[test]
fn a_recording_is_shown_and_made_again() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let trace =
        Trace::start(&["--listen", &listen, "--upstream", &server.address, "--record", &file]);
    let made = hammer(&listen, 20);
    run(&["call", &listen, "Fail", "code=5"]);
    let (traced, summary) = trace.finish();
    let shown = run(&["show", &file, "--json"]).ok();
    let mut shown: Vec<Value> =
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = shown.pop().unwrap();
    assert_eq!(told(&shown, &last), told(&traced, &summary));
    // The call of the shell asks for the schema first.
    assert_eq!(told(&shown, &last), made + 3);
    let echo = |calls: &[Value]| -> Vec<Value> {
        let mut calls: Vec<_> =
            calls.iter().filter(|call| call["method"] == "Echo").cloned().collect();
        calls.sort_by_key(|call| call["stream"].as_u64());
        calls
            .iter()
            .map(|call| json!([call["request"], call["reply"], call["bytesSent"]]))
            .collect()
    };
    assert_eq!(echo(&shown), echo(&traced));
    let table = run(&["show", &file]).ok();
    assert!(table.contains("METHOD") && table.contains("NOT_FOUND"), "{table}");

    let again = run(&["replay", &file, &server.address, "--speed", "0", "--json"]).json();
    // The shell's question for the schema may have ended with its connection.
    let answered = shown.iter().filter(|call| call["end"] != "CLOSED").count();
    let left_out = told(&shown, &last) - answered;
    assert_eq!((&again["otherCode"], &again["leftOut"]), (&json!(0), &json!(left_out)));
    let methods = again["methods"].as_array().unwrap();
    assert!(methods.iter().all(|method| method["sameReply"] == method["calls"]), "{again}");
    // A server that has none of it answers otherwise.
    let other = serve(|builder| builder);
    let different = run(&["replay", &file, &other.address, "--speed", "0"]);
    assert_eq!(different.code, 1);
    assert!(different.stdout.contains("OK then, UNIMPLEMENTED"), "{}", different.stdout);
}

#[test]
fn what_is_redacted_is_in_no_output() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let redact = ["--redact", "payload", "--redact", "token"];
    let where_to = ["--listen", &listen, "--upstream", &server.address, "--record", &file];
    let trace = Trace::start(&[&where_to[..], &redact].concat());
    let secret = "c2VjcmV0c2VjcmV0";
    let data = format!("payload={secret}");
    let call = ["call", &listen, "Echo", &data, "-H", "token:secretsecret", "-H", "other:seen"];
    assert_eq!(run(&call).code, 0);
    let (calls, _) = trace.finish();
    let told = serde_json::to_string(&calls).unwrap();
    assert!(told.contains("[redacted]") && told.contains("seen"), "{told}");
    assert!(!told.contains(secret) && !told.contains("secretsecret"), "{told}");
    let recorded = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
    assert!(!recorded.contains("secretsecret"), "the recording has it");
    assert!(recorded.contains("seen"));
}

#[test]
fn what_is_redacted_is_in_no_detail_of_a_failure() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let redact = ["--redact", "payload", "--redact", "detail"];
    let where_to = ["--listen", &listen, "--upstream", &server.address, "--record", &file];
    let trace = Trace::start(&[&where_to[..], &redact].concat());
    // The detail is an EchoResponse, whose payload is "secretsecret".
    let call = ["call", &listen, "Fail", "code=9", "message=seen", "detail=CgxzZWNyZXRzZWNyZXQ="];
    let failed = run(&call);
    assert!(failed.stderr.contains("c2VjcmV0c2VjcmV0"), "the client has it: {failed:?}");
    trace.finish();
    let recorded = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
    assert!(!recorded.contains("secretsecret"), "the recording has it");
    assert!(recorded.contains("type.googleapis.com/ttrpc.conformance.v1.EchoResponse"));
    let shown = run(&["show", &file]).ok();
    assert!(shown.contains("FAILED_PRECONDITION: seen"), "{shown}");
}

#[test]
fn a_redacted_field_that_no_message_has_is_told() {
    let server = conformance();
    let where_to = ["--listen", "tcp://127.0.0.1:0", "--upstream", &server.address];
    let redact = ["--redact", "payload", "--redact", "nosuchfield"];
    let mut process = ttrpc(&[&["trace"], &where_to[..], &redact].concat())
        .arg("--proto")
        .arg(conformance_proto())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(process.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("Any holds") {
        assert_ne!(stderr.read_line(&mut told).unwrap(), 0, "{told}");
    }
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    assert!(process.wait().unwrap().success());
    assert!(told.contains("no message of the schema has a field `nosuchfield`"), "{told}");
    assert!(!told.contains("`payload`"), "{told}");
}

#[test]
fn a_socket_that_was_wrapped_is_put_back() {
    let server = conformance();
    std::fs::set_permissions(&server.address, PermissionsExt::from_mode(0o600)).unwrap();
    let trace = Trace::start(&["--wrap", &server.address]);
    let mode = std::fs::metadata(&server.address).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "as strict as the one behind it");
    assert_eq!(run(&["call", &server.address, "Echo"]).code, 0);
    let (calls, _) = trace.finish();
    assert!(calls.iter().any(|call| call["method"] == "Echo"));
    assert_eq!(run(&["call", &server.address, "Echo"]).code, 0);
    assert!(!Path::new(&format!("{}.traced", server.address)).exists());
}

#[test]
fn a_proxy_does_not_read_what_it_cannot_pass_on() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = folder.path().join("a.sock");
    // Connections wait in its backlog, and nobody reads.
    let _listener = UnixListener::bind(&upstream).unwrap();
    let listen = folder.path().join("t.sock");
    let (listen, upstream) = (listen.to_str().unwrap(), upstream.to_str().unwrap());
    let trace = Trace::start(&["--listen", listen, "--upstream", upstream, "--schema", "builtin"]);
    let mut client = UnixStream::connect(listen).unwrap();
    client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // Two sockets, each of which takes at most twice its SO_SNDBUF, and what the proxy has read.
    let most = 4 * socket_send_buffer_size(&client).unwrap() + (1 << 20);
    let chunk = [0; 64 << 10];
    let mut written = 0;
    while written <= most {
        match client.write(&chunk) {
            Ok(len) => written += len,
            Err(_) => break,
        }
    }
    assert!(written <= most, "{written} bytes were taken that nobody reads");
    drop(client);
    trace.finish();
}

#[test]
fn connections_through_a_wrapped_socket_outlive_the_trace() {
    let server = conformance();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut trace = Trace::start(&["--wrap", &server.address]);
    let client = runtime.block_on(Client::connect(&server.address)).unwrap();
    let client = ConformanceClient::new(client);
    let echo = || client.echo(EchoRequest::default()).into_future();
    runtime.block_on(echo()).unwrap();
    trace.end_with_connections();
    // containerd would take the server for dead if this failed.
    runtime.block_on(echo()).unwrap();
    assert_eq!(run(&["call", &server.address, "Echo"]).code, 0, "the socket is put back");
    drop(client);
    assert!(trace.process.wait().unwrap().success(), "it ends with the last connection");
}

#[test]
fn a_socket_is_wrapped_once() {
    let server = conformance();
    let trace = Trace::start(&["--wrap", &server.address]);
    let second = run(&["trace", "--wrap", &server.address]);
    assert_eq!(second.code, 2);
    assert!(second.stderr.contains("another trace runs"), "{}", second.stderr);
    assert_eq!(run(&["call", &server.address, "Echo"]).code, 0);
    trace.finish();
    assert_eq!(run(&["call", &server.address, "Echo"]).code, 0, "the server's own socket is back");
    assert_eq!(run(&["trace", "--wrap", "/no/such.sock"]).code, 3);
}

#[test]
fn a_file_that_is_no_socket_is_not_wrapped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let refused = ttrpc(&["trace", "--wrap", file.to_str().unwrap(), "--schema", "builtin"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut refused = Trace { process: refused, listening: String::new() };
    let mut told = String::new();
    BufReader::new(refused.process.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("is no socket"), "{told}");
    assert_eq!(refused.process.wait().unwrap().code(), Some(2));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
}

/// What a hypervisor does with a client of its guest's ports: it connects it to the server, or closes it if
/// there is none.
fn hypervisor(socket: &Path, server: Option<&str>) {
    let listener = UnixListener::bind(socket).unwrap();
    let server = server.map(str::to_owned);
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut line = Vec::new();
            while line.last() != Some(&b'\n') {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                line.push(byte[0]);
            }
            assert_eq!(line, b"CONNECT 7\n");
            let Some(server) = &server else { continue };
            client.write_all(b"OK 1073741824\n").unwrap();
            let server = UnixStream::connect(server).unwrap();
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
}

#[test]
fn a_trace_stands_between_addresses_of_all_kinds() {
    let server = conformance();
    let guest = server.folder.path().join("vm.sock");
    hypervisor(&guest, Some(&server.address));
    let near = format!("hvsock://{}:9", path(&server, "host.sock"));
    let far = format!("hvsock://{}:7", guest.display());
    let behind = Trace::start(&["--listen", "tcp://127.0.0.1:0", "--upstream", &far]);
    let tcp = behind.listening.clone();
    let before = Trace::start(&["--listen", &near, "--upstream", &tcp]);
    // A guest reaches port 9 of its host by this socket.
    let made = hammer(&path(&server, "host.sock_9"), 50);
    let (calls, _) = before.finish();
    assert_eq!(calls.len(), made);
    let verbose = run(&["call", &tcp, "Echo", "payload=aGk=", "-v", "--schema", "reflection"]);
    assert_eq!(verbose.code, 0, "{verbose:?}");
    assert!(verbose.stderr.contains("Conformance/Echo, timeout "), "{}", verbose.stderr);
    assert!(verbose.stderr.contains("< #5 Response, 6 bytes"), "{}", verbose.stderr);
    let (calls, summary) = behind.finish();
    // Those of the one before it, and the three of the shell, of which one ends with its connection.
    assert_eq!(of_method(&summary, "Echo")["calls"], 51);
    assert_eq!(told(&calls, &summary), made + 3);
}

#[test]
fn a_guest_without_the_server_cannot_be_connected_to() {
    let folder = tempfile::tempdir().unwrap();
    let guest = folder.path().join("vm.sock");
    hypervisor(&guest, None);
    let refused = run(&["list", &format!("hvsock://{}:7", guest.display())]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains("nobody listens on this port"), "{}", refused.stderr);
}

/// A server that hangs has a full backlog in the end: without a trace, its clients hear so at once.
#[test]
fn a_client_for_whom_the_server_has_no_room_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let (full, listening) = (path_of("full.sock"), path_of("trace.sock"));
    let server = UnixListener::bind(&full).unwrap();
    rustix::net::listen(&server, 0).unwrap();
    let _waiting = UnixStream::connect(&full).unwrap();
    let schema = ["--schema", "builtin"];
    let trace =
        Trace::start(&[&["--listen", &listening, "--upstream", &full], &schema[..]].concat());
    let call = ["call", &listening, "grpc.health.v1.Health/Check"];
    let ran = run(&[&call[..], &schema].concat());
    assert_eq!(ran.code, 64 + 14, "the connection is closed: {ran:?}");
    trace.finish();
}

#[test]
fn clients_that_come_while_a_wrapped_socket_is_put_back_are_served() {
    let server = conformance();
    let trace = Trace::start(&["--wrap", &server.address]);
    let pid = trace.pid();
    stop(&trace.process);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let client = runtime.block_on(Client::connect(&server.address)).unwrap();
            let client = ConformanceClient::new(client);
            runtime.spawn(client.echo(EchoRequest::default()).into_future())
        })
        .collect();
    kill_process(pid, Signal::INT).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    for client in clients {
        runtime.block_on(client).unwrap().unwrap();
    }
    trace.finish();
    assert_eq!(run(&["call", &server.address, "Echo"]).code, 0, "the socket is put back");
}

#[test]
fn a_client_that_finds_a_wrapped_socket_and_connects_when_it_is_put_back_is_served() {
    let server = conformance();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut trace = Trace::start(&["--wrap", &server.address]);
    let client = runtime.block_on(Client::connect(&server.address)).unwrap();
    let client = ConformanceClient::new(client);
    runtime.block_on(client.echo(EchoRequest::default()).into_future()).unwrap();
    let found = rustix::fs::open(&server.address, OFlags::PATH, Mode::empty()).unwrap();
    trace.end_with_connections();
    let address = format!("/proc/{}/fd/{}", process::id(), found.as_raw_fd());
    assert_eq!(run(&["call", &address, "Echo"]).code, 0);
    drop(client);
    assert!(trace.process.wait().unwrap().success());
}

#[test]
fn the_port_that_the_system_chose_is_told() {
    let server = conformance();
    let trace = Trace::start(&["--listen", "tcp://127.0.0.1:0", "--upstream", &server.address]);
    assert!(!trace.listening.ends_with(":0"), "{}", trace.listening);
    assert_eq!(run(&["call", &trace.listening, "Echo"]).code, 0);
    let used = run(&["trace", "--listen", &trace.listening, "--upstream", &server.address]);
    assert_eq!(used.code, 3, "{used:?}");
    trace.finish();
    let mistaken = run(&["trace", "--listen", "tcp://no such host:0", "--upstream", "a.sock"]);
    assert_eq!(mistaken.code, 3, "{mistaken:?}");
    assert!(mistaken.stderr.contains("tcp://no such host:0"), "{}", mistaken.stderr);
}

#[test]
fn only_what_has_a_file_is_wrapped() {
    for address in ["unix://@name", "tcp://127.0.0.1:80", "vsock://3:1024", "tcp:127.0.0.1:80"] {
        let refused = run(&["trace", "--wrap", address, "--schema", "builtin"]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains("--listen and --upstream"), "{}", refused.stderr);
    }
}

#[test]
fn a_recording_knows_how_long_calls_were_pending() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let upstream = &*server.address;
    let trace = Trace::start(&["--listen", &listen, "--upstream", upstream, "--record", &file]);
    // Without reflection, whose stream may be open a little longer than it is needed.
    let proto = conformance_proto();
    let schema = ["--proto", proto.to_str().unwrap()];
    let call = ["call", &listen, "Wait", "key=a", "--timeout", "0"];
    let mut call = ttrpc(&[&call[..], &schema].concat()).spawn().unwrap();
    server.wait_for_call("Wait");
    let (_, summary) = trace.finish();
    let shown = run(&["show", &file, "--json"]).ok();
    let shown: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    assert_eq!(shown["pending"].as_array().unwrap().len(), 1);
    assert_eq!(shown["pending"], summary["pending"]);
    call.wait().unwrap();
}

#[test]
fn a_speed_below_all_measure_is_refused() {
    for speed in ["1e-300", "-1", "NaN"] {
        let ran = run(&["replay", "/no/such/file", "/no/such/socket", &format!("--speed={speed}")]);
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains("--speed"), "{ran:?}");
    }
}

#[test]
fn every_message_of_a_stream_is_told_where_that_is_asked_for() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let upstream = &*server.address;
    let more = ["-v", "--redact", "sequence"];
    let arguments = ["--listen", &listen, "--upstream", upstream, "--record", &file];
    let trace = Trace::start(&[&arguments[..], &more].concat());
    let proto = conformance_proto();
    let input = "{\"sequence\": 1, \"payload\": \"aGk=\"} {\"payload\": \"aG8=\"}";
    let call = ["call", &listen, "Exchange", input, "--proto", proto.to_str().unwrap()];
    run(&call).ok();
    let (told, _) = trace.finish();
    let messages = |lines: &[Value]| -> Vec<Value> {
        let content = |line: &Value| json!([line["from"], line["content"], line["bytes"]]);
        let mut messages: Vec<_> =
            lines.iter().filter(|line| line["from"].is_string()).map(content).collect();
        // Each side has an order of its own.
        messages.sort_by_key(|message| message[0].to_string());
        messages
    };
    let of = |from| {
        [
            json!([from, { "sequence": "[redacted]", "payload": "aGk=" }, 6]),
            json!([from, { "payload": "aG8=" }, 4]),
        ]
    };
    assert_eq!(messages(&told), [of("client"), of("server")].concat());
    let shown = run(&["show", &file, "-v", "--json"]).ok();
    let shown: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(messages(&shown).len(), 4);
    let text = run(&["show", &file, "-v"]).ok();
    assert_eq!(text.matches(" from the server, ").count(), 2, "{text}");
    let text = run(&["show", &file]).ok();
    assert!(!text.contains(" from the server, "), "{text}");
}

#[test]
fn connections_that_were_one_after_the_other_are_made_again_so() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let upstream = &*server.address;
    let trace = Trace::start(&["--listen", &listen, "--upstream", upstream, "--record", &file]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for _ in 0..150 {
        let client = runtime.block_on(Client::connect(&listen)).unwrap();
        let client = ConformanceClient::new(client);
        runtime.block_on(client.echo(EchoRequest::default()).into_future()).unwrap();
    }
    trace.finish();
    // With far fewer descriptors than there were connections.
    let replay = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 40; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ttrpc"), "replay"])
        .args([&file, upstream, "--speed", "0", "--json"])
        .output()
        .unwrap();
    assert!(replay.status.success(), "{replay:?}");
    let report: Value = serde_json::from_slice(&replay.stdout).unwrap();
    assert_eq!(report["methods"][0]["sameCode"], 150);
}

#[test]
fn what_is_no_ttrpc_is_passed_on_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let path_of = |name| folder.path().join(name).to_str().unwrap().to_owned();
    let (upstream, listen) = (path_of("other.sock"), path_of("t.sock"));
    let runtime = UnixListener::bind(&upstream).unwrap();
    let mut command = ttrpc(&["trace", "--listen", &listen, "--upstream", &upstream]);
    command.args(["--schema", "builtin"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = command.spawn().unwrap();
    let mut trace = Trace { process, listening: listen.clone() };
    let mut stderr = BufReader::new(trace.process.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    // A frame of a type that ttrpc does not have.
    let said = [&[0, 0, 0, 4, 0, 0, 0, 1, 9, 0][..], b"else"].concat();
    let mut client = UnixStream::connect(&listen).unwrap();
    client.write_all(&said).unwrap();
    let mut passed = vec![0; said.len()];
    runtime.accept().unwrap().0.read_exact(&mut passed).unwrap();
    assert_eq!(passed, said);
    line.clear();
    stderr.read_line(&mut line).unwrap();
    assert!(
        line.contains("does not speak ttrpc") && line.contains("calls are not shown"),
        "{line}"
    );
}

/// 20,000 calls of methods that the client has made up.
#[test]
fn a_client_that_makes_up_names_takes_little_memory() {
    let server = conformance();
    let listen = path(&server, "t.sock");
    let trace = Trace::start(&["--listen", &listen, "--upstream", &server.address]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&listen).await.unwrap();
        for number in 0..20_000 {
            let call = client.unary::<ttrpc::Raw, ttrpc::Raw>(
                "no.Such",
                format!("Method{number}"),
                ttrpc::Raw::default(),
            );
            call.await.unwrap_err();
        }
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", trace.process.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: usize = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(resident < 100 << 10, "{resident} kB");
    let (_, summary) = trace.finish();
    let methods = summary["methods"].as_array().unwrap();
    assert_eq!(methods.len(), 1001);
    assert_eq!(methods.iter().map(|method| method["calls"].as_u64().unwrap()).sum::<u64>(), 20_000);
    assert!(methods.iter().any(|method| method["method"] == "_OTHER"));
}

#[test]
fn a_recording_is_shown_in_parts() {
    let server = conformance();
    let (listen, file) = (path(&server, "t.sock"), path(&server, "a.trace"));
    let upstream = &*server.address;
    let arguments = ["--listen", &listen, "--upstream", upstream, "--record", &file];
    let trace = Trace::start(&[&arguments[..], &["--without", "ServerReflection"]].concat());
    assert_eq!(run(&["call", &listen, "Echo", "payload=aGVsbG8="]).code, 0);
    assert_eq!(run(&["call", &listen, "Fail", "code=5"]).code, 64 + 5);
    let (calls, summary) = trace.finish();
    assert_eq!(calls.len(), 2, "what the program asks itself is left out: {calls:?}");
    assert_eq!(summary["methods"].as_array().unwrap().len(), 2);
    let shown = |filter: &[&str]| {
        let text = run(&[&["show", &file, "--json"], filter].concat()).ok();
        text.lines().count() - 1
    };
    assert!(shown(&[]) > 2, "all of it is recorded");
    assert_eq!(shown(&["--only", "Conformance"]), 2);
    assert_eq!(shown(&["--only", "Conformance/Echo"]), 1);
    assert_eq!(shown(&["--failed"]), 1);
    assert_eq!(shown(&["--slower", "1h"]), 0);
    assert_eq!(shown(&["--larger", "10", "--only", "Conformance"]), 1);
}

#[test]
fn the_slowest_calls_are_shown_first_and_no_others() {
    let server = conformance();
    let (address, file) = (path(&server, "t.sock"), path(&server, "slow.trace"));
    let more = ["--listen", &*address, "--upstream", &*server.address, "--record", &*file];
    let trace = Trace::start(&[&more[..], &["--slowest", "2"]].concat());
    let proto = conformance_proto();
    let wait = |key: &str| {
        let call = ["call", &address, "Wait", key, "--timeout", "0"];
        let mut command = ttrpc(&[&call[..], &["--proto", proto.to_str().unwrap()]].concat());
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let release = |key: &str, mut waiting: Child| {
        run(&["call", &server.address, "Release", key]).ok();
        assert!(waiting.wait().unwrap().success());
    };
    // Each call that takes longer begins before the shorter ones, and ends after them.
    let slowest = wait("key=slowest");
    server.wait_for_calls("Wait", 1);
    let slow = wait("key=slow");
    server.wait_for_calls("Wait", 2);
    for key in ["key=first", "key=second"] {
        let waiting = wait(key);
        server.wait_for_calls("Wait", 3);
        release(key, waiting);
    }
    release("key=slow", slow);
    release("key=slowest", slowest);
    let (calls, summary) = trace.finish();
    let keys: Vec<_> = calls.iter().map(|call| call["request"]["key"].clone()).collect();
    assert_eq!(keys, ["slowest", "slow"]);
    assert_eq!(summary["methods"][0]["calls"], 4, "all are counted: {summary}");
    let shown = run(&["show", &file, "--slowest", "1"]).ok();
    assert!(shown.contains("\"slowest\"") && !shown.contains("\"slow\""), "{shown}");
    assert_eq!(run(&["show", &file, "--slowest", "0"]).code, 2);
}

#[test]
fn a_table_follows_what_passes() {
    let server = conformance();
    let address = path(&server, "t.sock");
    let more = ["--listen", &*address, "--upstream", &*server.address, "--table=100ms"];
    let mut trace = Trace::start(&more);
    run(&["call", &address, "Echo", "--proto", conformance_proto().to_str().unwrap()]).ok();
    let mut lines = BufReader::new(trace.process.stdout.take().unwrap()).lines();
    let counts = lines.any(|line| {
        let summary: Value = serde_json::from_str(&line.unwrap()).unwrap();
        summary["methods"].as_array().unwrap().iter().any(|method| method["calls"] == 1)
    });
    assert!(counts, "a table has the call while the trace goes on");
    kill_process(trace.pid(), Signal::INT).unwrap();
    // It is not written to, and ends all the same.
    drop(lines);
    trace.process.wait().unwrap();
}
