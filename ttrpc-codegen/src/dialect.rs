//! Forms of the language that protoc takes and the parser crate does not, rewritten into forms that it does.
//!
//! The meaning stays, and so do positions: those of the rewritten text are mapped back into the file's. For
//! `parse`, which alone knows the parser.

use std::{fmt::Write, ops::Range};

use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    UninterpretedOption, field_descriptor_proto::Type,
};

/// A text that the parser takes, and where it differs from the file.
pub(crate) struct Rewritten {
    pub(crate) text: String,
    edits: Vec<Edit>,
    /// What stands in the text for reserved names that are no names, and these.
    reserved: Vec<(String, String)>,
}

/// A part of the rewritten text that stands for a part of the file of another length. Both lie within a line.
struct Edit {
    line: i32,
    column: i32,
    length: i32,
    /// The length in the file.
    original: i32,
}

/// Rewrites a file's content. `None` if it is no text: no UTF-8 outside of strings and comments.
pub(crate) fn rewrite(source: &[u8]) -> Option<Rewritten> {
    let mut rewriter =
        Rewriter { source, changes: Vec::new(), reserved: Vec::new(), last: [&[]; 2] };
    rewriter.run();
    let (reserved, mut changes) = (rewriter.reserved, rewriter.changes);
    // Some are found when the token after them is: there may be a comment between that has changes itself.
    changes.sort_by_key(|(part, _)| part.start);
    let mut output = Output::default();
    let mut end = 0;
    for (part, replacement) in changes {
        output.push(&source[end..part.start]);
        output.replace(part.len(), replacement.as_bytes());
        end = part.end;
    }
    output.push(&source[end..]);
    Some(Rewritten { text: String::from_utf8(output.bytes).ok()?, edits: output.edits, reserved })
}

impl Rewritten {
    /// The place in the file of a place in the text; both count from 0.
    pub(crate) fn place(&self, line: i32, column: i32) -> (i32, i32) {
        let mut shift = 0;
        for edit in self.edits.iter().filter(|edit| edit.line == line && edit.column < column) {
            let inside = (column - edit.column).min(edit.length);
            let is_behind = inside == edit.length;
            shift += if is_behind { edit.original } else { inside.min(edit.original) } - inside;
        }
        (line, column + shift)
    }

    /// Makes of the parser's result what the file says.
    pub(crate) fn restore(&self, file: &mut FileDescriptorProto) {
        for location in file.source_code_info.iter_mut().flat_map(|info| &mut info.location) {
            match &mut location.span[..] {
                [line, start, end] => {
                    *start = self.place(*line, *start).1;
                    *end = self.place(*line, *end).1;
                }
                [line, start, last_line, end] => {
                    *start = self.place(*line, *start).1;
                    *end = self.place(*last_line, *end).1;
                }
                _ => {}
            }
        }
        restore_file(file);
        if !self.reserved.is_empty() {
            file.message_type.iter_mut().for_each(|message| self.restore_names(message));
            file.enum_type
                .iter_mut()
                .for_each(|each| self.restore_reserved(&mut each.reserved_name));
        }
    }

    fn restore_names(&self, message: &mut DescriptorProto) {
        self.restore_reserved(&mut message.reserved_name);
        message.enum_type.iter_mut().for_each(|e| self.restore_reserved(&mut e.reserved_name));
        message.nested_type.iter_mut().for_each(|nested| self.restore_names(nested));
    }

    fn restore_reserved(&self, names: &mut [String]) {
        for name in names {
            for (stand_in, original) in &self.reserved {
                *name = name.replace(stand_in, original);
            }
        }
    }
}

/// The rewritten text while it is written.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    edits: Vec<Edit>,
    line: i32,
    line_start: usize,
}

impl Output {
    fn push(&mut self, part: &[u8]) {
        for (index, _) in part.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            self.line += 1;
            self.line_start = self.bytes.len() + index + 1;
        }
        self.bytes.extend_from_slice(part);
    }

    fn replace(&mut self, original: usize, replacement: &[u8]) {
        // Files are shorter than 2 GiB, as the parser demands.
        self.edits.push(Edit {
            line: self.line,
            column: (self.bytes.len() - self.line_start) as i32,
            length: replacement.len() as i32,
            original: original as i32,
        });
        self.bytes.extend_from_slice(replacement);
    }
}

struct Rewriter<'a> {
    source: &'a [u8],
    changes: Vec<(Range<usize>, String)>,
    reserved: Vec<(String, String)>,
    /// The last two tokens that are no comments, the last one first.
    last: [&'a [u8]; 2],
}

/// Where in an `extensions` statement the last range is.
#[derive(Default)]
struct LastRange {
    /// Its only number.
    number: Option<Range<usize>>,
    has_end: bool,
}

