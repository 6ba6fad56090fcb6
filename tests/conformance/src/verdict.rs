//! How a case ends.

use crate::message::{Failure, codes};

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
impl From<Failure> for Verdict {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsupported(reason) => Verdict::Unsupported(reason.to_owned()),
            Failure::Status(ref status) if status.code == codes::UNIMPLEMENTED => {
                Verdict::Unsupported(failure.to_string())
            }
            failure => Verdict::Fail(failure.to_string()),
        }
    }
}

/// A call's result in a report.
pub fn describe<T>(result: &Result<T, Failure>) -> String {
    match result {
        Ok(_) => "success".to_owned(),
        Err(failure) => failure.to_string(),
    }
}
