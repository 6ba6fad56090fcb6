//! Reads TOML that is keys with values, and nothing else: what containerd writes of its runtimes' options. A reader of
//! all of TOML that makes a tree of it is some 50 KB of the shim's program.

use toml_parser::{
    ErrorSink, ParseError, Source, Span,
    decoder::{Encoding, ScalarKind},
    parser::{EventReceiver, parse_document},
};

/// A key with its value.
#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub kind: ScalarKind,
    /// Without quotes, escapes and underscores. An integer has no prefix of its radix.
    pub value: String,
}

/// Returns the entries of a text, in their order.
///
/// # Errors
/// If it is no TOML or has a table or an array, with the number of the line.
pub fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let source = Source::new(text);
    let mut reader = Reader { source, key: String::new(), entries: Vec::new() };
    let mut error = None;
    parse_document(&source.lex().into_vec(), &mut reader, &mut error);
    match error {
        None => Ok(reader.entries),
        Some(error) => Err(describe(text, &error)),
    }
}

fn describe(text: &str, error: &ParseError) -> String {
    let at = error.unexpected().or(error.context()).map_or(0, |span| span.start());
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    format!("line {line}: {}", error.description())
}

struct Reader<'a> {
    source: Source<'a>,
    key: String,
    entries: Vec<Entry>,
}

const TOO_DEEP: &str = "only keys with single values are understood";

fn report(error: &mut dyn ErrorSink, what: &'static str, at: Span) {
    error.report_error(ParseError::new(what).with_unexpected(at));
}

impl EventReceiver for Reader<'_> {
    fn std_table_open(&mut self, span: Span, error: &mut dyn ErrorSink) {
        report(error, TOO_DEEP, span);
    }

    fn array_table_open(&mut self, span: Span, error: &mut dyn ErrorSink) {
        report(error, TOO_DEEP, span);
    }

    fn inline_table_open(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        report(error, TOO_DEEP, span);
        false
    }

    fn array_open(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        report(error, TOO_DEEP, span);
        false
    }

    fn key_sep(&mut self, span: Span, error: &mut dyn ErrorSink) {
        report(error, TOO_DEEP, span);
    }

    fn simple_key(&mut self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) {
        self.key.clear();
        if let Some(raw) = self.source.get(span) {
            let raw = toml_parser::Raw::new_unchecked(raw.as_str(), encoding, span);
            raw.decode_key(&mut self.key, error);
        }
        if self.entries.iter().any(|entry| entry.key == self.key) {
            report(error, "duplicate key", span);
        }
    }

    fn scalar(&mut self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) {
        let Some(raw) = self.source.get(span) else { return };
        let raw = toml_parser::Raw::new_unchecked(raw.as_str(), encoding, span);
        let mut value = String::new();
        let kind = raw.decode_scalar(&mut value, error);
        self.entries.push(Entry { key: self.key.clone(), kind, value });
    }
}

#[cfg(test)]
mod tests {
    use toml_parser::decoder::IntegerRadix;

    use super::*;

    #[test]
    fn keys_and_values_are_read_in_all_their_forms() {
        let text = "# a comment\n\n\"quoted key\" = 'C:\\x'  # another\nb=\"a\\tb\\u00e9\"\r\n\
                    c = '''\nlong\ntext'''\nd = true\ne = 0x1F\nf = -1_000\ng = 1.5\n";
        let read = entries(text).unwrap();
        let read: Vec<_> =
            read.iter().map(|e| (e.key.as_str(), e.kind, e.value.as_str())).collect();
        let expected = [
            ("quoted key", ScalarKind::String, "C:\\x"),
            ("b", ScalarKind::String, "a\tbé"),
            ("c", ScalarKind::String, "long\ntext"),
            ("d", ScalarKind::Boolean(true), "true"),
            ("e", ScalarKind::Integer(IntegerRadix::Hex), "1F"),
            ("f", ScalarKind::Integer(IntegerRadix::Dec), "-1000"),
            ("g", ScalarKind::Float, "1.5"),
        ];
        assert_eq!(read, expected);
        assert!(entries("").unwrap().is_empty());
    }

    #[test]
    fn what_is_not_understood_is_an_error_with_its_line() {
        let deep = "[".repeat(100_000);
        for (text, line) in [
            ("a = 1\nb", 2),
            ("a = 1\na = 2", 2),
            ("a = 'x", 1),
            ("a = \"\\q\"", 1),
            ("a = yes", 1),
            ("a = 1 b = 2", 1),
            ("a.b = 1", 1),
            ("\n[a]\nb = 1", 2),
            ("[[a]]", 1),
            ("a = [1]", 1),
            ("a = { b = 1 }", 1),
            ("= 1", 1),
            ("a = ", 1),
            (&format!("a = {deep}"), 1),
            (&deep, 1),
        ] {
            let error = entries(text).unwrap_err();
            let short = text.get(..30).unwrap_or(text);
            assert!(error.starts_with(&format!("line {line}: ")), "{short:?}: {error}");
        }
    }
}
