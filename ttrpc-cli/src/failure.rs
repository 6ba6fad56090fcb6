//! How a command fails: what is said, and the exit code.

use std::{fmt, io, process::ExitCode};

use ttrpc::Status;

use crate::output;

/// Added to the code of a call that failed.
const STATUS_EXIT_BASE: i32 = 64;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command line, a request or a schema is wrong. Exit code 2.
    Usage(String),
    /// There is no connection to the server. Exit code 3.
    Connect(String),
    /// The call failed. Exit code 64 and the call's code.
    Call {
        /// As the server sent it, or as it was made here.
        status: Status,
        /// What may be done about it, if anything is known.
        hint: Option<String>,
        /// The status' details as JSON.
        details: Vec<serde_json::Value>,
    },
    /// Anything else. Exit code 1.
    Other(String),
    /// What was asked for was found, and all has been said; such as a shim that hangs. Exit code 1.
    Found,
    /// Whoever read the output is gone. Nobody is to be told.
    OutputClosed,
    /// Ctrl-C. Exit code 130, as shells have it.
    Interrupted,
}

impl Failure {
    /// A status of which nothing more is known.
    pub fn call(status: Status) -> Self {
        Failure::Call { status, hint: None, details: Vec::new() }
    }

    pub fn usage(text: impl Into<String>) -> Self {
        Failure::Usage(text.into())
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) => 2,
            Failure::Connect(_) => 3,
            Failure::Call { status, .. } => {
                // Codes outside gRPC's list count as UNKNOWN.
                u8::try_from(STATUS_EXIT_BASE + status.code() as i32).unwrap_or(u8::MAX)
            }
            Failure::Other(_) | Failure::Found => 1,
            Failure::OutputClosed => 0,
            Failure::Interrupted => 130,
        })
    }

    /// The failure as one JSON object, for `--json`.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Failure::Call { status, hint, details } => serde_json::json!({
                "code": status.code().name(),
                "number": status.raw_code(),
                "message": status.message(),
                "details": details,
                "hint": hint,
            }),
            failure => serde_json::json!({ "error": failure.to_string() }),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Names in it may be a server's.
            Failure::Usage(text) | Failure::Connect(text) | Failure::Other(text) => {
                f.write_str(&output::plain(text))
            }
            Failure::Call { status, hint, details } => {
                f.write_str(&output::plain(status))?;
                for detail in details {
                    write!(f, "\n  detail: {}", output::json(detail))?;
                }
                match hint {
                    Some(hint) => write!(f, "\n  {}", output::plain(hint)),
                    None => Ok(()),
                }
            }
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Found | Failure::OutputClosed => Ok(()),
        }
    }
}

/// Of writing to the standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Other(format!("cannot write the output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_what_scripts_expect() {
        let code = |failure: Failure| format!("{:?}", failure.exit_code());
        let is = |number: u8| format!("{:?}", ExitCode::from(number));
        assert_eq!(code(Failure::usage("")), is(2));
        assert_eq!(code(Failure::Connect(String::new())), is(3));
        assert_eq!(code(Failure::call(Status::not_found(""))), is(69));
        assert_eq!(code(Failure::call(Status::with_raw_code(1234, ""))), is(66));
    }
}
