use prost::Message;
use serde_json::json;

use super::*;
use crate::schema::builtin;

fn message(name: &str) -> MessageDescriptor {
    builtin().pool().get_message_by_name(name).unwrap()
}

/// To bytes and back.
fn round_trip(name: &str, value: Value) -> Value {
    let json = Json::new(builtin());
    let bytes = json.encode(&message(name), value).unwrap();
    json.decode(&message(name), bytes).unwrap()
}

/// A message with fields of these kinds, to bytes and back.
fn round_trip_of_kinds(value: Value) -> Value {
    let source = r#"
        syntax = "proto3";
        import "google/protobuf/any.proto";
        import "google/protobuf/struct.proto";
        import "google/protobuf/wrappers.proto";
        message M {
          google.protobuf.Any any = 1;
          google.protobuf.Struct object = 2;
          map<string, google.protobuf.Any> anys = 3;
          double real = 4;
          repeated double reals = 5;
          google.protobuf.ListValue list = 6;
          google.protobuf.DoubleValue boxed = 7;
          M inner = 8;
          repeated M inners = 9;
          map<int32, M> by_number = 10;
          float single = 11;
          optional double present = 12;
        }
    "#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.proto");
    std::fs::write(&file, source).unwrap();
    let schema = crate::schema::files::compile(&[file], &[]).unwrap();
    let kind = schema.pool().get_message_by_name("M").unwrap();
    let json = Json::new(&schema);
    json.decode(&kind, json.encode(&kind, value).unwrap()).unwrap()
}

#[test]
fn every_kind_of_any_survives() {
    for any in [
        json!({ "@type": "containerd.runc.v1.Options", "binaryName": "crun" }),
        json!({ "@type": "type.googleapis.com/containerd.runc.v1.Options" }),
        json!({ "@type": "type.googleapis.com/google.protobuf.Duration", "value": "3s" }),
        json!({ "@type": "types.containerd.io/opencontainers/Spec", "value": { "args": [1] } }),
        json!({ "@type": "no.such.Type", "value": "AAEC" }),
        json!({ "@type": "a/google.protobuf.Any",
                "value": { "@type": "containerd.events.TaskOOM", "containerId": "c" } }),
        json!({}),
    ] {
        let create = json!({ "id": "c1", "options": any });
        assert_eq!(round_trip("containerd.task.v3.CreateTaskRequest", create.clone()), create);
    }
}

#[test]
fn anys_are_found_in_lists_and_maps() {
    let params = json!({ "extensions": [
        { "value": { "@type": "containerd.events.TaskOOM", "containerId": "a" } },
        { "value": { "@type": "containerd.events.TaskOOM", "containerId": "b" } },
    ] });
    let name = "containerd.runtime.bootstrap.v1.BootstrapParams";
    assert_eq!(round_trip(name, params.clone()), params);
    let sandbox = json!({ "extensions": { "x": { "@type": "containerd.types.Mount" } } });
    assert_eq!(round_trip("containerd.types.Sandbox", sandbox.clone()), sandbox);
}

#[test]
fn a_struct_that_looks_like_a_placeholder_is_left_as_it_is() {
    let value = json!({
        "@type": "a/google.protobuf.Struct",
        "value": { "@type": "/ttrpc.cli.Placeholder", "index": 0, "list": [[{ "@type": "/ttrpc.cli.Placeholder" }]] },
    });
    let message = json!({
        "any": { "@type": "containerd.types.Mount" },
        "object": value["value"],
        "anys": { "a": value },
    });
    assert_eq!(round_trip_of_kinds(message.clone()), message);
}

#[test]
fn a_field_that_is_given_under_both_of_its_names_is_refused() {
    let json = Json::new(builtin());
    for value in
        [json!({ "exec_id": "a", "execId": "b" }), json!({ "execId": null, "exec_id": "b" })]
    {
        let error = json.read(&message("containerd.task.v3.StateRequest"), value).unwrap_err();
        assert!(error.contains("exec_id") && error.contains("execId"), "{error}");
    }
}

