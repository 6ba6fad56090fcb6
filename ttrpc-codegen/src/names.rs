//! What prost makes of protobuf's names.

use heck::ToUpperCamelCase;
use prost_build::Module;

/// The name of a field, a method or a module.
pub(crate) fn snake(name: &str) -> String {
    // prost's own function is private, but this one calls it.
    Module::from_protobuf_package_name(name).to_string()
}

/// The name of a type, or of a variant of a oneof.
pub(crate) fn upper_camel(name: &str) -> String {
    let camel = name.to_upper_camel_case();
    match camel.as_bytes().first() {
        Some(first) if first.is_ascii_digit() => format!("_{camel}"),
        _ if camel == "Self" => format!("{camel}_"),
        _ => camel,
    }
}

/// The name of an enum's variant. prost leaves out the enum's name in front of it, unless what is left
/// would not begin with a capital.
pub(crate) fn variant(enum_name: &str, value: &str, strips_prefix: bool) -> String {
    let name = upper_camel(value);
    let stripped = name.strip_prefix(&upper_camel(enum_name)).filter(|_| strips_prefix);
    match stripped.filter(|stripped| stripped.starts_with(char::is_uppercase)) {
        Some(stripped) => upper_camel(stripped),
        None => name,
    }
}

/// Whether prost can name something by it. Underscores are left out of Rust's names.
pub(crate) fn is_usable(name: &str) -> bool {
    name.bytes().any(|byte| byte != b'_')
}
