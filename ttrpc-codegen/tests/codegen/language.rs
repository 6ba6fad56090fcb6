//! The language that the parser takes. protoc is the judge of it: `tests/language/judge`, which a release
//! check runs, names one in `TTRPC_JUDGE`. Without it the verdicts are those that it gave before.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet, MethodOptions};
use tempfile::TempDir;
use ttrpc_codegen::{DescriptorSet, Error, configure};

use crate::{WAYS_OUT, error_of, folder_of, read};

const OPTIONS: &str = include_str!("../language/options.proto");

/// A protoc to compare with.
fn judge() -> Option<PathBuf> {
    let judge = env::var_os("TTRPC_JUDGE").map(PathBuf::from);
    if judge.is_none() {
        println!("skipped: TTRPC_JUDGE names no protoc to compare with");
    }
    judge
}

/// The cases of a file: their names, and each in a folder of its own with what it imports.
fn cases(name: &str) -> Vec<(String, TempDir)> {
    let path = Path::new("tests/language").join(name);
    let text = fs::read_to_string(path).unwrap();
    let cases = text.split("\n=== ").skip(1).map(|case| {
        let (name, source) = case.split_once('\n').unwrap_or((case, ""));
        (name.to_owned(), folder_of(&[("a.proto", source), ("options.proto", OPTIONS)]))
    });
    cases.collect()
}

fn parse(folder: &TempDir) -> Result<DescriptorSet, Error> {
    configure().parse(&["a.proto"], &[folder.path()])
}

fn parse_with(protoc: &Path, folder: &TempDir) -> Result<DescriptorSet, Error> {
    configure().protoc(protoc).parse(&["a.proto"], &[folder.path()])
}

#[test]
fn what_protoc_takes_is_taken() {
    let cases = cases("taken.txt");
    assert!(cases.len() > 200);
    for (name, folder) in &cases {
        if let Err(error) = parse(folder) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn what_protoc_refuses_is_refused() {
    for (name, folder) in cases("refused.txt") {
        let error = parse(&folder).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains(".proto")), "{name}");
    }
}

/// Each of them would be a case of the first kind once the parser crate can do it.
#[test]
fn what_protoc_alone_takes_is_refused_with_the_ways_out() {
    for (name, folder) in cases("protoc-only.txt") {
        let error = parse(&folder).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("a.proto:") && error.ends_with(WAYS_OUT), "{name}: {error}");
    }
}

#[test]
fn what_protoc_refuses_and_the_parser_takes_is_known() {
    for (name, folder) in cases("lenient.txt") {
        assert!(parse(&folder).is_ok(), "{name} belongs to refused.txt");
    }
}

/// A set as text with all custom options, and without what says nothing.
fn text_of(set: &DescriptorSet) -> String {
    let mut pool = DescriptorPool::decode(set.encoded()).unwrap();
    let name = "google.protobuf.FileDescriptorSet";
    if pool.get_message_by_name(name).is_none() {
        let standard = FileDescriptorSet::default().descriptor().parent_file();
        pool.add_file_descriptor_proto(standard.file_descriptor_proto().clone()).unwrap();
    }
    let message = pool.get_message_by_name(name).unwrap();
    let set = FileDescriptorSet::decode(set.encoded()).unwrap();
    let own = set.file.iter().filter(|file| !file.name().starts_with("google/"));
    let own: Vec<_> = own.map(|file| file.name().to_owned()).collect();
    let mut text = String::new();
    for name in own {
        let file = pool.get_file_by_name(&name).unwrap();
        let file_message = message.get_field_by_name("file").unwrap().kind();
        let descriptor = file_message.as_message().unwrap().clone();
        let mut encoded = DynamicMessage::decode(descriptor, &*file.encode_to_vec()).unwrap();
        encoded.clear_field_by_name("source_code_info");
        text.push_str(&encoded.to_text_format());
    }
    text
}

