//! Descriptor sets, encoded: decoded ones lose custom options and the features of editions.

use prost::{
    Message,
    bytes::{Buf, Bytes},
    encoding::{DecodeContext, decode_key, skip_field},
};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::{Error, editions};

/// The number of `source_code_info` in a `FileDescriptorProto`.
const SOURCE_CODE_INFO: u32 = 9;

/// A `google.protobuf.FileDescriptorSet`, for [`Builder::compile_fds`](crate::Builder::compile_fds).
///
/// Made of an encoded one, which keeps custom options and the features of editions, or of one that was
/// decoded by prost, which has lost them.
#[derive(Clone, Debug)]
pub struct DescriptorSet {
    encoded: Vec<u8>,
}

impl From<Vec<u8>> for DescriptorSet {
    fn from(encoded: Vec<u8>) -> Self {
        DescriptorSet { encoded }
    }
}

impl From<&[u8]> for DescriptorSet {
    fn from(encoded: &[u8]) -> Self {
        DescriptorSet { encoded: encoded.to_vec() }
    }
}

impl From<FileDescriptorSet> for DescriptorSet {
    fn from(set: FileDescriptorSet) -> Self {
        DescriptorSet { encoded: set.encode_to_vec() }
    }
}

/// The set's files, each encoded.
#[derive(Clone, PartialEq, Message)]
struct EncodedFiles {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

/// Of a set, the files' names.
#[derive(Clone, PartialEq, Message)]
struct Names {
    #[prost(message, repeated, tag = "1")]
    files: Vec<Name>,
}

#[derive(Clone, PartialEq, Message)]
struct Name {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Syntax {
    #[prost(string, tag = "12")]
    syntax: String,
}

impl DescriptorSet {
    /// Returns the encoded set.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Returns the set with its files of editions in terms of proto3, for what knows no editions. Those files lose their custom
    /// options.
    ///
    /// # Errors
    /// If the bytes are no set, or a file has a feature that prost has no form for.
    pub fn lowered(&self) -> Result<DescriptorSet, Error> {
        let mut set = EncodedFiles::decode(&self.encoded[..]).map_err(not_a_set)?;
        for file in &mut set.files {
            if Syntax::decode(file.clone()).map_err(not_a_set)?.syntax == "editions" {
                *file = decode_file(file)?.encode_to_vec().into();
            }
        }
        Ok(DescriptorSet { encoded: set.encode_to_vec() })
    }

    /// The files, as prost knows them.
    ///
    /// # Errors
    /// If the bytes are no set, or a file has a feature that prost has no form for.
    pub(crate) fn files(&self) -> Result<Vec<FileDescriptorProto>, Error> {
        let set = EncodedFiles::decode(&self.encoded[..]).map_err(not_a_set)?;
        set.files.iter().map(decode_file).collect()
    }

    /// The files' names.
    ///
    /// # Errors
    /// If the bytes are no set.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let set = Names::decode(&self.encoded[..]).map_err(not_a_set)?;
        Ok(set.files.into_iter().map(|file| file.name).collect())
    }

    /// The set without comments and positions.
    ///
    /// # Errors
    /// If the bytes are no set.
    pub(crate) fn without_source_info(&self) -> Result<Vec<u8>, Error> {
        let mut set = EncodedFiles::decode(&self.encoded[..]).map_err(not_a_set)?;
        for file in &mut set.files {
            *file = without_field(file, SOURCE_CODE_INFO).map_err(not_a_set)?.into();
        }
        Ok(set.encode_to_vec())
    }
}

/// A file, as prost knows it.
///
/// # Errors
/// If the bytes are no file, or it has a feature that prost has no form for.
pub(crate) fn decode_file(encoded: &Bytes) -> Result<FileDescriptorProto, Error> {
    let mut file = FileDescriptorProto::decode(encoded.clone()).map_err(not_a_set)?;
    if file.syntax() == "editions" {
        editions::lower(&mut file, encoded)?;
    }
    Ok(file)
}

fn not_a_set(error: prost::DecodeError) -> Error {
    Error::new(format!("this is no encoded `google.protobuf.FileDescriptorSet`: {error}"))
}

fn without_field(message: &Bytes, number: u32) -> Result<Vec<u8>, prost::DecodeError> {
    let (mut rest, mut output) = (message.clone(), Vec::with_capacity(message.len()));
    while rest.has_remaining() {
        let field = rest.clone();
        let (tag, wire_type) = decode_key(&mut rest)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default())?;
        if tag != number {
            output.extend_from_slice(&field[..field.len() - rest.len()]);
        }
    }
    Ok(output)
}
