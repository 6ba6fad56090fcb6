//! `Any` as containerd writes it: under the message's bare name, where other programs put a domain in front.

use ttrpc::{
    Any,
    prost::{DecodeError, Message, Name},
};

/// The name of an OCI runtime specification, which is packed as JSON.
pub const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// The name of the specification's `process`, as in a request to exec.
pub const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// The name of the specification's `linux.resources`, as in a request to update.
pub const LINUX_RESOURCES: &str = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";
/// The name of what an OCI runtime says that it can do.
pub const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// Packs a message.
pub fn pack<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::full_name(), value: message.encode_to_vec() }
}

/// Packs JSON under one of the names above.
pub fn pack_json(name: &str, json: impl Into<Vec<u8>>) -> Any {
    Any { type_url: name.to_owned(), value: json.into() }
}

/// Returns the full name of the message, whatever is in front of it.
pub fn name(any: &Any) -> &str {
    any.type_url.rsplit('/').next().unwrap_or_default()
}

/// Unpacks a message of type `M`; nothing if it is of another type.
///
/// # Errors
/// If it is of that type and does not decode.
pub fn unpack<M: Message + Name + Default>(any: &Any) -> Result<Option<M>, DecodeError> {
    (name(any) == M::full_name()).then(|| M::decode(any.value.as_slice())).transpose()
}