/// protoc writes options that a method's braces hold none of, leaves out those that are for compilers alone, and writes
/// floats in its own way.
fn comparable(set: &DescriptorSet) -> FileDescriptorSet {
    fn field(field: &mut FieldDescriptorProto) {
        use prost_types::field_descriptor_proto::Type;
        if let (Type::Float | Type::Double, Some(default)) = (field.r#type(), &field.default_value)
        {
            let value: f64 = default.parse().unwrap();
            let value = if field.r#type() == Type::Float { f64::from(value as f32) } else { value };
            field.default_value = Some(value.to_string());
        }
    }
    fn message(each: &mut DescriptorProto) {
        each.field.iter_mut().chain(&mut each.extension).for_each(field);
        each.nested_type.iter_mut().for_each(message);
        for range in &mut each.extension_range {
            let is_empty =
                |options: &prost_types::ExtensionRangeOptions| options.encoded_len() == 0;
            range.options = range.options.take().filter(|options| !is_empty(options));
        }
    }
    let mut set = FileDescriptorSet::decode(set.encoded()).unwrap();
    set.file.retain(|file| !file.name().starts_with("google/"));
    for file in &mut set.file {
        file.source_code_info = None;
        file.extension.iter_mut().for_each(field);
        file.message_type.iter_mut().for_each(message);
        for method in file.service.iter_mut().flat_map(|service| &mut service.method) {
            method.options = method.options.take().filter(|o| *o != MethodOptions::default());
        }
    }
    set
}

/// Code without comments, which protoc finds in other places of a crowded line, and with its own way to write floats.
fn comparable_code(code: &str) -> String {
    let number = |text: &str| text.parse::<f64>().map(|value| (value as f32).to_string());
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    // How lines are broken depends on their length.
    let code = lines.collect::<Vec<_>>().join(" ");
    let parts = code.split('"').map(|part| number(part).unwrap_or_else(|_| part.to_owned()));
    parts.collect::<Vec<_>>().join("\"").split([' ', ',']).collect()
}

/// Where two packages' code is different first.
fn difference(theirs: &[(String, String)], ours: &[(String, String)]) -> String {
    let part =
        |code: &[(String, String)]| code.iter().map(|(_, code)| code.clone()).collect::<String>();
    let (theirs, ours) = (part(theirs), part(ours));
    let at = theirs.chars().zip(ours.chars()).take_while(|(a, b)| a == b).count();
    let around =
        |code: &str| code.chars().skip(at.saturating_sub(60)).take(120).collect::<String>();
    format!("{:?} there and {:?} here", around(&theirs), around(&ours))
}

/// What the plugin, run by protoc, and the builder make of a file.
fn code(judge: &Path, folder: &TempDir) -> [Vec<(String, String)>; 2] {
    let output = || tempfile::tempdir_in("tests").unwrap();
    let outputs = [output(), output()];
    let plugin = env!("CARGO_BIN_EXE_protoc-gen-ttrpc-rust");
    let output = Command::new(judge)
        .arg(format!("--plugin=protoc-gen-ttrpc-rust={plugin}"))
        .arg(format!("--ttrpc-rust_out={}", outputs[0].path().display()))
        .arg(format!("-I{}", folder.path().display()))
        .arg("a.proto")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let built =
        configure().out_dir(outputs[1].path()).compile_protos(&["a.proto"], &[folder.path()]);
    assert_eq!(output.status.success(), built.is_ok(), "protoc: {said}; here: {built:?}");
    // protoc is asked for one package, and the builder makes all.
    let names: Vec<_> =
        fs::read_dir(outputs[0].path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    outputs.map(|output| {
        let content = |name: &std::ffi::OsString| {
            let name = name.to_str().unwrap().to_owned();
            (name.clone(), comparable_code(&read(&output, &name)))
        };
        names.iter().map(content).collect()
    })
}

#[test]
fn protoc_judges_the_same() {
    let Some(judge) = judge() else { return };
    let mut differences = Vec::new();
    for (file, is_taken) in [
        ("taken.txt", true),
        ("refused.txt", false),
        ("lenient.txt", false),
        ("protoc-only.txt", true),
    ] {
        for (name, folder) in cases(file) {
            let theirs = parse_with(&judge, &folder);
            if theirs.is_ok() != is_taken {
                differences.push(format!("{file}, {name}: protoc says {:?}", theirs.err()));
                continue;
            }
            let (Ok(theirs), Ok(ours)) = (theirs, parse(&folder)) else { continue };
            if comparable(&theirs) != comparable(&ours) {
                differences.push(format!("{name}: the descriptors differ"));
            }
            let options = |set| -> Vec<String> {
                let text = text_of(set);
                let parts = text.split(['{', '}', ',']).filter(|part| part.contains("[p."));
                parts.map(str::to_owned).collect()
            };
            if options(&theirs) != options(&ours) {
                differences.push(format!(
                    "{name}: {:?} and {:?}",
                    options(&theirs),
                    options(&ours)
                ));
            }
            let [theirs, ours] = code(&judge, &folder);
            if theirs != ours {
                differences
                    .push(format!("{name}: the code differs, {}", difference(&theirs, &ours)));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_range_of_one_number_has_options() {
    let proto = "syntax = \"proto2\"; package p; import \"google/protobuf/descriptor.proto\";
        extend google.protobuf.ExtensionRangeOptions { optional string note = 50001; }
        message M { extensions 5, 7 [(note) = \"x\"], Nope; }";
    let error = error_of(&[("a.proto", proto)]);
    assert!(
        error.starts_with("a.proto:3:51: expected ';'"),
        "what was inserted counts not: {error}"
    );
    let undefined = proto.replace(", Nope", "; optional Nope n = 1");
    let error = error_of(&[("a.proto", &undefined)]);
    assert!(error.starts_with("a.proto:3:62: name 'Nope' is not defined"), "{error}");
    let importing = proto.replace(", Nope;", "; }\n  import \"b.proto\";message N {");
    let error = error_of(&[("a.proto", &importing)]);
    assert!(error.starts_with("a.proto:4:3: import 'b.proto' not found"), "{error}");
}

#[test]
fn descriptor_proto_of_a_newer_protobuf_is_no_obstacle() {
    let newer = "edition = \"2099\"; package google.protobuf; message FileOptions {}";
    let ranged = "syntax = \"proto2\"; package google.protobuf;
        message MethodOptions { extensions 1000 to max; extensions 999 [verification = UNVERIFIED]; }";
    let proto = "syntax = \"proto3\"; package p; import \"google/protobuf/descriptor.proto\";
        extend google.protobuf.MethodOptions { string note = 50001; }
        message M {} service S { rpc Get(M) returns (M) { option (note) = \"x\"; } }";
    for descriptor in [newer, ranged] {
        let files = [("a.proto", proto), ("google/protobuf/descriptor.proto", descriptor)];
        parse(&folder_of(&files)).unwrap();
    }
}

#[test]
fn infinities_and_nan_are_values_of_options() {
    let proto = "syntax = \"proto2\"; package p; import \"options.proto\";
        message M { option (f) = -inf; option (d) = nan; option (rf) = inf; option (e) = inf; }";
    let set = parse(&folder_of(&[("a.proto", proto), ("options.proto", OPTIONS)])).unwrap();
    let text = text_of(&set);
    for value in ["[p.f]:-inf", "[p.d]:NaN", "[p.rf]:[inf]", "[p.e]:inf"] {
        assert!(text.contains(value), "{value}: {text}");
    }
}

#[test]
fn bytes_that_are_no_utf_8_are_taken_in_comments_and_strings() {
    let folder = tempfile::tempdir().unwrap();
    let source = b"syntax = \"proto2\"; package p;\n// caf\xe9\nmessage M {\n  // caf\xe9
  optional bytes a = 1 [default = \"caf\xe91\\377\"]; /* \xff */ optional Nope b = 2; }";
    fs::write(folder.path().join("a.proto"), source).unwrap();
    let error = parse(&folder).unwrap_err().to_string();
    assert!(error.starts_with("a.proto:5:66: name 'Nope' is not defined"), "{error}");
    let source = source.strip_suffix(b"optional Nope b = 2; }").unwrap();
    fs::write(folder.path().join("a.proto"), [source, b"}"].concat()).unwrap();
    let set = FileDescriptorSet::decode(parse(&folder).unwrap().encoded()).unwrap();
    assert_eq!(set.file[0].message_type[0].field[0].default_value(), "caf\\3511\\377");
    fs::write(folder.path().join("a.proto"), b"syntax = \"proto3\"; \xe9").unwrap();
    let error = parse(&folder).unwrap_err().to_string();
    assert!(error.contains("not valid utf-8"), "{error}");
}

/// Changes were made in the order in which they were found: a panic, or a text with parts of it twice.
#[test]
fn a_change_before_a_comment_with_other_bytes_is_in_its_place() {
    let source = b"syntax = \"proto2\"; package p; import \"options.proto\";
message M { extensions 5 /* \xe9 */ [verification = UNVERIFIED]; option (d) = - /* \xe9 */ nan; }
message N { option (sub) = { rsub /* \xe9 */ [{}] }; } message O { optional Nope a = 1; }";
    let folder = folder_of(&[("options.proto", OPTIONS)]);
    fs::write(folder.path().join("a.proto"), source).unwrap();
    let error = parse(&folder).unwrap_err().to_string();
    assert!(error.starts_with("a.proto:3:74: name 'Nope' is not defined"), "{error}");
}

#[test]
fn a_file_that_is_shadowed_is_named() {
    let folder = folder_of(&[("one/a.proto", "syntax = \"proto3\";"), ("two/a.proto", "")]);
    let path = |name: &str| folder.path().join(name);
    let error = configure()
        .parse(&[path("two/a.proto")], &[path("one"), path("two")])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("two/a.proto is shadowed by") && error.contains("one/a.proto"),
        "{error}"
    );
}
