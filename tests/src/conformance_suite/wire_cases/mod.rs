//! The wire cases: a client is played frame by frame, so that a server is judged by what it does on
//! the socket and by nothing else.
//!
//! A case is a line in `server.cases` or a row of a table in `grid`, and both are written in the
//! language of `script`. Where the specification leaves freedom a case accepts each behaviour that
//! it allows; what stands first is what this library does, and a strict run accepts nothing else.

mod grid;
mod link;
mod play;
mod script;

use super::{Outcome, Trial, passed};
pub(super) use link::{describe_frame, read_frame};
use script::Script;
pub(super) use script::{code, kind_and_flags};

/// The cases that are written out.
const LINES: &str = include_str!("server.cases");

/// A case: one script, or several that belong together. Each runs on a connection of its own.
#[derive(Clone, Debug)]
pub struct WireCase {
    /// The name, without `wire/`.
    pub name: String,
    /// Each script as it is written, with a word that tells it from the others of the case. It is parsed when it is
    /// played: what all of them send is a hundred megabytes.
    scripts: Vec<(String, String)>,
}

/// Methods whose calls are streams.
const STREAMING_METHODS: [&str; 4] = ["Collect", "Exchange", "Generate", "Hold"];

impl WireCase {
    /// What a server that passes does.
    pub(super) fn expected(&self) -> String {
        match &self.scripts[..] {
            [(_, text)] => text.clone(),
            scripts => format!("{} scripts, the first of them: {}", scripts.len(), scripts[0].1),
        }
    }

    /// Whether a peer that speaks unary calls alone can't pass.
    pub(super) fn needs_streams(&self) -> bool {
        let mut words = self.scripts.iter().flat_map(|(_, text)| text.split([' ', ';']));
        words.any(|word| STREAMING_METHODS.contains(&word))
    }

    /// Plays every script of the case.
    ///
    /// # Panics
    /// If one makes no sense.
    pub(super) async fn play(&self, trial: &Trial) -> Outcome {
        for (part, text) in &self.scripts {
            let script = Script::parse(text).unwrap_or_else(|error| panic!("{error}, in {text:?}"));
            play::run(trial, &script)
                .await
                .map_err(|verdict| if part.is_empty() { verdict } else { verdict.in_part(part) })?;
        }
        match self.scripts.len() {
            1 => passed(),
            count => Ok(format!("{count} scripts")),
        }
    }
}

/// All wire cases.
///
/// # Panics
/// If a line has no name, or a row's state or expectation is none.
pub fn all() -> Vec<WireCase> {
    let lines =
        LINES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let written = lines.map(|line| {
        let (name, text) = line.split_once('=').unwrap_or_else(|| panic!("no name in {line:?}"));
        WireCase {
            name: name.trim().to_owned(),
            scripts: vec![(String::new(), text.trim().to_owned())],
        }
    });
    written.chain(grid::cases()).collect()
}
