//! What an `Any` holds, and the placeholder that stands for it.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value as ProtoValue};
use serde_json::{Map, Value};

use super::{ANY, Json, is_well_known};
use crate::placeholder;

/// How deep an `Any` in an `Any` is read. What is deeper stays encoded.
const MAX_DEPTH: u32 = 32;

/// An `Any` that is out of its message.
#[derive(Debug)]
pub(super) struct AnyContent {
    pub type_url: String,
    pub value: Bytes,
}

impl Json<'_> {
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

    pub(super) fn write_any(&self, any: &AnyContent) -> Value {
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

    pub(super) fn take_any(
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
pub(super) fn for_each_any(
    message: &mut DynamicMessage,
    change: &mut impl FnMut(&mut DynamicMessage),
) {
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
pub(super) fn set_any(any: &mut DynamicMessage, type_url: String, value: Bytes) -> AnyContent {
    let old_url = any.take_field_by_number(1);
    let old_value = any.take_field_by_number(2);
    any.set_field_by_number(1, ProtoValue::String(type_url));
    any.set_field_by_number(2, ProtoValue::Bytes(value));
    let type_url = old_url.and_then(|url| url.as_str().map(str::to_owned)).unwrap_or_default();
    let value = old_value.and_then(|value| value.as_bytes().cloned()).unwrap_or_default();
    AnyContent { type_url, value }
}

/// The encoded placeholder with this index.
pub(super) fn index_bytes(index: usize) -> Bytes {
    let mut bytes = Vec::new();
    prost::encoding::uint32::encode(1, &u32::try_from(index).unwrap_or(u32::MAX), &mut bytes);
    bytes.into()
}

pub(super) fn index_of(bytes: &[u8]) -> usize {
    #[derive(Clone, PartialEq, Message)]
    struct Placeholder {
        #[prost(uint32, tag = "1")]
        index: u32,
    }
    Placeholder::decode(bytes).map_or(usize::MAX, |placeholder| placeholder.index as usize)
}
