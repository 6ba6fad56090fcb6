//! How `start` is asked and how it answers: three forms, by the age of containerd.

use std::path::PathBuf;

use ttrpc::{Any, prost::Message};

use crate::{options, proto::bootstrap};

/// The version of the Task service that is offered where containerd can say so.
pub const TASK_VERSION: i32 = 3;
const PROTOCOL: &str = "ttrpc";

/// How the answer is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The bare address; the service is version 2. containerd 1.6.
    Plain,
    /// A JSON object. containerd that asks for version 3 or later.
    Json,
    /// A `BootstrapResult`. containerd 2.3 and later.
    Protobuf,
}

/// What containerd says to `start`.
#[derive(Debug)]
pub struct Request {
    /// How to answer.
    pub form: Form,
    /// Where the socket is to be, if anywhere in particular.
    pub socket_folder: Option<PathBuf>,
    /// What the client gave, under whatever name: the runtime's options are among them, if any were given.
    pub given: Vec<Any>,
    /// containerd's ttrpc socket, if it is named here.
    pub ttrpc_address: Option<String>,
    /// Whether to log more.
    pub debug: bool,
}

/// The log level from which on downwards a shim logs its details.
const LEVEL_DEBUG: i32 = -4;

impl Request {
    /// Reads what came on stdin, with the environment's word on the highest version.
    ///
    /// Before containerd 2.3 stdin is empty or holds the options alone. Those can be read as
    /// bootstrap parameters too, so these count only if they name the same container as the
    /// command line does.
    pub fn read(input: &[u8], max_version: Option<&str>, namespace: &str, id: &str) -> Request {
        if let Ok(params) = bootstrap::BootstrapParams::decode(input)
            && params.instance_id == id
            && params.namespace == namespace
        {
            return Request::from_params(params);
        }
        let wants_json = max_version
            .and_then(|version| version.parse::<i32>().ok())
            .is_some_and(|version| version >= TASK_VERSION);
        Request {
            form: if wants_json { Form::Json } else { Form::Plain },
            socket_folder: None,
            given: Any::decode(input).ok().filter(options::is_something).into_iter().collect(),
            ttrpc_address: None,
            debug: false,
        }
    }

    fn from_params(params: bootstrap::BootstrapParams) -> Request {
        let given = params.extensions.into_iter().filter_map(|extension| extension.value);
        Request {
            form: Form::Protobuf,
            given: given.filter(options::is_something).collect(),
            socket_folder: params.socket_dir.filter(|folder| !folder.is_empty()).map(Into::into),
            ttrpc_address: Some(params.containerd_ttrpc_address)
                .filter(|address| !address.is_empty()),
            debug: params.log_level <= LEVEL_DEBUG,
        }
    }
}

/// The answer: what `start` writes to stdout. The version is that of the Task service at the address.
pub fn answer(form: Form, address: &str, version: i32) -> Vec<u8> {
    match form {
        Form::Plain => address.as_bytes().to_vec(),
        Form::Json => serde_json::json!({
            "version": version,
            "address": address,
            "protocol": PROTOCOL,
        })
        .to_string()
        .into_bytes(),
        Form::Protobuf => bootstrap::BootstrapResult {
            version,
            address: address.to_owned(),
            protocol: PROTOCOL.to_owned(),
            ..Default::default()
        }
        .encode_to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use ttrpc::prost::Name;

    use super::*;
    use crate::proto::{self, runtimeoptions::Options};

    fn options() -> Options {
        Options { config_path: "/etc/runtime.toml".to_owned(), ..Default::default() }
    }

    #[test]
    fn old_containerd_gets_a_plain_address() {
        let request = Request::read(b"", None, "default", "c1");
        assert_eq!(request.form, Form::Plain);
        assert!(request.given.is_empty());
        // containerd 1.7 and 2.0 say 2.
        assert_eq!(Request::read(b"", Some("2"), "default", "c1").form, Form::Plain);
        assert_eq!(answer(Form::Plain, "unix:///s", 3), b"unix:///s");
    }

    #[test]
    fn version_3_is_answered_in_json() {
        assert_eq!(Request::read(b"", Some("3"), "default", "c1").form, Form::Json);
        let json: serde_json::Value =
            serde_json::from_slice(&answer(Form::Json, "unix:///s", 3)).unwrap();
        let expected =
            serde_json::json!({"version": 3, "address": "unix:///s", "protocol": "ttrpc"});
        assert_eq!(json, expected);
    }

    #[test]
    fn options_alone_are_no_bootstrap_parameters() {
        let any = proto::pack(&options());
        let request = Request::read(&any.encode_to_vec(), None, "default", "c1");
        assert_eq!(request.form, Form::Plain);
        assert_eq!(proto::unpack(&request.given[0]).unwrap(), Some(options()));
    }

    #[test]
    fn bootstrap_parameters_are_answered_in_protobuf() {
        let params = bootstrap::BootstrapParams {
            instance_id: "c1".to_owned(),
            namespace: "default".to_owned(),
            log_level: LEVEL_DEBUG,
            containerd_ttrpc_address: "/run/c.sock.ttrpc".to_owned(),
            socket_dir: Some("/run/s".to_owned()),
            extensions: vec![
                bootstrap::Extension { value: None },
                bootstrap::Extension {
                    value: Some(Any {
                        type_url: format!("type.googleapis.com/{}", Options::full_name()),
                        value: options().encode_to_vec(),
                    }),
                },
            ],
            ..Default::default()
        };
        let request = Request::read(&params.encode_to_vec(), Some("2"), "default", "c1");
        assert_eq!(request.form, Form::Protobuf);
        assert_eq!(proto::unpack(&request.given[0]).unwrap(), Some(options()));
        assert_eq!(request.socket_folder, Some("/run/s".into()));
        assert_eq!(request.ttrpc_address.as_deref(), Some("/run/c.sock.ttrpc"));
        assert!(request.debug);

        let result =
            bootstrap::BootstrapResult::decode(&*answer(Form::Protobuf, "unix:///s", 2)).unwrap();
        assert_eq!((result.version, result.address.as_str()), (2, "unix:///s"));
        assert_eq!(result.protocol, "ttrpc");
    }
}
