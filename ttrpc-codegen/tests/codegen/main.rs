//! What is generated, and what is said where nothing can be. One file for each subject.

mod any_names;
mod editions;
mod errors;
mod files;
mod golden;
mod golden_code;
mod language;
mod names;
mod options;

use std::{env, fs, process::Command};

use tempfile::TempDir;
use ttrpc_codegen::{Builder, Error, configure};

/// What errors of the parser end with.
const WAYS_OUT: &str = "(where protoc takes the file: set PROTOC to protoc's path, or in build.rs call \
                        `configure().protoc(path)`, or generate from a descriptor set with \
                        `configure().compile_fds(set)`)";

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

/// Whether there is a rustfmt. A minimal toolchain has none, or only rustup's stand-in, which fails. Code is
/// generated without formatting then.
fn has_rustfmt() -> bool {
    let output = Command::new("rustfmt").arg("--version").output();
    let has_rustfmt = output.is_ok_and(|output| output.status.success());
    if !has_rustfmt {
        println!("skipped: there is no rustfmt");
    }
    has_rustfmt
}

/// A folder with these files.
fn folder_of(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// Generates from the first of these files, and gives back the folder with all.
fn compile(builder: Builder, files: &[(&str, &str)]) -> Result<TempDir, Error> {
    let folder = folder_of(files);
    builder.out_dir(folder.path()).compile_protos(&[files[0].0], &[folder.path()])?;
    Ok(folder)
}

fn generate(builder: Builder, files: &[(&str, &str)]) -> TempDir {
    compile(builder, files).unwrap()
}

fn error_of(files: &[(&str, &str)]) -> String {
    let error = compile(configure(), files).unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string(), "unwrapping prints the same sentence");
    error.to_string()
}

fn read(folder: &TempDir, name: &str) -> String {
    fs::read_to_string(folder.path().join(name)).unwrap()
}
