//! `name=value` arguments as JSON.

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

#[cfg(test)]
mod tests {
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
            (
                json!({ "list_of": ["a"] }),
                &["list_of=b", "listOf=c"],
                json!({ "listOf": ["b", "c"] }),
            ),
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
        let arguments =
            ["bool_value=true", "string_value=7", "number_value=8", "any_value={\"a\":1}"];
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
            (
                "smallNumber=-1",
                "`smallNumber`: `-1` is no uint32, a whole number from 0 to 4294967295",
            ),
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
