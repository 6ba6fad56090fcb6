//! `name=value` arguments as JSON.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

/// Whether an argument is `name=value` and not JSON: it starts with a field's name, or with several
/// that are joined by dots.
pub fn is_field(argument: &str) -> bool {
    argument.split_once('=').is_some_and(|(name, _)| {
        let is_word = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-/".contains(c))
        };
        name.split('.').all(is_word)
    })
}

/// Puts `name=value` into the JSON of a message. The name of a field in a message, or of a key in a
/// map, follows behind a dot. A repeated field takes one value more each time.
///
/// # Errors
/// If the message has no such field.
pub fn set(
    object: &mut Map<String, Value>,
    kind: &MessageDescriptor,
    argument: &str,
) -> Result<(), String> {
    let (name, value) =
        argument.split_once('=').ok_or_else(|| format!("`{argument}` is not name=value"))?;
    set_path(object, kind, name, value)
}

fn set_path(
    object: &mut Map<String, Value>,
    kind: &MessageDescriptor,
    path: &str,
    value: &str,
) -> Result<(), String> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let field = kind
        .get_field_by_name(name)
        .or_else(|| kind.get_field_by_json_name(name))
        .ok_or_else(|| no_field(kind, name))?;
    let place = object.entry(field.json_name().to_owned());
    let Some(rest) = rest else {
        return put(place.or_insert(Value::Null), &field, value);
    };
    let Kind::Message(inner) = field.kind() else {
        return Err(format!("`{name}` is no message, so it has no `{rest}`"));
    };
    let place = place.or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(place) = place else {
        return Err(format!("`{name}` is given twice, once as a whole"));
    };
    if field.is_map() {
        let value = convert(&inner.map_entry_value_field().kind(), value);
        place.insert(rest.to_owned(), value);
        return Ok(());
    }
    if field.is_list() {
        return Err(format!("`{name}` is a list: give its elements as JSON, {name}='{{…}}'"));
    }
    set_path(place, &inner, rest, value)
}

fn put(place: &mut Value, field: &FieldDescriptor, text: &str) -> Result<(), String> {
    let is_whole =
        (field.is_list() && text.starts_with('[')) || (field.is_map() && text.starts_with('{'));
    if is_whole {
        *place = serde_json::from_str(text)
            .map_err(|error| format!("the value of `{}`: {error}", field.name()))?;
        return Ok(());
    }
    let value = convert(&field.kind(), text);
    match (field.is_list(), &mut *place) {
        (true, Value::Array(values)) => values.push(value),
        (true, _) => *place = Value::Array(vec![value]),
        (false, Value::Null) => *place = value,
        (false, _) => return Err(format!("`{}` is given twice", field.name())),
    }
    Ok(())
}

/// A value as the shell has it. What does not fit the type is left to the reader of the JSON.
fn convert(kind: &Kind, text: &str) -> Value {
    let json = || serde_json::from_str(text).ok();
    let value = match kind {
        Kind::String | Kind::Bytes | Kind::Enum(_) => None,
        // Timestamps and durations are strings.
        Kind::Message(_) => json().filter(|value: &Value| value.is_object() || value.is_array()),
        _ => json().filter(|value: &Value| !value.is_object() && !value.is_array()),
    };
    match (kind, value) {
        (Kind::Enum(_), _) if text.parse::<i32>().is_ok() => json().unwrap_or(Value::Null),
        (_, Some(value)) => value,
        (_, None) => Value::String(text.to_owned()),
    }
}

fn no_field(kind: &MessageDescriptor, name: &str) -> String {
    let fields: Vec<_> = kind.fields().map(|field| field.name().to_owned()).collect();
    match fields.is_empty() {
        true => format!("{} has no field `{name}`; it has none", kind.full_name()),
        false => {
            format!("{} has no field `{name}`; it has: {}", kind.full_name(), fields.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{json::Json, schema::builtin};

    fn request(kind: &str, arguments: &[&str]) -> Result<Value, String> {
        let kind = builtin().pool().get_message_by_name(kind).unwrap();
        let mut object = Map::new();
        for argument in arguments {
            assert!(is_field(argument), "{argument}");
            set(&mut object, &kind, argument)?;
        }
        let json = Json::new(builtin());
        json.write(json.read(&kind, Value::Object(object))?)
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
        let arguments =
            ["annotations.io.x/y=z", "resources={\"@type\":\"containerd.types.Mount\"}"];
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
}
