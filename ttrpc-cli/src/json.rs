//! Messages as protobuf's JSON, both ways.
//!
//! The mapping is prost-reflect's. What an `Any` holds is done here, since containerd's are not as
//! protobuf has them: a URL without a slash, types from another schema, and the OCI
//! specification's JSON in place of a message. While a message is read or written, a placeholder
//! with a number stands for each `Any`.

use std::collections::HashMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use prost::Message;
use prost_reflect::{
    DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, ReflectMessage, SerializeOptions,
    Value as ProtoValue,
};
use serde_json::{Map, Value};

use crate::{misfit, placeholder, schema::Schema};

const ANY: &str = "google.protobuf.Any";

/// How deep an `Any` in an `Any` is read. What is deeper stays encoded.
const MAX_DEPTH: u32 = 32;

/// Reads and writes JSON with the types of a schema.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a> {
    schema: &'a Schema,
    emit_defaults: bool,
    allow_unknown: bool,
    readable_only: bool,
    /// In how many `Any`s this is.
    depth: u32,
}

/// An `Any` that is out of its message.
#[derive(Debug)]
struct AnyContent {
    type_url: String,
    value: Bytes,
}

impl<'a> Json<'a> {
    pub fn new(schema: &'a Schema) -> Self {
        Json { schema, emit_defaults: false, allow_unknown: false, readable_only: false, depth: 0 }
    }

    /// Whether fields that are not set are written with their defaults.
    pub fn emit_defaults(self, emit_defaults: bool) -> Self {
        Json { emit_defaults, ..self }
    }

    /// Whether an `Any` is written without its bytes where they cannot be read.
    pub fn readable_only(self, readable_only: bool) -> Self {
        Json { readable_only, ..self }
    }

    /// Whether fields that a message does not have are left out when JSON is read.
    pub fn allow_unknown(self, allow_unknown: bool) -> Self {
        Json { allow_unknown, ..self }
    }

    /// A message from its bytes to JSON.
    ///
    /// # Errors
    /// If the bytes are no message of this type.
    pub fn decode(&self, kind: &MessageDescriptor, bytes: Bytes) -> Result<Value, String> {
        let message = DynamicMessage::decode(kind.clone(), bytes)
            .map_err(|error| format!("the bytes are no {}: {error}", kind.full_name()))?;
        self.write(message)
    }

    /// JSON to a message's bytes.
    ///
    /// # Errors
    /// If the JSON does not fit the type.
    pub fn encode(&self, kind: &MessageDescriptor, value: Value) -> Result<Bytes, String> {
        Ok(self.read(kind, value)?.encode_to_vec().into())
    }

    /// A message as JSON.
    ///
    /// # Errors
    /// If a well-known type holds what its JSON cannot say, such as a year beyond 9999.
    pub fn write(&self, mut message: DynamicMessage) -> Result<Value, String> {
        let mut contents = Vec::new();
        let own_type = message.descriptor();
        for_each_any(&mut message, &mut |any| {
            let new = set_any(any, placeholder::url(), index_bytes(contents.len()));
            contents.push(new);
        });
        let options = SerializeOptions::new().skip_default_fields(!self.emit_defaults);
        let value = message
            .serialize_with_options(serde_json::value::Serializer, &options)
            .map_err(|error| format!("{} has no JSON: {error}", own_type.full_name()))?;
        Ok(self.fill_in(&own_type, value, &contents))
    }

    /// Puts the content of each `Any` where its placeholder stands, which is where the message has an `Any`.
    fn fill_in(&self, kind: &MessageDescriptor, value: Value, contents: &[AnyContent]) -> Value {
        let object = match value {
            Value::Object(object) if kind.full_name() == ANY => {
                // The first has none: it is the default.
                let index = object.get("index").and_then(Value::as_u64).unwrap_or(0);
                let any = usize::try_from(index).ok().and_then(|index| contents.get(index));
                return any.map_or(Value::Object(object), |any| self.write_any(any));
            }
            Value::Object(object) if !is_well_known(kind) => object,
            value => return without_points(value),
        };
        let fields = object.into_iter().map(|(key, value)| {
            let value = match field_kind(kind, &key) {
                Some(kind) => self.fill_in_field(&kind, value, contents),
                None => value,
            };
            (key, value)
        });
        fields.collect()
    }

    fn fill_in_field(&self, kind: &Kind, value: Value, contents: &[AnyContent]) -> Value {
        let Kind::Message(inner) = kind else { return without_points(value) };
        match value {
            Value::Object(entries) if inner.is_map_entry() => {
                let kind = inner.map_entry_value_field().kind();
                let entries = entries.into_iter();
                entries
                    .map(|(key, value)| (key, self.fill_in_field(&kind, value, contents)))
                    .collect()
            }
            Value::Array(values) => {
                values.into_iter().map(|value| self.fill_in(inner, value, contents)).collect()
            }
            value => self.fill_in(inner, value, contents),
        }
    }

