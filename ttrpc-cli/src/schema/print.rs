//! Schemas as .proto text, comments included.

use std::{collections::HashMap, fmt::Write};

use prost_reflect::{
    Cardinality, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, FileDescriptor, Kind,
    MessageDescriptor, MethodDescriptor, OneofDescriptor, ServiceDescriptor, Syntax,
};

use super::Symbol;

/// A whole file, as a compiler reads it.
pub fn file(file: &FileDescriptor) -> String {
    let mut printer = Printer::new(file);
    let proto = file.file_descriptor_proto();
    // The path of `syntax` and `package` in the numbers of FileDescriptorProto's fields.
    printer.comments(&[12]);
    printer.line(match file.syntax() {
        Syntax::Proto2 => "syntax = \"proto2\";",
        Syntax::Proto3 => "syntax = \"proto3\";",
    });
    if !file.package_name().is_empty() {
        printer.blank();
        printer.comments(&[2]);
        printer.line(format!("package {};", file.package_name()));
    }
    if !proto.dependency.is_empty() {
        printer.blank();
    }
    for (index, import) in proto.dependency.iter().enumerate() {
        let is_public = proto.public_dependency.contains(&(index as i32));
        printer.line(format!("import {}\"{import}\";", if is_public { "public " } else { "" }));
    }
    file.services().for_each(|service| printer.service(&service));
    file.messages().for_each(|message| printer.message(&message));
    file.enums().for_each(|enumeration| printer.enumeration(&enumeration));
    printer.extensions(file.extensions().collect());
    printer.text
}

/// What one name stands for. Names of its own package are written short.
pub fn symbol(symbol: &Symbol) -> String {
    let mut printer = Printer::new(&match symbol {
        Symbol::Service(service) => service.parent_file(),
        Symbol::Method(method) => method.parent_service().parent_file(),
        Symbol::Message(message) => message.parent_file(),
        Symbol::Enum(enumeration) => enumeration.parent_file(),
    });
    match symbol {
        Symbol::Service(service) => printer.service(service),
        Symbol::Method(method) => {
            printer.method(method);
            // What everybody knows is left out, such as Empty.
            let messages = [method.input(), method.output()].into_iter();
            for message in messages.filter(|known| known.package_name() != "google.protobuf") {
                let mut of_message = Printer::new(&message.parent_file());
                of_message.message(&message);
                printer.text.push_str(&format!("\n{}", of_message.text));
            }
        }
        Symbol::Message(message) => printer.message(message),
        Symbol::Enum(enumeration) => printer.enumeration(enumeration),
    }
    printer.text
}

/// `rpc SayHello(HelloRequest) returns (stream HelloReply);` with full names.
pub fn signature(method: &MethodDescriptor) -> String {
    let stream = |is_stream| if is_stream { "stream " } else { "" };
    format!(
        "rpc {}({}{}) returns ({}{});",
        method.name(),
        stream(method.is_client_streaming()),
        method.input().full_name(),
        stream(method.is_server_streaming()),
        method.output().full_name()
    )
}

struct Printer {
    package: String,
    /// What is written before a declaration, and behind it, by the declaration's path.
    comments: HashMap<Vec<i32>, (String, String)>,
    indent: usize,
    text: String,
}

impl Printer {
    fn new(file: &FileDescriptor) -> Self {
        let info = file.file_descriptor_proto().source_code_info.iter();
        let comments = info
            .flat_map(|info| &info.location)
            .filter(|place| place.leading_comments.is_some() || place.trailing_comments.is_some())
            .map(|place| {
                let leading = place.leading_comments().to_owned();
                (place.path.clone(), (leading, place.trailing_comments().to_owned()))
            })
            .collect();
        let package = file.package_name().to_owned();
        Printer { package, comments, indent: 0, text: String::new() }
    }

    fn line(&mut self, text: impl AsRef<str>) {
        let indent = self.indent * 2;
        let _ = writeln!(self.text, "{:indent$}{}", "", text.as_ref());
    }

