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
pub(super) use link::describe_frame;
use script::{Script, Step};
pub(super) use script::{code, kind_and_flags};

/// The cases that are written out.
const LINES: &str = include_str!("server.cases");

/// A case: one script, or several that belong together. Each runs on a connection of its own.
#[derive(Clone, Debug)]
pub struct WireCase {
    /// The name, without `wire/`.
    pub name: String,
    /// Each script with a word that tells it from the others of the case.
    scripts: Vec<(String, Script)>,
}

/// Methods whose calls are streams.
const STREAMING_METHODS: [&str; 4] = ["Collect", "Exchange", "Generate", "Hold"];

impl WireCase {
    /// What a server that passes does.
    pub(super) fn expected(&self) -> String {
        match &self.scripts[..] {
            [(_, script)] => script.text.clone(),
            scripts => {
                format!("{} scripts, the first of them: {}", scripts.len(), scripts[0].1.text)
            }
        }
    }

    /// Whether a peer that speaks unary calls alone can't pass.
    pub(super) fn needs_streams(&self) -> bool {
        let mut steps = self.scripts.iter().flat_map(|(_, script)| &script.steps);
        steps.any(|step| match step {
            Step::Send(send) => {
                send.method.as_ref().is_some_and(|method| STREAMING_METHODS.contains(&&method[..]))
            }
            _ => false,
        })
    }

    /// Plays every script of the case.
    pub(super) async fn play(&self, trial: &Trial) -> Outcome {
        for (part, script) in &self.scripts {
            play::run(trial, script)
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
/// If a line or a row makes no sense.
pub fn all() -> Vec<WireCase> {
    let lines =
        LINES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let written = lines.map(|line| {
        let (name, text) = line.split_once('=').unwrap_or_else(|| panic!("no name in {line:?}"));
        WireCase { name: name.trim().to_owned(), scripts: vec![(String::new(), parse(text))] }
    });
    written.chain(grid::cases()).collect()
}

fn parse(text: &str) -> Script {
    Script::parse(text).unwrap_or_else(|error| panic!("{error}, in {text:?}"))
}
