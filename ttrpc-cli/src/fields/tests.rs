use serde_json::json;

use super::*;
use crate::{
    json::Json,
    schema::{Schema, builtin},
};

fn request(kind: &str, arguments: &[&str]) -> Result<Value, String> {
    let kind = builtin().pool().get_message_by_name(kind).unwrap();
    on_top_of(builtin(), &kind, json!({}), arguments)
}

fn on_top_of(
    schema: &Schema,
    kind: &MessageDescriptor,
    json: Value,
    arguments: &[&str],
) -> Result<Value, String> {
    let Value::Object(mut object) = json else { panic!("no object") };
    let mut fields = Fields::on(&mut object, kind);
    for argument in arguments {
        assert!(is_field(argument), "{argument}");
        fields.set(argument)?;
    }
    let json = Json::new(schema);
    json.write(json.read(kind, Value::Object(object))?)
}

const PROTO: &str = r#"
    syntax = "proto3";
    import "google/protobuf/struct.proto";
    import "google/protobuf/wrappers.proto";
    message M {
      google.protobuf.BoolValue bool_value = 1;
      google.protobuf.StringValue string_value = 2;
      google.protobuf.UInt64Value number_value = 3;
      google.protobuf.Value any_value = 4;
      uint64 large_number = 5;
      map<string, uint32> map_of = 6;
      M inner_one = 7;
      repeated string list_of = 8;
      oneof either { string left_one = 9; string right_one = 10; }
      google.protobuf.Struct object = 11;
      uint32 small_number = 12;
      bool flag = 13;
      repeated bool list_of_flags = 14;
      double real = 15;
      bytes raw = 16;
    }
"#;

/// The same with the message above.
fn set(json: Value, arguments: &[&str]) -> Result<Value, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.proto");
    std::fs::write(&file, PROTO).unwrap();
    let schema = crate::schema::files::compile(&[file], &[]).unwrap();
    let kind = schema.pool().get_message_by_name("M").unwrap();
    on_top_of(&schema, &kind, json, arguments)
}

#[test]
fn fields_replace_what_json_has_under_either_name() {
    for (json, arguments, expected) in [
        (json!({ "large_number": 3 }), &["largeNumber=4"][..], json!({ "largeNumber": "4" })),
        (json!({ "largeNumber": 3 }), &["large_number=4"], json!({ "largeNumber": "4" })),
        (
            json!({ "inner_one": { "large_number": 1, "list_of": ["a"] } }),
            &["innerOne.largeNumber=2"],
            json!({ "innerOne": { "largeNumber": "2", "listOf": ["a"] } }),
        ),
        (json!({ "list_of": ["a"] }), &["list_of=b", "listOf=c"], json!({ "listOf": ["b", "c"] })),
        (
            json!({ "mapOf": { "a": 1, "b": 2 } }),
            &["map_of.a=3"],
            json!({ "mapOf": { "a": 3, "b": 2 } }),
        ),
        (json!({ "left_one": "a" }), &["right_one=b"], json!({ "rightOne": "b" })),
    ] {
        assert_eq!(set(json.clone(), arguments), Ok(expected), "{json} {arguments:?}");
    }
}

#[test]
fn the_same_field_twice_is_a_mistake() {
    for arguments in [
        &["large_number=1", "largeNumber=1"][..],
        &["map_of.a=1", "map_of.a=1"],
        &["inner_one.large_number=1", "inner_one={}"],
        &["list_of=a", "list_of=[]"],
    ] {
        let error = set(json!({}), arguments).unwrap_err();
        assert!(error.contains("given twice"), "{arguments:?}: {error}");
    }
    let error = set(json!({}), &["left_one=a", "right_one=b"]).unwrap_err();
    assert!(error.contains("oneof 'either'"), "{error}");
}

#[test]
fn wrappers_take_the_value_that_they_stand_for() {
    let arguments = ["bool_value=true", "string_value=7", "number_value=8", "any_value={\"a\":1}"];
    let expected = json!({
        "boolValue": true, "stringValue": "7", "numberValue": "8", "anyValue": { "a": 1 },
    });
    assert_eq!(set(json!({}), &arguments).unwrap(), expected);
}

#[test]
fn entries_of_a_struct_are_set_as_those_of_a_map() {
    let arguments = ["object.a=1", "object.b=x", "object.c={\"d\":[2]}"];
    let expected = json!({ "object": { "a": 1, "b": "x", "c": { "d": [2] } } });
    assert_eq!(set(json!({}), &arguments).unwrap(), expected);
    assert!(set(json!({}), &["object.a=1", "object.a=2"]).unwrap_err().contains("given twice"));
}

