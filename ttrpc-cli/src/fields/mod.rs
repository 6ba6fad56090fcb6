//! `name=value` arguments as JSON.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use crate::{misfit, strict};

/// Whether an argument is `name=value` and not JSON: it starts with a field's name. Behind a dot may be
/// another, or the key of a map, which may hold anything.
pub fn is_field(argument: &str) -> bool {
    argument.split_once('=').is_some_and(|(path, _)| {
        let (name, rest) = path.split_once('.').unwrap_or((path, "key"));
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_-/".contains(c);
        !name.is_empty() && name.chars().all(is_word) && !rest.is_empty() && !rest.starts_with('.')
    })
}

/// Puts `name=value` arguments on top of the JSON of a message.
#[derive(Debug)]
pub struct Fields<'a> {
    object: &'a mut Map<String, Value>,
    kind: &'a MessageDescriptor,
    /// The paths that arguments have set, of JSON names.
    given: BTreeSet<Vec<String>>,
}

impl<'a> Fields<'a> {
    /// On top of this object, whose fields get their JSON names.
    pub fn on(object: &'a mut Map<String, Value>, kind: &'a MessageDescriptor) -> Self {
        Fields { object, kind, given: BTreeSet::new() }
    }

    /// Puts `name=value` into the JSON. The name of a field in a message, or of a key in a map, follows behind a
    /// dot. A repeated field takes one value more each time. What the JSON has is replaced.
    ///
    /// # Errors
    /// If the message has no such field, or an argument has set it before.
    pub fn set(&mut self, argument: &str) -> Result<(), String> {
        let (name, value) =
            argument.split_once('=').ok_or_else(|| format!("`{argument}` is not name=value"))?;
        let given = Given { paths: &mut self.given, path: Vec::new() };
        given.set(self.object, self.kind, name, value)
    }
}

/// Puts `name=value` arguments on top of the one object that there is.
///
/// # Errors
/// If there is another number of values, or a field does not fit.
pub fn put_on<'a>(
    values: &mut [Value],
    kind: &MessageDescriptor,
    fields: impl IntoIterator<Item = &'a String>,
) -> Result<(), String> {
    let mut fields = fields.into_iter().peekable();
    if fields.peek().is_none() {
        return Ok(());
    }
    let [Value::Object(object)] = values else {
        return Err("name=value fields go with one JSON object".to_owned());
    };
    let mut on_top = Fields::on(object, kind);
    fields.try_for_each(|field| on_top.set(field))
}

/// What arguments have set, and where in the message the present one is.
struct Given<'a> {
    paths: &'a mut BTreeSet<Vec<String>>,
    path: Vec<String>,
}

