//! Names that become the same in Rust, or none at all, are errors that name file, line and column.

use ttrpc_codegen::configure;

use crate::compile;

/// The error for a file of proto2, which has the fewest rules for names, with the rest from line 2. It is the same
/// without a package.
fn error_of(rest: &str) -> String {
    let [error, without] = ["package p;", ""].map(|package| {
        let proto = format!("syntax = \"proto2\"; {package}\n{rest}");
        crate::error_of(&[("a.proto", &proto)])
    });
    assert_eq!(error, without);
    error
}

#[test]
fn enum_values_with_and_without_the_prefix_clash() {
    assert_eq!(
        error_of("enum Kind {\n  KIND_BIG = 0;\n  BIG = 1;\n}"),
        "a.proto:4:3: value `BIG` and value `KIND_BIG` of enum `Kind` both become the Rust \
         variant `Big`"
    );
}

#[test]
fn enum_values_clash_in_nested_enums_too() {
    assert_eq!(
        error_of("message M { message N { enum E { a_b = 0; A_B = 1; } } }"),
        "a.proto:2:43: value `A_B` and value `a_b` of enum `M.N.E` both become the Rust variant \
         `AB`"
    );
}

#[test]
fn enum_values_of_one_number_are_one_variant() {
    let proto = "syntax = \"proto3\"; package p;
        enum Kind { option allow_alias = true; KIND_BIG = 0; BIG = 0; }";
    compile(configure(), &[("a.proto", proto)]).unwrap();
}

#[test]
fn enum_values_do_not_clash_where_the_prefix_is_kept() {
    let proto = "syntax = \"proto3\"; package p; enum Kind { KIND_BIG = 0; BIG = 1; }";
    let builder = configure().prost(|config| {
        config.retain_enum_prefix();
    });
    compile(builder, &[("a.proto", proto)]).unwrap();
}

#[test]
fn an_enum_value_is_named_by_a_digit_or_a_keyword_without_its_prefix() {
    assert_eq!(
        error_of("enum Kind {\n  KIND_SELF = 0;\n  SELF = 1;\n}"),
        "a.proto:4:3: value `SELF` and value `KIND_SELF` of enum `Kind` both become the Rust \
         variant `Self_`"
    );
    // A digit begins no name, so that the prefix stays.
    let proto = "syntax = \"proto3\"; package p; enum Kind { KIND_1 = 0; _1 = 1; }";
    compile(configure(), &[("a.proto", proto)]).unwrap();
}

#[test]
fn a_oneof_steps_aside_for_an_enum_too() {
    assert_eq!(
        error_of("message M { enum A { X = 0; }\n oneof a { string s = 1; }\n message AOneOf {} }"),
        "a.proto:3:2: oneof `a` of message `M` and message `M.AOneOf` both become the Rust type `AOneOf`"
    );
}

#[test]
fn accessors_of_a_field_that_is_a_keyword_have_its_plain_name() {
    let error = error_of(
        "enum E { X = 0; }\nmessage M {\n repeated E type = 1;\n optional E push_type = 2; }",
    );
    assert!(error.contains("both become the Rust method `push_type`"), "{error}");
}

#[test]
fn oneofs_clash() {
    assert_eq!(
        error_of("message M {\n  oneof foo { string a = 1; }\n  oneof Foo { string b = 2; }\n}"),
        "a.proto:4:3: oneof `Foo` and oneof `foo` of message `M` both become the Rust field `foo`"
    );
}

#[test]
fn a_oneof_and_a_field_clash() {
    assert_eq!(
        error_of("message M {\n  optional string FOO = 2;\n  oneof foo { string a = 1; }\n}"),
        "a.proto:4:3: oneof `foo` and field `FOO` of message `M` both become the Rust field `foo`"
    );
}

