//! What is printed, and that a compiler makes the same of it.

use crate::schema::{builtin, files};

#[test]
fn a_message_is_printed_with_its_comments() {
    let symbol = builtin().find_symbol("containerd.types.Mount").unwrap();
    let text = super::symbol(&symbol);
    assert!(text.starts_with("// A file system to be mounted.\nmessage Mount {\n"), "{text}");
    assert!(text.contains("  repeated string options = 4;\n}\n"), "{text}");
}

#[test]
fn a_method_is_printed_with_its_messages() {
    let symbol = builtin().find_symbol("v3.Task/State").unwrap();
    let text = super::symbol(&symbol);
    assert!(text.contains("rpc State(StateRequest) returns (StateResponse);"), "{text}");
    assert!(text.contains("\nmessage StateRequest {"), "{text}");
    assert!(text.contains("  containerd.v1.types.Status status = 4;"), "{text}");
}

#[test]
fn rare_declarations_survive_printing() {
    let source = r#"syntax = "proto2";

package p;

// Of a message.
message M {
  reserved 5, 7 to 9;
  reserved "old";
  extensions 100 to 199;

  enum E {
    option allow_alias = true;
    // Of a value.
    A = 0;
    B = 0 [deprecated = true];
  }
  required string s = 1 [default = "x"];
  repeated int32 n = 2 [packed = true];
  oneof choice {
    M m = 3;
    M.E e = 4;
  }
  map<string, M> by_name = 6 [json_name = "names"];
}

extend M {
  optional bool more = 100;
}
"#;
    survives(source);
}

/// Prints what was compiled; a compiler makes the same of that.
fn survives(source: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.proto");
    std::fs::write(&path, source).unwrap();
    let schema = files::compile(&[path], &[]).unwrap();
    let file = schema.pool().get_file_by_name("p.proto").unwrap();
    assert_eq!(super::file(&file), source);
}

#[test]
fn groups_defaults_and_options_survive_printing() {
    survives(
        r#"syntax = "proto2";

package p;

import "google/protobuf/descriptor.proto";

option java_package = "org.p";
option (p.owner) = "a\"b\\\001";

service S {
  option deprecated = true;
  rpc Get(M) returns (M) {
    option idempotency_level = NO_SIDE_EFFECTS;
    option (p.limits) = { name:"x",sizes:[1,2],kind:B };
  }
}

message Limits {
  optional string name = 1;
  repeated int32 sizes = 2;
  optional E kind = 3;
}

message M {
  option (p.tags) = 1;
  option (p.tags) = 2;
  optional string text = 1 [default = "a\"b\n\\ é"];
  optional bytes raw = 2 [default = "\000\377\""];
  optional double big = 3 [default = inf];
  optional int64 id = 4 [jstype = JS_STRING, (p.hint) = -1.5];
  optional group G = 5 {
    optional group Inner = 1 {}
  }
  repeated group Many = 6 [deprecated = true] {
    required E e = 1 [default = B];
  }
}

enum E {
  A = 0;
  B = 1 [(p.label) = true];
}

extend google.protobuf.FileOptions {
  optional string owner = 50000;
}

extend google.protobuf.MethodOptions {
  optional Limits limits = 50000;
}

extend google.protobuf.MessageOptions {
  repeated uint32 tags = 50000;
}

extend google.protobuf.FieldOptions {
  optional float hint = 50000;
}

extend google.protobuf.EnumValueOptions {
  optional bool label = 50000;
}
"#,
    );
}

/// It takes hours where each declaration costs as much as its file is long.
#[test]
fn a_file_of_many_declarations_is_printed() {
    const MESSAGES: usize = 10_000;
    let mut source = "syntax = \"proto3\";\n".to_owned();
    for message in 0..MESSAGES {
        source += &format!("message M{message} {{ uint32 a = 1 [deprecated = true]; }}\n");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.proto");
    std::fs::write(&path, source).unwrap();
    let schema = files::compile(&[path], &[]).unwrap();
    let text = super::file(&schema.pool().get_file_by_name("p.proto").unwrap());
    assert_eq!(text.matches("[deprecated = true]").count(), MESSAGES);
}

#[test]
fn an_option_that_nobody_defines_is_told() {
    use prost::Message;
    use prost_reflect::DescriptorPool;
    // message M { option (a number that no file defines) = 1; } in a descriptor set.
    let file = [
        &[0x0a, 7][..],
        b"a.proto", // name
        &[0x22, 9, 0x0a, 1],
        b"M",                            // message_type, its name
        &[0x3a, 4, 0x80, 0xb5, 0x18, 1], // its options: field 50000
    ]
    .concat();
    let mut set = vec![0x0a, file.len() as u8];
    set.extend(file);
    prost_reflect::prost_types::FileDescriptorSet::decode(&*set).unwrap();
    let pool = DescriptorPool::decode(&*set).unwrap();
    let text = super::file(&pool.get_file_by_name("a.proto").unwrap());
    assert!(text.contains("message M {\n  // Option 50000 is left out:"), "{text}");
}
