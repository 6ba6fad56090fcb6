//! What a step saw, as JSON for programs and for the page, and as sentences for who waits for it.

use crate::known::Known;
use crate::matrix::{Cell, Outcome};
use crate::peers::Peer;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A peer that took part.
#[derive(Deserialize, Serialize)]
pub struct Named {
    pub name: String,
    pub library: String,
}

impl From<&Peer> for Named {
    fn from(peer: &Peer) -> Self {
        Named { name: peer.name.clone(), library: peer.library.clone() }
    }
}

#[derive(Deserialize, Serialize)]
pub struct Results {
    pub peers: Vec<Named>,
    pub cells: Vec<Cell>,
    /// Known deviations that did not occur in any cell that ran.
    pub gone: Vec<Known>,
    /// Sentences about what was left out.
    pub missing: Vec<String>,
}

impl Results {
    /// Puts the results of a part of the pairs and cases into those that are there from before.
    pub fn put_into(mut self, out: &Path, title: &str) -> Results {
        let before = std::fs::read_to_string(out.join(format!("{title}.json"))).ok();
        let Some(mut before) = before.and_then(|text| serde_json::from_str::<Results>(&text).ok())
        else {
            return self;
        };
        for cell in self.cells.drain(..) {
            let is_same = |other: &&mut Cell| {
                (&other.client, &other.server, &other.case)
                    == (&cell.client, &cell.server, &cell.case)
            };
            match before.cells.iter_mut().find(is_same) {
                Some(other) => *other = cell,
                None => before.cells.push(cell),
            }
        }
        before
    }

    /// Writes the file with this title, and returns whether nothing unexpected happened.
    pub fn save(&self, out: &Path, title: &str) -> Result<bool, String> {
        let path = save(out, title, self)?;
        self.missing.iter().for_each(|sentence| println!("{sentence}"));
        for entry in &self.gone {
            println!(
                "known, but not seen any more: client {}, server {}, {}: {}",
                entry.client, entry.server, entry.case, entry.sentence
            );
        }
        let unexpected: Vec<&Cell> =
            self.cells.iter().filter(|cell| cell.result == Outcome::Fail).collect();
        for cell in &unexpected {
            println!(
                "unexpected: client {}, server {}, {}: {}",
                cell.client, cell.server, cell.case, cell.observed
            );
        }
        println!(
            "{} cells, {} unexpected failures; see {path}",
            self.cells.len(),
            unexpected.len()
        );
        Ok(unexpected.is_empty())
    }
}

/// Writes a file of JSON, and returns where it is.
pub fn save(out: &Path, title: &str, value: &impl Serialize) -> Result<String, String> {
    let path = out.join(format!("{title}.json"));
    let json = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    std::fs::write(&path, json).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.display().to_string())
}
