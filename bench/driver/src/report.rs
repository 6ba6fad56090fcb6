//! The results as Markdown.

use std::path::PathBuf;

/// In characters, of all pages.
const WIDTH: usize = 120;

/// A document that grows.
pub(crate) struct Report {
    text: String,
    output: Option<PathBuf>,
}

impl Report {
    pub(crate) fn new(output: Option<PathBuf>) -> Self {
        Report { text: String::new(), output }
    }

    pub(crate) fn heading(&mut self, level: usize, title: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text.push_str(&format!("{gap}{} {title}\n\n", "#".repeat(level)));
    }

    /// Adds text. Lines that are longer than the page is wide are broken.
    pub(crate) fn text(&mut self, text: &str) {
        for line in text.split('\n') {
            let is_short = line.chars().count() <= WIDTH;
            let mut width = 0;
            for word in if is_short { vec![line] } else { line.split(' ').collect() } {
                let len = word.chars().count();
                if width > 0 {
                    let fits = width + 1 + len <= WIDTH;
                    self.text.push(if fits { ' ' } else { '\n' });
                    width = if fits { width + 1 } else { 0 };
                }
                self.text.push_str(word);
                width += len;
            }
            self.text.push('\n');
        }
    }

    /// Adds a table; its first row is the head.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        for (index, row) in rows.iter().enumerate() {
            self.text.push_str(&format!("| {} |\n", row.join(" | ")));
            if index == 0 {
                self.text.push_str(&format!("|{}\n", "---|".repeat(row.len())));
            }
        }
    }

    /// The path of a file beside the document, whose name starts with the document's.
    pub(crate) fn beside(&self, ending: &str) -> Option<PathBuf> {
        let output = self.output.as_ref()?;
        let stem = output.file_stem()?.to_str()?;
        Some(output.with_file_name(format!("{stem}-{ending}")))
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

/// A number with three digits or so, and a dash where there is none.
pub(crate) fn number(value: Option<f64>) -> String {
    let Some(value) = value else { return "–".into() };
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let plain = format!("{value:.digits$}");
    if value.abs() < 1e4 { plain } else { group_thousands(&plain) }
}

fn group_thousands(digits: &str) -> String {
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The middle one of the values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(None), "–");
        assert_eq!(number(Some(0.256)), "0.26");
        assert_eq!(number(Some(14.44)), "14.4");
        assert_eq!(number(Some(1234.6)), "1235");
        assert_eq!(number(Some(1_234_567.0)), "1,234,567");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
    }
}
