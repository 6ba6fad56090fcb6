//! `ttrpc list`, `ttrpc describe`, `ttrpc schema`, from the shell.

use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixListener;

use crate::{common::*, greeter};

#[test]
fn list_prints_what_reflection_tells() {
    let server = conformance();
    assert_eq!(
        run(&["list", &server.address]).ok(),
        "grpc.reflection.v1.ServerReflection\nttrpc.conformance.v1.Conformance\n"
    );
    let methods = run(&["list", &server.address, "Conformance"]).ok();
    assert!(methods.starts_with("ttrpc.conformance.v1.Conformance/Echo\n"), "{methods}");
    assert_eq!(methods.lines().count(), 12);
}

#[test]
fn list_asks_servers_without_reflection_for_what_is_built_in() {
    let server = serve(|builder| builder.add_service(ttrpc_reflection::Health::new().service()));
    let listed = run(&["list", &server.address]).ok();
    assert_eq!(listed, "grpc.health.v1.Health\nttrpc.debug.v1.Debug\n");
}

/// The process of some servers ends on a message of a stream that they refused.
#[test]
fn list_sends_no_message_to_a_server_without_reflection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut types = Vec::new();
        let mut header = [0; 10];
        while stream.read_exact(&mut header).is_ok() {
            let length = u32::from_be_bytes(header[..4].try_into().unwrap());
            stream.read_exact(&mut vec![0; length as usize]).unwrap();
            types.push(header[8]);
            // A response with a status whose code is 12, UNIMPLEMENTED.
            let mut refusal = vec![0, 0, 0, 4];
            refusal.extend_from_slice(&header[4..8]);
            refusal.extend([2, 0, 0x0a, 2, 0x08, 12]);
            if stream.write_all(&refusal).is_err() {
                break;
            }
        }
        types
    });
    run(&["list", path.to_str().unwrap()]).ok();
    let types = server.join().unwrap();
    assert!(types.iter().all(|&kind| kind == 1), "types of the frames sent: {types:?}");
}

#[test]
fn list_takes_schemas_from_files() {
    let server = conformance_without_reflection();
    let proto = conformance_proto();
    let proto = proto.to_str().unwrap();
    let listed = run(&["list", &server.address, "--proto", proto]).ok();
    assert_eq!(listed, "ttrpc.conformance.v1.Conformance\n");

    let set = server.folder.path().join("set.bin");
    let set = set.to_str().unwrap();
    assert_eq!(run(&["schema", "--proto", proto, "--set", set]).code, 0);
    let listed = run(&["list", &server.address, "--descriptor-set", set, "--json"]).json();
    assert_eq!(listed, serde_json::json!(["ttrpc.conformance.v1.Conformance"]));
}

