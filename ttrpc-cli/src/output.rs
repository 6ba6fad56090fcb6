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
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// The least that is left of a name.
const MIN_NAME_LEN: usize = 20;

/// Rows of cells as lines, each column as wide as its widest cell. Where the terminal is too narrow,
/// names lose their beginnings, and lines are cut at its end.
pub fn table(rows: &[Vec<Cell>], columns: Option<usize>) -> Vec<String> {
    let (mut widths, mut names) = (Vec::new(), Vec::new());
    for row in rows {
        for (index, cell) in row.iter().enumerate() {
            if widths.len() <= index {
                widths.push(0);
                names.push(false);
            }
            widths[index] = widths[index].max(cell.text.chars().count());
            names[index] |= cell.is_name;
        }
    }
    let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
    let mut excess = total.saturating_sub(columns.unwrap_or(usize::MAX));
    for (width, is_name) in widths.iter_mut().zip(names) {
        let spare = if is_name { width.saturating_sub(MIN_NAME_LEN).min(excess) } else { 0 };
        *width -= spare;
        excess -= spare;
    }
    let lines = rows.iter().map(|row| {
        let (mut line, mut left) = (String::new(), columns.unwrap_or(usize::MAX));
        for (index, cell) in row.iter().enumerate() {
            let is_last = index + 1 == row.len();
            let text: String = cell.shortened(widths[index]).chars().take(left).collect();
            let len = text.chars().count();
            let is_short = is_last && !cell.is_number;
            let width = if is_short { len } else { widths[index].min(left) };
            let padding = " ".repeat(width - len);
            match cell.is_number {
                true => line.push_str(&format!("{padding}{}", paint(cell.style, text))),
                false => line.push_str(&format!("{}{padding}", paint(cell.style, text))),
            }
            left -= width;
            let gap = if is_last { 0 } else { left.min(2) };
            line.push_str(&" ".repeat(gap));
            left -= gap;
        }
        line.trim_end().to_owned()
    });
    lines.collect()
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
    is_number: bool,
    is_name: bool,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Cell { text: text.into(), style: Style::new(), is_number: false, is_name: false }
    }

    /// Stands at the right of its column.
    pub fn number(text: impl std::fmt::Display) -> Self {
        Cell { text: text.to_string(), style: Style::new(), is_number: true, is_name: false }
    }

    /// A name whose end says more than its beginning.
    pub fn name(text: impl Into<String>) -> Self {
        Cell { is_name: true, ..Cell::text(text) }
    }

    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// The text of a name with no more characters than this.
    fn shortened(&self, width: usize) -> String {
        let len = self.text.chars().count();
        if !self.is_name || len <= width {
            return self.text.clone();
        }
        let end: String = self.text.chars().skip(len - width + 1).collect();
        format!("…{end}")
    }
}

/// A text of a server for the terminal: what could move the cursor or set colours is spelled out.
pub fn plain(text: impl std::fmt::Display) -> String {
    let mut plain = String::new();
    for character in text.to_string().chars() {
        match character {
            '\n' | '\t' => plain.push(character),
            control if control.is_control() => plain.extend(control.escape_default()),
            character => plain.push(character),
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
}
