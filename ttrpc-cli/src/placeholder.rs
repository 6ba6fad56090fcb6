//! The message that stands for an `Any` while protobuf's JSON is read or written, see the module `json`.

use prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, field_descriptor_proto::Type,
};

/// Its full name.
pub const NAME: &str = "ttrpc.cli.Placeholder";

/// The package that is this program's own.
pub const PACKAGE: &str = "ttrpc.cli";

/// The URL that an `Any` with a placeholder has.
pub fn url() -> String {
    format!("/{NAME}")
}

/// `message Placeholder { uint32 index = 1; }`.
pub fn file() -> FileDescriptorProto {
    let index = FieldDescriptorProto {
        name: Some("index".to_owned()),
        number: Some(1),
        r#type: Some(Type::Uint32.into()),
        ..FieldDescriptorProto::default()
    };
    let message = DescriptorProto {
        name: Some("Placeholder".to_owned()),
        field: vec![index],
        ..DescriptorProto::default()
    };
    FileDescriptorProto {
        name: Some("ttrpc/cli/placeholder.proto".to_owned()),
        package: Some(PACKAGE.to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        ..FileDescriptorProto::default()
    }
}