#[test]
fn describe_prints_proto_text_and_templates() {
    let server = conformance();
    let address = &*server.address;
    let text = run(&["describe", address, "Conformance/Echo"]).ok();
    assert!(text.contains("rpc Echo(EchoRequest) returns (EchoResponse);"), "{text}");
    assert!(text.contains("from the server's reflection"), "{text}");
    assert!(text.contains("// When set, the reply's payload has"), "comments are told: {text}");
    let unlisted = run(&["describe", address, "Health/Check"]).ok();
    assert!(unlisted.contains("a method, from the built-in schemas"), "{unlisted}");
    let unknown = run(&["describe", address, "Nothing"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("`ttrpc list` prints"), "{}", unknown.stderr);
    let template = run(&["describe", address, "FailRequest", "--template", "--json"]).json();
    assert_eq!(template, serde_json::json!({ "code": 0, "message": "", "detail": "" }));
    let message = run(&["describe", address, "Chunk", "--json"]).json();
    assert_eq!(message["members"][0]["name"], "sequence");
}

#[test]
fn describe_needs_no_server_for_what_is_built_in() {
    let text = run(&["describe", "-", "containerd.task.v3.StateRequest"]).ok();
    assert!(text.contains("message StateRequest {\n  string id = 1;"), "{text}");
    let ambiguous = run(&["describe", "-", "Task"]);
    assert_eq!(ambiguous.code, 2);
    assert!(ambiguous.stderr.contains("containerd.task.v2.Task"), "{}", ambiguous.stderr);
}

#[test]
fn a_server_tells_which_of_two_built_in_services_is_meant() {
    let server = only(greeter::Shim);
    let listed = run(&["list", &server.address, "Task"]).ok();
    assert!(listed.lines().all(|line| line.starts_with("containerd.task.v3.Task/")), "{listed}");
    assert_eq!(listed.lines().count(), 17);
    let described = run(&["describe", &server.address, "Task", "--json"]).json();
    assert_eq!(described["name"], "containerd.task.v3.Task");
    let reply = run(&["call", &server.address, "Task/State", "id=c"]).json();
    assert_eq!(reply["status"], "RUNNING");
}

#[test]
fn the_newest_of_two_versions_that_a_server_has_is_meant() {
    let server = serve(|builder| builder.add_service(greeter::Shim).add_service(greeter::OldShim));
    let described = run(&["describe", &server.address, "Task", "--json"]).json();
    assert_eq!(described["name"], "containerd.task.v3.Task");
    let reply = run(&["call", &server.address, "Task/State", "id=c"]).json();
    assert_eq!(reply["status"], "RUNNING");
    assert_eq!(run(&["call", &server.address, "v2.Task/State"]).code, 64 + 12);
}

#[test]
fn schema_writes_protos_that_can_be_used_again() {
    let server = conformance();
    let folder = server.folder.path().join("protos");
    let written = run(&["schema", &server.address, "--protos", folder.to_str().unwrap()]);
    assert_eq!(written.code, 0, "{}", written.stderr);
    let proto = folder.join("conformance.proto");
    let reply = run(&[
        "call",
        &server.address,
        "Conformance/Echo",
        "payload=aGk=",
        "--proto",
        proto.to_str().unwrap(),
    ]);
    assert_eq!(reply.json(), serde_json::json!({ "payload": "aGk=" }));
}

#[test]
fn a_server_that_is_not_there_is_exit_code_3() {
    let missing = run(&["list", "/no/such.sock"]);
    assert_eq!(missing.code, 3);
    assert!(missing.stderr.contains("is the server running?"), "{}", missing.stderr);
    assert_eq!(run(&["list", "carrier-pigeon://x"]).code, 2);
    let json = run(&["list", "/no/such.sock", "--json"]).stderr;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["error"].as_str().unwrap().contains("/no/such.sock"));
}

#[test]
fn schemas_and_usage_errors_are_json_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set.bin").display().to_string();
    let written = run(&["schema", "--set", &set, "--json"]).json();
    assert_eq!(written["wrote"], *set);
    let files = run(&["schema", "--json"]).ok();
    let names: Vec<serde_json::Value> =
        files.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_task = |file: &serde_json::Value| {
        file["text"].as_str().unwrap().contains("package containerd.task.v3;")
    };
    assert!(names.iter().any(is_task));
    let refused = run(&["call", "--json"]);
    assert_eq!((refused.code, &*refused.stdout), (2, ""));
    let error: serde_json::Value = serde_json::from_str(&refused.stderr).unwrap();
    let text = error["error"].as_str().unwrap();
    assert!(text.contains("<ADDRESS>") && !text.starts_with("error"), "{error}");
    assert_eq!(run(&["--help", "--json"]).code, 0);
}

#[test]
fn reflection_alone_needs_a_server() {
    for command in [&["list", "-"][..], &["describe", "-", "Task"], &["schema"]] {
        let refused = run(&[command, &["--schema", "reflection"]].concat());
        assert_eq!((refused.code, &*refused.stdout), (2, ""), "{command:?}");
        assert!(refused.stderr.contains("ADDRESS"), "{}", refused.stderr);
    }
}

#[test]
fn a_service_that_the_server_does_not_have_is_not_listed() {
    let server = only(greeter::OldShim);
    let refused = run(&["list", &server.address, "Sandbox"]);
    assert_eq!((refused.code, &*refused.stdout), (2, ""));
    assert!(refused.stderr.contains("the server has no service"), "{}", refused.stderr);
    assert!(refused.stderr.contains("`ttrpc list ADDRESS`"), "{}", refused.stderr);
    assert_eq!(run(&["list", "-", "Sandbox"]).code, 0);
}

