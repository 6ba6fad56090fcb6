//! `ttrpc explore`, from a script and on a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    process::Child,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    termios::tcgetattr,
};
use tempfile::TempDir;

use crate::{common::*, greeter::Greeter};

fn greeter() -> Served {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/proto");
    let set = protox::compile(["greeter.proto"], [folder]).unwrap();
    let reflection = ttrpc_reflection::Reflection::new(prost::Message::encode_to_vec(&set));
    serve(|builder| builder.add_service(Greeter).add_service(reflection.unwrap()))
}

fn explore(server: &Served, script: &str) -> Ran {
    run_with_input(&["explore", &server.address], script)
}

#[test]
fn a_script_calls_methods_of_every_kind() {
    let server = greeter();
    let script = "
        SayHello name=Ann
        SayHello {\"name\":
            \"Ben\"}
        Countdown name=Cleo from=1
        GreetAll {\"name\": \"a\"} {\"name\": \"b\"}
        template SayHello
        list Greeter
        call Chat
        name=x
        {\"name\": \"y\"}";
    let told = explore(&server, script).ok();
    for line in [
        "  \"message\": \"Hello, Ann!\"",
        "  \"message\": \"Hello, Ben!\"",
        "{\"message\":\"1…\"}",
        "{\"people\":2,\"message\":\"Hello, a and b!\"}",
        "  \"name\": \"\"",
        "greeter.v1.Greeter/Countdown",
        "{\"message\":\"Hello, x!\"}",
        "{\"message\":\"Hello, y!\"}",
    ] {
        assert!(told.lines().any(|told| told == line), "{line} is not in:\n{told}");
    }
}

#[test]
fn the_last_reply_is_at_hand() {
    let server = greeter();
    let told =
        explore(&server, "SayHello name=Ann\nSayHello name=$.message\nSayHello name=$1\nlast 2");
    let told = told.ok();
    assert!(told.contains("Hello, Hello, Ann!!"), "{told}");
    assert!(told.contains("Hello, {\\\"message\\\":\\\"Hello, Ann!\\\"}!"), "{told}");
    let ran = explore(&server, "SayHello name=$.message");
    assert!(ran.code == 2 && ran.stderr.contains("no reply yet"), "{ran:?}");
}

#[test]
fn several_calls_are_in_flight_and_take_requests() {
    let server = greeter();
    let script = "Chat &\nChat &\nsend 1 name=a\nsend #2 {\"name\": \"b\"}\nclose 1\nwait 1\ncalls\nclose 2\n";
    let told = explore(&server, script).ok();
    for wanted in ["#1 {\"message\":\"Hello, a!\"}", "#2 {\"message\":\"Hello, b!\"}"] {
        assert!(told.contains(wanted), "{told}");
    }
    assert!(told.contains("#1 greeter.v1.Greeter/Chat OK"), "{told}");
    assert!(
        told.contains("#2 greeter.v1.Greeter/Chat, ") && told.contains("takes requests"),
        "{told}"
    );
    let told = explore(&server, "Chat &\ncancel 1\ncalls").ok();
    assert!(told.contains("#1 is cancelled") && told.lines().count() == 2, "{told}");
    server.settle();
}

#[test]
fn the_first_failure_ends_a_script() {
    let server = greeter();
    let ran = explore(&server, "SayHello\nSayHello name=Ann");
    assert!(ran.code == 67 && ran.stdout.is_empty(), "{ran:?}");
    for (line, told) in [
        ("Nothing", "no service has a method `Nothing`"),
        ("SayHello nam=1", "it has: name"),
        ("SayHello -", "requests are typed"),
        ("SayHello name='a", "quotation mark"),
        ("cancel 3", "no call #3 is in flight"),
        ("send 1 a=1", "no call #1 is in flight"),
        ("Chat\nnam=1", "it has: name"),
    ] {
        let ran = explore(&server, line);
        assert!(ran.code == 2 && ran.stderr.contains(told), "{line}: {ran:?}");
    }
    // Of a call in the background it is told at its end.
    let ran = explore(&server, "SayHello &");
    assert!(ran.code == 1 && ran.stdout.contains("INVALID_ARGUMENT"), "{ran:?}");
}

#[test]
fn metadata_and_the_timeout_are_those_of_later_calls() {
    let server = greeter();
    let script = "metadata greeting:Hi\nSayHello name=A\nmetadata greeting:\nSayHello name=B\ntimeout 1h\ntimeout";
    let told = explore(&server, script).ok();
    for wanted in ["Hi, A!", "Hello, B!", "1h"] {
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn rubbish_is_told_and_harms_nobody() {
    let server = greeter();
    for line in [
        "\u{1b}[2J",
        "\0",
        "{",
        "SayHello {]",
        "&",
        "?",
        "=$.",
        "call &",
        "wait x",
        "last 99999999999",
    ] {
        let ran = explore(&server, line);
        assert!(ran.code != 0 && ran.code != 101, "{line:?}: {ran:?}");
        assert!(!ran.stderr.contains('\u{1b}'), "{ran:?}");
    }
    let ran = run_with_input(&["explore", &server.address], b"SayHello name=\xff\n");
    assert!(ran.code == 1 && ran.stderr.contains("standard input cannot be read"), "{ran:?}");
}

/// A session on a terminal of its own.
struct Session {
    here: File,
    process: Child,
    home: TempDir,
    /// What was shown and not read.
    unread: String,
}

impl Session {
    fn start(server: &Served, columns: u16, home: TempDir) -> Self {
        let (here, there) = terminal_of(columns, 24);
        let mut command = ttrpc(&["explore", &server.address]);
        command.env("TERM", "xterm").env("XDG_STATE_HOME", home.path()).env("NO_COLOR", "1");
        command.stdin(there.try_clone().unwrap()).stdout(there.try_clone().unwrap()).stderr(there);
        let process = command.spawn().unwrap();
        let mut session = Session { here, process, home, unread: String::new() };
        session.read("ttrpc> ");
        session
    }

    /// Reads to the end of this.
    fn read(&mut self, wanted: &str) {
        loop {
            if let Some(at) = self.unread.find(wanted) {
                self.unread.drain(..at + wanted.len());
                return;
            }
            let mut buffer = [0; 4096];
            let len = self.here.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "{}", self.unread);
            self.unread.push_str(&String::from_utf8_lossy(&buffer[..len]));
        }
    }

    /// Types, and reads until this has come.
    fn types(&mut self, typed: &str, wanted: &str) {
        self.here.write_all(typed.as_bytes()).unwrap();
        self.read(wanted);
    }

    fn finish(mut self) -> TempDir {
        self.here.write_all(&[4]).unwrap();
        assert!(self.process.wait().unwrap().success());
        self.home
    }
}

#[test]
fn a_terminal_completes_lines_and_keeps_their_history() {
    let server = greeter();
    let mut session = Session::start(&server, 100, tempfile::tempdir().unwrap());
    session.types("SayH\t", "SayHello");
    session.types("na\t", "name=");
    session.types("Ann\r", "Hello, Ann!");
    session.read("ttrpc> ");
    session.types("Greeter/C\t\t", "Greeter/Countdown");
    // Ctrl-C leaves the line, and the session goes on.
    session.types("\u{3}", "Ctrl-D ends the session");
    session.read("ttrpc> ");
    let home = session.finish();
    let history = home.path().join("ttrpc/history");
    let mode = std::os::unix::fs::PermissionsExt::mode(&history.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut session = Session::start(&server, 100, home);
    session.types("\u{1b}[A", "SayHello name=Ann");
    session.types("\r", "Hello, Ann!");
    session.read("ttrpc> ");
    session.finish();
}

#[test]
fn fields_are_asked_for_and_a_mistake_is_asked_again() {
    let server = greeter();
    let mut session = Session::start(&server, 100, tempfile::tempdir().unwrap());
    session.types("Countdown ?\r", "name (string): ");
    session.types("Ann\r", "from (uint32): ");
    session.types("many\r", "no uint32");
    session.read("from (uint32): ");
    session.types("1\r", "Hello, Ann!");
    session.read("ttrpc> ");
    session.types("SayHello ?\r", "name (string): ");
    session.types("\u{3}", "no call is made");
    session.read("ttrpc> ");
    session.finish();
}

#[test]
fn a_call_is_cancelled_and_replies_stand_above_the_line_that_is_typed() {
    let server = conformance();
    let mut session = Session::start(&server, 20, tempfile::tempdir().unwrap());
    session.here.write_all(b"Wait key=a\r").unwrap();
    server.wait_for_call("Wait");
    kill_process(Pid::from_child(&session.process), Signal::INT).unwrap();
    session.read("interrupted");
    session.read("ttrpc> ");
    session.types("Wait key=b &\r", "#2");
    session.read("ttrpc> ");
    server.wait_for_call("Wait");
    session.types("half", "half");
    run(&["call", &server.address, "Release", "key=b"]).ok();
    session.read("OK");
    // Ctrl-U.
    session.here.write_all(&[21]).unwrap();
    session.finish();
    server.settle();
}

#[test]
fn a_server_that_was_restarted_is_connected_to_again() {
    let mut server = greeter();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("a.sock");
    std::os::unix::fs::symlink(&server.address, &link).unwrap();
    server.address = link.display().to_string();
    let mut session = Session::start(&server, 100, tempfile::tempdir().unwrap());
    session.types("Chat &\r", "#1");
    session.read("ttrpc> ");
    drop(server);
    session.read("UNAVAILABLE");
    let again = conformance();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&again.address, &link).unwrap();
    session.types("Echo payload=aGk=\r", "aGk=");
    session.read("ttrpc> ");
    session.finish();
}

#[test]
fn a_terminal_is_left_as_it_was() {
    let server = greeter();
    let (here, there) = terminal_of(80, 24);
    let before = tcgetattr(&there).unwrap();
    let mut command = ttrpc(&["explore", &server.address, "--no-history"]);
    command.env("TERM", "xterm").stdin(there.try_clone().unwrap());
    command.stdout(there.try_clone().unwrap()).stderr(there.try_clone().unwrap());
    let mut process = command.spawn().unwrap();
    let mut here = here;
    read_until(&mut here, &["ttrpc> "]);
    kill_process(Pid::from_child(&process), Signal::TERM).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(130));
    assert_eq!(format!("{:?}", tcgetattr(&there).unwrap()), format!("{before:?}"));
}
