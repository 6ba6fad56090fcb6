//! Bad input ends in a sentence that names the file, and the line where there is one.

use crate::{WAYS_OUT, error_of};

/// A proto3 file with a message `M` in line 2 and the rest from line 3.
fn proto(rest: &str) -> String {
    format!("syntax = \"proto3\"; package p;\nmessage M {{}}\n{rest}")
}

#[test]
fn a_syntax_error_names_file_line_and_column() {
    let error = error_of(&[("a.proto", &proto("message {\n"))]);
    assert!(error.starts_with("a.proto:3:9: expected an identifier"), "{error}");
}

#[test]
fn a_missing_brace_names_the_last_line() {
    let error = error_of(&[("a.proto", &proto("message N {\n  string s = 1;\n\n"))]);
    assert!(error.starts_with("a.proto:4: expected "), "{error}");
    assert!(error.contains("but reached end of file"), "{error}");
}

#[test]
fn a_second_package_names_its_line() {
    let error = error_of(&[("a.proto", &proto("package q;\n"))]);
    assert_eq!(error, format!("a.proto:3: multiple package names specified {WAYS_OUT}"));
}

#[test]
fn an_unknown_type_names_file_line_and_column() {
    let error = error_of(&[("a.proto", &proto("service S { rpc A(N) returns (M); }\n"))]);
    assert_eq!(error, format!("a.proto:3:19: name 'N' is not defined {WAYS_OUT}"));
}

#[test]
fn a_missing_import_names_file_and_line() {
    let error = error_of(&[("a.proto", &proto("import \"b.proto\";\n"))]);
    assert!(error.starts_with("a.proto:3:1: import 'b.proto' not found (looked in: /"), "{error}");
}

#[test]
fn a_missing_file_is_named_with_the_folders_that_were_searched() {
    let error = ttrpc_codegen::configure()
        .out_dir("unused")
        .compile_protos(&["no/such.proto"], &["tests/protos", "tests/golden"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("no/such.proto"), "{error}");
    assert!(error.ends_with("(looked in: tests/protos, tests/golden)"), "{error}");
}

#[test]
fn a_duplicate_method_names_file_line_and_column() {
    let service = "service S {\n  rpc A(M) returns (M);\n  rpc A(M) returns (M);\n}\n";
    let error = error_of(&[("a.proto", &proto(service))]);
    assert!(error.starts_with("a.proto:5:7: name 'p.S.A' is defined twice"), "{error}");
}

#[test]
fn methods_that_become_the_same_in_rust_are_named() {
    let service = "service S {\n  rpc GetURL(M) returns (M);\n  rpc GetUrl(M) returns (M);\n}\n";
    assert_eq!(
        error_of(&[("a.proto", &proto(service))]),
        "a.proto:5:3: method `GetUrl` and method `GetURL` of service `S` both become the Rust \
         method `get_url`"
    );
}

#[test]
fn a_message_with_the_name_of_a_generated_type_is_named() {
    let rest = "import \"b.proto\";\nservice Greeter {}\n";
    let other = "syntax = \"proto3\"; package p;\nmessage GreeterClient {}\n";
    assert_eq!(
        error_of(&[("a.proto", &proto(rest)), ("b.proto", other)]),
        "a.proto:4:1: service `Greeter` and message `GreeterClient` of b.proto both become the \
         Rust type `GreeterClient`"
    );
}
