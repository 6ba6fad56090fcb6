//! The program on a terminal of 60 columns.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::Path,
    process::Stdio,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{common::*, greeter, kernel};

const COLUMNS: u16 = 60;

/// A terminal: the side of who sits there, and the side of the program.
fn terminal() -> (File, OwnedFd) {
    terminal_of(COLUMNS, 24)
}

/// What a run of the program writes on a terminal.
fn on_terminal(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    on_terminal_of(COLUMNS, arguments, variables)
}

fn on_terminal_of(columns: u16, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let (mut here, there) = terminal_of(columns, 24);
    let mut command = ttrpc(arguments);
    command.env("TERM", "xterm").envs(variables.iter().copied());
    let mut child = command.stdout(there).stderr(Stdio::null()).spawn().unwrap();
    // The program's side of the terminal is closed when it has ended, and reading fails then.
    drop(command);
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = here.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    });
    child.wait().unwrap();
    reader.join().unwrap()
}

fn hanging_shim(state: &Path) -> UnixListener {
    let bundle = state.join("io.containerd.runtime.v2.task/a-long-namespace/a-long-container-id");
    std::fs::create_dir_all(&bundle).unwrap();
    let socket = state.join("a.sock");
    std::fs::write(bundle.join("address"), format!("unix://{}", socket.display())).unwrap();
    UnixListener::bind(socket).unwrap()
}

#[test]
fn tables_fit_and_have_colours() {
    let state = tempfile::tempdir().unwrap();
    let _listener = hanging_shim(state.path());
    let arguments = ["shims", "--timeout", "100ms", "--state", state.path().to_str().unwrap()];
    let text = on_terminal(&arguments, &[]);
    assert!(text.contains("\u{1b}["), "{text}");
    let plain = anstream::adapter::strip_str(&text).to_string();
    assert!(plain.contains("TIMED OUT") && plain.contains("1 did not answer"), "{plain}");
    for line in plain.lines() {
        assert!(line.chars().count() <= usize::from(COLUMNS), "{line}");
    }
    let without = on_terminal(&arguments, &[("NO_COLOR", "1")]);
    assert!(!without.contains('\u{1b}'), "{without}");
}

/// The first screen of `ttrpc shims --watch`, of a run in which it has all of this.
fn watched(columns: u16, rows: u16, state: &Path, wanted: &[&str]) -> String {
    for timeout in doubled(Duration::from_secs(1)) {
        let (here, there) = terminal_of(columns, rows);
        let arguments = ["--watch=10ms", "--timeout", &timeout, "--state", state.to_str().unwrap()];
        let mut command = ttrpc(&[&["shims"], &arguments[..]].concat());
        let mut process = command.env("TERM", "xterm").stdout(there).spawn().unwrap();
        let mut screens = BufReader::new(here).split(b'J').skip(1);
        // It ends where the next one begins, with the sequence that clears it.
        let screen = String::from_utf8(screens.next().unwrap().unwrap()).unwrap();
        kill_process(Pid::from_child(&process), Signal::INT).unwrap();
        process.wait().unwrap();
        let plain = anstream::adapter::strip_str(&screen).to_string();
        if wanted.iter().all(|wanted| plain.contains(wanted)) {
            return plain;
        }
        println!("{wanted:?} is not on this screen:\n{plain}");
    }
    unreachable!("it is tried until it fails");
}

/// A pod of this many containers, with ids as Kubernetes has them.
fn add_pod(state: &Path, pod: usize, containers: usize, socket: &str) {
    for container in 0..containers {
        let id = format!("{pod:04}{container:04}{:056}", 0);
        let bundle = state.join("io.containerd.runtime.v2.task/k8s.io").join(id);
        std::fs::create_dir_all(&bundle).unwrap();
        let bootstrap = format!("{{\"version\":3,\"address\":\"unix://{socket}\"}}");
        std::fs::write(bundle.join("bootstrap.json"), bootstrap).unwrap();
    }
}

