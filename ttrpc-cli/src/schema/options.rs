//! Options of declarations, and values, as .proto text.

use std::{borrow::Cow, fmt::Write};

use prost_reflect::{DescriptorPool, DynamicMessage, FileDescriptor, Kind, UnknownField, Value};

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
        let field = |message: &DynamicMessage, number: i32| -> Option<Value> {
            let number = u32::try_from(number).ok()?;
            message
                .has_field_by_number(number)
                .then(|| message.get_field_by_number(number))?
                .map(Cow::into_owned)
        };
        let declaration = path.chunks_exact(2).try_fold(self.file.clone(), |message, step| {
            let list = field(&message?, step[0])?;
            let inner = list.as_list()?.get(usize::try_from(step[1]).ok()?)?.as_message().cloned();
            Some(inner)
        });
        let options = declaration.flatten().and_then(|message| field(&message, number as i32));
        let Some(Value::Message(options)) = options else { return Vec::new() };
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
        Value::Message(message) => {
            let mut fields = Vec::new();
            for (field, set) in message.fields() {
                let (name, kind) = (field.name(), field.kind());
                if let (Value::Map(entries), Kind::Message(entry)) = (set, &kind) {
                    let (of_key, of_value) =
                        (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
                    for (key, set) in entries {
                        let key = value(&key.clone().into(), &of_key);
                        fields.push(format!(
                            "{name} {{ key: {key} value: {} }}",
                            value(set, &of_value)
                        ));
                    }
                    continue;
                }
                fields.extend(each(set).map(|set| format!("{name}: {}", value(set, &kind))));
            }
            for (field, set) in message.extensions() {
                let name = field.full_name();
                fields.extend(
                    each(set).map(|set| format!("[{name}]: {}", value(set, &field.kind()))),
                );
            }
            format!("{{ {} }}", fields.join(" "))
        }
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
                control if control.is_ascii_control() => {
                    let _ = write!(quoted, "\\{:03o}", control as u32);
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
