//! Deviations of other implementations that are accepted, each with a sentence that says what is observed.

use crate::peers::matches;
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize, Serialize)]
pub struct Known {
    pub client: String,
    pub server: String,
    pub case: String,
    /// Whose doing it is.
    pub fault: Fault,
    /// What the peer does, in a sentence.
    pub sentence: String,
    /// A part of the observed text, so that an entry covers one deviation and not whatever fails in its cells. Bars
    /// separate alternatives.
    pub seen: String,
    /// Whether it depends on timing, so that a pass is no news.
    #[serde(default)]
    pub sometimes: bool,
}

/// The side that behaves otherwise than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    Client,
    Server,
    Both,
}

impl Known {
    pub fn covers(&self, client: &str, server: &str, case: &str) -> bool {
        matches(&self.client, client) && matches(&self.server, server) && matches(&self.case, case)
    }
}

/// Finds the entry for a failure.
pub fn find<'a>(
    known: &'a [Known],
    client: &str,
    server: &str,
    case: &str,
    observed: &str,
) -> Option<&'a Known> {
    known.iter().find(|entry| {
        entry.covers(client, server, case)
            && entry.seen.split('|').any(|part| observed.contains(part))
    })
}
