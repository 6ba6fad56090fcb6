//! Numbers as protobuf's JSON has them, and minus zero, which is not the default of a field.

use bytes::{BufMut, Bytes};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value as ProtoValue};
use serde_json::Value;

use super::is_well_known;

/// Whole numbers have no point in protobuf's JSON. Minus zero keeps it, and so its sign.
pub(super) fn without_points(value: Value) -> Value {
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

/// A message's bytes. A field without presence that is minus zero is among them, which prost-reflect takes for the
/// default.
pub(super) fn encode(message: &DynamicMessage) -> Bytes {
    encode_to_vec(message).into()
}

fn encode_to_vec(message: &DynamicMessage) -> Vec<u8> {
    if !has_minus_zero(message) {
        return message.encode_to_vec();
    }
    let (mut rest, mut bytes) = (message.clone(), Vec::new());
    for field in message.descriptor().fields() {
        let value = message.get_field(&field);
        if is_lost(&field, &value) {
            match &*value {
                ProtoValue::F32(zero) => {
                    encode_key(field.number(), WireType::ThirtyTwoBit, &mut bytes);
                    bytes.put_f32_le(*zero);
                }
                ProtoValue::F64(zero) => {
                    encode_key(field.number(), WireType::SixtyFourBit, &mut bytes);
                    bytes.put_f64_le(*zero);
                }
                _ => {}
            }
            continue;
        }
        // A group is left as it is.
        if field.is_group() || !is_set(message, &field) || !messages(&value).any(has_minus_zero) {
            continue;
        }
        rest.clear_field(&field);
        let mut put = |inner: &[u8]| {
            encode_key(field.number(), WireType::LengthDelimited, &mut bytes);
            encode_varint(inner.len() as u64, &mut bytes);
            bytes.put_slice(inner);
        };
        match (&*value, field.kind()) {
            (ProtoValue::Map(entries), Kind::Message(kind)) => {
                for (key, value) in entries {
                    let mut entry = DynamicMessage::new(kind.clone());
                    entry.set_field_by_number(1, key.clone().into());
                    let mut entry = entry.encode_to_vec();
                    let inner = value.as_message().map(encode_to_vec).unwrap_or_default();
                    encode_key(2, WireType::LengthDelimited, &mut entry);
                    encode_varint(inner.len() as u64, &mut entry);
                    entry.put_slice(&inner);
                    put(&entry);
                }
            }
            (value, _) => messages(value).for_each(|inner| put(&encode_to_vec(inner))),
        }
    }
    let mut all = rest.encode_to_vec();
    all.append(&mut bytes);
    all
}

/// Puts fields that are minus zero into the JSON of a message, from which prost-reflect has left them out.
pub(super) fn restore(message: &DynamicMessage, json: &mut Value) {
    let Value::Object(object) = json else { return };
    if is_well_known(&message.descriptor()) || !has_minus_zero(message) {
        return;
    }
    for field in message.descriptor().fields() {
        let value = message.get_field(&field);
        if is_lost(&field, &value) {
            object.insert(field.json_name().to_owned(), (-0.0).into());
            continue;
        }
        let Some(json) = object.get_mut(field.json_name()) else { continue };
        match (&*value, json) {
            (ProtoValue::Message(inner), json) => restore(inner, json),
            (ProtoValue::List(values), Value::Array(all)) => {
                for (value, json) in values.iter().zip(all) {
                    value.as_message().into_iter().for_each(|inner| restore(inner, json));
                }
            }
            (ProtoValue::Map(entries), Value::Object(all)) => {
                for (key, value) in entries {
                    let name = match key {
                        prost_reflect::MapKey::String(name) => name.clone(),
                        prost_reflect::MapKey::Bool(key) => key.to_string(),
                        prost_reflect::MapKey::I32(key) => key.to_string(),
                        prost_reflect::MapKey::I64(key) => key.to_string(),
                        prost_reflect::MapKey::U32(key) => key.to_string(),
                        prost_reflect::MapKey::U64(key) => key.to_string(),
                    };
                    if let (Some(inner), Some(json)) = (value.as_message(), all.get_mut(&name)) {
                        restore(inner, json);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether a field is minus zero and has no presence.
fn is_lost(field: &FieldDescriptor, value: &ProtoValue) -> bool {
    let is_minus_zero = match value {
        ProtoValue::F32(value) => *value == 0.0 && value.is_sign_negative(),
        ProtoValue::F64(value) => *value == 0.0 && value.is_sign_negative(),
        _ => false,
    };
    is_minus_zero && !field.supports_presence()
}

fn is_set(message: &DynamicMessage, field: &FieldDescriptor) -> bool {
    message.has_field(field)
}

fn has_minus_zero(message: &DynamicMessage) -> bool {
    message.descriptor().fields().any(|field| {
        let value = message.get_field(&field);
        is_lost(&field, &value) || (is_set(message, &field) && messages(&value).any(has_minus_zero))
    })
}

/// The messages that a field holds.
fn messages(value: &ProtoValue) -> Box<dyn Iterator<Item = &DynamicMessage> + '_> {
    match value {
        ProtoValue::Message(inner) => Box::new(std::iter::once(inner)),
        ProtoValue::List(values) => Box::new(values.iter().filter_map(ProtoValue::as_message)),
        ProtoValue::Map(entries) => Box::new(entries.values().filter_map(ProtoValue::as_message)),
        _ => Box::new(std::iter::empty()),
    }
}