    /// The content of an `Any`: its message's fields, or else what can be told of the bytes.
    pub fn any(&self, type_url: &str, value: &[u8]) -> Value {
        let (type_url, value) = (type_url.to_owned(), Bytes::copy_from_slice(value));
        self.write_any(&AnyContent { type_url, value })
    }

    /// Looks for the types of all `Any`s in a request, so that the schema can learn them.
    pub fn look_for_anys(&self, value: &Value) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(type_url)) = object.get("@type") {
                    self.schema.any_type(type_url);
                }
                object.values().for_each(|value| self.look_for_anys(value));
            }
            Value::Array(values) => values.iter().for_each(|value| self.look_for_anys(value)),
            _ => {}
        }
    }

    fn write_any(&self, any: &AnyContent) -> Value {
        if any.type_url.is_empty() && any.value.is_empty() {
            return Value::Object(Map::new());
        }
        let known = self.schema.any_type(&any.type_url).filter(|_| self.depth < MAX_DEPTH);
        let inner = Json { depth: self.depth + 1, ..*self };
        let decoded = known.and_then(|kind| {
            let value = inner.decode(&kind, any.value.clone()).ok()?;
            Some((kind, value))
        });
        let mut object = Map::new();
        object.insert("@type".to_owned(), any.type_url.clone().into());
        match decoded {
            Some((kind, Value::Object(fields))) if !is_well_known(&kind) => object.extend(fields),
            Some((_, value)) => drop(object.insert("value".to_owned(), value)),
            None => {
                let json = serde_json::from_slice(&any.value).ok().filter(Value::is_object);
                let bytes = if self.readable_only { &[][..] } else { &any.value };
                let value = json.unwrap_or_else(|| STANDARD.encode(bytes).into());
                object.insert("value".to_owned(), value);
            }
        }
        Value::Object(object)
    }

    /// JSON as a message.
    ///
    /// # Errors
    /// If the JSON does not fit the type.
    pub fn read(&self, kind: &MessageDescriptor, value: Value) -> Result<DynamicMessage, String> {
        let mut contents = Vec::new();
        let value = self.take_out(kind, value, &mut contents)?;
        misfit::check_ranges(kind, &value)?;
        let options = DeserializeOptions::new().deny_unknown_fields(!self.allow_unknown);
        let mut message = DynamicMessage::deserialize_with_options(kind.clone(), &value, &options)
            .map_err(|error| misfit::explain(kind, &value, &options, &error.to_string()))?;
        let mut contents = contents.into_iter().map(Some).collect::<Vec<_>>();
        for_each_any(&mut message, &mut |any| {
            let index = DynamicMessage::get_field_by_number(any, 2)
                .and_then(|value| value.as_bytes().map(|bytes| index_of(bytes)));
            if let Some(AnyContent { type_url, value }) =
                index.and_then(|index| contents.get_mut(index)).and_then(Option::take)
            {
                set_any(any, type_url, value);
            }
        });
        Ok(message)
    }

    /// Replaces each `Any` in the JSON of a message by a placeholder.
    fn take_out(
        &self,
        kind: &MessageDescriptor,
        value: Value,
        contents: &mut Vec<AnyContent>,
    ) -> Result<Value, String> {
        let Value::Object(object) = value else { return Ok(value) };
        if kind.full_name() == ANY {
            return self.take_any(object, contents);
        }
        if is_well_known(kind) {
            return Ok(Value::Object(object));
        }
        let mut result = Map::new();
        let mut given = HashMap::new();
        for (key, value) in object {
            let field = kind.get_field_by_json_name(&key).or_else(|| kind.get_field_by_name(&key));
            if let Some(field) = &field
                && let Some(other) = given.insert(field.number(), key.clone())
            {
                return Err(format!(
                    "{}: `{other}` and `{key}` are the same field, which is given twice",
                    kind.full_name()
                ));
            }
            let inner = match field.as_ref().map(|field| field.kind()) {
                Some(Kind::Message(inner)) => inner,
                _ => {
                    result.insert(key, value);
                    continue;
                }
            };
            let is_map = field.is_some_and(|field| field.is_map());
            let value = match value {
                Value::Object(entries) if is_map => {
                    let Kind::Message(inner) = inner.map_entry_value_field().kind() else {
                        result.insert(key, Value::Object(entries));
                        continue;
                    };
                    let mut map = Map::new();
                    for (key, value) in entries {
                        map.insert(key, self.take_out(&inner, value, contents)?);
                    }
                    Value::Object(map)
                }
                Value::Array(values) => Value::Array(
                    values
                        .into_iter()
                        .map(|value| self.take_out(&inner, value, contents))
                        .collect::<Result<_, _>>()?,
                ),
                value => self.take_out(&inner, value, contents)?,
            };
            result.insert(key, value);
        }
        Ok(Value::Object(result))
    }

    fn take_any(
        &self,
        mut object: Map<String, Value>,
        contents: &mut Vec<AnyContent>,
    ) -> Result<Value, String> {
        if object.is_empty() {
            return Ok(replace_by_placeholder(
                AnyContent { type_url: String::new(), value: Bytes::new() },
                contents,
            ));
        }
        let Some(Value::String(type_url)) = object.shift_remove("@type") else {
            return Err("an Any needs \"@type\", the name of its message's type".to_owned());
        };
        let value = match self.schema.any_type(&type_url) {
            Some(kind) if is_well_known(&kind) => {
                self.encode(&kind, object.remove("value").unwrap_or(Value::Null))?
            }
            Some(kind) => self.encode(&kind, Value::Object(object))?,
            None => match object.remove("value") {
                Some(Value::String(text)) => STANDARD
                    .decode(&text)
                    .map_err(|error| format!("the value of the Any `{type_url}`: {error}"))?
                    .into(),
                Some(json @ Value::Object(_)) => json.to_string().into(),
                _ => {
                    return Err(format!(
                        "the type `{type_url}` of an Any is not known: --proto or \
                         --descriptor-set tells it, or \"value\" has its bytes in base64"
                    ));
                }
            },
        };
        Ok(replace_by_placeholder(AnyContent { type_url, value }, contents))
    }
}