#[test]
fn a_narrow_terminal_loses_nothing_of_a_shim() {
    let state = tempfile::tempdir().unwrap();
    let shim = only(greeter::Shim);
    add_pod(state.path(), 7, 3, &shim.address);
    let _listener = hanging_shim(state.path());
    let lists_sockets = kernel::lists_sockets("figures of sockets on a narrow terminal");
    for columns in [60, 80, 120] {
        let plain = watched(columns, 100, state.path(), &["3 running"]).to_lowercase();
        for line in plain.lines() {
            assert!(line.chars().count() <= usize::from(columns), "{line}");
        }
        let of_sockets = if lists_sockets { &["unread", "pending"][..] } else { &[] };
        let others = ["mib", "threads", "fds", "v3", "k8s.io", "3 running", "1 did not answer"];
        for wanted in of_sockets.iter().chain(&others) {
            assert!(plain.contains(wanted), "{wanted} is not on {columns} columns:\n{plain}");
        }
        for container in ["000700000000…", "000700010000… running", "000700020000… running"] {
            assert!(plain.contains(container), "{container} is not on {columns}:\n{plain}");
        }
    }
}

#[test]
fn a_watch_keeps_what_hangs_on_the_screen() {
    let state = tempfile::tempdir().unwrap();
    let shim = only(greeter::Shim);
    for pod in 0..30 {
        // Each link is a shim of its own.
        let link = state.path().join(format!("{pod}.sock"));
        std::os::unix::fs::symlink(&shim.address, &link).unwrap();
        add_pod(state.path(), pod, 1, link.to_str().unwrap());
    }
    let _listener = hanging_shim(state.path());
    let wanted = ["1 did not answer, 30 did", "no answer to Connect"];
    let plain = watched(COLUMNS, 10, state.path(), &wanted);
    // The cursor stands below the last line.
    assert!(plain.matches('\n').count() < 10, "{plain}");
    assert!(plain.contains("TIMED OUT") && plain.contains(" more"), "{plain}");
}

