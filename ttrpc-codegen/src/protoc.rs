//! protoc in the place of the parser.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use prost::Message;
use prost_types::FileDescriptorSet;
use protox::file::{FileResolver, GoogleFileResolver};

use crate::Error;

/// protobuf's own files, of which the descriptors are built in.
const BUILT_IN: [&str; 12] = [
    "google/protobuf/descriptor.proto",
    "google/protobuf/any.proto",
    "google/protobuf/source_context.proto",
    "google/protobuf/type.proto",
    "google/protobuf/api.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/wrappers.proto",
    "google/protobuf/compiler/plugin.proto",
];

/// The protoc that the environment asks for.
pub(crate) fn from_environment() -> Option<PathBuf> {
    if env::var_os("OUT_DIR").is_some() {
        println!("cargo:rerun-if-env-changed=PROTOC");
    }
    env::var_os("PROTOC").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Parses the files and all that they import; an encoded descriptor set.
///
/// # Errors
/// With what protoc says.
pub(crate) fn parse(
    protoc: &Path,
    protos: &[impl AsRef<Path>],
    includes: &[&Path],
) -> Result<Vec<u8>, Error> {
    let folder = tempfile::tempdir().map_err(|error| Error::io("making a folder", error))?;
    // What protoc finds in no folder is looked up here: not every protoc has protobuf's files beside it.
    let (built_in, output) = (folder.path().join("built-in"), folder.path().join("output"));
    std::fs::write(&built_in, built_in_set())
        .map_err(|error| Error::io(format_args!("writing {}", built_in.display()), error))?;
    let argument = |name: &str, value: &Path| {
        let mut argument = OsString::from(name);
        argument.push(value);
        argument
    };
    let mut command = Command::new(protoc);
    command
        .args(["--include_imports", "--include_source_info"])
        .arg(argument("--descriptor_set_in=", &built_in))
        .arg(argument("--descriptor_set_out=", &output))
        .args(includes.iter().map(|include| argument("--proto_path=", include)))
        .args(protos.iter().map(|proto| proto.as_ref()));
    let running = |error| Error::io(format_args!("running {}", protoc.display()), error);
    let said = command.output().map_err(running)?;
    if !said.status.success() {
        let text = String::from_utf8_lossy(&said.stderr);
        return Err(Error::new(format!("{} says: {}", protoc.display(), text.trim())));
    }
    std::fs::read(&output)
        .map_err(|error| Error::io(format_args!("reading what {} made", protoc.display()), error))
}

fn built_in_set() -> Vec<u8> {
    let files = GoogleFileResolver::new();
    let file = BUILT_IN.iter().filter_map(|name| files.open_file(name).ok());
    let file = file.map(|file| file.file_descriptor_proto().clone()).collect();
    FileDescriptorSet { file }.encode_to_vec()
}
