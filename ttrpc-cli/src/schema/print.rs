//! Schemas as .proto text, comments included.

mod fields;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
};

use prost_reflect::{
    EnumDescriptor, ExtensionDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor,
    MethodDescriptor, ServiceDescriptor, Syntax,
};

use super::{
    Symbol,
    options::{Options, quote},
};
use crate::output;

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
        let public = if is_public { "public " } else { "" };
        printer.line(format!("import {public}{};", quote(import.as_bytes())));
    }
    let options = printer.options.of(&[], 8);
    if !options.is_empty() {
        printer.blank();
        printer.option_lines(options);
    }
    file.services().for_each(|service| printer.service(&service));
    file.messages().for_each(|message| printer.message(&message));
    file.enums().for_each(|enumeration| printer.enumeration(&enumeration));
    printer.extensions(file.extensions().collect());
    printer.into_text()
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
    printer.into_text()
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
    options: Options,
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
        Printer {
            package,
            options: Options::of_file(file),
            comments,
            indent: 0,
            text: String::new(),
        }
    }

    /// What was printed. Names and comments are whatever a server has chosen.
    fn into_text(self) -> String {
        output::plain(self.text)
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

    /// Options as declarations of their own.
    fn option_lines(&mut self, options: Vec<String>) {
        for option in options {
            match option.starts_with("//") {
                true => self.line(option),
                false => self.line(format!("option {option};")),
            }
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
            printer.option_lines(printer.options.of(service.path(), 3));
            service.methods().for_each(|method| printer.method(&method));
        });
    }

    fn method(&mut self, method: &MethodDescriptor) {
        self.comments(method.path());
        let stream = |is_stream| if is_stream { "stream " } else { "" };
        let (input, output) = (method.input(), method.output());
        let text = format!(
            "rpc {}({}{}) returns ({}{})",
            method.name(),
            stream(method.is_client_streaming()),
            self.name(input.full_name()),
            stream(method.is_server_streaming()),
            self.name(output.full_name())
        );
        let options = self.options.of(method.path(), 4);
        match options.is_empty() {
            true => self.line(format!("{text};")),
            false => self.block(text, |printer| printer.option_lines(options)),
        }
    }

    fn message(&mut self, message: &MessageDescriptor) {
        self.blank();
        self.comments(message.path());
        self.block(format!("message {}", message.name()), |printer| printer.members(message));
    }

    fn members(&mut self, message: &MessageDescriptor) {
        let proto = message.descriptor_proto();
        self.option_lines(self.options.of(message.path(), 7));
        let ranges: Vec<String> =
            message.reserved_ranges().map(|range| to_text(range.start, range.end - 1)).collect();
        self.list("reserved", &ranges);
        let names: Vec<String> = message.reserved_names().map(|name| format!("{name:?}")).collect();
        self.list("reserved", &names);
        let open: Vec<String> =
            message.extension_ranges().map(|range| to_text(range.start, range.end - 1)).collect();
        self.list("extensions", &open);
        // A group is declared where its field is.
        let groups = message.fields().filter(FieldDescriptor::is_group).map(|field| field.kind());
        let extensions = message.child_extensions().filter(ExtensionDescriptor::is_group);
        let groups = groups.chain(extensions.map(|field| field.kind()));
        let groups: HashSet<String> = groups
            .filter_map(|kind| kind.as_message().map(|group| group.full_name().to_owned()))
            .collect();
        for nested in message.child_messages().filter(|nested| !nested.is_map_entry()) {
            if !groups.contains(nested.full_name()) {
                self.message(&nested);
            }
        }
        message.child_enums().for_each(|enumeration| self.enumeration(&enumeration));
        self.extensions(message.child_extensions().collect());
        let mut written = HashSet::new();
        // In the order of the declarations, which is not that of the numbers.
        for field in &proto.field {
            let Some(field) = message.get_field_by_name(field.name()) else { continue };
            match field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
                None => self.field(&field),
                Some(oneof) if !written.insert(oneof.full_name().to_owned()) => {}
                Some(oneof) => {
                    self.comments(oneof.path());
                    self.block(format!("oneof {}", oneof.name()), |printer| {
                        printer.option_lines(printer.options.of(oneof.path(), 2));
                        oneof.fields().for_each(|field| printer.field(&field));
                    });
                }
            }
        }
    }

    fn list(&mut self, keyword: &str, entries: &[String]) {
        if !entries.is_empty() {
            self.line(format!("{keyword} {};", entries.join(", ")));
        }
    }

    /// A declaration with its options in brackets.
    fn ending(&mut self, text: String, options: Vec<String>) {
        let options = self.brackets(options);
        self.line(format!("{text}{options};"));
    }

    /// Options in brackets, and comments on the line before.
    fn brackets(&mut self, options: Vec<String>) -> String {
        let (comments, options): (Vec<_>, Vec<_>) =
            options.into_iter().partition(|option| option.starts_with("//"));
        comments.into_iter().for_each(|comment| self.line(comment));
        match options.is_empty() {
            true => String::new(),
            false => format!(" [{}]", options.join(", ")),
        }
    }

    fn enumeration(&mut self, enumeration: &EnumDescriptor) {
        self.blank();
        self.comments(enumeration.path());
        self.block(format!("enum {}", enumeration.name()), |printer| {
            let proto = enumeration.enum_descriptor_proto();
            printer.option_lines(printer.options.of(enumeration.path(), 3));
            let ranges = enumeration.reserved_ranges();
            let ranges: Vec<_> =
                ranges.map(|range| to_text(*range.start(), *range.end())).collect();
            printer.list("reserved", &ranges);
            let names = enumeration.reserved_names();
            let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
            printer.list("reserved", &names);
            for (index, value) in proto.value.iter().enumerate() {
                // 2 is the number of EnumDescriptorProto.value.
                let path = [enumeration.path(), &[2, index as i32]].concat();
                printer.comments(&path);
                let options = printer.options.of(&path, 3);
                printer.ending(format!("{} = {}", value.name(), value.number()), options);
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
