//! Schemas: where they come from, and what is found in them.
//!
//! In this order, unless the command line says otherwise: what the server tells by reflection, files
//! that are named, what is built in. An `Any` may hold a type of any of them.

mod builtin;
pub mod files;
mod lookup;
pub mod print;
mod reflection;
pub mod template;

use prost_reflect::{
    DescriptorPool, MessageDescriptor,
    prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, field_descriptor_proto::Type,
    },
};

use crate::failure::Failure;
pub use builtin::builtin;
pub use lookup::{Symbol, method_name, newest};
pub use reflection::fetch_schema;

/// Where a schema comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server told it.
    Reflection,
    /// Files on the command line.
    Files,
    /// This program.
    BuiltIn,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Source::Reflection => "the server's reflection",
            Source::Files => "the files on the command line",
            Source::BuiltIn => "the built-in schemas",
        })
    }
}

/// The message that stands for an `Any` while protobuf's JSON is read or written, see [`crate::json`].
pub const PLACEHOLDER: &str = "ttrpc.cli.Placeholder";

/// The types that a command knows.
#[derive(Clone, Debug)]
pub struct Schema {
    pool: DescriptorPool,
    source: Source,
}

impl Schema {
    /// # Errors
    /// If the pool has a type of this program's own already.
    pub fn new(mut pool: DescriptorPool, source: Source) -> Result<Self, Failure> {
        if pool.get_message_by_name(PLACEHOLDER).is_none() {
            pool.add_file_descriptor_proto(placeholder_file())
                .map_err(|error| Failure::Other(error.to_string()))?;
        }
        Ok(Schema { pool, source })
    }

    pub fn pool(&self) -> &DescriptorPool {
        &self.pool
    }

    pub fn source(&self) -> Source {
        self.source
    }

    /// The type of an `Any`, from this schema or the built-in ones. containerd leaves out the part of
    /// the URL that ends with a slash.
    pub fn any_type(&self, type_url: &str) -> Option<MessageDescriptor> {
        let name = type_url.rsplit('/').next().unwrap_or(type_url);
        let known = self.pool.get_message_by_name(name);
        known.or_else(|| builtin().pool.get_message_by_name(name))
    }

    /// The files, without those that belong to protobuf or to this program.
    pub fn files(&self) -> impl Iterator<Item = prost_reflect::FileDescriptor> + '_ {
        self.pool.files().filter(|file| {
            !file.name().starts_with("google/protobuf/") && file.package_name() != "ttrpc.cli"
        })
    }
}

/// `message Placeholder { uint32 index = 1; }`.
fn placeholder_file() -> FileDescriptorProto {
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
        package: Some("ttrpc.cli".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message],
        ..FileDescriptorProto::default()
    }
}