#[test]
fn a_oneof_whose_type_steps_aside_clashes_with_what_stands_there() {
    assert_eq!(
        error_of(
            "message M {\n  message Foo {}\n  message FooOneOf {}\n  oneof foo { Foo a = 1; }\n}"
        ),
        "a.proto:5:3: oneof `foo` of message `M` and message `M.FooOneOf` both become the Rust \
         type `FooOneOf`"
    );
}

#[test]
fn a_oneof_whose_type_stands_alone_does_not_step_aside() {
    let proto = "syntax = \"proto3\"; package p;
message M { message Bar {} message FooOneOf {} oneof foo { Bar a = 1; } }";
    compile(configure(), &[("a.proto", proto)]).unwrap();
}

#[test]
fn messages_called_self_clash_by_the_name_that_they_get() {
    assert_eq!(
        error_of("message Self {}\nmessage SELF {}"),
        "a.proto:3:1: message `SELF` and message `Self` both become the Rust type `Self_`"
    );
}

#[test]
fn a_map_of_enums_gives_its_accessors_to_no_other_field() {
    let proto = "syntax = \"proto2\"; package p; enum Kind { A = 0; }
message M {
  map<string, Kind> kinds = 1;
  message Foo {}
  repeated Foo foos = 2;
  optional int32 get_foos = 3;
}";
    compile(configure(), &[("a.proto", proto)]).unwrap();
}

#[test]
fn fields_of_a_oneof_clash() {
    assert_eq!(
        error_of("message M {\n  oneof o {\n    string a_b = 1;\n    string _a_b = 2;\n  }\n}"),
        "a.proto:5:5: field `_a_b` and field `a_b` of oneof `o` of message `M` both become the Rust \
         variant `AB`"
    );
}

#[test]
fn fields_clash() {
    assert_eq!(
        error_of("message M {\n  optional string foo_bar = 1;\n  repeated int32 FOO_BAR = 2;\n}"),
        "a.proto:4:3: field `FOO_BAR` and field `foo_bar` of message `M` both become the Rust \
         field `foo_bar`"
    );
}

#[test]
fn fields_clash_that_are_a_keyword() {
    assert_eq!(
        error_of("message M {\n  optional string self = 1;\n  optional string _self = 2;\n}"),
        "a.proto:4:3: field `_self` and field `self` of message `M` both become the Rust field \
         `self_`"
    );
}

#[test]
fn accessors_of_fields_clash() {
    let error = |fields: &str| error_of(&format!("enum E {{ A = 0; }} message M {{\n{fields}\n}}"));
    assert_eq!(
        error("optional E kind = 1;\n  optional int32 set_kind = 2;"),
        "a.proto:4:3: field `set_kind` and field `kind` of message `M` both become the Rust \
         method `set_kind`"
    );
    assert_eq!(
        error("repeated E kinds = 1;\n  optional string push_kinds = 2;"),
        "a.proto:4:3: field `push_kinds` and field `kinds` of message `M` both become the Rust \
         method `push_kinds`"
    );
    assert_eq!(
        error("map<string, E> kinds = 1;\n  required E get_kinds = 2;"),
        "a.proto:4:3: field `get_kinds` and field `kinds` of message `M` both become the Rust \
         method `get_kinds`"
    );
    // These have no accessors.
    for field in ["required int32", "repeated int32", "optional M", "map<int32, int32>"] {
        let proto = format!(
            "syntax = \"proto2\"; enum E {{ A = 0; }}
            message M {{ optional E kind = 1; {field} set_kind = 2; }}"
        );
        compile(configure(), &[("a.proto", &proto)]).unwrap();
    }
}

#[test]
fn a_map_of_enums_that_is_named_by_a_keyword_has_no_accessors_in_prost() {
    assert_eq!(
        error_of("enum E { A = 0; } message M {\n  map<string, E> type = 1;\n}"),
        "a.proto:3:3: field `type` of message `M` is a map of enums named by a Rust keyword, \
         which prost cannot generate"
    );
}

