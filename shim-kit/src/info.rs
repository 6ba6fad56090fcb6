//! The invocation `-info`: what this runtime is and can do.

use std::io::{self, Read, Write};

use ttrpc::{Any, prost::Message};

use crate::{options, proto::types, runtime::Runtime, tasks::contain_now};

/// Reads the runtime's options and prints a `RuntimeInfo`.
///
/// # Errors
/// Those of stdin and stdout.
pub fn print<R: Runtime>(name: &str) -> io::Result<()> {
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let given = Any::decode(input.as_slice()).ok().filter(|any| !any.type_url.is_empty());
    let options = contain_now(|| options::read(given.as_ref(), R::options))
        .map_err(|status| io::Error::other(status.message().to_owned()))?;
    let info = types::RuntimeInfo {
        name: name.to_owned(),
        version: Some(types::RuntimeVersion {
            version: R::VERSION.to_owned(),
            revision: String::new(),
        }),
        options: given,
        features: R::features(&options),
        annotations: Default::default(),
    };
    io::stdout().write_all(&info.encode_to_vec())
}
