//! Files of an edition come as descriptor sets, and become what they would be in proto3.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use prost::Message;
use prost_types::{
    FileDescriptorSet,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse},
};
use tempfile::TempDir;
use ttrpc_codegen::{DescriptorSet, configure, plugin};

use crate::{folder_of, read};

/// `protoc --include_imports --descriptor_set_out=editions.bin editions_2023.proto`, of protoc 35.1.
const EDITIONS: &[u8] = include_bytes!("../language/editions.bin");

fn generated(set: impl Into<DescriptorSet>) -> String {
    // In this folder, so that this project's rustfmt.toml counts, as it does for the plugin.
    let folder = tempfile::tempdir_in("tests").unwrap();
    configure().out_dir(folder.path()).compile_fds(set).unwrap();
    read(&folder, "editions.v1.rs") + &read(&folder, "other.v1.rs")
}

/// The fields of a struct in generated code, each with its attribute, without whitespace.
fn fields(code: &str, name: &str) -> String {
    let (_, body) = code.split_once(&format!("pub struct {name} {{")).unwrap();
    let (body, _) = body.split_once("\n}").or_else(|| body.split_once("\n    }")).unwrap();
    body.split_whitespace().collect()
}

#[track_caller]
fn assert_has(fields: &str, expected: &[&str]) {
    for each in expected {
        assert!(fields.contains(each), "{each}: {fields}");
    }
}

#[test]
fn presence_is_that_of_the_features() {
    let code = generated(EDITIONS);
    assert_has(
        &fields(&code, "Presence"),
        &[
            "#[prost(int32,optional,tag=\"1\")]pubexplicit:::core::option::Option<i32>",
            "#[prost(int32,tag=\"2\")]pubimplicit:i32",
            "#[prost(int32,required,tag=\"3\")]pubrequired:i32",
            "#[prost(string,optional,tag=\"4\",default=\"hello\")]",
            "pubkind:::core::option::Option<i32>",
            "oneof=\"presence::Choice\"",
        ],
    );
    assert_has(
        &fields(&code, "Implicit"),
        &["pubplain:i32", "pubexplicit:::core::option::Option<i32>", "pubmessage:::core::option::"],
    );
    assert_has(
        &fields(&code, "Nested"),
        &["pubplain:bool", "pubexplicit:::core::option::Option<bool>"],
    );
}

#[test]
fn repeated_fields_are_packed_as_the_features_say() {
    let fields = fields(&generated(EDITIONS), "Repeated");
    assert_has(
        &fields,
        &[
            "#[prost(int32,repeated,tag=\"1\")]",
            "#[prost(int32,repeated,packed=\"false\",tag=\"2\")]",
            "#[prost(string,repeated,tag=\"3\")]",
        ],
    );
}

#[test]
fn delimited_messages_are_groups_and_maps_have_none() {
    let fields = fields(&generated(EDITIONS), "Delimited");
    assert_has(
        &fields,
        &[
            "#[prost(group,optional,tag=\"1\")]",
            "#[prost(message,optional,tag=\"2\")]",
            "#[prost(group,repeated,tag=\"3\")]",
            "#[prost(map=\"int32,message\",tag=\"4\")]",
        ],
    );
}

#[test]
fn services_of_a_descriptor_set_are_generated() {
    assert!(generated(EDITIONS).contains("pub struct EditionsClient"));
}

#[test]
fn a_set_that_prost_has_decoded_has_lost_its_features() {
    let set = FileDescriptorSet::decode(EDITIONS).unwrap();
    let error = configure().out_dir("unused").compile_fds(set).unwrap_err().to_string();
    assert!(
        error.contains("editions_2024.proto: the descriptor does not say its edition"),
        "{error}"
    );
    assert!(error.contains("give the encoded descriptor set"), "{error}");
}

/// Replaces bytes that are there once.
fn replaced(set: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at: Vec<_> = (0..set.len()).filter(|at| set[*at..].starts_with(old)).collect();
    assert_eq!(at.len(), 1, "{old:?} is there {} times", at.len());
    [&set[..at[0]], new, &set[at[0] + old.len()..]].concat()
}

