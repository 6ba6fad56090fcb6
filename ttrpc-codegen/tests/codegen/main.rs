//! What is generated, and what is said where nothing can be. One file for each subject.

mod any_names;
mod errors;
mod files;
mod golden;
mod golden_code;
mod names;
mod options;

use std::{env, process::Command};

/// Runs a test of this program again, in a process of its own, and returns what that prints.
#[track_caller]
fn run_again(test: &str, prepare: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    prepare(&mut command);
    let output = command.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
    printed
}
