//! A request to fill in.

use std::collections::HashSet;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// How deep messages are shown in each other.
const MAX_DEPTH: usize = 32;

/// Fields that are shown.
const MAX_FIELDS: usize = 5000;

/// A JSON object with every field of a message, and of those in it. A field of a `oneof` is there if it is the first one.
/// Each message is shown once: where it stands again, or where no more is shown, is a `…` and its name.
pub fn template(message: &MessageDescriptor) -> Value {
    Template::default().of_message(message)
}

#[derive(Default)]
struct Template {
    shown: HashSet<String>,
    fields: usize,
    depth: usize,
}

impl Template {
    fn of_message(&mut self, message: &MessageDescriptor) -> Value {
        if let Some(value) = well_known(message.full_name()) {
            return value;
        }
        let is_full = self.depth >= MAX_DEPTH || self.fields >= MAX_FIELDS;
        if is_full || !self.shown.insert(message.full_name().to_owned()) {
            return json!(format!("… {}", message.full_name()));
        }
        self.depth += 1;
        let mut object = Map::new();
        for field in message.fields() {
            let is_left_out = field.containing_oneof().is_some_and(|oneof| {
                oneof.fields().next().is_some_and(|first| first.number() != field.number())
            });
            if is_left_out {
                continue;
            }
            if self.fields >= MAX_FIELDS {
                object.insert("…".to_owned(), json!("further fields"));
                break;
            }
            self.fields += 1;
            object.insert(field.json_name().to_owned(), self.of_field(&field));
        }
        self.depth -= 1;
        Value::Object(object)
    }

    fn of_field(&mut self, field: &FieldDescriptor) -> Value {
        match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let key = match entry.map_entry_key_field().kind() {
                    Kind::String => "",
                    Kind::Bool => "false",
                    _ => "0",
                };
                json!({ key: self.of_kind(&entry.map_entry_value_field().kind()) })
            }
            kind if field.is_list() => json!([self.of_kind(&kind)]),
            kind => self.of_kind(&kind),
        }
    }

    fn of_kind(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::Message(message) => self.of_message(message),
            Kind::Enum(enumeration) => json!(enumeration.default_value().name()),
            Kind::Bool => json!(false),
            Kind::String | Kind::Bytes => json!(""),
            // 64 bits are a string in protobuf's JSON.
            Kind::Int64 | Kind::Uint64 | Kind::Sint64 | Kind::Fixed64 | Kind::Sfixed64 => {
                json!("0")
            }
            _ => json!(0),
        }
    }
}

/// Types whose JSON is not an object of their fields.
fn well_known(name: &str) -> Option<Value> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "Any" => json!({ "@type": "" }),
        "Timestamp" => json!("1970-01-01T00:00:00Z"),
        "Duration" => json!("0s"),
        "FieldMask" | "StringValue" | "BytesValue" => json!(""),
        "Struct" | "Empty" => json!({}),
        "ListValue" => json!([]),
        "Value" => Value::Null,
        "BoolValue" => json!(false),
        "Int64Value" | "UInt64Value" => json!("0"),
        "Int32Value" | "UInt32Value" | "FloatValue" | "DoubleValue" => json!(0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        json::Json,
        schema::{builtin, files},
    };

    /// Takes out what is not shown again.
    fn without_references(value: Value) -> Value {
        let is_reference = |value: &Value| {
            let alone = value.as_array().and_then(|values| values.first());
            alone.unwrap_or(value).as_str().is_some_and(|text| text.starts_with('…'))
        };
        match value {
            Value::Object(object) => object
                .into_iter()
                .filter(|(_, value)| !is_reference(value))
                .map(|(key, value)| (key, without_references(value)))
                .collect(),
            Value::Array(values) => values.into_iter().map(without_references).collect(),
            value => value,
        }
    }

    #[test]
    fn every_built_in_template_is_a_valid_request() {
        let json = Json::new(builtin());
        for message in builtin().pool().all_messages().filter(|message| !message.is_map_entry()) {
            let filled = without_references(template(&message))
                .to_string()
                .replace(r#""@type":"""#, r#""@type":"containerd.events.TaskStart""#);
            // What contains only itself and an Any is enough.
            let request = json.read(&message, serde_json::from_str(&filled).unwrap());
            assert!(request.is_ok(), "{}: {request:?}", message.full_name());
        }
    }

    #[test]
    fn a_template_shows_what_is_inside() {
        let symbol = builtin().pool().get_message_by_name("containerd.task.v3.CreateTaskRequest");
        let template = template(&symbol.unwrap());
        assert_eq!(template["rootfs"][0]["type"], "");
        assert_eq!(template["options"], json!({ "@type": "" }));
    }

    /// The template of `M0`.
    fn template_of(messages: String) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.proto");
        std::fs::write(&path, format!("syntax = \"proto3\";\n{messages}")).unwrap();
        let schema = files::compile(&[path], &[]).unwrap();
        template(&schema.pool().get_message_by_name("M0").unwrap())
    }

    #[test]
    fn a_message_is_shown_once_however_often_it_is_named() {
        let twice =
            (0..60).map(|at| format!("message M{at} {{ M{0} a = 1; M{0} b = 2; }}\n", at + 1));
        let text = template_of(twice.collect::<String>() + "message M60 {}").to_string();
        assert!(text.len() < 5000, "{} bytes", text.len());
        let all: String = (0..9).map(|to| format!("M{to} f{to} = {};", to + 1)).collect();
        let each_other: String = (0..9).map(|at| format!("message M{at} {{ {all} }}\n")).collect();
        let shown = template_of(each_other);
        assert_eq!(shown["f0"], "… M0");
        assert!(shown.to_string().len() < 3000, "{shown}");
    }

    #[test]
    fn a_template_has_a_bound_in_depth_and_in_fields() {
        let chain: String =
            (0..2000).map(|at| format!("message M{at} {{ M{} a = 1; }}\n", at + 1)).collect();
        let text = template_of(chain + "message M2000 {}").to_string();
        assert!(text.contains("… M32") && text.len() < 1000, "{text}");
        let fields: String = (1..9000).map(|at| format!("uint32 f{at} = {at};")).collect();
        let shown = template_of(format!("message M0 {{ {fields} }}"));
        assert_eq!(shown.as_object().unwrap().len(), MAX_FIELDS + 1);
    }
}
