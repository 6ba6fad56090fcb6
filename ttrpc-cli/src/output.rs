//! Writing to the terminal: colours where there is one, lines that fit.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const DIM: Style = Style::new().dimmed();
pub const BOLD: Style = Style::new().bold();

/// A text in a style. Output that is no terminal loses the style.
pub fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes a line to the standard output, at once.
///
/// # Errors
/// If nobody reads it.
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    if is_json() {
        // It has no colours, and to look for them takes longer than to write it.
        return write_line(&mut io::stdout().lock(), json_text(text.to_string()));
    }
    write_line(&mut anstream::stdout().lock(), only_styles(&text.to_string()))
}

/// A text as [`line`] writes it, for somebody else to write.
pub fn for_terminal(text: &str) -> String {
    if is_json() {
        return json_text(text.to_owned());
    }
    match anstream::stdout().current_choice() {
        anstream::ColorChoice::Never => {
            anstream::adapter::strip_str(&only_styles(text)).to_string()
        }
        _ => only_styles(text),
    }
}

/// Writes lines on an empty screen, from its upper left.
///
/// # Errors
/// If nobody reads them.
pub fn screen(text: &str) -> io::Result<()> {
    write_line(
        &mut anstream::stdout().lock(),
        format_args!("\u{1b}[H\u{1b}[J{}", only_styles(text)),
    )
}

fn write_line(out: &mut impl Write, text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(out, "{text}")?;
    out.flush()
}

/// Whether output is for machines.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on all output is JSON: lines are, and notes become objects.
pub fn write_json() {
    IS_JSON.store(true, Relaxed);
}

/// Whether output is for machines.
pub fn is_json() -> bool {
    IS_JSON.load(Relaxed)
}

/// Whether the screen belongs to somebody else.
static HOLDS_NOTES: AtomicBool = AtomicBool::new(false);

/// Drops notes while the whole screen is drawn: they would stand somewhere in it.
pub fn hold_notes(holds: bool) {
    HOLDS_NOTES.store(holds, Relaxed);
}

/// Writes a line to the standard error, as `{"note": …}` where output is for machines. Nobody is told
/// if that fails.
pub fn note(text: impl std::fmt::Display) {
    if HOLDS_NOTES.load(Relaxed) {
        return;
    }
    if is_json() {
        let text = text.to_string();
        let plain = anstream::adapter::strip_str(text.trim()).to_string();
        return note_json(&serde_json::json!({ "note": plain }));
    }
    let _ = writeln!(anstream::stderr().lock(), "{}", only_styles(&text.to_string()));
}

/// Writes an object to the standard error, as [`note`] does.
pub fn note_json(object: &Value) {
    let _ = writeln!(anstream::stderr().lock(), "{}", json(object));
}

/// Columns of the terminal that the standard output is, `None` if it is none.
pub fn columns() -> Option<usize> {
    Some(usize::from(terminal_size()?.ws_col)).filter(|&columns| columns > 0)
}

/// Its rows.
pub fn rows() -> Option<usize> {
    Some(usize::from(terminal_size()?.ws_row)).filter(|&rows| rows > 0)
}

fn terminal_size() -> Option<rustix::termios::Winsize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    rustix::termios::tcgetwinsize(&out).ok()
}

/// The least that is left of a name.
const MIN_NAME_LEN: usize = 20;

