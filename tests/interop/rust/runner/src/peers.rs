//! The data: peers, cases, and the loads of the deadlock table.

use crate::Arguments;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::Path;

#[derive(Clone, Deserialize)]
pub struct Peer {
    pub name: String,
    /// The library and its version, for people.
    pub library: String,
    pub server: Option<Vec<String>>,
    pub client: Option<Vec<String>>,
    /// Whether the library knows streams at all.
    pub streams: bool,
}

#[derive(Clone, Deserialize)]
pub struct Case {
    pub name: String,
    pub expected: String,
    #[serde(default)]
    pub needs: Vec<String>,
}

impl Case {
    pub fn needs_streams(&self) -> bool {
        self.needs.iter().any(|need| need == "streams")
    }
}

#[derive(Deserialize)]
pub struct Deadlock {
    pub servers: Vec<DeadlockServer>,
    pub clients: Vec<DeadlockClient>,
    pub loads: Vec<Load>,
}

#[derive(Clone, Deserialize)]
pub struct DeadlockServer {
    pub name: String,
    pub command: Vec<String>,
    /// The clients that deadlock against this server, as far as it shows them.
    pub shows: Vec<String>,
}

#[derive(Clone, Deserialize)]
pub struct DeadlockClient {
    pub name: String,
    pub command: Vec<String>,
}

#[derive(Clone, Deserialize)]
pub struct Load {
    pub name: String,
    pub arguments: Vec<String>,
}

#[derive(Deserialize)]
pub struct Peers {
    pub peers: Vec<Peer>,
    pub deadlock: Deadlock,
}

pub fn read<T: DeserializeOwned>(arguments: &Arguments, name: &str) -> Result<T, String> {
    let path = arguments.data.join(name);
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Fills in the variables of a command line, and returns it if its program exists.
pub fn command(arguments: &Arguments, template: &[String]) -> Option<Vec<String>> {
    let mut filled = template.to_vec();
    for part in &mut filled {
        for (name, value) in &arguments.variables {
            *part = part.replace(&format!("{{{name}}}"), value);
        }
    }
    Path::new(filled.first()?).is_file().then_some(filled)
}

/// Whether a name matches one of the patterns between the bars, in which a star stands for any text.
pub fn matches(patterns: &str, name: &str) -> bool {
    patterns.split('|').any(|pattern| matches_one(pattern, name))
}

fn matches_one(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            left.char_indices()
                .map(|(at, _)| at)
                .chain([left.len()])
                .any(|at| matches_one(rest, &left[at..]))
        }),
    }
}