#[test]
fn whole_numbers_have_no_point_and_minus_zero_keeps_its_sign() {
    let numbers = json!([5.0, -1e15, 0.5, -0.0]);
    let message = json!({ "real": 5.0, "reals": numbers, "list": [numbers], "boxed": 5.0 });
    let told = round_trip_of_kinds(message).to_string();
    let numbers = "[5,-1000000000000000,0.5,-0.0]";
    let expected = format!("{{\"real\":5,\"reals\":{numbers},\"list\":[{numbers}],\"boxed\":5}}");
    assert_eq!(told, expected);
}

#[test]
fn an_any_on_the_wire_is_as_containerd_writes_it() {
    let bytes = Json::new(builtin())
        .encode(
            &message("google.protobuf.Any"),
            json!({ "@type": "containerd.events.TaskOOM", "containerId": "a" }),
        )
        .unwrap();
    let any = ttrpc::Any::decode(bytes).unwrap();
    assert_eq!(any.type_url, "containerd.events.TaskOOM");
    assert_eq!(any.value, [0x0a, 1, b'a']);
}

#[test]
fn an_any_in_an_any_without_end_is_told_to_some_depth() {
    let mut any = ttrpc::Any::default();
    for _ in 0..20_000 {
        any =
            ttrpc::Any { type_url: "a/google.protobuf.Any".to_owned(), value: any.encode_to_vec() };
    }
    let value = Json::new(builtin()).any(&any.type_url, &any.value);
    let depth = std::iter::successors(Some(&value), |any| any.get("value")).count();
    assert!((10..100).contains(&depth), "{depth}");
}

#[test]
fn mistakes_are_told_with_what_would_be_right() {
    let json = Json::new(builtin());
    let read = |name: &str, value| json.read(&message(name), value).unwrap_err();
    let error = read("containerd.task.v3.StateRequest", json!({ "ide": "c" }));
    assert!(error.contains("ide") && error.contains("id, execId"), "{error}");
    let error = read("containerd.task.v3.CreateTaskRequest", json!({ "options": { "a": 1 } }));
    assert!(error.contains("@type"), "{error}");
    let error = read(
        "containerd.task.v3.CreateTaskRequest",
        json!({ "options": { "@type": "a.B", "c": 1 } }),
    );
    assert!(error.contains("`a.B`") && error.contains("--proto"), "{error}");
    assert!(json.decode(&message("containerd.types.Mount"), vec![0xff].into()).is_err());
}

#[test]
fn defaults_are_written_when_asked_for() {
    let mount = DynamicMessage::new(message("containerd.v1.types.ProcessInfo"));
    let json = Json::new(builtin());
    assert_eq!(json.write(mount.clone()).unwrap(), json!({}));
    assert_eq!(json.emit_defaults(true).write(mount).unwrap(), json!({ "pid": 0 }));
}

#[test]
fn minus_zero_is_no_default_at_any_depth() {
    let zeros = json!({ "real": -0.0, "single": -0.0 });
    let message = json!({
        "object": { "a": 1 },
        "present": -0.0,
        "inner": { "real": -0.0, "inners": [zeros, { "real": 2 }, zeros] },
        "byNumber": { "-3": zeros, "4": { "real": 1.5 } },
        "single": -0.0,
    });
    let told = round_trip_of_kinds(message.clone());
    // -0.0 and 0.0 are equal; their texts are not.
    let sorted = |value: &Value| {
        let mut lines: Vec<_> = format!("{value:#}")
            .lines()
            .map(|line| line.trim_end_matches(',').to_owned())
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&told), sorted(&message), "{told}");
    assert_eq!(
        round_trip_of_kinds(json!({ "real": 0.0, "inner": {} })).to_string(),
        "{\"inner\":{}}"
    );
}