impl<'a> Rewriter<'a> {
    fn run(&mut self) {
        let mut ranges: Option<LastRange> = None;
        let mut is_reserved = false;
        // Braces that are open in the value of an option.
        let mut depth = 0_usize;
        let (mut at, mut last_token) = (0, 0..0);
        while let Some(token) = next_token(self.source, at) {
            at = token.end;
            let text = &self.source[token.clone()];
            match text[0] {
                b'"' | b'\'' if is_reserved => self.reserved_name(token.clone()),
                b'"' | b'\'' => self.string(token.clone()),
                b'/' | b'#' if text != b"/" => {
                    self.bytes_of_comment(token);
                    continue;
                }
                b'{' if depth > 0 || self.last[0] == b"=" => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                b'[' if depth > 0 => self.colon_before_list(last_token.end),
                b'[' => {
                    if let Some(LastRange { number: Some(number), has_end: false }) = ranges.take()
                    {
                        let end = String::from_utf8_lossy(&self.source[number.clone()]);
                        self.changes.push((number.end..number.end, format!(" to {end}")));
                    }
                }
                b',' => {
                    if let Some(range) = &mut ranges {
                        *range = LastRange::default();
                    }
                }
                b';' => (ranges, is_reserved) = (None, false),
                b'0'..=b'9' => {
                    self.number(token.clone());
                    if let Some(range) = &mut ranges {
                        range.number.get_or_insert(token.clone());
                    }
                }
                _ if text == b"extensions" && depth == 0 && self.is_statement() => {
                    ranges = Some(LastRange::default());
                }
                _ if text == b"reserved" && depth == 0 && self.is_statement() => is_reserved = true,
                _ if text == b"to" => {
                    if let Some(range) = &mut ranges {
                        range.has_end = true;
                    }
                }
                _ if depth == 0 && self.last == [&b"-"[..], b"="] => match text {
                    b"inf" => self.changes.push((token.clone(), "1e999".to_owned())),
                    // It has no sign.
                    b"nan" => self.changes.push((last_token.clone(), " ".to_owned())),
                    _ => {}
                },
                _ => {}
            }
            self.last = [text, self.last[0]];
            last_token = token;
        }
    }

    /// Whether a statement begins with the next token.
    fn is_statement(&self) -> bool {
        [&b"{"[..], b"}", b";"].contains(&self.last[0])
    }

    /// In a message's text, a list of messages needs no colon before it.
    fn colon_before_list(&mut self, end: usize) {
        let is_name = self.last[0].first().is_some_and(|byte| byte.is_ascii_alphabetic());
        if is_name && ![&b":"[..], b"-"].contains(&self.last[1]) {
            self.changes.push((end..end, ":".to_owned()));
        }
    }

    /// A number that no integer of 64 bits holds is one of floating point.
    fn number(&mut self, token: Range<usize>) {
        let text = str::from_utf8(&self.source[token.clone()]).unwrap_or_default();
        if !text.bytes().all(|byte| byte.is_ascii_digit()) || text.starts_with('0') {
            return;
        }
        let is_negative = self.last[0] == b"-";
        let is_held = text.parse().is_ok_and(|value: u64| !is_negative || value <= 1 << 63);
        if !is_held {
            self.changes.push((token.end..token.end, ".".to_owned()));
        }
    }

    /// protoc warns of reserved names that are none. The parser also takes those for none that begin with an
    /// underscore.
    fn reserved_name(&mut self, token: Range<usize>) {
        let inside = token.start + 1..token.end - 1;
        let name = self.source.get(inside.clone()).map(str::from_utf8);
        let Some(Ok(name)) = name else { return };
        let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name && !name.contains('\\') {
            let stand_in = format!("ttrpc_reserved_{}_", self.reserved.len());
            self.changes.push((inside, stand_in.clone()));
            self.reserved.push((stand_in, name.to_owned()));
        }
    }

    /// Escapes that the parser does not take, and bytes that are no UTF-8.
    fn string(&mut self, token: Range<usize>) {
        let mut at = token.start;
        while at < token.end {
            let rest = &self.source[at..token.end];
            let (length, replacement) = match rest {
                // Of larger numbers protoc takes the low byte.
                [b'\\', first @ b'4'..=b'7', b'0'..=b'7', b'0'..=b'7', ..] => {
                    let digits = [first - 4, rest[2], rest[3]];
                    (4, Some(format!("\\{}", digits.map(char::from).iter().collect::<String>())))
                }
                [b'\\', b'u', ..] => match surrogates(rest) {
                    Some(char) => (12, Some(format!("\\U{:08x}", u32::from(char)))),
                    None => (2, None),
                },
                [b'\\', _, ..] => (2, None),
                _ => match character_length(rest) {
                    Some(length) => (length, None),
                    None => (1, Some(format!("\\{:03o}", rest[0]))),
                },
            };
            if let Some(replacement) = replacement {
                self.changes.push((at..at + length, replacement));
            }
            at += length;
        }
    }

    fn bytes_of_comment(&mut self, token: Range<usize>) {
        let mut at = token.start;
        for chunk in self.source[token].utf8_chunks() {
            at += chunk.valid().len();
            let invalid = chunk.invalid().len();
            if invalid > 0 {
                self.changes.push((at..at + invalid, char::REPLACEMENT_CHARACTER.to_string()));
            }
            at += invalid;
        }
    }
}

