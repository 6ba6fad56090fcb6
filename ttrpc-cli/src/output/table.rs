//! Tables whose columns are as wide as a terminal shows them.

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::{paint, plain_line};

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
pub(super) fn prefix(text: &str, width: usize) -> &str {
    if text.width() <= width {
        return text;
    }
    let fits = |end: &usize| text[..*end].width() <= width;
    let ends = text.char_indices().map(|(at, character)| at + character.len_utf8());
    let ends = ends.take(width.saturating_mul(MAX_CHARACTERS_IN_COLUMN));
    &text[..ends.take_while(fits).last().unwrap_or(0)]
}

/// As much of its end.
pub(super) fn suffix(text: &str, width: usize) -> &str {
    let fits = |begin: &usize| text[*begin..].width() <= width;
    let begins = text.char_indices().rev().map(|(at, _)| at);
    let begins = begins.take(width.saturating_mul(MAX_CHARACTERS_IN_COLUMN));
    &text[begins.take_while(fits).last().unwrap_or(text.len())..]
}
