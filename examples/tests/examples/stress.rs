//! What `ttrpc-stress` tells people and scripts.

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

/// Loads that end after a number of calls and not after a time.
const FULL: [&str; 4] = ["--shapes", "fill", "--calls", "600"];
/// What the largest socket buffer holds without being full.
const TINY: [&str; 6] = ["--send-buffer", "1000000", "--request-size", "10", "--reply-size", "10"];

fn stress<'a>(args: impl IntoIterator<Item = &'a str>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ttrpc-stress")).args(args).output().unwrap()
}

#[test]
fn nonsense_ends_with_a_sentence_and_exit_code_2() {
    let all = [
        "--callers 0",
        "--callers -1",
        "--callers 1000000",
        "--connections 2 --callers 1",
        "--connections 100000000 --callers 100000000",
        "--in-flight 0",
        "--calls 0",
        "--calls 1 --duration 1",
        "--duration 0",
        "--duration nan",
        "--reply-size 4194304",
        "--request-size 4194304",
        "--send-buffer 0",
        "--send-buffer 99999999999",
        "--queue-frames 0",
        "--queue-bytes 0",
        "--handlers 0",
        "--stall-timeout 0",
        "--shapes round",
        "--json /nowhere/results.json",
        "--connect unix:///nowhere/server.sock",
        "--connect tcp://127.0.0.1:1",
        "--listen /nowhere/server.sock",
        "--listen a --connect b",
        "--fast",
    ];
    for args in all {
        let output = stress(args.split(' '));
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args}: {text}");
        assert!(text.starts_with("ttrpc-stress: ") && text.ends_with(".\n"), "{args}: {text}");
        assert_eq!(text.lines().count(), 1, "{args}: {text}");
        assert!(output.stdout.is_empty(), "{args}: nothing is run");
    }
}

#[test]
fn a_run_whose_buffers_were_full_passes_in_plain_lines_and_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.json");
    let output = stress(FULL.into_iter().chain(["--json", path.to_str().unwrap()]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
    assert!(text.ends_with("PASSED: every verdict is as it must be, with 600 calls.\n"), "{text}");
    let results: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(results["verdict"], "pass");
    let fill = &results["shapes"][0];
    assert_eq!(fill["endings"]["OK"], 600, "{fill:#}");
    for side in ["client", "server"] {
        assert!(fill[side]["refused_writes"].as_u64().unwrap() > 0, "{fill:#}");
        assert!(fill[side]["most_unsent_bytes"].as_u64().unwrap() > 0, "{fill:#}");
    }
}

#[test]
fn a_run_whose_buffers_never_filled_is_inconclusive() {
    let output = stress(FULL.into_iter().chain(TINY));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("INCONCLUSIVE: not everything could be shown, with "), "{text}");
}

#[test]
fn a_control_without_enough_load_is_inconclusive() {
    let load = ["--shapes", "control", "--calls", "20"];
    let output = stress(load.into_iter().chain(TINY));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
}
