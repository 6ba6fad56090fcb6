//! The options of a runtime, in each of the forms in which containerd passes them on.

use std::fs;

use ttrpc::{
    Any, Status,
    prost::{Message, Name},
};

use crate::{log, proto::runtimeoptions};

/// Options as they were given. A form that a runtime does not understand is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given<'a> {
    /// None were.
    Nothing,
    /// A protobuf message: what clients send that know the runtime.
    Message {
        /// The message's full name, such as `containerd.runc.v1.Options`. For a type that is none of protobuf's, the path
        /// that it is registered as in Go, such as `github.com/acme/shim/options/Options`.
        name: &'a str,
        /// The message.
        bytes: &'a [u8],
    },
    /// The table `options` of a runtime in containerd's configuration, or the file that such a
    /// table or a client names.
    ///
    /// Kubernetes has containerd send it to every runtime whose type it does not know.
    Toml(&'a str),
}

/// Whether a message says anything. containerd packs `Empty` where a client has no options.
pub(crate) fn is_something(any: &Any) -> bool {
    !matches!(ttrpc_containerd::any::name(any), "" | "google.protobuf.Empty")
}

/// What tells a type from all others. Go's types have paths, of which many end alike.
fn type_name(any: &Any) -> &str {
    match ttrpc_containerd::any::name(any) {
        name if name.contains('.') => name,
        _ => any.type_url.trim_start_matches("type.googleapis.com/"),
    }
}

/// Has the options understood.
///
/// # Errors
/// INVALID_ARGUMENT if a file cannot be read, or from `understand`.
pub(crate) fn read<T>(
    any: Option<&Any>,
    understand: impl FnOnce(Given<'_>) -> Result<T, Status>,
) -> Result<T, Status> {
    let Some(any) = any.filter(|any| is_something(any)) else {
        return understand(Given::Nothing);
    };
    let name = type_name(any);
    let bytes = any.value.as_slice();
    if name != runtimeoptions::Options::full_name() {
        return understand(Given::Message { name, bytes });
    }
    let wrong = |what: String| Status::invalid_argument(format!("the runtime's options: {what}"));
    let options =
        runtimeoptions::Options::decode(bytes).map_err(|error| wrong(error.to_string()))?;
    let body = match (options.config_body, options.config_path) {
        (body, path) if body.is_empty() && path.is_empty() => {
            // What containerd 1.6 makes of a table in which it knows no key but this.
            log::warn("the runtime's options are empty; containerd 1.6 passes on ConfigPath alone");
            return understand(Given::Nothing);
        }
        (body, path) if body.is_empty() => {
            fs::read(&path).map_err(|error| wrong(format!("cannot read {path}: {error}")))?
        }
        (body, _) => body,
    };
    let toml = str::from_utf8(&body).map_err(|error| wrong(error.to_string()))?;
    understand(Given::Toml(toml))
}

/// Chooses the options among messages: the first that is understood.
///
/// # Errors
/// If there are some and none is understood: the first one's error.
pub(crate) fn choose<T>(
    given: &[Any],
    understand: impl Fn(Given<'_>) -> Result<T, Status>,
) -> Result<Option<&Any>, Status> {
    let mut refused = None;
    for any in given {
        match read(Some(any), &understand) {
            Ok(_) => return Ok(Some(any)),
            Err(status) => drop(refused.get_or_insert(status)),
        }
    }
    refused.map_or(Ok(None), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;

    fn read_as(any: Option<&Any>) -> Result<String, Status> {
        read(any, |given| Ok(format!("{given:?}")))
    }

    fn given(options: &runtimeoptions::Options) -> Result<String, Status> {
        read_as(Some(&proto::pack(options)))
    }

    #[test]
    fn options_arrive_in_every_form() {
        assert_eq!(read_as(None).unwrap(), "Nothing");
        assert_eq!(read_as(Some(&Any::default())).unwrap(), "Nothing");
        let empty = Any { type_url: "google.protobuf.Empty".to_owned(), value: Vec::new() };
        assert_eq!(read_as(Some(&empty)).unwrap(), "Nothing");
        let message = Any { type_url: "types.io/a.v1.Options".to_owned(), value: vec![8, 1] };
        assert_eq!(
            read_as(Some(&message)).unwrap(),
            "Message { name: \"a.v1.Options\", bytes: [8, 1] }"
        );

        let empty = runtimeoptions::Options::default();
        assert_eq!(given(&empty).unwrap(), "Nothing");
        let body = runtimeoptions::Options { config_body: b"a = 1".to_vec(), ..empty.clone() };
        assert_eq!(given(&body).unwrap(), "Toml(\"a = 1\")");

        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "b = 2").unwrap();
        let config_path = file.path().to_str().unwrap().to_owned();
        let path = runtimeoptions::Options { config_path, ..empty };
        assert_eq!(given(&path).unwrap(), "Toml(\"b = 2\")");
    }

    /// Those whose type was not called `Options` were dropped in silence.
    #[test]
    fn options_are_chosen_by_their_type_and_not_by_its_name() {
        let any = |name: &str| Any { type_url: name.to_owned(), value: Vec::new() };
        let understand = |given: Given<'_>| match given {
            Given::Message { name: "acme.v1.ShimConfig", .. } => Ok(()),
            given => Err(Status::invalid_argument(format!("{given:?}"))),
        };
        let given = [any("a.v1.Options"), any("types.io/acme.v1.ShimConfig")];
        assert_eq!(choose(&given, understand).unwrap(), Some(&given[1]));
        let refused = choose(&given[..1], understand).unwrap_err();
        assert!(refused.message().contains("a.v1.Options"), "{refused}");
        assert_eq!(choose(&[], understand).unwrap(), None);
    }

    /// All of Go's types that are called `Options` were one, whatever package they were of.
    #[test]
    fn a_type_of_gos_is_told_by_its_path() {
        for (url, name) in [
            ("github.com/acme/shim/options/Options", "github.com/acme/shim/options/Options"),
            ("types.containerd.io/acme/1/Config", "types.containerd.io/acme/1/Config"),
            ("type.googleapis.com/Options", "Options"),
            ("type.googleapis.com/a.v1.Options", "a.v1.Options"),
        ] {
            let any = Any { type_url: url.to_owned(), value: Vec::new() };
            let read = read_as(Some(&any)).unwrap();
            assert_eq!(read, format!("Message {{ name: {name:?}, bytes: [] }}"));
        }
    }

    #[test]
    fn options_that_cannot_be_read_are_an_error() {
        let missing =
            runtimeoptions::Options { config_path: "/missing".to_owned(), ..Default::default() };
        assert!(given(&missing).unwrap_err().message().contains("/missing"));
        let binary = runtimeoptions::Options { config_body: vec![0xff], ..Default::default() };
        assert_eq!(given(&binary).unwrap_err().code(), ttrpc::Code::InvalidArgument);
        let garbage = Any { type_url: runtimeoptions::Options::full_name(), value: vec![0xff] };
        assert_eq!(read_as(Some(&garbage)).unwrap_err().code(), ttrpc::Code::InvalidArgument);
    }
}
