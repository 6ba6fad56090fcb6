//! What is wrong with JSON that does not fit a message: the field, and what it may be.

use prost_reflect::{DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

/// Explains why `value` is not a message of this kind.
pub fn explain(
    kind: &MessageDescriptor,
    value: &Value,
    options: &DeserializeOptions,
    error: &str,
) -> String {
    if let Some(words) = no_object(kind, value) {
        return format!("{}: {words}", kind.full_name());
    }
    let misfit = Misfit {
        path: String::new(),
        kind: kind.clone(),
        field: None,
        value: Value::Null,
        error: error.to_owned(),
    };
    let Misfit { path, kind: inner, field: last, value, error } = misfit.narrow(value, options);
    let words = last.as_ref().and_then(|field| in_words(&value_kind(field), &value));
    let error = words.unwrap_or(error);
    let field = if path.is_empty() { path } else { format!("field `{path}`: ") };
    let mut text = format!("{}: {field}{error}", kind.full_name());
    if error.contains("unrecognized field name") {
        let fields: Vec<_> = inner.fields().map(|field| field.json_name().to_owned()).collect();
        text += &match fields.is_empty() {
            true => "; it has no fields".to_owned(),
            false => format!("; {} has: {}", inner.full_name(), fields.join(", ")),
        };
    }
    if error.contains("unrecognized enum value")
        && let Some(Kind::Enum(kind)) = last.as_ref().map(value_kind)
    {
        let values: Vec<_> = kind.values().map(|value| value.name().to_owned()).collect();
        text += &format!("; {} has: {}", kind.full_name(), values.join(", "));
    }
    text
}

/// Whether a value, or one of several, fits a field whose type has words of its own here.
///
/// # Errors
/// With this name and the value, if it does not.
pub fn check_field(name: &str, field: &FieldDescriptor, value: &Value) -> Result<(), String> {
    match in_words(&value_kind(field), value) {
        Some(words) => Err(format!("the request does not fit: field `{name}`: {words}")),
        None => Ok(()),
    }
}

/// What is wrong with a value for a scalar, if something is. Of others nothing is known.
fn in_words(kind: &Kind, value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => return None,
        value => value.to_string(),
    };
    let whole = |least: i128, most: i128| {
        let is_one = match text.parse::<i128>() {
            Ok(number) => (least..=most).contains(&number),
            Err(_) => text.parse::<f64>().is_ok_and(|number| {
                number.fract() == 0.0 && (least as f64..=most as f64).contains(&number)
            }),
        };
        (!is_one).then(|| format!("a whole number from {least} to {most}"))
    };
    let is_string = value.is_string();
    let may_be = match kind {
        Kind::Message(message) => {
            let is_wrapper = message.full_name().strip_prefix("google.protobuf.");
            let is_wrapper = is_wrapper.is_some_and(|name| name.ends_with("Value"))
                && message.fields().len() == 1
                && message.full_name() != "google.protobuf.ListValue";
            return match is_wrapper {
                true => in_words(&message.get_field(1)?.kind(), value),
                false => no_object(message, value),
            };
        }
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => whole(i32::MIN.into(), i32::MAX.into()),
        Kind::Uint32 | Kind::Fixed32 => whole(0, u32::MAX.into()),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => whole(i64::MIN.into(), i64::MAX.into()),
        Kind::Uint64 | Kind::Fixed64 => whole(0, u64::MAX.into()),
        Kind::Float | Kind::Double => {
            let is_one = text.parse::<f64>().is_ok() || text == "Infinity" || text == "-Infinity";
            (!is_one).then(|| "a number, Infinity or NaN".to_owned())
        }
        Kind::Bool => (!value.is_boolean()).then(|| "true or false".to_owned()),
        Kind::String => (!is_string).then(|| "text".to_owned()),
        Kind::Bytes => {
            let is_one = is_string && is_base64(&text);
            (!is_one).then(|| "text in base64".to_owned())
        }
        Kind::Enum(_) => None,
    };
    let may_be = may_be?;
    Some(format!("`{text}` is no {kind:?}, {may_be}"))
}

/// That a value is no message, if it is no object. Some of protobuf's own are texts and lists.
fn no_object(kind: &MessageDescriptor, value: &Value) -> Option<String> {
    let is_special = kind.full_name().starts_with("google.protobuf.");
    if is_special || value.is_object() {
        return None;
    }
    let text = value.to_string();
    let short: String = text.chars().take(40).collect();
    let rest = if short.len() < text.len() { "…" } else { "" };
    Some(format!("`{short}{rest}` is no object"))
}

/// In either alphabet, with or without its padding, as protobuf's JSON takes it.
fn is_base64(text: &str) -> bool {
    let text = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte);
    text.bytes().all(is_digit) && text.len() % 4 != 1
}

/// What a field's values are: of a map, those behind the keys.
fn value_kind(field: &FieldDescriptor) -> Kind {
    match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => entry.map_entry_value_field().kind(),
        kind => kind,
    }
}

/// Finds a number that has no place in the 64 bits of its field. The reader of the JSON would make it the largest
/// that has.
///
/// # Errors
/// With the field.
pub fn check_ranges(kind: &MessageDescriptor, value: &Value) -> Result<(), String> {
    check_message(kind, value, "").map_err(|error| format!("{}: {error}", kind.full_name()))
}

