//! The builder's options, the plugin, and the generator in a prost-build set-up of one's own.

use std::fs;

use prost::Message;
use prost_types::{
    FileDescriptorSet,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse},
};
use ttrpc_codegen::{Builder, ServiceGenerator, configure, plugin};

use crate::{compile, error_of, folder_of, generate, has_rustfmt, read, run_again};

const PROTO: &str = "tests/protos/other/deep.proto";
const INCLUDES: [&str; 1] = ["tests/protos"];

fn generated(builder: Builder) -> String {
    // In this folder, so that this project's rustfmt.toml counts, as it does for the plugin.
    let folder = tempfile::tempdir_in("tests").unwrap();
    builder.out_dir(folder.path()).compile_protos(&[PROTO], &INCLUDES).unwrap();
    fs::read_to_string(folder.path().join("other.deep.nested.rs")).unwrap()
}

/// What protoc asks the plugin.
fn request(file: &str, parameter: &str, files: FileDescriptorSet) -> Vec<u8> {
    let request = CodeGeneratorRequest {
        file_to_generate: vec![file.to_owned()],
        parameter: Some(parameter.to_owned()),
        proto_file: files.file,
        ..CodeGeneratorRequest::default()
    };
    request.encode_to_vec()
}

fn plugin_request(parameter: &str) -> Vec<u8> {
    request("other/deep.proto", parameter, protox::compile([PROTO], INCLUDES).unwrap())
}

fn run_plugin(request: &[u8]) -> CodeGeneratorResponse {
    CodeGeneratorResponse::decode(&*plugin::run(request).unwrap()).unwrap()
}

fn plugin_response(parameter: &str) -> CodeGeneratorResponse {
    run_plugin(&plugin_request(parameter))
}

/// What the plugin generates from the first of these files.
fn plugin_code(files: &[(&str, &str)]) -> String {
    let (folder, wanted) = (folder_of(files), files[0].0);
    let set = protox::compile([wanted], [folder.path()]).unwrap();
    run_plugin(&request(wanted, "", set)).file[0].content().to_owned()
}

