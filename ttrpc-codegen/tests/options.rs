//! The builder's options, the plugin, and the generator in a prost-build set-up of one's own.

use std::fs;

use prost::Message;
use prost_types::{
    FileDescriptorSet,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse},
};
use ttrpc_codegen::{Builder, ServiceGenerator, configure, plugin};

const PROTO: &str = "tests/protos/other/deep.proto";
const INCLUDES: [&str; 1] = ["tests/protos"];

fn generated(builder: Builder) -> String {
    let folder = tempfile::tempdir().unwrap();
    builder.out_dir(folder.path()).compile_protos(&[PROTO], &INCLUDES).unwrap();
    fs::read_to_string(folder.path().join("other.deep.nested.rs")).unwrap()
}

fn plugin_request(parameter: &str) -> Vec<u8> {
    let files = protox::compile([PROTO], INCLUDES).unwrap();
    let request = CodeGeneratorRequest {
        file_to_generate: vec!["other/deep.proto".to_owned()],
        parameter: Some(parameter.to_owned()),
        proto_file: files.file,
        ..CodeGeneratorRequest::default()
    };
    request.encode_to_vec()
}

fn plugin_response(parameter: &str) -> CodeGeneratorResponse {
    let response = plugin::run(&plugin_request(parameter)).unwrap();
    CodeGeneratorResponse::decode(&response[..]).unwrap()
}

#[test]
fn each_side_can_be_left_out() {
    let both = generated(configure());
    assert!(both.contains("struct ReferenceClient") && both.contains("struct ReferenceServer"));
    let client = generated(configure().server(false));
    assert!(client.contains("struct ReferenceClient") && !client.contains("ReferenceServer"));
    assert!(!client.contains("trait Reference"));
    let server = generated(configure().client(false));
    assert!(!server.contains("ReferenceClient") && server.contains("trait Reference"));
}

#[test]
fn prosts_options_are_handed_through() {
    let attribute = |config: &mut prost_build::Config| {
        config.type_attribute("Thing", "#[derive(Marked)]");
    };
    assert!(generated(configure().prost(attribute)).contains("#[derive(Marked)]"));
    let own = generated(configure().prost_config(prost_build::Config::new()));
    assert!(own.contains("::prost::Message") && !own.contains("::ttrpc::prost"));
}

#[test]
fn a_file_descriptor_set_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set.bin");
    generated(configure().file_descriptor_set_path(&path));
    let set = FileDescriptorSet::decode(&fs::read(&path).unwrap()[..]).unwrap();
    assert_eq!(set.file[0].package(), "other.deep.nested");
}

#[test]
fn the_generator_works_in_a_prost_build_set_up_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let files = protox::compile([PROTO], INCLUDES).unwrap();
    prost_build::Config::new()
        .out_dir(folder.path())
        .service_generator(Box::new(ServiceGenerator::new()))
        .compile_fds(files)
        .unwrap();
    let output = fs::read_to_string(folder.path().join("other.deep.nested.rs")).unwrap();
    assert!(output.contains("pub struct ReferenceClient"));
}

#[test]
fn the_plugin_gives_what_the_library_gives() {
    let response = plugin_response("");
    assert_eq!(response.error, None);
    assert_eq!(response.file.len(), 1);
    assert_eq!(response.file[0].name(), "other.deep.nested.rs");
    assert_eq!(response.file[0].content(), generated(configure()));
}

#[test]
fn the_plugin_program_answers_on_standard_output() {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };
    let mut program = Command::new(env!("CARGO_BIN_EXE_protoc-gen-ttrpc-rust"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(&plugin_request("no_client")).unwrap();
    let output = program.wait_with_output().unwrap();
    assert!(output.status.success());
    let response = CodeGeneratorResponse::decode(&output.stdout[..]).unwrap();
    assert_eq!(response, plugin_response("no_client"));
    assert!(!response.file[0].content().contains("ReferenceClient"));
}

#[test]
fn the_plugin_says_what_is_wrong_in_its_response() {
    let response = plugin_response("nonsense");
    assert!(response.error().contains("unknown parameter `nonsense`"), "{response:?}");
    assert!(response.file.is_empty());
}

#[test]
fn outside_of_a_build_script_the_missing_folder_is_named() {
    let error = configure().compile_protos(&[PROTO], &INCLUDES).unwrap_err().to_string();
    assert!(error.contains("OUT_DIR"), "{error}");
}