fn check_message(kind: &MessageDescriptor, value: &Value, path: &str) -> Result<(), String> {
    if let Some(name) = kind.full_name().strip_prefix("google.protobuf.") {
        return match (name, kind.get_field(1)) {
            ("Int64Value" | "UInt64Value", Some(field)) => check(&field.kind(), value, path),
            _ => Ok(()),
        };
    }
    let Value::Object(object) = value else { return Ok(()) };
    for (key, value) in object {
        let field = kind.get_field_by_json_name(key).or_else(|| kind.get_field_by_name(key));
        let Some(field) = field else { continue };
        let dot = if path.is_empty() { "" } else { "." };
        let (kind, path) = (value_kind(&field), format!("{path}{dot}{key}"));
        match value {
            Value::Object(entries) if field.is_map() => {
                entries.values().try_for_each(|value| check(&kind, value, &path))?;
            }
            Value::Array(values) if field.is_list() => {
                values.iter().try_for_each(|value| check(&kind, value, &path))?;
            }
            value => check(&kind, value, &path)?,
        }
    }
    Ok(())
}

fn check(kind: &Kind, value: &Value, path: &str) -> Result<(), String> {
    // The first that are too large; as an integer in JSON, either is a float for its parser.
    let limit = match kind {
        Kind::Message(message) => return check_message(message, value, path),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => 2_f64.powi(63),
        Kind::Uint64 | Kind::Fixed64 => 2_f64.powi(64),
        _ => return Ok(()),
    };
    match value {
        Value::Number(number)
            if number.is_f64() && number.as_f64().is_some_and(|value| value.abs() >= limit) =>
        {
            let field = if path.is_empty() { String::new() } else { format!("field `{path}`: ") };
            Err(format!("{field}{number} is out of range"))
        }
        _ => Ok(()),
    }
}

/// A value that does not fit.
struct Misfit {
    /// From the outermost message: `spec.args`.
    path: String,
    /// The innermost message that is known to have the value.
    kind: MessageDescriptor,
    /// The last of the path.
    field: Option<FieldDescriptor>,
    /// The field's; of several the one that does not fit.
    value: Value,
    error: String,
}

impl Misfit {
    /// Goes into the first field that does not fit by itself.
    fn narrow(self, value: &Value, options: &DeserializeOptions) -> Self {
        let Value::Object(object) = value else { return self };
        for (key, value) in object {
            let field = self.kind.get_field_by_json_name(key);
            let Some(field) = field.or_else(|| self.kind.get_field_by_name(key)) else { continue };
            let Some(error) = self.error_of(key, value.clone(), options) else { continue };
            let dot = if self.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{key}", self.path);
            let (last, wrong) = (Some(field.clone()), value.clone());
            let misfit = Misfit { path, kind: self.kind, field: last, value: wrong, error };
            return misfit.narrow_field(&field, key, value, options);
        }
        self
    }

    /// Goes into the messages of a field.
    fn narrow_field(
        mut self,
        field: &FieldDescriptor,
        key: &str,
        value: &Value,
        options: &DeserializeOptions,
    ) -> Self {
        let wrong = match value {
            Value::Array(values) => {
                let is_wrong = |value: &&Value| {
                    self.error_of(key, vec![(*value).clone()].into(), options).is_some()
                };
                let Some(wrong) = values.iter().find(is_wrong) else { return self };
                self.value = wrong.clone();
                wrong
            }
            value => value,
        };
        match field.kind() {
            Kind::Message(inner) if wrong.is_object() && !field.is_map() => {
                self.kind = inner;
                self.narrow(wrong, options)
            }
            _ => self,
        }
    }

    /// What is wrong with a message that has nothing but this field.
    fn error_of(&self, key: &str, value: Value, options: &DeserializeOptions) -> Option<String> {
        let alone = Value::Object(Map::from_iter([(key.to_owned(), value)]));
        let read = DynamicMessage::deserialize_with_options(self.kind.clone(), alone, options);
        read.err().map(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{json::Json, schema::builtin};

    fn refused(name: &str, value: Value) -> String {
        let kind = builtin().pool().get_message_by_name(name).unwrap();
        Json::new(builtin()).read(&kind, value).unwrap_err()
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_with_its_field() {
        let create = "containerd.task.v3.CreateTaskRequest";
        for (value, said) in [
            (json!({ "id": "a", "terminal": 3 }), "field `terminal`: "),
            (
                json!({ "rootfs": [{}, { "type": "a" }, { "target": 1 }] }),
                "field `rootfs.target`: ",
            ),
            (json!({ "rootfs": {} }), "field `rootfs`: "),
            (json!([]), "CreateTaskRequest: `[]` is no object"),
            (json!({ "stdin": "", "options": 5 }), "field `options`: "),
            (json!({ "rootfs": [5] }), "field `rootfs`: `5` is no object"),
            (json!({ "terminal": "yes" }), "field `terminal`: `yes` is no bool, true or false"),
            (
                json!({ "rootfs": [{ "options": ["a", 1] }] }),
                "field `rootfs.options`: `1` is no string",
            ),
        ] {
            let text = refused(create, value.clone());
            assert!(text.starts_with(create) && text.contains(said), "{value}: {text}");
        }
    }

    #[test]
    fn a_value_that_an_enum_does_not_have_comes_with_those_that_it_has() {
        let text = refused("containerd.task.v3.StateResponse", json!({ "status": "RUNING" }));
        assert!(text.contains("field `status`: ") && text.contains("RUNNING"), "{text}");
    }

    #[test]
    fn a_field_that_is_not_known_comes_with_those_that_its_message_has() {
        let value = json!({ "id": "a", "rootfs": [{ "typ": "" }] });
        let text = refused("containerd.task.v3.CreateTaskRequest", value);
        assert!(text.contains("field `rootfs`: "), "{text}");
        assert!(text.contains("containerd.types.Mount has: type, source"), "{text}");
    }
}
