//! Writing to the terminal: colours where there is one, lines that fit.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anstyle::{AnsiColor, Style};

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
        return write_line(&mut io::stdout().lock(), text);
    }
    write_line(&mut anstream::stdout().lock(), text)
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

/// Writes a line to the standard error, as `{"note": …}` where output is for machines. Nobody is told
/// if that fails.
pub fn note(text: impl std::fmt::Display) {
    if is_json() {
        let text = text.to_string();
        let plain = anstream::adapter::strip_str(text.trim()).to_string();
        return note_json(&serde_json::json!({ "note": plain }));
    }
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Writes an object to the standard error, as [`note`] does.
pub fn note_json(object: &serde_json::Value) {
    let _ = writeln!(anstream::stderr().lock(), "{object}");
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
            true => texts[index].chars().count(),
            false => widths[index],
        };
        let total = (0..row.len()).map(len).sum::<usize>() + gaps(row.len());
        let is_cut = total > columns;
        let (mut line, mut left) = (String::new(), columns - usize::from(is_cut));
        for (index, cell) in row.iter().enumerate() {
            let width = len(index).min(left);
            let text: String = texts[index].chars().take(width).collect();
            let padding = " ".repeat(width - text.chars().count());
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
        widths[index] = widths[index].max(cell.text.chars().count());
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

    /// The text with no more characters than this, if it may be shortened.
    fn shortened(&self, width: usize) -> String {
        match self.shortens {
            None => self.text.clone(),
            Some(Shortens::End(_)) => beginning(&self.text, width),
            Some(Shortens::Beginning) => match self.text.chars().count() {
                len if len <= width => self.text.clone(),
                len => format!("…{}", self.text.chars().skip(len - width + 1).collect::<String>()),
            },
        }
    }
}

/// The beginning of a text, with an ellipsis if that is not all of it.
pub fn beginning(text: &str, width: usize) -> String {
    match text.chars().count() <= width {
        true => text.to_owned(),
        false => format!("{}…", text.chars().take(width.saturating_sub(1)).collect::<String>()),
    }
}

/// A text of a server for the terminal: what could move the cursor or set colours is spelled out.
pub fn plain(text: impl std::fmt::Display) -> String {
    spell_out(text, &['\n', '\t'])
}

/// The same for a text that shall stay on its line, such as a name.
pub fn plain_line(text: impl std::fmt::Display) -> String {
    spell_out(text, &[])
}

fn spell_out(text: impl std::fmt::Display, kept: &[char]) -> String {
    let mut plain = String::new();
    for character in text.to_string().chars() {
        match character.is_control() && !kept.contains(&character) {
            true => plain.extend(character.escape_default()),
            false => plain.push(character),
        }
    }
    plain
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
    fn a_cell_is_one_line_of_text() {
        let row = vec![Cell::name("a\nb\u{1b}[31m"), Cell::text("c\td")];
        let line = table(&[row], None).swap_remove(0);
        assert_eq!(anstream::adapter::strip_str(&line).to_string(), "a\\nb\\u{1b}[31m  c\\td");
        assert_eq!(plain("a\nb\u{9b}31m"), "a\nb\\u{9b}31m");
    }
}