/// Rows of cells as lines, each column as wide as its widest cell. Where the terminal is too narrow,
/// cells that may be shortened are, and lines are cut at its end; an ellipsis stands for what is left out.
pub fn table(rows: &[Vec<Cell>], columns: Option<usize>) -> Vec<String> {
    let columns = columns.unwrap_or(usize::MAX);
    let widths = widths(rows, columns);
    let lines = rows.iter().map(|row| {
        let texts = row.iter().zip(&widths).map(|(cell, &width)| cell.shortened(width));
        let texts: Vec<String> = texts.collect();
        let is_number = |index: usize| row[index].is_number;
        // What stands at the left of the last column has no space behind it.
        let len = |index: usize| match index + 1 == row.len() && !is_number(index) {
            true => texts[index].width(),
            false => widths[index],
        };
        let total = (0..row.len()).map(len).sum::<usize>() + gaps(row.len());
        let is_cut = total > columns;
        let (mut line, mut left) = (String::new(), columns - usize::from(is_cut));
        for (index, cell) in row.iter().enumerate() {
            let width = len(index).min(left);
            let text = prefix(&texts[index], width);
            let padding = " ".repeat(width.saturating_sub(text.width()));
            match cell.is_number {
                true => line.push_str(&format!("{padding}{}", paint(cell.style, text))),
                false => line.push_str(&format!("{}{padding}", paint(cell.style, text))),
            }
            left -= width;
            let gap = if index + 1 == row.len() { 0 } else { left.min(2) };
            line.push_str(&" ".repeat(gap));
            left -= gap;
        }
        if is_cut {
            line.push('…');
        }
        line.trim_end().to_owned()
    });
    lines.collect()
}

/// Whether a table has room on this many columns without being cut.
pub fn fits(rows: &[Vec<Cell>], columns: Option<usize>) -> bool {
    let Some(columns) = columns else { return true };
    let widths = widths(rows, columns);
    widths.iter().sum::<usize>() + gaps(widths.len()) <= columns
}

/// The space between this many columns.
fn gaps(columns: usize) -> usize {
    2 * columns.saturating_sub(1)
}

/// How wide each column is, no wider together than there is room if that is possible.
fn widths(rows: &[Vec<Cell>], columns: usize) -> Vec<usize> {
    let (mut widths, mut least) = (Vec::new(), Vec::new());
    for (index, cell) in rows.iter().flat_map(|row| row.iter().enumerate()) {
        if widths.len() <= index {
            widths.push(0);
            least.push(None);
        }
        widths[index] = widths[index].max(cell.text.width());
        least[index] = least[index].max(cell.shortens.map(Shortens::least));
    }
    let total = widths.iter().sum::<usize>() + gaps(widths.len());
    let mut excess = total.saturating_sub(columns);
    for (width, least) in widths.iter_mut().zip(least) {
        let spare = least.map_or(0, |least| width.saturating_sub(least).min(excess));
        *width -= spare;
        excess -= spare;
    }
    widths
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
    is_number: bool,
    /// `None` if it is shown as a whole or not at all.
    shortens: Option<Shortens>,
}

/// What a cell may lose where there is too little room.
#[derive(Clone, Copy, Debug)]
enum Shortens {
    /// Its beginning, down to [`MIN_NAME_LEN`].
    Beginning,
    /// Its end, down to this.
    End(usize),
}

impl Shortens {
    fn least(self) -> usize {
        match self {
            Shortens::Beginning => MIN_NAME_LEN,
            Shortens::End(least) => least,
        }
    }
}

impl Cell {
    /// A text on one line: it may be a peer's, see [`plain_line`].
    pub fn text(text: impl std::fmt::Display) -> Self {
        Cell { text: plain_line(text), style: Style::new(), is_number: false, shortens: None }
    }

    /// Stands at the right of its column.
    pub fn number(text: impl std::fmt::Display) -> Self {
        Cell { is_number: true, ..Cell::text(text) }
    }

    /// A name whose end says more than its beginning.
    pub fn name(text: impl std::fmt::Display) -> Self {
        Cell { shortens: Some(Shortens::Beginning), ..Cell::text(text) }
    }

    /// A text whose beginning says more than its end. It keeps this many characters.
    pub fn beginning(text: impl std::fmt::Display, least: usize) -> Self {
        Cell { shortens: Some(Shortens::End(least)), ..Cell::text(text) }
    }

    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// The text with no more columns than this, if it may be shortened.
    fn shortened(&self, width: usize) -> String {
        match self.shortens {
            None => self.text.clone(),
            Some(Shortens::End(_)) => beginning(&self.text, width),
            Some(Shortens::Beginning) if self.text.width() <= width => self.text.clone(),
            Some(Shortens::Beginning) => {
                format!("…{}", suffix(&self.text, width.saturating_sub(1)))
            }
        }
    }
}

