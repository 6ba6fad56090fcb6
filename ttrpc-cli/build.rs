//! Compiles the built-in schemas into one descriptor set, comments included.

use std::{env, fs, path::PathBuf};

/// In `proto/`, without their extension.
const FILES: [&str; 12] = [
    "bootstrap",
    "cgroups_v1",
    "cgroups_v2",
    "events",
    "events_service",
    "nri",
    "runc",
    "runtimeoptions",
    "sandbox",
    "task",
    "task_types",
    "types",
];

fn main() {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // The service Task exists in two packages that are equal in all else.
    let task = fs::read_to_string("proto/task.proto").expect("proto/task.proto can be read");
    let task_v2 = task.replace("package containerd.task.v3;", "package containerd.task.v2;");
    assert_ne!(task, task_v2, "proto/task.proto names its package");
    fs::write(out_dir.join("task_v2.proto"), task_v2).expect("OUT_DIR can be written");

    let mut compiler = protox::Compiler::new(["proto".into(), out_dir.clone()])
        .expect("the folders of the schemas are there");
    compiler.include_imports(true).include_source_info(true);
    for file in FILES.iter().chain(&["task_v2"]) {
        compiler.open_file(format!("{file}.proto")).unwrap_or_else(|error| panic!("{error:?}"));
    }
    fs::write(out_dir.join("builtin.bin"), compiler.encode_file_descriptor_set())
        .expect("OUT_DIR can be written");
}