/// Keeps the content of an `Any`; returns its placeholder.
fn replace_by_placeholder(any: AnyContent, contents: &mut Vec<AnyContent>) -> Value {
    contents.push(any);
    serde_json::json!({ "@type": placeholder::url(), "index": contents.len() - 1 })
}

/// Calls `change` for each `Any` in a message, and for the message itself if it is one.
fn for_each_any(message: &mut DynamicMessage, change: &mut impl FnMut(&mut DynamicMessage)) {
    if message.descriptor().full_name() == ANY {
        return change(message);
    }
    for (_, value) in message.fields_mut() {
        match value {
            ProtoValue::Message(inner) => for_each_any(inner, change),
            ProtoValue::List(values) => {
                for inner in values.iter_mut().filter_map(ProtoValue::as_message_mut) {
                    for_each_any(inner, change);
                }
            }
            ProtoValue::Map(entries) => {
                for inner in entries.values_mut().filter_map(ProtoValue::as_message_mut) {
                    for_each_any(inner, change);
                }
            }
            _ => {}
        }
    }
}

/// Sets both fields of an `Any` and returns what they were.
fn set_any(any: &mut DynamicMessage, type_url: String, value: Bytes) -> AnyContent {
    let old_url = any.take_field_by_number(1);
    let old_value = any.take_field_by_number(2);
    any.set_field_by_number(1, ProtoValue::String(type_url));
    any.set_field_by_number(2, ProtoValue::Bytes(value));
    let type_url = old_url.and_then(|url| url.as_str().map(str::to_owned)).unwrap_or_default();
    let value = old_value.and_then(|value| value.as_bytes().cloned()).unwrap_or_default();
    AnyContent { type_url, value }
}

/// The encoded placeholder with this index.
fn index_bytes(index: usize) -> Bytes {
    let mut bytes = Vec::new();
    prost::encoding::uint32::encode(1, &u32::try_from(index).unwrap_or(u32::MAX), &mut bytes);
    bytes.into()
}

fn index_of(bytes: &[u8]) -> usize {
    #[derive(Clone, PartialEq, Message)]
    struct Placeholder {
        #[prost(uint32, tag = "1")]
        index: u32,
    }
    Placeholder::decode(bytes).map_or(usize::MAX, |placeholder| placeholder.index as usize)
}

/// What the field or extension with this name in JSON is.
fn field_kind(kind: &MessageDescriptor, key: &str) -> Option<Kind> {
    let field = kind.get_field_by_json_name(key).map(|field| field.kind());
    field.or_else(|| kind.get_extension_by_json_name(key).map(|extension| extension.kind()))
}

/// Whole numbers have no point in protobuf's JSON. Minus zero keeps it, and so its sign.
fn without_points(value: Value) -> Value {
    /// Up to here every whole number has a double of its own.
    const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Object(object) => {
            object.into_iter().map(|(key, value)| (key, without_points(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_points).collect(),
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(whole)
                if whole.fract() == 0.0
                    && whole.abs() <= MAX_WHOLE
                    && (whole != 0.0 || whole.is_sign_positive()) =>
            {
                (whole as i64).into()
            }
            _ => number.into(),
        },
        value => value,
    }
}

/// Whether a type's JSON is not an object of its fields.
fn is_well_known(kind: &MessageDescriptor) -> bool {
    kind.full_name().strip_prefix("google.protobuf.").is_some_and(|name| {
        matches!(
            name,
            "Any"
                | "Timestamp"
                | "Duration"
                | "FieldMask"
                | "Struct"
                | "ListValue"
                | "Value"
                | "Empty"
                | "BoolValue"
                | "StringValue"
                | "BytesValue"
                | "FloatValue"
                | "DoubleValue"
                | "Int32Value"
                | "Int64Value"
                | "UInt32Value"
                | "UInt64Value"
        )
    })
}

#[cfg(test)]
mod tests {
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
        let expected =
            format!("{{\"real\":5,\"reals\":{numbers},\"list\":[{numbers}],\"boxed\":5}}");
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
            any = ttrpc::Any {
                type_url: "a/google.protobuf.Any".to_owned(),
                value: any.encode_to_vec(),
            };
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
}