    /// An empty line between declarations, and none at the start of a block.
    fn blank(&mut self) {
        let is_start = self.text.is_empty() || self.text.ends_with("{\n");
        if !is_start && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn comments(&mut self, path: &[i32]) {
        let Some((leading, trailing)) = self.comments.get(path).cloned() else { return };
        for line in leading.lines().chain(trailing.lines()) {
            self.line(format!("//{}", line.trim_end()));
        }
    }

    fn block(&mut self, head: String, body: impl FnOnce(&mut Self)) {
        let before = self.text.len();
        self.line(format!("{head} {{"));
        let opened = self.text.len();
        self.indent += 1;
        body(self);
        self.indent -= 1;
        if self.text.len() == opened {
            self.text.truncate(before);
            self.line(format!("{head} {{}}"));
        } else {
            self.line("}");
        }
    }

    fn service(&mut self, service: &ServiceDescriptor) {
        self.blank();
        self.comments(service.path());
        self.block(format!("service {}", service.name()), |printer| {
            service.methods().for_each(|method| printer.method(&method));
        });
    }

    fn method(&mut self, method: &MethodDescriptor) {
        self.comments(method.path());
        let stream = |is_stream| if is_stream { "stream " } else { "" };
        let (input, output) = (method.input(), method.output());
        self.line(format!(
            "rpc {}({}{}) returns ({}{});",
            method.name(),
            stream(method.is_client_streaming()),
            self.name(input.full_name()),
            stream(method.is_server_streaming()),
            self.name(output.full_name())
        ));
    }

    fn message(&mut self, message: &MessageDescriptor) {
        self.blank();
        self.comments(message.path());
        self.block(format!("message {}", message.name()), |printer| printer.members(message));
    }

    fn members(&mut self, message: &MessageDescriptor) {
        let proto = message.descriptor_proto();
        if proto.options.as_ref().is_some_and(|options| options.deprecated()) {
            self.line("option deprecated = true;");
        }
        let ranges: Vec<String> =
            message.reserved_ranges().map(|range| to_text(range.start, range.end - 1)).collect();
        self.list("reserved", &ranges);
        let names: Vec<String> = message.reserved_names().map(|name| format!("{name:?}")).collect();
        self.list("reserved", &names);
        let open: Vec<String> =
            message.extension_ranges().map(|range| to_text(range.start, range.end - 1)).collect();
        self.list("extensions", &open);
        for nested in message.child_messages().filter(|nested| !nested.is_map_entry()) {
            self.message(&nested);
        }
        message.child_enums().for_each(|enumeration| self.enumeration(&enumeration));
        self.extensions(message.child_extensions().collect());
        let mut written: Vec<OneofDescriptor> = Vec::new();
        // In the order of the declarations, which is not that of the numbers.
        for field in &proto.field {
            let Some(field) = message.get_field_by_name(field.name()) else { continue };
            match field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
                None => self.field(&field),
                Some(oneof) if written.contains(&oneof) => {}
                Some(oneof) => {
                    self.comments(oneof.path());
                    self.block(format!("oneof {}", oneof.name()), |printer| {
                        oneof.fields().for_each(|field| printer.field(&field));
                    });
                    written.push(oneof);
                }
            }
        }
    }

    fn list(&mut self, keyword: &str, entries: &[String]) {
        if !entries.is_empty() {
            self.line(format!("{keyword} {};", entries.join(", ")));
        }
    }

    fn field(&mut self, field: &FieldDescriptor) {
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
        if let Some(default) = &proto.default_value {
            options.push(match field.kind() {
                Kind::String | Kind::Bytes => format!("default = \"{default}\""),
                _ => format!("default = {default}"),
            });
        }
        let field_options = proto.options.as_ref();
        if let Some(is_packed) = field_options.and_then(|options| options.packed) {
            options.push(format!("packed = {is_packed}"));
        }
        if field_options.is_some_and(|options| options.deprecated()) {
            options.push("deprecated = true".to_owned());
        }
        if field.json_name() != default_json_name(field.name()) {
            options.push(format!("json_name = {:?}", field.json_name()));
        }
        let options = match options.is_empty() {
            true => String::new(),
            false => format!(" [{}]", options.join(", ")),
        };
        self.line(format!("{label}{kind} {} = {}{options};", field.name(), field.number()));
    }

