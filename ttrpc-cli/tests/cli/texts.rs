//! What the program says to mistakes.

use crate::common::*;

#[test]
fn an_address_that_is_no_socket_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [folder.path(), &file] {
        let ran = run(&["list", path.to_str().unwrap()]);
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(ran.stderr.contains("it is no socket"), "{ran:?}");
    }
}

#[test]
fn a_mistake_is_told_in_the_users_words() {
    let server = conformance();
    let address = &*server.address;
    for (arguments, told) in [
        (&["call", address, "Generate", "count=abc"][..], "field `count`: `abc` is no uint64"),
        (&["call", address, "Generate", "count=-1"], "field `count`: `-1` is no uint64"),
        (&["call", address, "Echo", "response_size=x"], "field `response_size`: `x` is no"),
        (&["call", address, "Echo", "{\"responseSize\":-1}"], "field `responseSize`: `-1` is no"),
        (&["call", address, "Echo", "name"], "`name` is no request: it is JSON"),
        (&["call", address, "Conformance/echo"], "did you mean `Echo`?"),
        (&["call", address, "Ecko"], "did you mean `Echo`?"),
        (&["call", address, "Conformence/Echo"], "did you mean `Conformance`?"),
        (&["call", "-", "Echo"], "`-` is no server"),
        (&["load", "-", "Echo"], "`-` is no server"),
        (&["call", address, "Echo", "{\"payload\":\"\",\"payload\":\"\"}"], "given twice"),
        (&["call", address, "Echo", "{\"responseSize\":1,\"response_size\":1}"], "given twice"),
        (&["load", address, "Echo", "x"], "`x` is not name=value"),
        (&["call", address, "Echo", "[]"], "EchoRequest: `[]` is no object"),
        (&["call", address, "Echo", "null"], "`null` is no object"),
        (&["call", address, "Echo", "@"], "`@` names no file"),
        (&["load", address, "Echo", "-n", "0"], "0 is not in 1.."),
    ] {
        let ran = run(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(told), "{arguments:?}: {ran:?}");
        for words in ["integral", "expected ident", "expected a map", "No such file"] {
            assert!(!ran.stderr.contains(words), "{arguments:?}: {ran:?}");
        }
    }
}

#[test]
fn files_that_are_named_need_no_server() {
    let proto = conformance_proto();
    let proto = ["--proto", proto.to_str().unwrap()];
    for command in [
        &["list", "/no/such.sock"][..],
        &["list", "/no/such.sock", "Conformance"],
        &["describe", "/no/such.sock", "Echo"],
        &["schema", "/no/such.sock"],
    ] {
        let text = run(&[command, &proto].concat()).ok();
        assert!(text.contains("Conformance") || text.contains("Echo"), "{text}");
    }
}

#[test]
fn describe_shows_every_service_where_none_is_named() {
    let server = conformance();
    let all = run(&["describe", &server.address]).ok();
    for service in ["service Conformance {", "service Health {", "service ServerReflection {"] {
        let is_told = service != "service Health {";
        assert_eq!(all.contains(service), is_told, "{all}");
    }
    let without_reflection = conformance_without_reflection();
    let all = run(&["describe", &without_reflection.address]).ok();
    assert!(all.contains("service Debug {") && !all.contains("service Task {"), "{all}");
    let template = run(&["describe", &server.address, "--template"]);
    assert_eq!(template.code, 2, "{template:?}");
}

#[test]
fn a_load_takes_fields() {
    let server = conformance();
    let load = ["load", &server.address, "Echo", "payload=aGVsbG8=", "-n", "10", "--json"];
    let report = run(&load).json();
    assert_eq!(report["bytesSent"], 10 * 7);
}
