//! Completion in shells: of what a server has.

use std::process::Command;

use crate::common::*;

/// What bash completes of a line, with what it takes for the last word, however long the machine takes.
fn bash(line: &str, word: &str) -> Vec<String> {
    bash_within(Some(LONG), line, word)
}

/// What bash completes within this time, or within the time that the program has by default.
fn bash_within(timeout: Option<&str>, line: &str, word: &str) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_ttrpc");
    let folder = std::path::Path::new(program).parent().unwrap().display();
    let script = format!(
        "PATH={folder}:$PATH; source <(ttrpc completions bash); COMP_LINE=$1; COMP_POINT=${{#COMP_LINE}}; \
         _ttrpc ttrpc \"$2\" 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", &script, "bash", line, word]);
    command.envs(timeout.map(|timeout| ("TTRPC_COMPLETE_TIMEOUT", timeout)));
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_methods_services_and_fields_of_a_server() {
    let server = conformance();
    let address = &*server.address;
    let of = |line: String| {
        let word = line.rsplit(' ').next().unwrap().to_owned();
        bash(&line, &word)
    };
    assert_eq!(of(format!("ttrpc call {address} Conformance/Ech")), ["Conformance/Echo"]);
    assert_eq!(of(format!("ttrpc load {address} Gene")), ["Generate"]);
    assert_eq!(
        of(format!("ttrpc call {address} ttrpc.conformance.v1.Conformance/Ec")),
        ["ttrpc.conformance.v1.Conformance/Echo"]
    );
    assert_eq!(of(format!("ttrpc list {address} Conf")), ["Conformance"]);
    assert_eq!(of(format!("ttrpc describe {address} EchoReq")), ["EchoRequest"]);
    assert_eq!(of(format!("ttrpc call {address} Generate co")), ["count="]);
    assert_eq!(of("ttrpc call - containerd.task.v3.Task/Create termin".to_owned()), ["terminal="]);
    assert_eq!(of("ttrpc comple".to_owned()), ["completions"]);
    // bash takes `:` and `=` for ends of words: what is before them stays on the line.
    assert_eq!(
        bash(&format!("ttrpc call unix:{address} Conformance/Ech"), "Conformance/Ech"),
        ["Conformance/Echo"]
    );
    let line = "ttrpc call - containerd.task.v3.Task/Create terminal=t";
    assert_eq!(bash(line, "t"), ["true"]);
}

#[test]
fn a_server_that_is_not_there_or_says_nothing_completes_nothing() {
    let listener = tempfile::tempdir().unwrap();
    let silent = listener.path().join("a.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    for address in ["/no/such.sock", silent.to_str().unwrap(), "tcp://", "'", "$(false)"] {
        let line = format!("ttrpc call {address} Sa");
        assert_eq!(bash_within(None, &line, "Sa"), [""; 0], "{address}");
    }
}

#[test]
fn zsh_and_fish_are_answered_as_they_ask() {
    let server = conformance();
    let script = run(&["completions", "zsh"]).ok();
    assert!(script.starts_with("#compdef ttrpc"), "{script}");
    assert!(run(&["completions", "fish"]).ok().contains("complete "));
    assert_eq!(run(&["completions", "powershell"]).code, 2);
    let words = ["ttrpc", "call", &server.address, "Conformance/Ech"];
    for shell in ["zsh", "fish"] {
        let mut command = completing(shell, &words);
        let ran: Ran = command.env("_CLAP_COMPLETE_INDEX", "3").output().unwrap().into();
        let told = ran.ok();
        assert!(told.contains("Conformance/Echo"), "{shell}: {told}");
        assert!(told.contains("(EchoRequest) → EchoReply") || told.contains("EchoRe"), "{told}");
    }
}
