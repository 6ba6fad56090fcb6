//! Fields and extensions as .proto text.

use prost_reflect::{
    Cardinality, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor, Syntax,
};

use super::{
    super::options::{quote, value},
    Printer,
};

impl Printer {
    pub(super) fn field(&mut self, field: &FieldDescriptor) {
        self.comments(field.path());
        let proto = field.field_descriptor_proto();
        let label = match field.cardinality() {
            _ if field.is_map() => "",
            Cardinality::Repeated => "repeated ",
            Cardinality::Required => "required ",
            Cardinality::Optional if proto.proto3_optional() => "optional ",
            Cardinality::Optional
                if field.parent_file().syntax() == Syntax::Proto2
                    && field.containing_oneof().is_none() =>
            {
                "optional "
            }
            Cardinality::Optional => "",
        };
        let kind = match field.kind() {
            Kind::Message(entry) if field.is_map() => format!(
                "map<{}, {}>",
                self.kind(&entry.map_entry_key_field().kind()),
                self.kind(&entry.map_entry_value_field().kind())
            ),
            kind => self.kind(&kind),
        };
        let mut options = Vec::new();
        if proto.default_value.is_some() {
            options.push(format!("default = {}", value(&field.default_value(), &field.kind())));
        }
        options.extend(self.options.of(field.path(), 8));
        if field.json_name() != default_json_name(field.name()) {
            options.push(format!("json_name = {}", quote(field.json_name().as_bytes())));
        }
        if let (true, Kind::Message(group)) = (field.is_group(), field.kind()) {
            return self.group(label, &group, field.number(), options);
        }
        self.ending(format!("{label}{kind} {} = {}", field.name(), field.number()), options);
    }

    fn group(&mut self, label: &str, group: &MessageDescriptor, number: u32, options: Vec<String>) {
        let options = self.brackets(options);
        let head = format!("{label}group {} = {number}{options}", group.name());
        self.block(head, |printer| printer.members(group));
    }

    pub(super) fn extensions(&mut self, extensions: Vec<ExtensionDescriptor>) {
        for extension in extensions {
            self.blank();
            let extended = extension.containing_message();
            let head = format!("extend {}", self.name(extended.full_name()));
            let is_proto2 = extension.parent_file().syntax() == Syntax::Proto2;
            let label = match extension.cardinality() {
                Cardinality::Repeated => "repeated ",
                _ if is_proto2 || extension.field_descriptor_proto().proto3_optional() => {
                    "optional "
                }
                _ => "",
            };
            let kind = self.kind(&extension.kind());
            let mut options = Vec::new();
            if extension.field_descriptor_proto().default_value.is_some() {
                let default = value(&extension.default_value(), &extension.kind());
                options.push(format!("default = {default}"));
            }
            options.extend(self.options.of(extension.path(), 8));
            self.block(head, |printer| {
                printer.comments(extension.path());
                let (name, number) = (extension.name(), extension.number());
                match extension.kind() {
                    Kind::Message(group) if extension.is_group() => {
                        printer.group(label, &group, number, options);
                    }
                    _ => printer.ending(format!("{label}{kind} {name} = {number}"), options),
                }
            });
        }
    }
}

/// The name in JSON that a compiler derives.
fn default_json_name(name: &str) -> String {
    let mut json_name = String::new();
    let mut is_next_upper = false;
    for character in name.chars() {
        match character {
            '_' => is_next_upper = true,
            _ if is_next_upper => {
                json_name.push(character.to_ascii_uppercase());
                is_next_upper = false;
            }
            _ => json_name.push(character),
        }
    }
    json_name
}
