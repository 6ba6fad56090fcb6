//! The invocation `-info`: what this runtime is and can do.

use std::io::{self, Read, Write};

use ttrpc::{Any, prost::Message};

use crate::{
    proto::{self, runc::Options, types},
    runc,
};

/// What the OCI runtime's features are packed as.
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

/// Reads the runtime's options and prints a `RuntimeInfo`.
///
/// # Errors
/// Those of stdin and stdout.
pub fn print() -> io::Result<()> {
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let given = Any::decode(input.as_slice()).ok().filter(|any| !any.type_url.is_empty());
    let options: Options = given.as_ref().and_then(proto::unpack).unwrap_or_default();
    let features = runc::features(&options.binary_name);
    let info = types::RuntimeInfo {
        name: "io.containerd.runc-ttrpc.v2".to_owned(),
        version: Some(types::RuntimeVersion {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: String::new(),
        }),
        options: given,
        features: features.map(|value| Any { type_url: FEATURES.to_owned(), value }),
        annotations: Default::default(),
    };
    io::stdout().write_all(&info.encode_to_vec())
}
