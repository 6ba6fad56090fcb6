//! The matrix as JSON, for programs, and as Markdown, for people.

use crate::known::Known;
use crate::matrix::{Cell, Outcome};
use crate::peers::{Case, Peer};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

#[derive(Serialize)]
struct Document<'a> {
    peers: Vec<(&'a str, &'a str)>,
    cells: &'a [Cell],
    /// Known deviations that did not occur in any cell that ran.
    gone: Vec<&'a Known>,
    missing: &'a [String],
}

/// Writes both files, and returns whether nothing unexpected happened.
pub fn write(
    out: &Path,
    peers: &[&Peer],
    cases: &[Case],
    cells: &[Cell],
    known: &[Known],
    missing: &[String],
) -> Result<bool, String> {
    let gone = gone(cells, known);
    let document = Document {
        peers: peers.iter().map(|peer| (peer.name.as_str(), peer.library.as_str())).collect(),
        cells,
        gone: gone.clone(),
        missing,
    };
    let json = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    save(out, "matrix.json", &json)?;
    let text = markdown(peers, cases, cells, &gone, missing).map_err(|error| error.to_string())?;
    save(out, "matrix.md", &text)?;
    missing.iter().for_each(|sentence| println!("{sentence}"));
    for entry in &gone {
        println!(
            "known, but not seen any more: client {}, server {}, {}: {}",
            entry.client, entry.server, entry.case, entry.sentence
        );
    }
    let unexpected: Vec<&Cell> = cells.iter().filter(|cell| cell.result == Outcome::Fail).collect();
    for cell in &unexpected {
        println!(
            "unexpected: client {}, server {}, {}: {}",
            cell.client, cell.server, cell.case, cell.observed
        );
    }
    println!(
        "{} cells, {} unexpected failures; see {}",
        cells.len(),
        unexpected.len(),
        out.join("matrix.md").display()
    );
    Ok(unexpected.is_empty())
}

fn save(out: &Path, name: &str, text: &str) -> Result<(), String> {
    let path = out.join(name);
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Finds the known deviations that no cell showed, although some could have.
fn gone<'a>(cells: &[Cell], known: &'a [Known]) -> Vec<&'a Known> {
    let shown = |entry: &Known| {
        let mut covered = cells
            .iter()
            .filter(|cell| entry.covers(&cell.client, &cell.server, &cell.case))
            .peekable();
        covered.peek().is_none() || covered.any(|cell| cell.known.as_ref() == Some(&entry.sentence))
    };
    known.iter().filter(|entry| !entry.sometimes && !shown(entry)).collect()
}

fn markdown(
    peers: &[&Peer],
    cases: &[Case],
    cells: &[Cell],
    gone: &[&Known],
    missing: &[String],
) -> Result<String, std::fmt::Error> {
    let mut text = String::from("# Interoperability matrix\n\n");
    for peer in peers {
        writeln!(text, "- `{}`: {}", peer.name, peer.library)?;
    }
    for sentence in missing {
        writeln!(text, "- {sentence}")?;
    }
    summary(&mut text, peers, cells)?;
    section(&mut text, "Unexpected failures", cells, Outcome::Fail, |cell| cell.observed.clone())?;
    section(&mut text, "Known deviations", cells, Outcome::Known, |cell| {
        cell.known.clone().unwrap_or_default()
    })?;
    if !gone.is_empty() {
        writeln!(text, "\n## Known, but not seen any more\n")?;
        for entry in gone {
            writeln!(
                text,
                "- client {}, server {}, {}: {}",
                entry.client, entry.server, entry.case, entry.sentence
            )?;
        }
    }
    section(&mut text, "Unsupported", cells, Outcome::Unsupported, |cell| {
        cell.observed.split(';').next().unwrap_or_default().to_owned()
    })?;
    for peer in peers {
        table(&mut text, peer, peers, cases, cells)?;
    }
    Ok(text)
}

fn summary(text: &mut String, peers: &[&Peer], cells: &[Cell]) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Summary\n\nRows are clients, columns are servers. Passed / known deviations / unsupported / **unexpected**.\n"
    )?;
    write!(text, "| |")?;
    for server in peers {
        write!(text, " {} |", server.name)?;
    }
    writeln!(text, "\n|---|{}", "---|".repeat(peers.len()))?;
    for client in peers {
        write!(text, "| {} |", client.name)?;
        for server in peers {
            let of_pair = || {
                cells.iter().filter(|cell| cell.client == client.name && cell.server == server.name)
            };
            let count = |outcome| of_pair().filter(|cell| cell.result == outcome).count();
            if of_pair().next().is_none() {
                write!(text, " |")?;
                continue;
            }
            write!(
                text,
                " {} / {} / {}",
                count(Outcome::Pass),
                count(Outcome::Known),
                count(Outcome::Unsupported)
            )?;
            match count(Outcome::Fail) {
                0 => write!(text, " |")?,
                unexpected => write!(text, " / **{unexpected}** |")?,
            }
        }
        writeln!(text)?;
    }
    Ok(())
}

/// Lists cells that share a text once, with the pairs of peers that show it and what one of them observed.
fn section(
    text: &mut String,
    title: &str,
    cells: &[Cell],
    outcome: Outcome,
    key: impl Fn(&Cell) -> String,
) -> std::fmt::Result {
    let mut groups: BTreeMap<(String, String), Vec<&Cell>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.result == outcome) {
        let case = if outcome == Outcome::Unsupported { String::new() } else { cell.case.clone() };
        groups.entry((case, key(cell))).or_default().push(cell);
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## {title}\n")?;
    for ((case, sentence), members) in groups {
        let label = if case.is_empty() { String::new() } else { format!("`{case}`: ") };
        writeln!(text, "- {label}{sentence} ({} cells)", members.len())?;
        if outcome != Outcome::Unsupported {
            let mut clients_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for cell in &members {
                clients_of.entry(&cell.server).or_default().push(&cell.client);
            }
            for (server, clients) in clients_of {
                writeln!(text, "  - server {server}, clients {}", clients.join(", "))?;
            }
            if outcome == Outcome::Known {
                writeln!(text, "  - observed: {}", members[0].observed)?;
            }
        }
    }
    Ok(())
}

fn table(
    text: &mut String,
    server: &Peer,
    peers: &[&Peer],
    cases: &[Case],
    cells: &[Cell],
) -> std::fmt::Result {
    let of_server = |client: &Peer, case: &Case| {
        let wanted = |cell: &&Cell| {
            cell.server == server.name && cell.client == client.name && cell.case == case.name
        };
        cells.iter().find(wanted)
    };
    if !cells.iter().any(|cell| cell.server == server.name) {
        return Ok(());
    }
    writeln!(text, "\n## Server {}\n", server.name)?;
    write!(text, "| |")?;
    for client in peers {
        write!(text, " {} |", client.name)?;
    }
    writeln!(text, "\n|---|{}", "---|".repeat(peers.len()))?;
    for case in cases {
        write!(text, "| {} |", case.name)?;
        for client in peers {
            let word = match of_server(client, case).map(|cell| cell.result) {
                Some(Outcome::Pass) => "pass",
                Some(Outcome::Fail) => "**FAIL**",
                Some(Outcome::Known) => "known",
                Some(Outcome::Unsupported) => "–",
                None => "",
            };
            write!(text, " {word} |")?;
        }
        writeln!(text)?;
    }
    Ok(())
}
