//! How a case ends.

use ttrpc::{Code, Error, Status};

/// What ends a case that did not pass. The text says what was observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The peer behaved otherwise than expected.
    Fail(String),
    /// The peer has no such thing: it says so, or it reacts as to anything that it does not know.
    Unsupported(String),
}

/// What a case that passed has to tell, or why it did not.
pub type Outcome<T = String> = Result<T, Verdict>;

/// A failure.
///
/// # Errors
/// Always.
pub fn fail<T>(observed: impl Into<String>) -> Outcome<T> {
    Err(Verdict::Fail(observed.into()))
}

/// A pass without more to say.
///
/// # Errors
/// Never.
pub fn passed() -> Outcome {
    Ok(String::new())
}

impl Verdict {
    /// The same verdict, saying in which part of the case it came.
    pub fn in_part(self, part: &str) -> Self {
        match self {
            Verdict::Fail(observed) => Verdict::Fail(format!("{part}: {observed}")),
            unsupported => unsupported,
        }
    }
}

impl From<String> for Verdict {
    fn from(observed: String) -> Self {
        Verdict::Fail(observed)
    }
}

/// For a call that was expected to succeed. UNIMPLEMENTED is how a peer says that it lacks a method
/// of the service; where a case asks for that very code, it looks at the status itself.
impl From<Status> for Verdict {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unimplemented => Verdict::Unsupported(describe_status(&status)),
            _ => Verdict::Fail(describe_status(&status)),
        }
    }
}

impl From<Error> for Verdict {
    fn from(error: Error) -> Self {
        Verdict::Fail(error.to_string())
    }
}

/// A status in a report.
pub(super) fn describe_status(status: &Status) -> String {
    format!("status {} {:?}", status.raw_code(), status.message())
}

/// A call's result in a report.
pub(super) fn describe<T>(result: &Result<T, Status>) -> String {
    match result {
        Ok(_) => "success".to_owned(),
        Err(status) => describe_status(status),
    }
}