#[test]
fn nested_types_clash() {
    assert_eq!(
        error_of("message M {\n  message A {}\n  enum a { X = 0; }\n}"),
        "a.proto:4:3: enum `M.a` and message `M.A` both become the Rust type `A`"
    );
}

#[test]
fn a_type_and_a_module_clash() {
    assert_eq!(
        error_of("message _1 {\n  message N {}\n}"),
        "a.proto:2:1: message `_1` becomes both the Rust type `_1` and the Rust module `_1`"
    );
}

#[test]
fn a_message_with_the_name_of_a_service_s_trait_clashes() {
    assert_eq!(
        error_of("message greeter {}\nservice Greeter {}"),
        "a.proto:3:1: service `Greeter` and message `greeter` both become the Rust type `Greeter`"
    );
}

#[test]
fn packages_that_become_one_module_share_their_names() {
    let a = "syntax = \"proto3\"; package Foo.type;\nimport \"b.proto\";\nmessage M {}";
    let b = "syntax = \"proto3\"; package foo.Type;\nmessage M {}";
    assert_eq!(
        crate::error_of(&[("a.proto", a), ("b.proto", b)]),
        "a.proto:3:1: message `M` and message `M` of b.proto both become the Rust type `M`"
    );
}

#[test]
fn a_message_s_module_and_a_package_clash_where_both_are_needed_in_one_place() {
    let a = |field: &str| {
        format!(
            "syntax = \"proto3\"; package p;\nimport \"b.proto\";
message Foo {{ message Bar {{}} {field} }}"
        )
    };
    let b = "syntax = \"proto3\";\npackage p.foo;\nmessage M {}";
    assert_eq!(
        crate::error_of(&[("a.proto", &a("p.foo.M m = 1;")), ("b.proto", b)]),
        "a.proto:3:1: message `Foo` and package `p.foo` of b.proto both become the Rust module \
         `foo`"
    );
    // Where neither names the other their modules may lie anywhere.
    compile(configure(), &[("a.proto", &a("")), ("b.proto", b)]).unwrap();
    // A message without anything inside has no module.
    let plain = "syntax = \"proto3\"; package p;\nimport \"b.proto\";
message Foo { p.foo.M m = 1; }";
    compile(configure(), &[("a.proto", plain), ("b.proto", b)]).unwrap();
    let with_include_file = configure().include_file("protos.rs");
    compile(with_include_file, &[("a.proto", &a("")), ("b.proto", b)]).unwrap_err();
}

/// Compiled from the last file, which imports the others.
#[test]
fn any_reference_binds_packages_to_each_other() {
    let foo = |nested: &str| format!("package p; message Foo {{ message Bar {{ {nested} }} }}");
    let (plain, m) = (foo(""), "package p.foo; message M {}".to_owned());
    let referring = foo("p.foo.M m = 1;");
    let deep = "package p.foo.deep; message M { p.Foo foo = 1; }".to_owned();
    let reverse = "package p.foo; message M { p.Foo foo = 1; }".to_owned();
    let third = "package q; message Q { p.Foo foo = 1; p.foo.M m = 2; }".to_owned();
    let method = format!("{plain} service S {{ rpc Call(Foo) returns (p.foo.M); }}");
    let an_enum = "package p.foo; enum E { ZERO = 0; }".to_owned();
    let of_enum = foo("p.foo.E e = 1;");
    let service = "package p.foo; service S { rpc Call(p.Foo) returns (p.Foo); }".to_owned();
    for files in [
        vec![&m, &referring],
        vec![&plain, &reverse],
        vec![&plain, &deep],
        vec![&plain, &m, &third],
        vec![&m, &method],
        vec![&an_enum, &of_enum],
        vec![&plain, &service],
    ] {
        let names: Vec<_> = (0..files.len()).map(|index| format!("{index}.proto")).collect();
        let mut protos: Vec<(&str, String)> = Vec::new();
        for (name, rest) in names.iter().zip(&files) {
            let imports: String =
                protos.iter().map(|(earlier, _)| format!("import \"{earlier}\";")).collect();
            let (package, rest) = rest.split_once(';').unwrap();
            let proto = format!("syntax = \"proto3\"; {package}; {imports} {rest}");
            protos.push((name, proto));
        }
        protos.reverse();
        let protos: Vec<_> = protos.iter().map(|(name, proto)| (*name, &proto[..])).collect();
        let error = crate::error_of(&protos);
        assert!(error.contains("both become the Rust module `foo`"), "{error}: {files:?}");
    }
}

