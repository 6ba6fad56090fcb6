//! Writing to the terminal: colours where there is one, lines that fit.

mod table;
#[cfg(test)]
mod tests;
mod text;

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use anstyle::{AnsiColor, Style};
use serde_json::Value;

pub use table::{Cell, beginning, fits, table};
pub use text::{is_unsafe, json, plain, plain_line, pretty_json};
use text::{json_text, only_styles};

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
