//! Generates the protocols of the features that are on. Needs no protoc.

use std::{env, fs, path::PathBuf};

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};

/// Files of which no shim serves anything: containerd's shims read them, or send them elsewhere.
const NOT_SERVED: [&str; 4] =
    ["bootstrap.proto", "events.proto", "image_events.proto", "publish.proto"];

/// Which files belong to which feature.
const GROUPS: [(&str, &[&str]); 7] = [
    ("BOOTSTRAP", &["bootstrap"]),
    ("CGROUPS", &["cgroups_v1", "cgroups_v2"]),
    ("CRI", &["cri"]),
    ("EVENTS", &["events", "image_events", "publish", "types"]),
    ("RUNC", &["runc", "runc_legacy", "runtimeoptions"]),
    ("SANDBOX", &["sandbox", "types"]),
    ("TASK", &["task", "task_types", "types"]),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let is_on = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    let mut files: Vec<String> = Vec::new();
    for (_, names) in GROUPS.iter().filter(|(feature, _)| is_on(feature)) {
        files.extend(names.iter().map(|name| format!("proto/{name}.proto")));
    }
    files.sort();
    files.dedup();
    if files.is_empty() {
        return Ok(());
    }
    let descriptors = out_dir.join("containerd.bin");
    let served = out_dir.join("shim.bin");
    let mut builder = ttrpc_codegen::configure()
        .include_file("containerd.rs")
        .file_descriptor_set_path(&descriptors)
        // Programs of which there are many on a machine have it.
        .file_descriptor_set_source_info(false);
    if is_on("TASK") {
        // The service exists in two packages that are equal in all else. Messages of the one are those of the other.
        let task = fs::read_to_string("proto/task.proto")?;
        let v2 = out_dir.join("task_v2.proto");
        fs::write(&v2, task.replace("package containerd.task.v3;", "package containerd.task.v2;"))?;
        // Cargo runs this again when a file is newer than its last run.
        let modified = fs::metadata("proto/task.proto")?.modified()?;
        fs::File::options().append(true).open(&v2)?.set_modified(modified)?;
        files.push(v2.display().to_string());
        builder = builder.prost(|config| {
            let messages =
                task.lines().filter_map(|line| line.strip_prefix("message ")?.split(' ').next());
            for message in messages {
                let name = rust_name(message);
                config.extern_path(
                    format!(".containerd.task.v2.{message}"),
                    format!("crate::proto::containerd::task::v3::{name}"),
                );
            }
        });
    }
    builder.compile_protos(&files, &[PathBuf::from("proto"), out_dir])?;
    let mut set = FileDescriptorSet::decode(fs::read(descriptors)?.as_slice())?;
    set.file.retain(|file| !NOT_SERVED.contains(&file.name()));
    set.file.iter_mut().flat_map(|file| &mut file.message_type).for_each(leave_names_out);
    fs::write(served, set.encode_to_vec())?;
    Ok(())
}

/// Leaves out the names in JSON that follow from the fields' own, which readers of a descriptor make by themselves.
fn leave_names_out(message: &mut DescriptorProto) {
    for field in &mut message.field {
        field
            .json_name
            .take_if(|name| *name == json_name(field.name.as_deref().unwrap_or_default()));
    }
    message.nested_type.iter_mut().for_each(leave_names_out);
}

/// The name in JSON of a field of which the .proto file says none.
fn json_name(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        name + &initial.to_uppercase() + rest
    })
}

/// The name of a message's type, which has no two capital letters one after the other.
fn rust_name(message: &str) -> String {
    message.replace("IO", "Io")
}