#[test]
fn names_of_underscores_alone_have_no_name_in_rust() {
    for (rest, what) in [
        ("message _ {}", "2:1: message `_`"),
        ("enum __ { A = 0; }", "2:1: enum `__`"),
        ("enum E { _ = 0; }", "2:10: value `_` of enum `E`"),
        ("message M { message _ {} }", "2:13: message `M._`"),
        ("message M { optional string _ = 1; }", "2:13: field `_` of message `M`"),
        ("message M { oneof _ { string a = 1; } }", "2:13: oneof `_` of message `M`"),
        ("message M { oneof o { string _ = 1; } }", "2:23: field `_` of oneof `o` of message `M`"),
        ("service _ {}", "2:1: service `_`"),
        ("message M {} service S { rpc _(M) returns (M); }", "2:26: method `_` of service `S`"),
    ] {
        let expected =
            format!("a.proto:{what} has no letter or digit of which a Rust name could be made");
        assert_eq!(error_of(rest), expected);
    }
    let proto = "syntax = \"proto3\";\npackage a._;\nmessage M {}";
    assert_eq!(
        crate::error_of(&[("a.proto", proto)]),
        "a.proto:2:1: package `a._` has no letter or digit of which a Rust name could be made"
    );
}

#[test]
fn types_that_are_not_generated_take_no_names() {
    let proto = "syntax = \"proto3\"; package p; message M { message A {} enum a { X = 0; } }
        message B {} message b {} message _ {}";
    let builder = configure().prost(|config| {
        config.extern_path(".p.M", "crate::M");
        config.extern_path(".p.b", "crate::b");
        config.extern_path(".p._", "crate::Underscore");
    });
    compile(builder, &[("a.proto", proto)]).unwrap();
    // Whichever of two comes first.
    let builder = configure().prost(|config| {
        config.extern_path(".p.B", "crate::B");
    });
    let proto = "syntax = \"proto3\"; package p; message B {} message b {}";
    compile(builder, &[("a.proto", proto)]).unwrap();
}

#[test]
fn types_of_a_program_in_googles_package_are_none_that_prost_has() {
    for (package, rest, what) in [
        ("google.protobuf", "message Mine {}", "message `Mine`"),
        ("google.protobuf", "enum Mine { A = 0; }", "enum `Mine`"),
        ("google.protobuf.mine", "message Any {}", "message `Any`"),
    ] {
        let proto = format!("syntax = \"proto3\"; package {package};\n{rest}");
        assert_eq!(
            crate::error_of(&[("a.proto", &proto)]),
            format!(
                "a.proto:2:1: {what} is of package `{package}`, of which prost generates nothing but \
                 with its option `compile_well_known_types`"
            )
        );
        let builder = configure().prost(|config| {
            config.compile_well_known_types();
        });
        compile(builder, &[("a.proto", &proto)]).unwrap();
        let builder = configure().prost(|config| {
            config.extern_path(".google.protobuf.Mine", "crate::Mine");
            config.extern_path(".google.protobuf.mine", "crate::mine");
        });
        compile(builder, &[("a.proto", &proto)]).unwrap();
    }
    // The standard ones are there, and a service may be anywhere.
    let proto =
        "syntax = \"proto3\"; package google.protobuf; import \"google/protobuf/any.proto\";
        service Greeter { rpc Greet(Any) returns (Any); }";
    compile(configure(), &[("a.proto", proto)]).unwrap();
}