/// The code of package `p` from this file.
fn generated_from(builder: Builder, proto: &str) -> String {
    read(&generate(builder, &[("a.proto", proto)]), "p.rs")
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
    assert!(generated(configure().prost(attribute)).contains("derive(Marked"));
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

/// Nobody has looked through the comments before, as the builder does.
#[test]
fn in_a_set_up_of_ones_own_comments_are_no_doctests_either() {
    let proto = "syntax = \"proto3\"; package p;

        // Belongs to nothing.

        // Leads:
        //
        //     indented code
        service S {
          // ```
          // fenced code
          // ```
          rpc Call(M) returns (M);
          // Trails:
          //
          //     more code
        }
        message M {}";
    let folder = folder_of(&[("a.proto", proto)]);
    let files = protox::compile(["a.proto"], [folder.path()]).unwrap();
    prost_build::Config::new()
        .out_dir(folder.path())
        .service_generator(Box::new(ServiceGenerator::new().blocking_client(true)))
        .compile_fds(files)
        .unwrap();
    let code = read(&folder, "p.rs");
    let lines: Vec<_> = code.lines().map(str::trim_start).collect();
    for text in ["indented code", "fenced code", "more code"] {
        let before: Vec<_> =
            lines.windows(2).filter(|pair| pair[1].contains(text)).map(|pair| pair[0]).collect();
        assert!(before.len() > 1, "{text}: {code}");
        assert!(before.iter().all(|line| line.ends_with("```text")), "{text}: {before:?}");
    }
    assert!(!code.contains("Belongs to nothing"), "{code}");
}

#[test]
fn the_clients_methods_step_aside_for_functions_that_it_has() {
    let methods = ["New", "Client", "Clone", "From", "Into", "TryInto"];
    let rpcs = methods.map(|name| format!("rpc {name}(M) returns (M);")).concat();
    let proto = format!("syntax = \"proto3\"; package p; message M {{}} service S {{ {rpcs} }}");
    let code = generated_from(configure().blocking_client(true), &proto);
    for (method, name) in methods.iter().zip(["new", "client", "clone", "from", "into", "try_into"])
    {
        let calls = code.matches(&format!("pub fn {name}_(&self")).count();
        assert_eq!(calls, 2, "one in each client: {name}");
        assert!(code.contains(&format!("async fn {name}(")), "the trait's has its own name");
        assert_eq!(code.matches(&format!("(Self::NAME, \"{method}\"")).count(), 2, "{method}");
    }
}

#[test]
fn what_goes_over_the_wire_has_the_names_of_the_proto() {
    let proto = "syntax = \"proto3\"; message M {} service lower_case { rpc DoIt(M) returns (M); }";
    let code = read(&generate(configure().default_bodies(true), &[("a.proto", proto)]), "_.rs");
    assert_eq!(code.matches("NAME: &'static str = \"lower_case\"").count(), 2, "{code}");
    assert!(code.contains("unimplemented(\"method DoIt\")"), "{code}");
}

/// The macro `async_trait` writes `Box` without a path.
#[test]
fn a_package_with_a_type_called_box_needs_no_macro() {
    let service = "message M {} service S { rpc Call(M) returns (M); }";
    let code = |more: &str| {
        generated_from(configure(), &format!("syntax = \"proto3\"; package p; {service} {more}"))
    };
    for more in ["message Box {}", "enum Box { ZERO = 0; }", "service Box {}"] {
        let code = code(more);
        assert!(!code.contains("#[::ttrpc::async_trait]"), "{more}: {code}");
        assert!(code.contains("::std::boxed::Box<"), "{more}: {code}");
    }
    assert!(code("message Boxes {}").contains("#[::ttrpc::async_trait]"));
}

#[test]
fn the_plugin_gives_what_the_library_gives() {
    let response = plugin_response("");
    assert_eq!(response.error, None);
    // Optional fields of proto3 and editions, without which protoc refuses files that have some.
    assert_eq!(response.supported_features, Some(1 | 2));
    assert_eq!(response.file.len(), 1);
    assert_eq!(response.file[0].name(), "other.deep.nested.rs");
    assert_eq!(response.file[0].content(), generated(configure()));
}

#[test]
fn the_plugin_writes_packages_asked_for_and_reads_what_they_import() {
    let imports = ["reference.proto", "other/deep.proto", "google/protobuf/timestamp.proto"];
    let files = protox::compile(["tests/protos/reference.proto"], INCLUDES).unwrap();
    let names: Vec<_> = files.file.iter().map(|file| file.name().to_owned()).collect();
    assert!(imports.iter().all(|import| names.iter().any(|name| name == import)), "{names:?}");
    let response = run_plugin(&request("reference.proto", "", files));
    assert_eq!(response.file.len(), 1);
    assert_eq!(response.file[0].name(), "reference.v1.rs");
    if has_rustfmt() {
        let golden = fs::read_to_string("tests/golden/reference.v1.rs").unwrap();
        assert_eq!(response.file[0].content(), golden);
    }
}

#[test]
fn the_plugin_leaves_services_of_imports_to_their_own_run() {
    let head = "syntax = \"proto3\"; package p;";
    let service = |name: &str| format!("service {name} {{ rpc Call(M) returns (M); }}");
    let imported = format!("{head} message M {{}} {}", service("Imported"));
    let importing = format!("{head} import \"b.proto\"; {}", service("Wanted"));
    let code = plugin_code(&[("a.proto", &importing), ("b.proto", &imported)]);
    assert!(code.contains("trait Wanted") && code.contains("struct M "), "{code}");
    assert!(!code.contains("Imported"), "{code}");
}

#[test]
fn the_plugin_resolves_defaults_that_are_another_name_of_a_value() {
    let proto = "syntax = \"proto2\"; package p;
        enum Kind { option allow_alias = true; SMALL = 0; BIG = 1; LARGE = 1; }
        message M { optional Kind kind = 1 [default = LARGE]; }";
    let code = plugin_code(&[("a.proto", proto)]);
    assert!(code.contains("default = \"Big\""), "{code}");
}

#[test]
fn the_plugins_parameters_may_have_spaces_between_them() {
    assert_eq!(
        plugin_response(" no_client , default_bodies,"),
        plugin_response("no_client,default_bodies")
    );
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
    for nonsense in ["nonsense", "no_client=1", "runtime_path", "runtime_path="] {
        let response = plugin_response(nonsense);
        let error = format!("unknown parameter `{nonsense}`");
        assert!(response.error().contains(&error), "{response:?}");
        assert!(response.file.is_empty());
    }
}

#[test]
fn custom_options_stay_in_the_file_descriptor_set() {
    let folder = tempfile::tempdir().unwrap();
    let proto = "syntax = \"proto2\"; package p; import \"google/protobuf/descriptor.proto\";
        extend google.protobuf.MessageOptions { optional string note = 50001; }
        message M { option (note) = \"kept by the compiler\"; }";
    let path = folder.path().join("set.bin");
    generated_from(configure().file_descriptor_set_path(&path), proto);
    let (set, note) = (fs::read(path).unwrap(), b"kept by the compiler");
    assert!(set.windows(note.len()).any(|bytes| bytes == note));
}

#[test]
fn source_info_may_be_left_out_of_the_file_descriptor_set() {
    let folder = tempfile::tempdir().unwrap();
    let proto = "syntax = \"proto2\"; package p; import \"google/protobuf/descriptor.proto\";
        extend google.protobuf.MessageOptions { optional string note = 50001; }
        // What M is for.
        message M { option (note) = \"kept by the compiler\"; }";
    let path = folder.path().join("set.bin");
    let builder = configure().file_descriptor_set_path(&path);
    let code = generated_from(builder.file_descriptor_set_source_info(false), proto);
    let (set, note) = (fs::read(path).unwrap(), b"kept by the compiler");
    assert!(set.windows(note.len()).any(|bytes| bytes == note));
    let set = FileDescriptorSet::decode(&*set).unwrap();
    assert!(set.file.iter().all(|file| file.source_code_info.is_none()));
    assert!(code.contains("What M is for."));
}

#[test]
fn a_side_that_is_left_out_takes_no_names() {
    let proto = "syntax = \"proto3\"; package p; message SClient {} service S {}";
    generated_from(configure().client(false), proto);
    assert!(error_of(&[("a.proto", proto)]).contains("`SClient`"));
}

#[test]
fn all_types_of_a_service_take_their_names() {
    for name in ["S", "SServer", "SClient", "SBlocking", "SBlockingServer", "SBlockingClient"] {
        let proto = format!("syntax = \"proto3\"; package p; message {name} {{}} service s {{}}");
        let builder = configure().blocking_client(true).blocking_server(true);
        let error = compile(builder, &[("a.proto", &proto)]).unwrap_err().to_string();
        assert!(error.contains(&format!("both become the Rust type `{name}`")), "{error}");
    }
}

/// In a process of its own, since what is asked for is what it prints and what cargo says to it.
#[test]
fn a_build_script_is_run_again_when_an_import_changes() {
    let folder = tempfile::tempdir().unwrap();
    if std::env::var_os("OUT_DIR").is_some() {
        let protos = ["tests/protos/reference.proto"];
        return configure().out_dir(folder.path()).compile_protos(&protos, &INCLUDES).unwrap();
    }
    let test = "options::a_build_script_is_run_again_when_an_import_changes";
    let output = run_again(test, |command| {
        command.env("OUT_DIR", folder.path());
    });
    let lines: Vec<_> =
        output.lines().filter_map(|line| line.split("cargo:rerun-if-changed=").nth(1)).collect();
    assert_eq!(lines, ["tests/protos/other/deep.proto", "tests/protos/reference.proto"]);
}

#[test]
fn a_program_that_is_no_build_script_prints_nothing_for_cargo() {
    const RUN: &str = "RUN_TO_BE_READ";
    if std::env::var_os(RUN).is_some() {
        let folder = tempfile::tempdir().unwrap();
        return configure().out_dir(folder.path()).compile_protos(&[PROTO], &INCLUDES).unwrap();
    }
    let test = "options::a_program_that_is_no_build_script_prints_nothing_for_cargo";
    let output = run_again(test, |command| {
        command.env(RUN, "1").env_remove("OUT_DIR");
    });
    assert!(!output.contains("cargo:"), "{output}");
}

#[test]
fn a_folder_that_cannot_be_written_into_is_named() {
    let error = configure().out_dir("no/such").compile_protos(&[PROTO], &INCLUDES).unwrap_err();
    assert!(error.to_string().starts_with("writing into no/such: "), "{error}");
}

#[test]
fn outside_of_a_build_script_the_missing_folder_is_named() {
    let error = configure().compile_protos(&[PROTO], &INCLUDES).unwrap_err().to_string();
    assert!(error.contains("OUT_DIR"), "{error}");
    let short_way = ttrpc_codegen::compile_protos(&[PROTO], &INCLUDES).unwrap_err();
    assert_eq!(short_way.to_string(), error);
}

#[test]
fn a_builder_prints_its_options() {
    let text = format!("{:?}", configure().client(false).out_dir("some/folder"));
    assert!(text.starts_with("Builder {") && text.contains("some/folder"), "{text}");
}

#[test]
fn sides_without_async_are_generated_when_they_are_asked_for() {
    let names = ["trait ReferenceBlocking:", "ReferenceBlockingServer", "ReferenceBlockingClient"];
    let has = |code: &str| names.map(|name| code.contains(name));
    assert_eq!(has(&generated(configure())), [false; 3]);
    assert_eq!(has(&generated(configure().blocking_client(true))), [false, false, true]);
    let builder = || configure().client(false).server(false);
    let code = generated(builder().blocking_server(true));
    assert_eq!(has(&code), [true, true, false]);
    for word in ["async fn", "::async_trait", "trait Reference:"] {
        assert!(!code.contains(word), "{word}: {code}");
    }
    let response = plugin_response("no_client,no_server,blocking_server");
    assert_eq!(response.file[0].content(), code);
    let code = generated(builder().blocking_server(true).default_bodies(true));
    assert!(code.contains("unimplemented("), "{code}");
    let response = plugin_response("no_client,no_server,blocking_server,default_bodies");
    assert_eq!(response.file[0].content(), code);
    let code = generated(builder().blocking_client(true));
    let response = plugin_response("no_client,no_server,blocking_client");
    assert_eq!(response.file[0].content(), code);
}

#[test]
fn traits_have_async_fns_without_a_macro_when_they_are_asked_for() {
    let code = generated(configure().client(false).async_fn_in_trait(true));
    assert!(code.contains("-> impl ::core::future::Future<"), "{code}");
    for word in ["::async_trait", "'async_trait", "unimplemented("] {
        assert!(!code.contains(word), "{word}: {code}");
    }
    // Unary calls cost no allocation for their future. Streams have no function that takes one of any type.
    let functions = [".unary_unboxed(", ".unary(", "::Box::pin("];
    assert_eq!(functions.map(|function| code.matches(function).count()), [3, 0, 3], "{code}");
    let response = plugin_response("no_client,async_fn_in_trait");
    assert_eq!(response.file[0].content(), code);
    let code = generated(configure().client(false).async_fn_in_trait(true).default_bodies(true));
    assert!(code.contains("-> impl ::core::future::Future<") && code.contains("unimplemented("));
}

#[test]
fn the_runtime_can_lie_elsewhere() {
    let code = generated(configure().runtime_path("crate::rpc"));
    assert!(!code.contains("::ttrpc"), "{code}");
    for path in [
        "crate::rpc::prost::Message",
        "crate::rpc::Client",
        "#[prost(prost_path = \"crate::rpc::prost\")]",
    ] {
        assert!(code.contains(path), "{path}");
    }
    let response = plugin_response("runtime_path=crate::rpc");
    assert_eq!(response.file[0].content(), code);
    let own = configure().prost_config(prost_build::Config::new()).runtime_path("crate::rpc");
    let code = generated(own);
    assert!(code.contains("(::prost::Message") || code.contains(", ::prost::Message"), "{code}");
    assert!(!code.contains("crate::rpc::prost") && code.contains("crate::rpc::Client"), "{code}");
}

#[test]
fn the_plugin_names_an_import_of_no_edition() {
    let mut request = CodeGeneratorRequest::decode(&plugin_request("")[..]).unwrap();
    request.proto_file[0].syntax = Some("editions".to_owned());
    let response = run_plugin(&request.encode_to_vec());
    let error = response.error();
    let sentence = "other/deep.proto: the descriptor does not say its edition";
    assert!(error.starts_with(sentence), "{error}");
}

#[test]
fn the_plugin_program_says_its_version() {
    let run = |option: &str| {
        let program = env!("CARGO_BIN_EXE_protoc-gen-ttrpc-rust");
        std::process::Command::new(program).arg(option).output().unwrap()
    };
    let version = run("--version");
    let expected = concat!("protoc-gen-ttrpc-rust ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((version.status.code(), &version.stdout[..]), (Some(0), expected.as_bytes()));
    assert!(run("--help").stdout.starts_with(b"A plugin of protoc"));
    let unknown = run("--nonsense");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stdout.is_empty() && unknown.stderr.starts_with(b"A plugin of protoc"));
}
