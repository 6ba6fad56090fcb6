//! What is generated for a reference .proto is kept in golden files, and compared with them here.

use std::{env, fs, path::Path};

const GOLDEN: &str = "tests/golden";

fn generate(folder: &Path) {
    ttrpc_codegen::configure()
        .out_dir(folder)
        .compile_protos(&["tests/protos/reference.proto"], &["tests/protos"])
        .unwrap();
}

/// After a wanted change: `UPDATE_GOLDEN=1 cargo test -p ttrpc-codegen`, and look at the difference.
#[test]
fn the_output_is_the_golden_one() {
    if env::var_os("UPDATE_GOLDEN").is_some() {
        return generate(Path::new(GOLDEN));
    }
    let folder = tempfile::tempdir().unwrap();
    generate(folder.path());
    for name in ["reference.v1.rs", "other.deep.nested.rs"] {
        let golden = fs::read_to_string(Path::new(GOLDEN).join(name)).unwrap();
        let output = fs::read_to_string(folder.path().join(name)).unwrap();
        for (line, (golden, output)) in (1..).zip(golden.lines().zip(output.lines())) {
            assert_eq!(golden, output, "{name}:{line}; after a wanted change set UPDATE_GOLDEN=1");
        }
        assert_eq!(golden.len(), output.len(), "{name}; after a wanted change set UPDATE_GOLDEN=1");
    }
}