#[test]
fn a_value_that_does_not_fit_is_told_with_the_name_that_it_was_given_by() {
    for (argument, told) in [
        (
            "small_number=abc",
            "`small_number`: `abc` is no uint32, a whole number from 0 to 4294967295",
        ),
        ("smallNumber=-1", "`smallNumber`: `-1` is no uint32, a whole number from 0 to 4294967295"),
        ("large_number=1.5", "`large_number`: `1.5` is no uint64"),
        ("inner_one.small_number=4294967296", "`small_number`: `4294967296` is no uint32"),
        ("map_of.a=x", "`map_of.a`: `x` is no uint32"),
        ("bool_value=x", "`bool_value`: `x` is no bool, true or false"),
        ("flag=1", "`flag`: `1` is no bool, true or false"),
        ("list_of_flags=1", "`list_of_flags`: `1` is no bool"),
        ("real=x", "`real`: `x` is no double"),
        ("raw=%", "`raw`: `%` is no bytes, text in base64"),
    ] {
        let error = set(json!({}), &[argument]).unwrap_err();
        assert!(error.contains(told), "{argument}: {error}");
        for word in ["integral", "invalid type", "expected"] {
            assert!(!error.contains(word), "{argument}: {error}");
        }
    }
}

#[test]
fn a_key_of_a_map_may_hold_anything() {
    let expected = json!({ "mapOf": { "k:x y@z": 1 } });
    assert_eq!(set(json!({}), &["map_of.k:x y@z=1"]).unwrap(), expected);
}

#[test]
fn numbers_out_of_range_are_no_others() {
    for argument in [
        "large_number=18446744073709551616",
        "large_number=-1",
        "number_value=18446744073709551616",
    ] {
        assert!(set(json!({}), &[argument]).is_err(), "{argument}");
    }
    for large in [json!(18446744073709551616.0), json!(-1)] {
        for json in [
            json!({ "large_number": large }),
            json!({ "numberValue": large }),
            json!({ "innerOne": { "largeNumber": large } }),
        ] {
            assert!(set(json.clone(), &[]).is_err(), "{json}");
        }
    }
}

#[test]
fn values_become_what_the_fields_are() {
    let kind = "containerd.task.v3.KillRequest";
    let arguments = ["id=123", "signal=9", "all=true", "exec_id=a=b"];
    let expected = json!({ "id": "123", "execId": "a=b", "signal": 9, "all": true });
    assert_eq!(request(kind, &arguments).unwrap(), expected);
}

#[test]
fn fields_inside_of_others_are_reached() {
    let kind = "containerd.task.v3.UpdateTaskRequest";
    let arguments = ["annotations.io.x/y=z", "resources={\"@type\":\"containerd.types.Mount\"}"];
    let expected = json!({
        "annotations": { "io.x/y": "z" },
        "resources": { "@type": "containerd.types.Mount" },
    });
    assert_eq!(request(kind, &arguments).unwrap(), expected);
    let envelope = request(
        "containerd.services.events.ttrpc.v1.ForwardRequest",
        &["envelope.timestamp=2024-01-02T03:04:05Z", "envelope.topic=/t"],
    );
    assert_eq!(envelope.unwrap()["envelope"]["timestamp"], "2024-01-02T03:04:05Z");
}

#[test]
fn lists_take_values_one_by_one_or_all_at_once() {
    let options = |arguments: &[&str]| request("containerd.types.Mount", arguments);
    let expected = json!({ "options": ["ro", "nosuid"] });
    assert_eq!(options(&["options=ro", "options=nosuid"]).unwrap(), expected);
    assert_eq!(options(&["options=[\"ro\",\"nosuid\"]"]).unwrap(), expected);
}

#[test]
fn mistakes_name_the_field() {
    let error = |arguments: &[&str]| request("containerd.types.Mount", arguments).unwrap_err();
    assert!(error(&["typ=x"]).contains("it has: type, source, target, options"));
    assert!(error(&["type=x", "type=y"]).contains("given twice"));
    assert!(error(&["type.x=y"]).contains("is no message"));
}

#[test]
fn json_and_files_are_no_fields() {
    for argument in ["{\"a\":\"b=c\"}", "@file=x", "-", "=x", "a..b=c"] {
        assert!(!is_field(argument), "{argument}");
    }
}
