//! The programs that run for long, run for a short while.

use std::process::Command;

/// Runs a program, whose output shows where this fails.
fn passes(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it can be run");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}", output.status);
}

#[test]
fn whatever_peers_do_memory_stays_within_its_bound() {
    passes(env!("CARGO_BIN_EXE_ttrpc-memory"), &["--short"]);
}

#[test]
fn killed_processes_leave_nothing_and_harm_nobody() {
    passes(env!("CARGO_BIN_EXE_ttrpc-kill"), &["--times", "40"]);
}

#[test]
fn after_everything_at_once_nothing_is_left() {
    passes(env!("CARGO_BIN_EXE_ttrpc-soak"), &["--minutes", "0.2"]);
}

/// How late calls of a storm may end: what a machine that is busy takes says nothing of the library.
const LATENESS: [&str; 2] = ["--lateness", "600"];

#[test]
fn clients_that_reconnect_lose_and_repeat_nothing_whatever_happens_to_their_server() {
    let seconds = ["--seconds", "8"];
    passes(env!("CARGO_BIN_EXE_ttrpc-storm"), &[&seconds[..], &LATENESS].concat());
}

/// A server that executes each call twice, and one that answers without executing any.
#[test]
fn what_a_storm_must_not_pass_it_does_not() {
    for (times, fault) in [("2", "was executed twice"), ("0", "was answered and not executed")] {
        let mut storm = Command::new(env!("CARGO_BIN_EXE_ttrpc-storm"));
        storm.args(["--seconds", "2", "--times", times]).args(LATENESS);
        let output = storm.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(fault), "{error}");
    }
}
