//! A request to fill in.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// A JSON object with every field of a message, and of those in it. A field of a `oneof` is there if
/// it is the first one; a message inside of itself is left empty.
pub fn template(message: &MessageDescriptor) -> Value {
    of_message(message, &mut Vec::new())
}

fn of_message(message: &MessageDescriptor, around: &mut Vec<String>) -> Value {
    if let Some(value) = well_known(message.full_name()) {
        return value;
    }
    let mut object = Map::new();
    if around.iter().any(|name| name == message.full_name()) {
        return Value::Object(object);
    }
    around.push(message.full_name().to_owned());
    for field in message.fields() {
        let is_left_out = field.containing_oneof().is_some_and(|oneof| {
            oneof.fields().next().is_some_and(|first| first.number() != field.number())
        });
        if !is_left_out {
            object.insert(field.json_name().to_owned(), of_field(&field, around));
        }
    }
    around.pop();
    Value::Object(object)
}

fn of_field(field: &FieldDescriptor, around: &mut Vec<String>) -> Value {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let key = match entry.map_entry_key_field().kind() {
                Kind::String => "",
                Kind::Bool => "false",
                _ => "0",
            };
            json!({ key: of_kind(&entry.map_entry_value_field().kind(), around) })
        }
        kind if field.is_list() => json!([of_kind(&kind, around)]),
        kind => of_kind(&kind, around),
    }
}

fn of_kind(kind: &Kind, around: &mut Vec<String>) -> Value {
    match kind {
        Kind::Message(message) => of_message(message, around),
        Kind::Enum(enumeration) => json!(enumeration.default_value().name()),
        Kind::Bool => json!(false),
        Kind::String | Kind::Bytes => json!(""),
        // 64 bits are a string in protobuf's JSON.
        Kind::Int64 | Kind::Uint64 | Kind::Sint64 | Kind::Fixed64 | Kind::Sfixed64 => json!("0"),
        Kind::Double | Kind::Float => json!(0.0),
        _ => json!(0),
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
    use crate::{json::Json, schema::builtin};

    #[test]
    fn every_built_in_template_is_a_valid_request() {
        let json = Json::new(builtin());
        for message in builtin().pool().all_messages().filter(|message| !message.is_map_entry()) {
            let filled = template(&message)
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
}
