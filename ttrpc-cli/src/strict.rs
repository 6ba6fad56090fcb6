//! JSON in which no object has a key twice, as protobuf's own JSON requires. A byte order mark in front, which editors on Windows write, is none
//! of it.

use std::{
    fmt,
    io::{BufRead, Cursor, Read},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// A JSON value.
pub struct Strict(Value);

/// Reads one value.
///
/// # Errors
/// For what is no JSON, and for a key that is given twice.
pub fn from_str(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).map(|Strict(value)| value)
}

/// The byte order mark of UTF-8.
const MARK: &str = "\u{feff}";

/// A text without its byte order mark.
pub fn unmarked(text: &str) -> &str {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// A stream without its byte order mark.
pub fn unmarked_stream(mut input: impl BufRead) -> impl Read {
    let mut start = Vec::new();
    // An error comes again with the next read.
    if input.fill_buf().is_ok_and(|bytes| bytes.starts_with(&MARK.as_bytes()[..1])) {
        let _ = input.by_ref().take(MARK.len() as u64).read_to_end(&mut start);
    }
    if start == MARK.as_bytes() {
        start.clear();
    }
    Cursor::new(start).chain(input)
}

/// Reads values that stand one after the other.
pub fn stream<'de>(
    source: impl serde_json::de::Read<'de>,
) -> impl Iterator<Item = serde_json::Result<Value>> {
    let values = serde_json::Deserializer::new(source).into_iter::<Strict>();
    values.map(|value| value.map(|Strict(value)| value))
}

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Strict)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = sequence.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Strict(value))) = entries.next_entry::<String, _>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key}` is given twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_it_is_and_a_key_given_twice_is_refused() {
        for text in [
            "null",
            "true",
            "-1",
            "18446744073709551615",
            "1.5",
            "\"a\\u0000\"",
            "[1,[],{}]",
            "{\"b\":1,\"a\":{\"b\":2}}",
        ] {
            assert_eq!(from_str(text).unwrap().to_string(), text);
        }
        for text in ["{\"a\":1,\"a\":2}", "[{\"b\":{\"a\":1,\"c\":0,\"a\":1}}]"] {
            let error = from_str(text).unwrap_err().to_string();
            assert!(error.contains("`a` is given twice"), "{error}");
        }
        assert!(from_str("{").unwrap_err().is_eof());
    }
}
