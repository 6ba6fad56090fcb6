//! The names in messages and enums.

use std::collections::HashSet;

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    OneofDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

use super::{Check, Definition, Scope, number};
use crate::{Error, names};

impl<'a> Check<'a> {
    pub(super) fn message(
        &mut self,
        file: &'a FileDescriptorProto,
        message: &'a DescriptorProto,
        path: Vec<i32>,
        outer: &[&'a str],
        module: &[String],
    ) -> Result<(), Error> {
        let names = [outer, &[message.name()]].concat();
        let what = format!("message `{}`", names.join("."));
        let definition = Definition::new(what, file, path).owned_by(&names);
        self.type_name(message.name(), module, &definition)?;
        self.fields(file, message, &definition, &names)?;

        // Told from the module of a package, which may have the same name and lie elsewhere.
        let inner = [module, &[format!("{}, a message's", names::snake(message.name()))]].concat();
        let messages = || (0..).zip(&message.nested_type).filter(|(_, each)| !is_map_entry(each));
        let oneofs = || (0..).zip(&message.oneof_decl).filter(|(at, _)| is_real(message, *at));
        if messages().count() + message.enum_type.len() + oneofs().count() > 0 {
            let module_name = names::snake(message.name());
            self.insert_item(module, "module", module_name, definition.clone())?;
        }
        for (index, nested) in messages() {
            let path = definition.path_to(number::MESSAGE_MESSAGE, index);
            self.message(file, nested, path, &names, &inner)?;
        }
        for (index, nested) in (0..).zip(&message.enum_type) {
            let path = definition.path_to(number::MESSAGE_ENUM, index);
            self.enumeration(file, nested, path, &names, &inner)?;
        }
        for (index, oneof) in oneofs() {
            let what = format!("oneof `{}` of message `{}`", oneof.name(), names.join("."));
            let path = definition.path_to(number::MESSAGE_ONEOF, index);
            let definition = Definition::new(what, file, path).owned_by(&names);
            self.insert_item(&inner, "type", oneof_type(message, oneof), definition)?;
        }
        Ok(())
    }

    pub(super) fn enumeration(
        &mut self,
        file: &'a FileDescriptorProto,
        each: &'a EnumDescriptorProto,
        path: Vec<i32>,
        outer: &[&'a str],
        module: &[String],
    ) -> Result<(), Error> {
        let names = [outer, &[each.name()]].concat();
        let what = format!("enum `{}`", names.join("."));
        let definition = Definition::new(what.clone(), file, path).owned_by(&names);
        self.type_name(each.name(), module, &definition)?;
        let mut variants = Scope::of(format!(" of {what}"));
        let mut numbers = HashSet::new();
        for (index, value) in (0..).zip(&each.value) {
            // Of values with one number, the first becomes a variant.
            if !numbers.insert(value.number()) {
                continue;
            }
            let path = definition.path_to(number::ENUM_VALUE, index);
            let value_definition =
                Definition::new(format!("value `{}`", value.name()), file, path).owned_by(&names);
            if self.is_unusable(value.name(), &value_definition) {
                return Err(variants.no_name(&value_definition));
            }
            let strips_prefix = self.probe.strips_enum_prefix();
            let rust_name = names::variant(each.name(), value.name(), strips_prefix);
            variants.insert("variant", rust_name, value_definition, &mut self.probe)?;
        }
        Ok(())
    }

    fn type_name(
        &mut self,
        name: &str,
        module: &[String],
        definition: &Definition<'a>,
    ) -> Result<(), Error> {
        if self.is_unusable(name, definition) {
            return Err(definition.no_name());
        }
        self.insert_item(module, "type", names::upper_camel(name), definition.clone())
    }

    fn is_unusable(&mut self, name: &str, definition: &Definition<'_>) -> bool {
        !names::is_usable(name) && definition.is_generated(&mut self.probe)
    }

    /// The fields of a message's struct, their accessors, and the variants of its oneofs.
    fn fields(
        &mut self,
        file: &'a FileDescriptorProto,
        message: &'a DescriptorProto,
        definition: &Definition<'a>,
        names: &[&'a str],
    ) -> Result<(), Error> {
        let whole = format!(" of message `{}`", names.join("."));
        let mut fields = Scope::of(whole.clone());
        let mut methods = Scope::of(whole.clone());
        let mut oneofs: Vec<Scope<'a>> = (message.oneof_decl.iter())
            .map(|oneof| Scope::of(format!(" of oneof `{}`{whole}", oneof.name())))
            .collect();
        for (index, field) in (0..).zip(&message.field) {
            let what = format!("field `{}`", field.name());
            let path = definition.path_to(number::MESSAGE_FIELD, index);
            let definition = Definition::new(what, file, path).owned_by(names);
            let is_unusable = self.is_unusable(field.name(), &definition);
            if let Some(oneof) = oneof_of(field).and_then(|oneof| oneofs.get_mut(oneof)) {
                if is_unusable {
                    return Err(oneof.no_name(&definition));
                }
                let variant = names::upper_camel(field.name());
                oneof.insert("variant", variant, definition, &mut self.probe)?;
                continue;
            }
            if is_unusable {
                return Err(fields.no_name(&definition));
            }
            let rust_name = names::snake(field.name());
            if is_map_of_enums(message, field)
                && rust_name.starts_with("r#")
                && definition.is_generated(&mut self.probe)
            {
                return Err(definition.error(&format!(
                    "field `{}`{whole} is a map of enums named by a Rust keyword, which prost \
                     cannot generate",
                    field.name()
                )));
            }
            fields.insert("field", rust_name, definition.clone(), &mut self.probe)?;
            for method in accessors(file, message, field) {
                methods.insert("method", method, definition.clone(), &mut self.probe)?;
            }
        }
        for (index, oneof) in (0..).zip(&message.oneof_decl) {
            if !is_real(message, index) {
                continue;
            }
            let what = format!("oneof `{}`", oneof.name());
            let path = definition.path_to(number::MESSAGE_ONEOF, index);
            let definition = Definition::new(what, file, path).owned_by(names);
            if self.is_unusable(oneof.name(), &definition) {
                return Err(fields.no_name(&definition));
            }
            fields.insert("field", names::snake(oneof.name()), definition, &mut self.probe)?;
        }
        Ok(())
    }
}

/// The oneof of which a field is a variant. Of an `optional` field of proto3, it is none in Rust.
fn oneof_of(field: &FieldDescriptorProto) -> Option<usize> {
    match field.proto3_optional() {
        true => None,
        false => usize::try_from(field.oneof_index?).ok(),
    }
}

/// Whether a oneof is one in Rust.
fn is_real(message: &DescriptorProto, oneof: i32) -> bool {
    message.field.iter().any(|field| !field.proto3_optional() && field.oneof_index == Some(oneof))
}

/// The name of a oneof's type, which steps aside for types in the message, maps included.
fn oneof_type(message: &DescriptorProto, oneof: &OneofDescriptorProto) -> String {
    let name = names::upper_camel(oneof.name());
    let messages = message.nested_type.iter().map(|nested| nested.name());
    let mut types = messages.chain(message.enum_type.iter().map(|nested| nested.name()));
    match types.any(|nested| names::upper_camel(nested) == name) {
        true => name + "OneOf",
        false => name,
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|options| options.map_entry())
}

/// The entry of a field that is a map.
fn map_entry<'a>(
    message: &'a DescriptorProto,
    field: &FieldDescriptorProto,
) -> Option<&'a DescriptorProto> {
    let name = field.type_name().rsplit('.').next()?;
    let is_message = field.r#type() == Type::Message && field.label() == Label::Repeated;
    let mut nested = message.nested_type.iter().filter(|_| is_message);
    nested.find(|nested| nested.name() == name && is_map_entry(nested))
}

fn is_map_of_enums(message: &DescriptorProto, field: &FieldDescriptorProto) -> bool {
    let value = map_entry(message, field).and_then(|entry| entry.field.get(1));
    value.is_some_and(|value| value.r#type() == Type::Enum)
}

/// The methods that `prost::Message` derives for a field of a struct.
fn accessors(
    file: &FileDescriptorProto,
    message: &DescriptorProto,
    field: &FieldDescriptorProto,
) -> Vec<String> {
    let rust_name = names::snake(field.name());
    let plain = rust_name.trim_start_matches("r#");
    if is_map_of_enums(message, field) {
        return vec![format!("get_{plain}"), format!("insert_{plain}")];
    }
    let is_proto2 = matches!(file.syntax(), "" | "proto2");
    let is_optional = field.proto3_optional() || (is_proto2 && field.label() == Label::Optional);
    match (field.r#type(), field.label()) {
        (Type::Enum, Label::Repeated) => vec![format!("push_{plain}"), rust_name],
        (Type::Enum, _) => vec![format!("set_{plain}"), rust_name],
        (Type::Message | Type::Group, _) => Vec::new(),
        (_, _) if is_optional => vec![rust_name],
        (_, _) => Vec::new(),
    }
}
