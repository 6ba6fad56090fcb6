//! What was seen, as a table for people and as lines of JSON for programs.

use std::{
    fmt,
    io::{self, Write},
};

use serde_json::json;

use super::{Outcome, Verdict};

/// The characters of an observation or expectation that a table shows.
const SHOWN_CHARS_MAX: usize = 600;

/// One case's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case's name.
    pub case: String,
    /// What a server that passes does.
    pub expected: String,
    /// How long the case took, in milliseconds.
    pub millis: u64,
    /// How it ended.
    pub outcome: Outcome,
}

impl Row {
    /// Whether the peer behaved otherwise than expected.
    pub fn has_failed(&self) -> bool {
        matches!(self.outcome, Err(Verdict::Fail(_)))
    }

    /// Whether the peer passed.
    pub fn has_passed(&self) -> bool {
        self.outcome.is_ok()
    }

    /// The row as one line of JSON, in the words of the foreign peers.
    pub fn to_json(&self) -> String {
        let (result, observed) = match &self.outcome {
            Ok(observed) => ("pass", observed),
            Err(Verdict::Fail(observed)) => ("fail", observed),
            Err(Verdict::Unsupported(reason)) => ("unsupported", reason),
        };
        json!({
            "case": self.case,
            "result": result,
            "millis": self.millis,
            "expected": self.expected,
            "observed": observed,
        })
        .to_string()
    }
}

/// A line of the table; a failure has two more, with what was expected and what came.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (result, observed) = match &self.outcome {
            Ok(observed) => ("pass", observed),
            Err(Verdict::Fail(observed)) => ("FAIL", observed),
            Err(Verdict::Unsupported(reason)) => ("not supported by the peer", reason),
        };
        write!(f, "{:<36} {:>7} ms  {result}", self.case, self.millis)?;
        match &self.outcome {
            Err(Verdict::Fail(observed)) => {
                write!(f, "\n    expected: {}", shortened(&self.expected))?;
                write!(f, "\n    came:     {}", shortened(observed))
            }
            _ if observed.is_empty() => Ok(()),
            _ => write!(f, ": {}", shortened(observed)),
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Counts rows, and writes them where they are wanted as they come.
#[derive(Debug)]
pub struct Report<J> {
    json: Option<J>,
    passed: usize,
    failed: usize,
    unsupported: usize,
}

impl<J: Write> Report<J> {
    /// A report that also goes to this file as lines of JSON.
    pub fn new(json: Option<J>) -> Self {
        Report { json, passed: 0, failed: 0, unsupported: 0 }
    }

    /// Takes a row.
    ///
    /// # Errors
    /// Those of writing.
    pub fn add(&mut self, row: &Row, table: &mut impl Write) -> io::Result<()> {
        match row.outcome {
            Ok(_) => self.passed += 1,
            Err(Verdict::Fail(_)) => self.failed += 1,
            Err(Verdict::Unsupported(_)) => self.unsupported += 1,
        }
        writeln!(table, "{row}")?;
        match &mut self.json {
            Some(json) => writeln!(json, "{}", row.to_json()),
            None => Ok(()),
        }
    }

    /// Ends the table with its sums. `true` if nothing failed.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(mut self, table: &mut impl Write) -> io::Result<bool> {
        let Report { passed, failed, unsupported, .. } = self;
        writeln!(
            table,
            "{passed} passed, {failed} failed, {unsupported} not supported by the peer"
        )?;
        if let Some(json) = &mut self.json {
            json.flush()?;
        }
        Ok(failed == 0)
    }
}
