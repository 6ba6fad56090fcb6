//! Default values that name an alias: of an enum's values with one number, prost generates the first alone, so that
//! a default has to be that one.

use std::collections::HashMap;

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};

/// The values that are generated under another name, by the full name of their enum.
type Aliases = HashMap<String, HashMap<String, String>>;

/// Puts the value that is generated in the place of its aliases, in all defaults.
pub(crate) fn resolve_aliases(files: &mut [FileDescriptorProto]) {
    let mut aliases = Aliases::new();
    for file in &*files {
        let scope = match file.package() {
            "" => String::new(),
            package => format!(".{package}"),
        };
        find_in_enums(&file.enum_type, &scope, &mut aliases);
        find_in_messages(&file.message_type, &scope, &mut aliases);
    }
    if !aliases.is_empty() {
        for file in files {
            resolve(&mut file.message_type, &aliases);
        }
    }
}

fn find_in_messages(messages: &[DescriptorProto], scope: &str, aliases: &mut Aliases) {
    for message in messages {
        let scope = format!("{scope}.{}", message.name());
        find_in_enums(&message.enum_type, &scope, aliases);
        find_in_messages(&message.nested_type, &scope, aliases);
    }
}

fn find_in_enums(enums: &[EnumDescriptorProto], scope: &str, aliases: &mut Aliases) {
    for each in enums {
        let mut first_by_number = HashMap::new();
        let mut names = HashMap::new();
        for value in &each.value {
            let first = *first_by_number.entry(value.number()).or_insert(value.name());
            if first != value.name() {
                names.insert(value.name().to_owned(), first.to_owned());
            }
        }
        if !names.is_empty() {
            aliases.insert(format!("{scope}.{}", each.name()), names);
        }
    }
}

fn resolve(messages: &mut [DescriptorProto], aliases: &Aliases) {
    for message in messages {
        for field in &mut message.field {
            let names = field.type_name.as_ref().and_then(|name| aliases.get(name));
            let first = names.and_then(|names| names.get(field.default_value.as_ref()?));
            if let Some(first) = first {
                field.default_value = Some(first.clone());
            }
        }
        resolve(&mut message.nested_type, aliases);
    }
}
