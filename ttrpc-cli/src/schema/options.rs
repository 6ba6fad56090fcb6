//! Options of declarations, and values, as .proto text.

use std::{borrow::Cow, fmt::Write};

use prost_reflect::{DescriptorPool, DynamicMessage, FileDescriptor, Kind, UnknownField, Value};

use crate::output::is_unsafe;

/// The options of a file's declarations.
pub struct Options {
    /// A FileDescriptorProto, custom options included; `None` if it cannot be read.
    file: Option<DynamicMessage>,
}

impl Options {
    pub fn of_file(file: &FileDescriptor) -> Self {
        const NAME: &str = "google.protobuf.FileDescriptorProto";
        let own = file.parent_pool().get_message_by_name(NAME);
        let kind = own.or_else(|| DescriptorPool::global().get_message_by_name(NAME));
        let bytes = file.encode_to_vec();
        Options { file: kind.and_then(|kind| DynamicMessage::decode(kind, &*bytes).ok()) }
    }

    /// What is set for the declaration with this path, whose options have this number: `name = value`, and
    /// comments on what cannot be told.
    pub fn of(&self, path: &[i32], number: u32) -> Vec<String> {
        let Some(file) = &self.file else { return Vec::new() };
        let mut steps = path.chunks_exact(2);
        let declaration = steps.try_fold(file, |message, step| {
            let list = set_field(message, u32::try_from(step[0]).ok()?)?.as_list()?;
            list.get(usize::try_from(step[1]).ok()?)?.as_message()
        });
        let options = declaration.and_then(|message| set_field(message, number)?.as_message());
        let Some(options) = options else { return Vec::new() };
        let mut told = Vec::new();
        for (option, set) in options.fields().filter(|(option, _)| option.number() != UNINTERPRETED)
        {
            told.extend(
                each(set).map(|set| format!("{} = {}", option.name(), value(set, &option.kind()))),
            );
        }
        for (option, set) in options.extensions() {
            let name = option.full_name();
            told.extend(each(set).map(|set| format!("({name}) = {}", value(set, &option.kind()))));
        }
        let mut unknown: Vec<_> = options.unknown_fields().map(UnknownField::number).collect();
        unknown.dedup();
        told.extend(
            unknown
                .iter()
                .map(|number| format!("// Option {number} is left out: no file here defines it.")),
        );
        told
    }
}

/// The value of a field that is set.
fn set_field(message: &DynamicMessage, number: u32) -> Option<&Value> {
    match message.has_field_by_number(number).then(|| message.get_field_by_number(number))?? {
        Cow::Borrowed(value) => Some(value),
        // A default, which is not set.
        Cow::Owned(_) => None,
    }
}

/// The number of `uninterpreted_option`, which compilers leave to themselves.
const UNINTERPRETED: u32 = 999;

/// The values of a repeated field, or the one of another.
fn each(set: &Value) -> impl Iterator<Item = &Value> {
    match set {
        Value::List(values) => values.iter(),
        value => std::slice::from_ref(value).iter(),
    }
}

/// A value as it stands behind `=`.
pub fn value(set: &Value, kind: &Kind) -> String {
    match set {
        Value::Bool(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::F32(value) => float(format!("{value:?}")),
        Value::F64(value) => float(format!("{value:?}")),
        Value::String(text) => quote(text.as_bytes()),
        Value::Bytes(bytes) => quote(bytes),
        Value::EnumNumber(number) => {
            match kind.as_enum().and_then(|kind| kind.get_value(*number)) {
                Some(value) => value.name().to_owned(),
                None => number.to_string(),
            }
        }
        Value::Message(message) => format!("{{ {} }}", message.to_text_format()),
        Value::List(_) | Value::Map(_) => unreachable!("told one by one"),
    }
}

/// A number with its point or exponent, in protobuf's spelling.
fn float(text: String) -> String {
    match &*text {
        "NaN" => "nan".to_owned(),
        _ => text.strip_suffix(".0").map_or(text.clone(), str::to_owned),
    }
}

/// A text in quotes. What is no UTF-8 or could move a cursor is written in octal digits.
pub fn quote(bytes: &[u8]) -> String {
    let mut quoted = String::from('"');
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => quoted.extend(['\\', character]),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                unsafe_one if is_unsafe(unsafe_one) => {
                    for byte in unsafe_one.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(quoted, "\\{byte:03o}");
                    }
                }
                character => quoted.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(quoted, "\\{byte:03o}");
        }
    }
    quoted.push('"');
    quoted
}