impl Given<'_> {
    fn set(
        mut self,
        object: &mut Map<String, Value>,
        kind: &MessageDescriptor,
        path: &str,
        value: &str,
    ) -> Result<(), String> {
        let (name, rest) = match path.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (path, None),
        };
        let field = field_of(kind, name).ok_or_else(|| no_field(kind, name))?;
        self.path.push(field.json_name().to_owned());
        name_as_json(object, &field);
        self.leave_others_of_oneof(object, &field);
        let Some(rest) = rest else {
            let place = object.entry(field.json_name()).or_insert(Value::Null);
            return self.put(name, place, &field, value);
        };
        let Kind::Message(inner) = field.kind() else {
            return Err(format!("`{name}` is no message, so it has no `{rest}`"));
        };
        if field.is_list() {
            return Err(format!("`{name}` is a list: give its elements as JSON, {name}='{{…}}'"));
        }
        let place = object.entry(field.json_name()).or_insert(Value::Null);
        if !place.is_object() {
            if self.paths.contains(&self.path) {
                return Err(format!("`{name}` is given twice, once as a whole"));
            }
            *place = Value::Object(Map::new());
        }
        let Value::Object(place) = place else { unreachable!("it is one now") };
        let entry = match inner.full_name() {
            "google.protobuf.Struct" => inner.get_field(1).map(|fields| fields.kind()),
            _ => Some(field.kind()).filter(|_| field.is_map()),
        };
        if let Some(Kind::Message(entry)) = entry {
            self.path.push(rest.to_owned());
            self.claim(rest)?;
            let kind = entry.map_entry_value_field();
            let value = convert(&kind.kind(), value)?;
            misfit::check_field(path, &kind, &value)?;
            place.insert(rest.to_owned(), value);
            return Ok(());
        }
        self.set(place, &inner, rest, value)
    }

    /// Notes that an argument sets this path, which none may have done before, nor something in it.
    fn claim(self, name: &str) -> Result<(), String> {
        let mut behind = self.paths.range(self.path.clone()..);
        if behind.next().is_some_and(|other| other.starts_with(&self.path)) {
            return Err(format!("`{name}` is given twice"));
        }
        self.paths.insert(self.path);
        Ok(())
    }

    /// Takes what the JSON has of a oneof away, so that the field stands alone.
    fn leave_others_of_oneof(&self, object: &mut Map<String, Value>, field: &FieldDescriptor) {
        let Some(oneof) = field.containing_oneof() else { return };
        for other in oneof.fields().filter(|other| other != field) {
            let mut path = self.path.clone();
            path.pop();
            path.push(other.json_name().to_owned());
            let is_given = self.paths.range(path.clone()..).next();
            // Two arguments are a mistake, which the reader of the JSON tells.
            if !is_given.is_some_and(|given| given.starts_with(&path)) {
                object.shift_remove(other.json_name());
                object.shift_remove(other.name());
            }
        }
    }

    /// Puts a value in its place, for an argument that calls the field so.
    fn put(
        self,
        name: &str,
        place: &mut Value,
        field: &FieldDescriptor,
        text: &str,
    ) -> Result<(), String> {
        let is_whole =
            (field.is_list() && text.starts_with('[')) || (field.is_map() && text.starts_with('{'));
        if is_whole {
            self.claim(field.name())?;
            *place = strict::from_str(text)
                .map_err(|error| format!("the value of `{}`: {error}", field.name()))?;
            return Ok(());
        }
        let value = convert(&field.kind(), text)?;
        misfit::check_field(name, field, &value)?;
        if !field.is_list() {
            self.claim(field.name())?;
            *place = value;
            return Ok(());
        }
        let is_first = self.paths.insert(self.path);
        match place {
            Value::Array(values) if !is_first => values.push(value),
            _ => *place = Value::Array(vec![value]),
        }
        Ok(())
    }
}

/// A field by its name in the .proto file or in JSON.
pub fn field_of(kind: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    kind.get_field_by_name(name).or_else(|| kind.get_field_by_json_name(name))
}

/// JSON has a field under either of its names; from here on it has one.
fn name_as_json(object: &mut Map<String, Value>, field: &FieldDescriptor) {
    if field.name() == field.json_name() {
        return;
    }
    if let Some(value) = object.shift_remove(field.name()) {
        object.entry(field.json_name()).or_insert(value);
    }
}

/// A value as the shell has it. What does not fit the type is left to the reader of the JSON.
///
/// # Errors
/// For an object that is no JSON.
pub fn convert(kind: &Kind, text: &str) -> Result<Value, String> {
    let string = || Value::String(text.to_owned());
    let is_whole = |value: &Value| value.is_object() || value.is_array();
    let json = || match strict::from_str(text) {
        // Whoever writes an object means one.
        Err(error) if text.starts_with('{') && !error.is_syntax() => Err(error.to_string()),
        parsed => Ok(parsed.ok()),
    };
    Ok(match kind {
        Kind::String | Kind::Bytes => string(),
        Kind::Enum(_) if text.parse::<i32>().is_err() => string(),
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Value" => json()?.unwrap_or_else(string),
            name if is_wrapper(name) => match message.get_field(1) {
                Some(field) => convert(&field.kind(), text)?,
                None => string(),
            },
            // Timestamps and durations are strings.
            _ => json()?.filter(is_whole).unwrap_or_else(string),
        },
        _ => match json()? {
            // One that has no place in 64 bits is no number for JSON's reader, but a string that is out of range.
            Some(Value::Number(number)) if number.is_f64() && is_integer(text) => string(),
            Some(value) if !is_whole(&value) => value,
            _ => string(),
        },
    })
}

/// Digits alone.
fn is_integer(text: &str) -> bool {
    text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a message stands for the one value that it has.
fn is_wrapper(name: &str) -> bool {
    name.strip_prefix("google.protobuf.").is_some_and(|name| {
        name.strip_suffix("Value").is_some_and(|of| {
            let kinds = [
                "Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes",
            ];
            kinds.contains(&of)
        })
    })
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
