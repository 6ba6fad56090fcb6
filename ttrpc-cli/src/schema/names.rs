//! Names of a schema that somebody else has written: they reach terminals, shells' command lines and files.

use prost::Message;
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
};

use crate::output;

/// Longer than anybody writes, in bytes.
const MAX_LEN: usize = 1024;

/// Checks that every name of an encoded descriptor set is what a compiler takes for one.
///
/// # Errors
/// With the first that is not, and in which file.
pub fn check(set: &[u8]) -> Result<(), String> {
    let set = FileDescriptorSet::decode(set).map_err(|error| error.to_string())?;
    set.file.iter().try_for_each(|file| {
        file_names(file)
            .map_err(|wrong| format!("{wrong} in `{}`", output::beginning(file.name(), MAX_LEN)))
    })
}

fn file_names(file: &FileDescriptorProto) -> Result<(), String> {
    if !file.package().is_empty() {
        file.package().split('.').try_for_each(name)?;
    }
    file.message_type.iter().try_for_each(message_names)?;
    file.enum_type.iter().try_for_each(enum_names)?;
    file.service.iter().try_for_each(service_names)?;
    field_names(&file.extension)
}

fn message_names(message: &DescriptorProto) -> Result<(), String> {
    name(message.name())?;
    field_names(&message.field)?;
    field_names(&message.extension)?;
    message.oneof_decl.iter().try_for_each(|oneof| name(oneof.name()))?;
    message.enum_type.iter().try_for_each(enum_names)?;
    message.nested_type.iter().try_for_each(message_names)
}

fn field_names(fields: &[FieldDescriptorProto]) -> Result<(), String> {
    fields.iter().try_for_each(|field| name(field.name()))
}

fn enum_names(enumeration: &EnumDescriptorProto) -> Result<(), String> {
    name(enumeration.name())?;
    enumeration.value.iter().try_for_each(|value| name(value.name()))
}

fn service_names(service: &ServiceDescriptorProto) -> Result<(), String> {
    name(service.name())?;
    service.method.iter().try_for_each(|method| name(method.name()))
}

fn name(name: &str) -> Result<(), String> {
    if name.len() > MAX_LEN {
        let shown = output::beginning(name, 32);
        return Err(format!("`{shown}` is a name of {} bytes, and may have {MAX_LEN}", name.len()));
    }
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins = name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    match begins && name.bytes().all(is_word) {
        true => Ok(()),
        false => Err(format!("`{}` is no name", output::plain_line(name))),
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::prost_types::{EnumValueDescriptorProto, MethodDescriptorProto};

    use super::*;

    /// A set with this as a method, a field, a value, a package's part.
    fn sets_with(name: &str) -> [Vec<u8>; 4] {
        let name = || Some(name.to_owned());
        let known = || Some("a".to_owned());
        let method = MethodDescriptorProto { name: name(), ..Default::default() };
        let service =
            ServiceDescriptorProto { name: known(), method: vec![method], ..Default::default() };
        let field = FieldDescriptorProto { name: name(), ..Default::default() };
        let inner = DescriptorProto { name: known(), field: vec![field], ..Default::default() };
        let outer =
            DescriptorProto { name: known(), nested_type: vec![inner], ..Default::default() };
        let value = EnumValueDescriptorProto { name: name(), ..Default::default() };
        let enumeration =
            EnumDescriptorProto { name: known(), value: vec![value], ..Default::default() };
        let files = [
            FileDescriptorProto { service: vec![service], ..Default::default() },
            FileDescriptorProto { message_type: vec![outer], ..Default::default() },
            FileDescriptorProto { enum_type: vec![enumeration], ..Default::default() },
            FileDescriptorProto { package: name(), ..Default::default() },
        ];
        files.map(|file| FileDescriptorSet { file: vec![file] }.encode_to_vec())
    }

    #[test]
    fn names_are_words() {
        for good in ["a", "_A1", "snake_case"] {
            assert!(sets_with(good).iter().all(|set| check(set).is_ok()), "{good}");
        }
        for bad in ["$(id)", "a;b", "a\nb", "<b>", "a\u{200b}", "1a", "a b", "ä", "`x`", "-x"] {
            assert!(sets_with(bad).iter().all(|set| check(set).is_err()), "{bad}");
        }
    }

    #[test]
    fn the_error_about_a_name_of_a_megabyte_is_short() {
        for set in sets_with(&"a".repeat(1 << 20)) {
            let error = check(&set).unwrap_err();
            assert!(error.contains("1048576 bytes") && error.len() < 200, "{error}");
        }
    }
}
