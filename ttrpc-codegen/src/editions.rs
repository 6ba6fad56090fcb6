//! Files of an edition of the language, in terms of proto3, which prost knows.
//!
//! An edition has features in the place of a syntax: those that change the code stand at a file, and at a field or
//! an enum that differs. prost's types leave them out, so they are decoded here.

use prost::{DecodeError, Message};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FieldOptions, FileDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

use crate::Error;

/// The numbers of the editions 2023 and 2024 in the enum `Edition`.
pub(crate) const EDITION_2023: i32 = 1000;
pub(crate) const EDITION_2024: i32 = 1001;

/// What of `google.protobuf.FeatureSet` changes the code.
#[derive(Clone, Copy, PartialEq, Message)]
struct FeatureSet {
    #[prost(int32, optional, tag = "1")]
    field_presence: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    enum_type: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    repeated_field_encoding: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    utf8_validation: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    message_encoding: Option<i32>,
}

/// Options of which only the features count; they have another number in each.
macro_rules! options {
    ($($name:ident = $number:literal)*) => { $(
        #[derive(Clone, PartialEq, Message)]
        struct $name {
            #[prost(message, optional, tag = $number)]
            features: Option<FeatureSet>,
        }
    )* };
}

options! {
    FileOptionFeatures = "50"
    FieldOptionFeatures = "21"
    EnumOptionFeatures = "7"
}

#[derive(Clone, PartialEq, Message)]
struct FileFeatures {
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageFeatures>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<EnumFeatures>,
    #[prost(message, optional, tag = "8")]
    options: Option<FileOptionFeatures>,
    #[prost(int32, optional, tag = "14")]
    edition: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct MessageFeatures {
    #[prost(message, repeated, tag = "2")]
    fields: Vec<FieldFeatures>,
    #[prost(message, repeated, tag = "3")]
    messages: Vec<MessageFeatures>,
    #[prost(message, repeated, tag = "4")]
    enums: Vec<EnumFeatures>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldFeatures {
    #[prost(message, optional, tag = "8")]
    options: Option<FieldOptionFeatures>,
}

#[derive(Clone, PartialEq, Message)]
struct EnumFeatures {
    #[prost(message, optional, tag = "3")]
    options: Option<EnumOptionFeatures>,
}

/// Whether a field without a label can be absent.
#[derive(Clone, Copy)]
enum Presence {
    Explicit,
    Implicit,
    Required,
}

/// The features that count at a place.
#[derive(Clone, Copy)]
struct Features<'a> {
    file: &'a str,
    presence: Presence,
    is_packed: bool,
    is_delimited: bool,
}

/// Rewrites a file of an edition as one of proto3.
///
/// # Errors
/// If there is no such edition here, or a feature has a value of which prost has no form.
pub(crate) fn lower(file: &mut FileDescriptorProto, encoded: &[u8]) -> Result<(), Error> {
    let name = file.name().to_owned();
    let features = FileFeatures::decode(encoded)
        .map_err(|error: DecodeError| Error::new(format!("{name}: {error}")))?;
    match features.edition {
        Some(EDITION_2023 | EDITION_2024) => {}
        Some(number) => {
            return Err(Error::new(format!(
                "{name}: the edition with the number {number} is not known here; there are 2023 \
                 and 2024"
            )));
        }
        None => {
            return Err(Error::new(format!(
                "{name}: the descriptor does not say its edition, as those that prost has decoded: \
                 give the encoded descriptor set"
            )));
        }
    }
    let defaults = Features {
        file: &name,
        presence: Presence::Explicit,
        is_packed: true,
        is_delimited: false,
    };
    let all = defaults.within(features.options.and_then(|options| options.features))?;
    all.check_enums(&features.enums)?;
    for (message, features) in file.message_type.iter_mut().zip(&features.messages) {
        all.lower_message(message, features)?;
    }
    file.syntax = Some("proto3".to_owned());
    Ok(())
}

impl Features<'_> {
    /// The features within something that sets some.
    fn within(mut self, set: Option<FeatureSet>) -> Result<Self, Error> {
        let Some(set) = set else { return Ok(self) };
        self.presence = match set.field_presence {
            None => self.presence,
            Some(1) => Presence::Explicit,
            Some(2) => Presence::Implicit,
            Some(3) => Presence::Required,
            Some(value) => return Err(self.unknown("field_presence", value)),
        };
        self.is_packed = match set.repeated_field_encoding {
            None => self.is_packed,
            Some(1) => true,
            Some(2) => false,
            Some(value) => return Err(self.unknown("repeated_field_encoding", value)),
        };
        self.is_delimited = match set.message_encoding {
            None => self.is_delimited,
            Some(1) => false,
            Some(2) => true,
            Some(value) => return Err(self.unknown("message_encoding", value)),
        };
        // prost keeps the values of every enum as numbers, and checks every string, in proto2 as well.
        match (set.enum_type, set.utf8_validation) {
            (None | Some(1 | 2), None | Some(2 | 3)) => Ok(self),
            (None | Some(1 | 2), Some(value)) => Err(self.unknown("utf8_validation", value)),
            (Some(value), _) => Err(self.unknown("enum_type", value)),
        }
    }

    fn unknown(&self, feature: &str, value: i32) -> Error {
        Error::new(format!(
            "{}: the feature `{feature}` has the value {value}, for which prost has no form",
            self.file
        ))
    }

    fn check_enums(self, enums: &[EnumFeatures]) -> Result<(), Error> {
        for options in enums.iter().filter_map(|each| each.options.as_ref()) {
            self.within(options.features)?;
        }
        Ok(())
    }

    fn lower_message(
        self,
        message: &mut DescriptorProto,
        features: &MessageFeatures,
    ) -> Result<(), Error> {
        self.check_enums(&features.enums)?;
        for (nested, features) in message.nested_type.iter_mut().zip(&features.messages) {
            self.lower_message(nested, features)?;
        }
        if message.options.as_ref().is_some_and(|options| options.map_entry()) {
            return Ok(());
        }
        let is_entry = |nested: &DescriptorProto| nested.options.as_ref()?.map_entry;
        let nested = message.nested_type.iter();
        let entries: Vec<_> = nested
            .filter(|nested| is_entry(nested) == Some(true))
            .map(|nested| format!(".{}.{}", message.name(), nested.name()))
            .collect();
        for (field, features) in message.field.iter_mut().zip(&features.fields) {
            let set = features.options.as_ref().and_then(|options| options.features);
            let features = self.within(set)?;
            let is_map = entries.iter().any(|entry| field.type_name().ends_with(entry));
            features.lower_field(field, is_map);
        }
        Ok(())
    }

    fn lower_field(self, field: &mut FieldDescriptorProto, is_map: bool) {
        if field.r#type() == Type::Message && self.is_delimited && !is_map {
            field.set_type(Type::Group);
        }
        let is_message = matches!(field.r#type(), Type::Message | Type::Group);
        if field.label() == Label::Repeated {
            if !is_message && !matches!(field.r#type(), Type::String | Type::Bytes) {
                let options = field.options.get_or_insert_with(FieldOptions::default);
                options.packed = Some(self.is_packed);
            }
            return;
        }
        match self.presence {
            Presence::Required => field.set_label(Label::Required),
            _ if field.oneof_index.is_some() => {}
            // A message can always be absent, and prost knows that of those that are no groups.
            _ if is_message => field.proto3_optional = Some(field.r#type() == Type::Group),
            Presence::Explicit => field.proto3_optional = Some(true),
            Presence::Implicit => {}
        }
    }
}
