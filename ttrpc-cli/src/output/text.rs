//! Texts of peers, without anything that a terminal acts on.

use serde_json::Value;

/// A text of a server for the terminal: what could move the cursor, set colours or turn text around is spelled out.
pub fn plain(text: impl std::fmt::Display) -> String {
    spell_out(
        &text.to_string(),
        |kept| matches!(kept, '\n' | '\t') || joins(kept),
        |unsafe_one, text| {
            text.extend(unsafe_one.escape_default());
        },
    )
}

/// Spells out a text that shall stay on its line, such as a name.
pub fn plain_line(text: impl std::fmt::Display) -> String {
    spell_out(
        &text.to_string(),
        |_| false,
        |unsafe_one, text| text.extend(unsafe_one.escape_default()),
    )
}

/// A value as JSON on one line.
pub fn json(value: &Value) -> String {
    json_text(value.to_string())
}

/// A value as JSON for people.
pub fn pretty_json(value: &Value) -> String {
    json_text(format!("{value:#}"))
}

/// JSON whose texts are spelled out as JSON has it, which changes none of them.
pub(super) fn json_text(text: String) -> String {
    spell_out(
        &text,
        |kept| kept == '\n' || joins(kept),
        |unsafe_one, text| {
            for unit in unsafe_one.encode_utf16(&mut [0; 2]) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        },
    )
}

/// Leaves nothing in a text that a terminal acts on, but lines and the colours that are set here.
pub(super) fn only_styles(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut safe = plain(parts.next().unwrap_or_default());
    for part in parts {
        let parameters = part.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        let is_style = parameters.is_some_and(|(numbers, _)| {
            numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';')
        });
        safe.push_str(if is_style { "\u{1b}" } else { "\\u{1b}" });
        safe.push_str(&plain(part));
    }
    safe
}

fn spell_out(
    text: &str,
    is_kept: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match is_unsafe(character) && !is_kept(character) {
            true => escape(character, &mut plain),
            false => plain.push(character),
        }
    }
    plain
}

/// Whether a terminal may take a character for more than a letter: controls (those of C1, too), what turns the
/// direction of text around, other ends of lines, and what nobody sees, such as a space without a width.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// What words and pictures of several characters need inside: joiners, and which form is meant. They are kept in what
/// is said, and not in names.
fn joins(character: char) -> bool {
    matches!(character, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}
