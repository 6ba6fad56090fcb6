//! Compiles the built-in schemas into one descriptor set, comments included.

use std::{env, fs, path::PathBuf};

/// Protobuf's own files: servers leave them out of what they tell.
const WELL_KNOWN: [&str; 8] = [
    "google/protobuf/any.proto",
    "google/protobuf/descriptor.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/wrappers.proto",
];

fn main() {
    println!("cargo:rerun-if-changed=proto");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let write = |name: &str, text: &str| {
        fs::write(out_dir.join(name), text).expect("OUT_DIR can be written");
    };
    for (name, text) in ttrpc_containerd::FILES {
        write(name, text);
        // The service Task exists in two packages that are equal in all else.
        if *name == "task.proto" {
            let v2 = text.replace("package containerd.task.v3;", "package containerd.task.v2;");
            assert_ne!(*text, v2, "task.proto names its package");
            write("task_v2.proto", &v2);
        }
    }
    let mut compiler = protox::Compiler::new(["proto".into(), out_dir.clone()])
        .expect("the folders of the schemas are there");
    compiler.include_imports(true).include_source_info(true);
    let names = ttrpc_containerd::FILES.iter().map(|(name, _)| *name);
    for name in WELL_KNOWN.into_iter().chain(names).chain(["task_v2.proto", "nri.proto"]) {
        compiler.open_file(name).unwrap_or_else(|error| panic!("{error:?}"));
    }
    fs::write(out_dir.join("builtin.bin"), compiler.encode_file_descriptor_set())
        .expect("OUT_DIR can be written");
}