/// The beginning of a text, with an ellipsis if that is not all of it.
pub fn beginning(text: &str, width: usize) -> String {
    match text.width() <= width {
        true => text.to_owned(),
        false => format!("{}…", prefix(text, width.saturating_sub(1))),
    }
}

/// Of what has no width, this much stays behind each column's character.
const MAX_CHARACTERS_IN_COLUMN: usize = 8;

/// As much of a text's beginning as so many columns have room for.
fn prefix(text: &str, width: usize) -> &str {
    if text.width() <= width {
        return text;
    }
    let fits = |end: &usize| text[..*end].width() <= width;
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    let ends = ends.take(width.saturating_mul(MAX_CHARACTERS_IN_COLUMN));
    &text[..ends.take_while(fits).last().unwrap_or(0)]
}

/// As much of its end.
fn suffix(text: &str, width: usize) -> &str {
    let fits = |begin: &usize| text[*begin..].width() <= width;
    let begins = text.char_indices().rev().map(|(at, _)| at);
    let begins = begins.take(width.saturating_mul(MAX_CHARACTERS_IN_COLUMN));
    &text[begins.take_while(fits).last().unwrap_or(text.len())..]
}

/// A text of a server for the terminal: what could move the cursor, set colours or turn text around is spelled out.
pub fn plain(text: impl std::fmt::Display) -> String {
    spell_out(&text.to_string(), &['\n', '\t'], |unsafe_one, text| {
        text.extend(unsafe_one.escape_default());
    })
}

