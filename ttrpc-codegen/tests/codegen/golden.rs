//! What is generated for a reference .proto is kept in golden files, and compared with them here.

use std::{env, fs, path::Path, process::Command};

use crate::has_rustfmt;

const GOLDEN: &str = "tests/golden";
const FILES: [&str; 2] = ["reference.v1.rs", "other.deep.nested.rs"];

fn generate(folder: &Path) {
    ttrpc_codegen::configure()
        .out_dir(folder)
        .compile_protos(&["reference.proto", "other/deep.proto"], &["tests/protos"])
        .unwrap();
}

/// After a wanted change: `UPDATE_GOLDEN=1 cargo test -p ttrpc-tokio-codegen`, and look at the difference.
#[test]
fn the_output_is_the_golden_one() {
    if !has_rustfmt() {
        return;
    }
    if env::var_os("UPDATE_GOLDEN").is_some() {
        return generate(Path::new(GOLDEN));
    }
    // In this folder, so that this project's rustfmt.toml counts.
    let folder = tempfile::tempdir_in("tests").unwrap();
    generate(folder.path());
    for name in FILES {
        let golden = fs::read_to_string(Path::new(GOLDEN).join(name)).unwrap();
        let output = fs::read_to_string(folder.path().join(name)).unwrap();
        for (line, (golden, output)) in (1..).zip(golden.lines().zip(output.lines())) {
            assert_eq!(golden, output, "{name}:{line}; after a wanted change set UPDATE_GOLDEN=1");
        }
        assert_eq!(golden.len(), output.len(), "{name}; after a wanted change set UPDATE_GOLDEN=1");
    }
}

#[test]
fn the_golden_code_is_formatted_as_rustfmt_does_it() {
    if !has_rustfmt() {
        return;
    }
    for edition in ["2021", "2024"] {
        let rustfmt = Command::new("rustfmt")
            .args(["--check", "--edition", edition])
            .args(FILES.map(|name| format!("{GOLDEN}/{name}")))
            .output()
            .unwrap();
        assert!(rustfmt.status.success(), "{}", String::from_utf8_lossy(&rustfmt.stdout));
    }
}
