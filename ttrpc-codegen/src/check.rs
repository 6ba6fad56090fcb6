//! Names that are different in protobuf and the same in Rust.
//!
//! They would end in an error of the Rust compiler in generated code, far from its cause; so they
//! are looked for here, where file and line are known.

use std::collections::HashMap;

use heck::{ToSnakeCase, ToUpperCamelCase};
use prost_types::{FileDescriptorProto, ServiceDescriptorProto, source_code_info::Location};

use crate::{Error, ServiceGenerator};

/// Field numbers in `FileDescriptorProto` and `ServiceDescriptorProto`, of which the paths of
/// `SourceCodeInfo` are made (descriptor.proto).
const MESSAGE: i32 = 4;
const ENUM: i32 = 5;
const SERVICE: i32 = 6;
const METHOD: i32 = 2;

/// Something with a name, and where it stands.
struct Definition<'a> {
    what: String,
    file: &'a FileDescriptorProto,
    path: Vec<i32>,
}

impl Definition<'_> {
    fn location(&self) -> Option<&Location> {
        let info = self.file.source_code_info.as_ref()?;
        info.location.iter().find(|location| location.path == self.path)
    }

    fn error(&self, message: &str) -> Error {
        Error::at(self.file.name(), self.location(), message)
    }
}

/// # Errors
/// At the second of two names that become the same in Rust.
pub(crate) fn check_names(
    files: &[FileDescriptorProto],
    generator: &ServiceGenerator,
) -> Result<(), Error> {
    let mut types = HashMap::new();
    for file in files {
        let messages = file.message_type.iter().map(|message| message.name());
        for (index, name) in (0..).zip(messages) {
            let what = format!("message `{name}`");
            let definition = Definition { what, file, path: vec![MESSAGE, index] };
            insert_type(&mut types, name.to_upper_camel_case(), definition)?;
        }
        for (index, name) in (0..).zip(file.enum_type.iter().map(|each| each.name())) {
            let definition =
                Definition { what: format!("enum `{name}`"), file, path: vec![ENUM, index] };
            insert_type(&mut types, name.to_upper_camel_case(), definition)?;
        }
        for (index, service) in (0..).zip(&file.service) {
            let name = service.name();
            for suffix in generator.type_suffixes() {
                let what = format!("service `{name}`");
                let definition = Definition { what, file, path: vec![SERVICE, index] };
                let rust_name = name.to_upper_camel_case() + suffix;
                insert_type(&mut types, rust_name, definition)?;
            }
            check_methods(file, service, index)?;
        }
    }
    Ok(())
}

fn insert_type<'a>(
    types: &mut HashMap<(&'a str, String), Definition<'a>>,
    rust_name: String,
    definition: Definition<'a>,
) -> Result<(), Error> {
    let key = (definition.file.package(), rust_name);
    if let Some(other) = types.get(&key) {
        return Err(definition.error(&format!(
            "{} and {} of {} both become the Rust type `{}`",
            definition.what,
            other.what,
            other.file.name(),
            key.1,
        )));
    }
    types.insert(key, definition);
    Ok(())
}

fn check_methods(
    file: &FileDescriptorProto,
    service: &ServiceDescriptorProto,
    service_index: i32,
) -> Result<(), Error> {
    let mut methods = HashMap::new();
    for (index, method) in (0..).zip(&service.method) {
        let name = method.name();
        let rust_name = name.to_snake_case();
        if let Some(other) = methods.insert(rust_name.clone(), name) {
            let path = vec![SERVICE, service_index, METHOD, index];
            let definition = Definition { what: String::new(), file, path };
            return Err(definition.error(&format!(
                "methods `{other}` and `{name}` of service `{}` both become the Rust method \
                 `{rust_name}`",
                service.name(),
            )));
        }
    }
    Ok(())
}