/// The character that a pair `\ud83d\ude00` stands for.
fn surrogates(text: &[u8]) -> Option<char> {
    let unit = |part: &[u8]| {
        let digits = part.strip_prefix(b"\\u")?;
        u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
    };
    let units = [unit(text.get(..6)?)?, unit(text.get(6..12)?)?];
    let mut chars = char::decode_utf16(units);
    let char = chars.next()?.ok()?;
    chars.next().is_none().then_some(char)
}

/// The bytes of the first character; `None` if it is none.
fn character_length(text: &[u8]) -> Option<usize> {
    (1..=4).find(|length| text.get(..*length).is_some_and(|part| str::from_utf8(part).is_ok()))
}

fn is_whitespace(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b'\x0B'
}

/// Where the next token or comment is.
fn next_token(source: &[u8], from: usize) -> Option<Range<usize>> {
    let start = from + source[from..].iter().position(|byte| !is_whitespace(*byte))?;
    let rest = &source[start..];
    let length_while = |is_part: fn(&u8) -> bool| rest.iter().take_while(|b| is_part(b)).count();
    let length = match rest {
        [b'/', b'*', inside @ ..] => {
            inside.windows(2).position(|pair| pair == b"*/").map_or(rest.len(), |end| end + 4)
        }
        [b'#', ..] | [b'/', b'/', ..] => length_while(|byte| *byte != b'\n'),
        [quote @ (b'"' | b'\''), ..] => string_length(rest, *quote),
        [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..] => number_length(rest),
        _ => length_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').max(1),
    };
    Some(start..start + length)
}

fn string_length(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\n' => return at,
            b'\\' => at += 2,
            _ if *byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn number_length(text: &[u8]) -> usize {
    let is_hex = text.starts_with(b"0x") || text.starts_with(b"0X");
    let mut last = 0;
    text.iter()
        .take_while(|byte| {
            let is_exponent = !is_hex && matches!(last, b'e' | b'E');
            last = **byte;
            byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'_')
                || (is_exponent && matches!(byte, b'+' | b'-'))
        })
        .count()
}

fn restore_file(file: &mut FileDescriptorProto) {
    let options = file.options.iter_mut().flat_map(|options| &mut options.uninterpreted_option);
    options.for_each(restore_option);
    file.message_type.iter_mut().for_each(restore_message);
    file.enum_type.iter_mut().for_each(restore_enum);
    file.extension.iter_mut().for_each(restore_field);
    for service in &mut file.service {
        let options = &mut service.options;
        options.iter_mut().flat_map(|o| &mut o.uninterpreted_option).for_each(restore_option);
        for options in service.method.iter_mut().filter_map(|method| method.options.as_mut()) {
            options.uninterpreted_option.iter_mut().for_each(restore_option);
        }
    }
}

fn restore_message(message: &mut DescriptorProto) {
    let options = &mut message.options;
    options.iter_mut().flat_map(|o| &mut o.uninterpreted_option).for_each(restore_option);
    for options in message.oneof_decl.iter_mut().filter_map(|oneof| oneof.options.as_mut()) {
        options.uninterpreted_option.iter_mut().for_each(restore_option);
    }
    for options in message.extension_range.iter_mut().filter_map(|range| range.options.as_mut()) {
        options.uninterpreted_option.iter_mut().for_each(restore_option);
    }
    message.field.iter_mut().for_each(restore_field);
    message.extension.iter_mut().for_each(restore_field);
    message.enum_type.iter_mut().for_each(restore_enum);
    message.nested_type.iter_mut().for_each(restore_message);
}

fn restore_enum(each: &mut EnumDescriptorProto) {
    let options = &mut each.options;
    options.iter_mut().flat_map(|o| &mut o.uninterpreted_option).for_each(restore_option);
    for options in each.value.iter_mut().filter_map(|value| value.options.as_mut()) {
        options.uninterpreted_option.iter_mut().for_each(restore_option);
    }
}

fn restore_field(field: &mut FieldDescriptorProto) {
    let options = &mut field.options;
    options.iter_mut().flat_map(|o| &mut o.uninterpreted_option).for_each(restore_option);
    // The parser takes all of them for numbers of 64 bits.
    if field.r#type() == Type::Float
        && let Some(default) = &mut field.default_value
        && default.parse().is_ok_and(|value: f32| value.is_infinite())
    {
        let sign = if default.starts_with('-') { "-" } else { "" };
        default.clear();
        let _ = write!(default, "{sign}inf");
    }
}

/// Gives the names of numbers their value, too. Which of the two is meant depends on the option's type.
fn restore_option(option: &mut UninterpretedOption) {
    option.double_value = match option.identifier_value.as_deref() {
        Some("inf") => Some(f64::INFINITY),
        Some("nan") => Some(f64::NAN),
        _ => option.double_value,
    };
}