#[test]
fn an_edition_and_a_feature_that_are_unknown_are_named() {
    // The field `edition`, whose number is 14, and 1001, which becomes 1002.
    let set = replaced(EDITIONS, b"\x70\xe9\x07", b"\x70\xea\x07");
    let error = configure().out_dir("unused").compile_fds(set).unwrap_err().to_string();
    assert_eq!(
        error,
        "editions_2024.proto: the edition with the number 1002 is not known here; there are 2023 and 2024"
    );
    // The file's options, which hold features alone: `field_presence` is 2, and becomes 9.
    let set = replaced(EDITIONS, b"\x42\x07\x92\x03\x04\x08\x02", b"\x42\x07\x92\x03\x04\x08\x09");
    let error = configure().out_dir("unused").compile_fds(set).unwrap_err().to_string();
    assert_eq!(
        error,
        "editions_2024.proto: the feature `field_presence` has the value 9, for which prost has no form"
    );
}

#[test]
fn what_is_no_descriptor_set_is_refused() {
    let error = configure().out_dir("unused").compile_fds(&b"\x0a\xff"[..]).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("no encoded `google.protobuf.FileDescriptorSet`"), "{error}");
}

/// The bytes of a length-delimited field of this number.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

#[test]
fn the_plugin_generates_the_same_from_editions() {
    let request = CodeGeneratorRequest {
        file_to_generate: vec!["editions_2023.proto".to_owned(), "editions_2024.proto".to_owned()],
        ..CodeGeneratorRequest::default()
    };
    let mut request = request.encode_to_vec();
    // As in the set, under another number.
    let mut set = EDITIONS;
    while !set.is_empty() {
        let file: Vec<u8> = {
            set = &set[1..];
            let length = prost::encoding::decode_varint(&mut set).unwrap() as usize;
            let (file, rest) = set.split_at(length);
            set = rest;
            file.to_vec()
        };
        request.extend(field(15, &file));
    }
    let response = CodeGeneratorResponse::decode(&*plugin::run(&request).unwrap()).unwrap();
    assert_eq!(response.error, None);
    assert_eq!(response.supported_features(), 3, "optional fields and editions");
    let whole: String = response.file.iter().map(|file| file.content()).collect();
    assert_eq!(whole, generated(EDITIONS));
}

/// A protoc that writes this set, and its arguments into the file `arguments` of the folder.
fn protoc(folder: &TempDir, set: &[u8]) -> std::path::PathBuf {
    let path = folder.path().join("protoc");
    fs::write(folder.path().join("set.bin"), set).unwrap();
    let script = format!(
        "#!/bin/sh\ncd '{}'\nprintf '%s\\n' \"$@\" >arguments\n\
         for each; do case $each in --descriptor_set_out=*) cp set.bin \"${{each#*=}}\" ;; esac; done\n",
        folder.path().display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_protoc_parses_in_place_of_the_parser() {
    let folder = folder_of(&[("protos/editions_2023.proto", "edition = \"2023\";")]);
    let includes = folder.path().join("protos");
    configure()
        .protoc(protoc(&folder, EDITIONS))
        .out_dir(folder.path())
        .compile_protos(&["editions_2023.proto"], &[&includes])
        .unwrap();
    let code = read(&folder, "editions.v1.rs");
    assert!(code.contains("pub struct EditionsClient"), "{code}");
    let arguments = read(&folder, "arguments");
    let include = format!("--proto_path={}\n", includes.display());
    assert!(
        arguments.contains(&include) && arguments.ends_with("editions_2023.proto\n"),
        "{arguments}"
    );
}

#[test]
fn what_protoc_says_is_the_error() {
    let folder = folder_of(&[("a.proto", "")]);
    let path = folder.path().join("protoc");
    fs::write(&path, "#!/bin/sh\necho 'a.proto:1:1: bad luck' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let error = |protoc: &Path| {
        let builder = configure().protoc(protoc).out_dir(folder.path());
        builder.compile_protos(&["a.proto"], &[folder.path()]).unwrap_err().to_string()
    };
    assert_eq!(error(&path), format!("{} says: a.proto:1:1: bad luck", path.display()));
    assert!(error(Path::new("/no/such/protoc")).starts_with("running /no/such/protoc: "));
}