#[test]
fn a_method_that_is_not_there_is_told_of_the_version_that_the_server_has() {
    let server = only(greeter::OldShim);
    let refused = run(&["call", &server.address, "Task/Stat"]);
    assert_eq!(refused.code, 2);
    assert!(
        refused.stderr.contains("service containerd.task.v2.Task has no"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_server_tells_which_of_two_built_in_messages_is_meant() {
    for (server, package) in [
        (only(greeter::OldShim), "containerd.task.v2"),
        (only(greeter::Shim), "containerd.task.v3"),
    ] {
        let described = run(&["describe", &server.address, "StateRequest", "--json"]).json();
        assert_eq!(described["name"], format!("{package}.StateRequest"));
    }
    assert_eq!(run(&["describe", "-", "StateRequest"]).code, 2);
}

/// As a gRPC server does with a client that does not speak HTTP/2.
#[test]
fn a_server_that_closes_the_connection_at_once_may_be_another_kind_of_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grpc.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
    });
    let refused = run(&["list", path.to_str().unwrap()]);
    server.join().unwrap();
    assert_eq!(refused.code, 64 + 14);
    assert!(refused.stderr.contains("gRPC"), "{}", refused.stderr);
    assert!(!refused.stderr.contains("gives it longer"), "{}", refused.stderr);
}

#[test]
fn a_server_that_does_not_answer_is_given_longer_where_that_is_possible() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hanging.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let (hung, timeout) = run_unanswered(&["list", path.to_str().unwrap()]);
    assert_eq!(hung.code, 64 + 4);
    let longer = format!("--timeout gives it longer than {timeout:?}");
    assert!(hung.stderr.contains(&longer), "{}", hung.stderr);

    // `trace` has no such option. It is ended by closing the connection in its place.
    let path = folder.path().join("ending.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let upstream = path.to_str().unwrap();
    let mut trace = ttrpc(&["trace", "--listen", "tcp://127.0.0.1:0", "--upstream", upstream])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    drop(stream);
    let mut stderr = std::io::BufReader::new(trace.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains("are shown") {
        assert_ne!(stderr.read_line(&mut told).unwrap(), 0, "{told}");
    }
    trace.kill().unwrap();
    trace.wait().unwrap();
    // How it failed depends on which comes first, this end or that of the 5 s which a trace waits.
    assert!(told.contains("the built-in schemas are used: "), "{told}");
    assert!(!told.contains("--timeout") && !told.contains("--schema"), "{told}");
}

#[test]
fn folders_for_imports_that_are_not_there_are_told() {
    let proto = conformance_proto();
    let refused = run(&["schema", "--proto", proto.to_str().unwrap(), "-I", "/no/such/folder"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("/no/such/folder"), "{}", refused.stderr);
}

/// A schema whose comments hold what moves a terminal's cursor.
#[test]
fn comments_of_a_server_do_not_reach_the_terminal() {
    use prost_reflect::prost_types::{
        DescriptorProto, FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
        SourceCodeInfo, source_code_info::Location,
    };
    let location = Location {
        path: vec![4, 0],
        leading_comments: Some(" evil \u{1b}]0;title\u{7}\n".to_owned()),
        ..Location::default()
    };
    let message = DescriptorProto { name: Some("M".to_owned()), ..DescriptorProto::default() };
    let service =
        ServiceDescriptorProto { name: Some("S".to_owned()), ..ServiceDescriptorProto::default() };
    let file = FileDescriptorProto {
        name: Some("evil.proto".to_owned()),
        package: Some("evil".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        service: vec![service],
        source_code_info: Some(SourceCodeInfo { location: vec![location] }),
        ..FileDescriptorProto::default()
    };
    let set = prost::Message::encode_to_vec(&FileDescriptorSet { file: vec![file] });
    let reflection = ttrpc_reflection::Reflection::new(set).unwrap();
    let server = serve(|builder| builder.add_service(reflection));
    let color = ["--color", "always"];
    for command in [&["describe", &server.address, "evil.M"][..], &["schema", &server.address]] {
        let text = run(&[command, &color].concat()).ok();
        assert!(text.contains("evil") && !text.contains("\u{1b}]"), "{text:?}");
    }
}
