//! What can be wrong with the input.

use std::{fmt, io};

use prost_types::source_code_info::Location;

/// Why nothing was generated: a sentence that names the file, and the line where there is one.
///
/// `Debug` prints the same as `Display`, so that the sentence is readable too where a build script
/// returns the error or unwraps it.
pub struct Error {
    message: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Error { message: message.into(), source: None }
    }

    /// An error at a place in a file, as compilers print it.
    pub(crate) fn at(file: &str, location: Option<&Location>, message: &str) -> Self {
        // A span is line, column, and where it ends, counted from 0 (descriptor.proto).
        match location.map(|location| location.span.as_slice()) {
            Some([line, column, ..]) => {
                Error::new(format!("{file}:{}:{}: {message}", line + 1, column + 1))
            }
            _ => Error::new(format!("{file}: {message}")),
        }
    }

    pub(crate) fn io(what: impl fmt::Display, source: io::Error) -> Self {
        Error { message: format!("{what}: {source}"), source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn what_the_system_said_is_the_source() {
        let error = Error::io("reading a.proto", io::ErrorKind::NotFound.into());
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::NotFound));
        assert!(error.to_string().starts_with("reading a.proto: "), "{error}");
        assert!(Error::new("a.proto: no").source().is_none());
    }
}
