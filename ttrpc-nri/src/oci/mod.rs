//! Conversions from and to the types of the crate `oci-spec`, with the feature `oci-spec`.
//!
//! From the specification of a container that is to be created to what plugins see, and from what plugins want to the specification. What
//! the OCI has no word for is refused by name; what NRI has no field for (a processor's burst, id mappings of mounts) is left out.

mod container;
mod linux;
mod resources;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A value of NRI that the OCI specification does not have.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be expressed in the OCI specification")]
pub struct OciError {
    what: &'static str,
    source: serde_json::Error,
}

/// Makes a type of the specification, whose enumerations are words.
fn to_oci<T: DeserializeOwned>(what: &'static str, value: Value) -> Result<T, OciError> {
    serde_json::from_value(value).map_err(|source| OciError { what, source })
}

/// The word of the specification for an enumeration.
fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        // An enumeration without data is a string.
        _ => String::new(),
    }
}

fn words<T: Serialize>(values: Option<&Vec<T>>) -> Vec<String> {
    values.into_iter().flatten().map(word).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn optional_text(path: Option<&PathBuf>) -> String {
    path.map(|path| text(path)).unwrap_or_default()
}

/// Nothing for an empty string, which is how NRI says that something is not set.
fn unless_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// An object without what is not set: the specification's defaults are by absence.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(object) = &mut value {
        object.retain(|_, value| !value.is_null());
    }
    value
}

/// `Some` of the value in a message such as `OptionalInt64`.
macro_rules! value {
    ($message:expr) => {
        $message.as_ref().map(|set| set.value)
    };
}

use value;
