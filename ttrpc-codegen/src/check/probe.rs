//! What prost's options make of names. They cannot be asked, so they are tried.

use prost_build::{Config, Module};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, field_descriptor_proto::Type,
};

pub(super) struct Probe<'a> {
    config: &'a mut Config,
    strips_enum_prefix: Option<bool>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(config: &'a mut Config) -> Self {
        Probe { config, strips_enum_prefix: None }
    }

    /// Whether an enum's name is left out in front of its values' names.
    pub(super) fn strips_enum_prefix(&mut self) -> bool {
        if let Some(is_stripped) = self.strips_enum_prefix {
            return is_stripped;
        }
        let value = EnumValueDescriptorProto {
            name: Some("A_B".to_owned()),
            ..EnumValueDescriptorProto::default()
        };
        let file = FileDescriptorProto {
            enum_type: vec![EnumDescriptorProto {
                name: Some("A".to_owned()),
                value: vec![value],
                ..EnumDescriptorProto::default()
            }],
            ..FileDescriptorProto::default()
        };
        let is_stripped = !self.generate(file).contains("AB = 0");
        *self.strips_enum_prefix.insert(is_stripped)
    }

    /// Whether a type is generated, which it is not if an `extern_path` says where it is. A message
    /// of the same name stands for it. Nothing, which has no names, is generated.
    pub(super) fn is_generated(&mut self, package: &str, names: &[&str]) -> bool {
        let mut messages = Vec::new();
        for name in names.iter().rev() {
            messages = vec![DescriptorProto {
                name: Some((*name).to_owned()),
                nested_type: messages,
                ..DescriptorProto::default()
            }];
        }
        let file = FileDescriptorProto {
            // An empty one is none: prost looks for its types by another name.
            package: Some(package.to_owned()).filter(|package| !package.is_empty()),
            message_type: messages,
            ..FileDescriptorProto::default()
        };
        self.generate(file).matches("pub struct ").count() == names.len()
    }

    /// Whether prost takes a type of the package `google.protobuf` for one that the crate `prost_types` has.
    pub(super) fn is_taken_for_standard(&mut self, package: &str, name: &str) -> bool {
        // The option by which it does not.
        if format!("{:?}", self.config).contains("prost_types: false") {
            return false;
        }
        // An `extern_path` may say where this one is, but has none for a type that nobody has.
        let unknown = self.path_of(".google.protobuf.NobodyHasThis");
        let module = unknown.trim_end_matches("NobodyHasThis");
        self.path_of(&format!(".{package}.{name}")).starts_with(module)
    }

    /// The path by which generated code names a type.
    fn path_of(&mut self, type_name: &str) -> String {
        let field = FieldDescriptorProto {
            name: Some("field".to_owned()),
            r#type: Some(Type::Enum.into()),
            type_name: Some(type_name.to_owned()),
            ..FieldDescriptorProto::default()
        };
        let file = FileDescriptorProto {
            message_type: vec![DescriptorProto {
                name: Some("Message".to_owned()),
                field: vec![field],
                ..DescriptorProto::default()
            }],
            ..FileDescriptorProto::default()
        };
        let code = self.generate(file);
        let path = code.split("enumeration = \"").nth(1).and_then(|rest| rest.split('"').next());
        path.unwrap_or_default().to_owned()
    }

    fn generate(&mut self, mut file: FileDescriptorProto) -> String {
        file.name = Some("probe.proto".to_owned());
        let module = Module::from_protobuf_package_name(file.package());
        // What is wrong with the options is said when the files are generated.
        let modules = self.config.generate(vec![(module, file)]).unwrap_or_default();
        modules.into_values().collect()
    }
}
