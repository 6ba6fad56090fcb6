//! Cases for this library's client: a server is played that answers in each way it can, and the
//! case says what the caller gets to see.
//!
//! A case is a line in `client.cases` or a row of a table in `grid`; both are written in the
//! language of `script`. They run in this process over a pipe, so with the paused clock of tokio
//! that a test has they take no time.

mod grid;
mod play;
mod script;

use script::Step;

/// The cases that are written out.
const LINES: &str = include_str!("client.cases");

/// A case for the client.
#[derive(Clone, Debug)]
pub struct ClientCase {
    /// Its name.
    pub name: String,
    /// The script as it was written.
    pub text: String,
    steps: Vec<Step>,
}

impl ClientCase {
    fn parse(name: &str, text: &str) -> Self {
        let steps = text.split(';').map(str::trim).filter(|step| !step.is_empty());
        let steps = steps.map(|step| {
            Step::parse(step).unwrap_or_else(|error| panic!("{error} in {step:?} of {name}"))
        });
        ClientCase { name: name.to_owned(), text: text.trim().to_owned(), steps: steps.collect() }
    }

    /// Plays the case.
    ///
    /// # Errors
    /// What came instead of what was expected.
    pub async fn play(&self) -> Result<(), String> {
        play::run(&self.steps).await
    }
}

/// The bytes of a step that the server sends.
///
/// # Errors
/// What is wrong with the step.
pub(super) fn server_bytes(step: &str) -> Result<Vec<u8>, String> {
    match Step::parse(step)? {
        Step::Bytes(bytes) => Ok(bytes),
        _ => Err(format!("{step:?} is no step of a server")),
    }
}

/// All cases for the client.
///
/// # Panics
/// If a line or a row makes no sense.
pub fn all() -> Vec<ClientCase> {
    let lines =
        LINES.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let written = lines.map(|line| {
        let (name, text) = line.split_once('=').unwrap_or_else(|| panic!("no name in {line:?}"));
        ClientCase::parse(name.trim(), text)
    });
    written.chain(grid::cases()).collect()
}