#[test]
fn help_has_colours_unless_they_are_not_wanted() {
    assert!(on_terminal(&["--help"], &[]).contains('\u{1b}'));
    for arguments in [&["--color", "never", "--help"][..], &["list", "--color=never", "--help"]] {
        let text = on_terminal(arguments, &[]);
        assert!(text.contains("Usage") && !text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn help_is_a_command_too() {
    assert!(run(&["help"]).ok().contains("Usage: ttrpc"));
    assert!(run(&["help", "call"]).ok().contains("Usage: ttrpc call"));
}

#[test]
fn help_fits() {
    for command in ["--help", "call --help", "shims --help", "load --help", "trace --help"] {
        let arguments: Vec<_> = command.split(' ').collect();
        let text = on_terminal(&arguments, &[]);
        let plain = anstream::adapter::strip_str(&text).to_string();
        // Examples and the synopsis stand as they are.
        let (options, _) = plain.split_once("Example").unwrap();
        for line in options.lines().filter(|line| !line.starts_with("Usage:")) {
            assert!(line.chars().count() <= usize::from(COLUMNS), "{command}: {line}");
        }
    }
}

#[test]
fn requests_are_typed_line_by_line_and_a_mistake_ends_nothing() {
    let server = conformance();
    let (mut here, there) = terminal();
    let mut child = ttrpc(&["call", &server.address, "Exchange"])
        .stdin(there)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let line = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        line
    };
    assert!(line(&mut stderr).contains("Ctrl-D ends the stream"));
    for (typed, reply) in [
        ("sequence=1 payload=aGk=", "{\"sequence\":\"1\",\"payload\":\"aGk=\"}\n"),
        ("{\"sequence\": 2}", "{\"sequence\":\"2\"}\n"),
    ] {
        writeln!(here, "{typed}").unwrap();
        assert_eq!(line(&mut stdout), reply);
    }
    writeln!(here, "sequenze=3").unwrap();
    assert!(line(&mut stderr).contains("it has: sequence, payload"));
    writeln!(here, "{{\"sequence\": \"many\"}}").unwrap();
    assert!(line(&mut stderr).contains("does not fit"));
    writeln!(here, "sequence=4").unwrap();
    assert_eq!(line(&mut stdout), "{\"sequence\":\"4\"}\n");
    // Ctrl-D.
    here.write_all(&[4]).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn typed_words_are_those_of_a_shell_and_json_may_take_several_lines() {
    let server = conformance();
    let (mut here, there) = terminal();
    let mut command = ttrpc(&["call", &server.address, "Exchange"]);
    let command = command.stdin(there).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    notes.next().unwrap().unwrap();
    for (typed, reply) in [
        ("payload=\"aGk=\" 'sequence=5'", "{\"sequence\":\"5\",\"payload\":\"aGk=\"}"),
        ("{\n\"sequence\":\n6\n}", "{\"sequence\":\"6\"}"),
    ] {
        writeln!(here, "{typed}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), reply);
    }
    // An empty line gives up what has no end.
    write!(here, "{{\"sequence\":\n\n").unwrap();
    let note = notes.next().unwrap().unwrap();
    assert!(note.contains("not whole"), "{note}");
    writeln!(here, "sequence=7").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "{\"sequence\":\"7\"}");
    // Ctrl-D.
    here.write_all(&[4]).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_single_request_is_typed_without_an_end() {
    let server = conformance();
    let (mut here, there) = terminal();
    let mut command = ttrpc(&["call", &server.address, "Echo", "-"]);
    let command = command.stdin(there).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    writeln!(here, "payload=aGk=").unwrap();
    let ran: Ran = child.wait_with_output().unwrap().into();
    assert!(ran.stderr.contains("type the ttrpc.conformance.v1.EchoRequest"), "{ran:?}");
    assert_eq!(ran.json()["payload"], "aGk=");
}

#[test]
fn a_prompt_stands_behind_replies() {
    let server = conformance();
    let (mut here, there) = terminal();
    let mut command = ttrpc(&["call", &server.address, "Exchange"]);
    let command = command.env("TERM", "xterm").stdin(there.try_clone().unwrap());
    let mut child = command.stdout(there.try_clone().unwrap()).stderr(there).spawn().unwrap();
    let mut text = String::new();
    let mut read_until = |here: &mut File, wanted: &str| {
        while !text.contains(wanted) {
            let mut bytes = [0; 1000];
            let len = here.read(&mut bytes).unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        text.clear();
    };
    read_until(&mut here, "\n> ");
    writeln!(here, "{{").unwrap();
    read_until(&mut here, "… ");
    writeln!(here, "\"sequence\": 1}}").unwrap();
    read_until(&mut here, "{\"sequence\":\"1\"}\r\n> ");
    // Ctrl-D.
    here.write_all(&[4]).unwrap();
    read_until(&mut here, "\r\u{1b}[K");
    assert!(child.wait().unwrap().success());
}

#[test]
fn watching_asks_again_until_it_is_interrupted() {
    let state = tempfile::tempdir().unwrap();
    let mut child =
        ttrpc(&["shims", "--watch=10ms", "--json", "--state", state.path().to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        assert_eq!(lines.next().unwrap().unwrap(), "[]");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_manual_has_every_command() {
    let page = run(&["man"]).ok();
    for wanted in [".TH ttrpc 1", ".SH SHIMS", ".SH LOAD", "Exit codes", "\\-\\-rate"] {
        assert!(page.contains(wanted), "{wanted} is not in the page");
    }
    assert!(page.contains("SHIMS DEBUG"), "commands of commands have a section, too");
    assert!(!page.contains("(1)"), "there is no other page that it could name");
}