/// Spells out a text that shall stay on its line, such as a name.
pub fn plain_line(text: impl std::fmt::Display) -> String {
    spell_out(&text.to_string(), &[], |unsafe_one, text| text.extend(unsafe_one.escape_default()))
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
fn json_text(text: String) -> String {
    spell_out(&text, &['\n'], |unsafe_one, text| {
        for unit in unsafe_one.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

/// Leaves nothing in a text that a terminal acts on, but lines and the colours that are set here.
fn only_styles(text: &str) -> String {
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

fn spell_out(text: &str, kept: &[char], escape: impl Fn(char, &mut String)) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match is_unsafe(character) && !kept.contains(&character) {
            true => escape(character, &mut plain),
            false => plain.push(character),
        }
    }
    plain
}

/// Whether a terminal may take a character for more than a letter: controls (those of C1, too), what turns the
/// direction of text around, other ends of lines, and invisible tags.
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{206f}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// `1 call`, `2 calls`.
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// A number of bytes for people: `4.0 KiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A duration for people, with three digits that count: `1.23 ms`.
pub fn duration(duration: std::time::Duration) -> String {
    let nanos = duration.as_nanos() as f64;
    let (value, unit) = match nanos {
        ..1e3 => (nanos, "ns"),
        ..1e6 => (nanos / 1e3, "µs"),
        ..1e9 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let digits = if value >= 100.0 || unit == "ns" {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quantities_are_short() {
        assert_eq!([bytes(0), bytes(1023), bytes(1536)], ["0 B", "1023 B", "1.5 KiB"]);
        let of = |nanos| duration(Duration::from_nanos(nanos));
        assert_eq!([of(5), of(1_234), of(56_700_000)], ["5 ns", "1.23 µs", "56.7 ms"]);
        assert_eq!(of(1_500_000_000), "1.50 s");
    }

    #[test]
    fn tables_fit_the_terminal() {
        let rows = [
            vec![Cell::text("a"), Cell::number(5), Cell::text("short")],
            vec![Cell::text("long"), Cell::number(50), Cell::text("longer than there is room")],
        ];
        let plain = |columns| -> Vec<String> {
            let lines = table(&rows, columns);
            lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
        };
        assert_eq!(plain(None)[0], "a      5  short");
        assert!(plain(Some(20)).iter().all(|line| line.chars().count() <= 20));
        assert!(plain(Some(3)).iter().all(|line| line.chars().count() <= 3));
    }

    #[test]
    fn names_leave_room_for_figures() {
        let name = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let rows =
            [vec![Cell::name(name), Cell::number(12)], vec![Cell::name("a"), Cell::number(1)]];
        let line = table(&rows, Some(34)).swap_remove(0);
        let line = anstream::adapter::strip_str(&line).to_string();
        assert_eq!(line, "…flection/ServerReflectionInfo  12");
    }

    #[test]
    fn what_is_left_out_has_a_sign() {
        let of = |columns| {
            let row = [Cell::beginning("0123456789abcdef", 8), Cell::number(123)];
            let line = table(&[row.to_vec()], Some(columns)).swap_remove(0);
            anstream::adapter::strip_str(&line).to_string()
        };
        assert_eq!(of(21), "0123456789abcdef  123");
        assert_eq!(of(15), "012345678…  123");
        assert_eq!(of(12), "0123456…  1…");
        assert_eq!(of(9), "0123456……");
    }

    #[test]
    fn a_column_is_as_wide_as_a_terminal_shows_it() {
        let rows = [
            vec![Cell::name("容器的名字"), Cell::number(1)],
            vec![Cell::name("e\u{301}ab"), Cell::number(12)],
        ];
        let lines = |columns| -> Vec<String> {
            let lines = table(&rows, columns).into_iter();
            lines.map(|line| anstream::adapter::strip_str(&line).to_string()).collect()
        };
        assert_eq!(lines(None), ["容器的名字   1", "e\u{301}ab         12"]);
        for columns in 3..14 {
            assert!(lines(Some(columns)).iter().all(|line| line.width() <= columns), "{columns}");
        }
        assert_eq!((prefix("容器", 3), suffix("容器", 3), prefix("", 1)), ("容", "器", ""));
    }

    #[test]
    fn nothing_that_a_terminal_acts_on_is_left_in_a_text() {
        let unsafe_ones = (0..0x20).chain(0x7f..0xa0).chain(0x202a..0x202f).chain(0x2066..0x206a);
        let unsafe_ones = unsafe_ones.chain([0x61c, 0x200e, 0x200f, 0x2028, 0x2029, 0xe0041]);
        for character in unsafe_ones.filter_map(char::from_u32) {
            let text = format!("a{character}[2Jb");
            assert!(!plain_line(&text).contains(character), "{character:?}");
            assert_eq!(only_styles(&text).contains(character), "\n\t".contains(character));
            let value = Value::from(text);
            assert!(!json(&value).contains(character) && !pretty_json(&value).contains(character));
            assert_eq!(serde_json::from_str::<Value>(&json(&value)).unwrap(), value);
        }
        let painted = paint(BAD, "a\u{1b}]0;t\u{7}");
        assert_eq!(only_styles(&painted), paint(BAD, "a\\u{1b}]0;t\\u{7}"));
        // Words are left as they are, also those that are joined by what has no width.
        assert_eq!(
            plain_line("é 容 👩\u{200d}🚀 می\u{200c}خواهم"),
            "é 容 👩\u{200d}🚀 می\u{200c}خواهم"
        );
    }

    #[test]
    fn a_cell_is_one_line_of_text() {
        let row = vec![Cell::name("a\nb\u{1b}[31m"), Cell::text("c\td")];
        let line = table(&[row], None).swap_remove(0);
        assert_eq!(anstream::adapter::strip_str(&line).to_string(), "a\\nb\\u{1b}[31m  c\\td");
        assert_eq!(plain("a\nb\u{9b}31m"), "a\nb\\u{9b}31m");
    }
}
