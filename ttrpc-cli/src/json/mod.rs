//! Messages as protobuf's JSON, both ways.
//!
//! The mapping is prost-reflect's. What an `Any` holds is done here, since containerd's are not as
//! protobuf has them: a URL without a slash, types from another schema, and the OCI
//! specification's JSON in place of a message. While a message is read or written, a placeholder
//! with a number stands for each `Any`.

mod any;
mod numbers;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use bytes::Bytes;
use prost_reflect::{
    DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, ReflectMessage, SerializeOptions,
};
use serde_json::{Map, Value};

use crate::{misfit, placeholder, schema::Schema};
use any::{AnyContent, for_each_any, index_bytes, index_of, set_any};
use numbers::without_points;

const ANY: &str = "google.protobuf.Any";

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
        Ok(numbers::encode(&self.read(kind, value)?))
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
        let mut value = message
            .serialize_with_options(serde_json::value::Serializer, &options)
            .map_err(|error| format!("{} has no JSON: {error}", own_type.full_name()))?;
        numbers::restore(&message, &mut value);
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
}

/// What the field or extension with this name in JSON is.
fn field_kind(kind: &MessageDescriptor, key: &str) -> Option<Kind> {
    let field = kind.get_field_by_json_name(key).map(|field| field.kind());
    field.or_else(|| kind.get_extension_by_json_name(key).map(|extension| extension.kind()))
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
