//! Where output goes, if that is said as a URI: `file://`, `binary://`, `binary-v2://`.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use percent_encoding::percent_decode;
use ttrpc::Status;

use super::logger::Program;

/// Where output goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Uri {
    /// To the end of a file, which is made if it is not there.
    File(PathBuf),
    /// To a program.
    Program(Program),
}

impl Uri {
    /// Understands a URI; nothing if the text is a path.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a path that is not absolute, UNIMPLEMENTED for other schemes.
    pub fn parse(text: &str) -> Result<Option<Uri>, Status> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
        let is_file = scheme == "file";
        if !is_file && !matches!(scheme, "binary" | "binary-v2") {
            return Err(Status::unimplemented(format!("output cannot go to {scheme}://")));
        }
        let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = decode(path.as_bytes());
        if !path.as_bytes().starts_with(b"/") {
            let message = format!("{text} names no absolute path: {scheme}:///path is expected");
            return Err(Status::invalid_argument(message));
        }
        if is_file {
            return Ok(Some(Uri::File(path.into())));
        }
        let mut args = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            args.extend([key, value].map(|word| decode(word.replace('+', " ").as_bytes())));
        }
        Ok(Some(Uri::Program(Program { path, args, is_strict: scheme == "binary-v2" })))
    }
}

/// Undoes percent encoding. A path need not be text.
fn decode(text: &[u8]) -> OsString {
    OsString::from_vec(percent_decode(text).collect())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn parse(text: &str) -> Uri {
        Uri::parse(text).unwrap().unwrap()
    }

    /// The file `a%20b` was made.
    #[test]
    fn a_files_path_is_decoded() {
        assert_eq!(parse("file:///var/log/a%20b%2Fc"), Uri::File("/var/log/a b/c".into()));
        assert_eq!(parse("file:///a+b?x=1#y"), Uri::File("/a+b".into()));
        assert_eq!(parse("file:///100%"), Uri::File("/100%".into()));
        let bytes = OsStr::from_bytes(b"/\xff").to_owned();
        assert_eq!(parse("file:///%ff"), Uri::File(bytes.into()));
    }

    #[test]
    fn a_program_has_its_arguments_from_the_query() {
        let text = "binary:///usr/bin/nerdctl?_NERDCTL_INTERNAL_LOGGING=%2Fvar%2Flib&b=c+d";
        let Uri::Program(program) = parse(text) else { panic!("{text}") };
        assert_eq!(program.path, "/usr/bin/nerdctl");
        assert_eq!(program.args, ["_NERDCTL_INTERNAL_LOGGING", "/var/lib", "b", "c d"]);
        assert!(!program.is_strict);
        let Uri::Program(program) = parse("binary-v2:///bin/a%20b") else { panic!("v2") };
        assert!(program.path == "/bin/a b" && program.is_strict);
    }

    #[test]
    fn what_is_no_uri_is_a_path_and_what_cannot_be_used_an_error() {
        assert_eq!(Uri::parse("/a/fifo").unwrap(), None);
        assert_eq!(Uri::parse("file://a/b").unwrap_err().code(), ttrpc::Code::InvalidArgument);
        assert_eq!(Uri::parse("ftp:///b").unwrap_err().code(), ttrpc::Code::Unimplemented);
    }
}
