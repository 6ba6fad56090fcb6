//! What a `google.protobuf.FileDescriptorProto` declares, and nothing else of it: a tenth of the code that
//! decodes all of it.

use ttrpc::prost::Message;

#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::ttrpc::prost")]
pub(crate) struct FileDeclarations {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) package: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) imports: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) messages: Vec<MessageDeclaration>,
    /// Their members are values.
    #[prost(message, repeated, tag = "5")]
    pub(crate) enums: Vec<MembersDeclaration>,
    /// Their members are methods.
    #[prost(message, repeated, tag = "6")]
    pub(crate) services: Vec<MembersDeclaration>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) extensions: Vec<FieldDeclaration>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::ttrpc::prost")]
pub(crate) struct MessageDeclaration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) fields: Vec<FieldDeclaration>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) messages: Vec<MessageDeclaration>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) enums: Vec<MembersDeclaration>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) extensions: Vec<FieldDeclaration>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) oneofs: Vec<MemberDeclaration>,
}

/// A field or an extension.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::ttrpc::prost")]
pub(crate) struct FieldDeclaration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// The message that an extension extends.
    #[prost(string, tag = "2")]
    pub(crate) extendee: String,
    #[prost(int32, tag = "3")]
    pub(crate) number: i32,
}

/// An enum or a service.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::ttrpc::prost")]
pub(crate) struct MembersDeclaration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<MemberDeclaration>,
}

/// A value of an enum, a method of a service, or a oneof.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "::ttrpc::prost")]
pub(crate) struct MemberDeclaration {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}