    fn extensions(&mut self, extensions: Vec<ExtensionDescriptor>) {
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
            self.block(head, |printer| {
                printer.comments(extension.path());
                let (name, number) = (extension.name(), extension.number());
                printer.line(format!("{label}{kind} {name} = {number};"));
            });
        }
    }

    fn enumeration(&mut self, enumeration: &EnumDescriptor) {
        self.blank();
        self.comments(enumeration.path());
        self.block(format!("enum {}", enumeration.name()), |printer| {
            let proto = enumeration.enum_descriptor_proto();
            let options = proto.options.as_ref();
            if options.is_some_and(|options| options.allow_alias()) {
                printer.line("option allow_alias = true;");
            }
            if options.is_some_and(|options| options.deprecated()) {
                printer.line("option deprecated = true;");
            }
            let ranges = enumeration.reserved_ranges();
            let ranges: Vec<_> =
                ranges.map(|range| to_text(*range.start(), *range.end())).collect();
            printer.list("reserved", &ranges);
            let names = enumeration.reserved_names();
            let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
            printer.list("reserved", &names);
            for (index, value) in proto.value.iter().enumerate() {
                // 2 is the number of EnumDescriptorProto.value.
                printer.comments(&[enumeration.path(), &[2, index as i32]].concat());
                let is_deprecated =
                    value.options.as_ref().is_some_and(|options| options.deprecated());
                let options = if is_deprecated { " [deprecated = true]" } else { "" };
                printer.line(format!("{} = {}{options};", value.name(), value.number()));
            }
        });
    }

    fn kind(&self, kind: &Kind) -> String {
        match kind {
            Kind::Message(message) => self.name(message.full_name()),
            Kind::Enum(enumeration) => self.name(enumeration.full_name()),
            // Its `Debug` is the keyword.
            scalar => format!("{scalar:?}"),
        }
    }

    /// A full name, without the package where that is this file's own.
    fn name(&self, full_name: &str) -> String {
        let short = full_name.strip_prefix(&*self.package).and_then(|rest| rest.strip_prefix('.'));
        match short {
            Some(short) if !self.package.is_empty() => short.to_owned(),
            _ => full_name.to_owned(),
        }
    }
}

fn to_text<N: PartialEq + std::fmt::Display>(first: N, last: N) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
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

#[cfg(test)]
mod tests {
    use crate::schema::{builtin, files};

    #[test]
    fn a_message_is_printed_with_its_comments() {
        let symbol = builtin().find_symbol("containerd.types.Mount").unwrap();
        let text = super::symbol(&symbol);
        assert!(text.starts_with("// A file system to be mounted.\nmessage Mount {\n"), "{text}");
        assert!(text.contains("  repeated string options = 4;\n}\n"), "{text}");
    }

    #[test]
    fn a_method_is_printed_with_its_messages() {
        let symbol = builtin().find_symbol("v3.Task/State").unwrap();
        let text = super::symbol(&symbol);
        assert!(text.contains("rpc State(StateRequest) returns (StateResponse);"), "{text}");
        assert!(text.contains("\nmessage StateRequest {"), "{text}");
        assert!(text.contains("  containerd.v1.types.Status status = 4;"), "{text}");
    }

    #[test]
    fn rare_declarations_survive_printing() {
        let source = r#"syntax = "proto2";

package p;

// Of a message.
message M {
  reserved 5, 7 to 9;
  reserved "old";
  extensions 100 to 199;

  enum E {
    option allow_alias = true;
    // Of a value.
    A = 0;
    B = 0 [deprecated = true];
  }
  required string s = 1 [default = "x"];
  repeated int32 n = 2 [packed = true];
  oneof choice {
    M m = 3;
    M.E e = 4;
  }
  map<string, M> by_name = 6 [json_name = "names"];
}

extend M {
  optional bool more = 100;
}
"#;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.proto");
        std::fs::write(&path, source).unwrap();
        let schema = files::compile(&[path], &[]).unwrap();
        let file = schema.pool().get_file_by_name("p.proto").unwrap();
        assert_eq!(super::file(&file), source);
    }
}
