//! The page of the documentation, made of what the steps saw.
//!
//! It leaves out times and whatever else changes with every run, so that a new page differs from an old one only where a
//! peer behaves differently; deviations that depend on timing are marked.

use crate::Arguments;
use crate::deadlock::{Expected, Row, Table};
use crate::known::{self, Fault, Known};
use crate::matrix::{Cell, Outcome};
use crate::peers::{self, Case};
use crate::report::{Named, Results};
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::{Result as Written, Write};

const INTRODUCTION: &str = "# Interoperability

`tests/interop/run all` and `tests/interop/run document` write this page and
[interop-cases.md](interop-cases.md). They start every program named here and record what they see.
[tests/interop](../../tests/interop/README.md) tells how to repeat it and how to add an implementation.
";

const CASES: &str = "# Interoperability, case by case

A reference, generated with [interop.md](interop.md), which has the summary and names the peers.
";

const MATRIX: &str = "
## Every client against every server

Each client makes the calls of the conformance service, one case at a time, through its own library's API. A cell counts
the cases that pass, of those that both sides can express: a library without streams is not asked for them. All others
are explained [case by case](interop-cases.md). No cell in which this library takes part fails because of it.

Rows are clients, columns are servers.
";

const CELLS: &str = "
✓ passes. – needs streams, which one side does not have. A letter and a number: a deviation of the **c**lient, the
**s**erver or **b**oth, explained above. ~ before it: it depends on timing, and another run may show it in other cells.
";

const WIRE: &str = "
## Frames against every server

Here the client is no library: `ttrpc-conformance-client --case 'wire/*'` writes frames and looks at those that come
back. The cases are in [server.cases](../../tests/src/conformance_suite/wire_cases/server.cases) and
[grid.rs](../../tests/src/conformance_suite/wire_cases/grid.rs). One in `grid/` is all flags of a frame type in a state
of a stream. Where the specification leaves freedom, each behaviour that it allows passes.
";

const PLAYED: &str = "
## Every client against a played server

Here the server is no library: `ttrpc-conformance-server --answer WAY` answers each call in a way that the specification
allows, or with frames beside it that a client has no use for. The ways are in
[answers.cases](../../tests/src/conformance_suite/answers/answers.cases). A client passes if its call succeeds. A test
of the workspace shows how this library's own client takes wrong answers, with cases in
[client.cases](../../tests/src/conformance_suite/client_cases/client.cases).
";

const DEADLOCKS: &str = "
## Deadlocks

Many callers share one connection, with large requests, large replies and small socket buffers, so that both directions
are full all the time. This library's server here has queues of 8 frames and 256 KiB, and stops reading while its queue
is full. That shows whether a client can read while it cannot write. A server that reads on in that situation hides a
client's deadlock, at the price of memory. The control, a client that sends and receives in one task, shows for each
server whether it is such a server.
";

/// Writes the page. Only a run in which everything was there and nothing was unexpected makes one.
pub fn run(arguments: &Arguments) -> Result<bool, String> {
    let cases: Vec<Case> = peers::read(arguments, "cases.json")?;
    let known: Vec<Known> = peers::read(arguments, "known.json")?;
    let results = |title| load(arguments, title).map(|results| judged_again(results, &known));
    let (matrix, wire, played) = (results("matrix")?, results("wire")?, results("played")?);
    let deadlock: Table = load(arguments, "deadlock")?;
    let all = [&matrix, &wire, &played];
    let missing: Vec<_> =
        all.iter().flat_map(|results| &results.missing).chain(&deadlock.missing).collect();
    if let Some(sentence) = missing.first() {
        return Err(format!("The page would not be complete. {sentence}"));
    }
    let failed = |results: &Results| results.cells.iter().any(|cell| cell.result == Outcome::Fail);
    if all.into_iter().any(failed) || !deadlock.rows.iter().all(Row::is_as_expected) {
        return Err("The page is not made of a run with unexpected results.".to_owned());
    }
    let is_own = |cell: &&Cell| {
        let entry = known.iter().find(|entry| cell.known.as_ref() == Some(&entry.sentence));
        match entry.map(|entry| entry.fault) {
            Some(Fault::Client) => cell.client == "own",
            Some(Fault::Server) => cell.server == "own",
            Some(Fault::Both) => cell.client == "own" || cell.server == "own",
            None => false,
        }
    };
    if let Some(cell) = all_cells(&all).find(is_own) {
        return Err(format!(
            "The page says that no cell fails because of this library, but {} does.",
            cell.case
        ));
    }
    let path = arguments.out.join("commit");
    let commit = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; a run of all steps writes it", path.display()))?;
    // `tests/release --mark` counts.
    let measured =
        format!("\nMeasured at {}; 0 commits have changed `ttrpc/src` since.\n", commit.trim());
    let summary = summary_page(&measured, &matrix, &deadlock).map_err(|error| error.to_string())?;
    let cases = cases_page(&measured, &cases, &known, &matrix, &wire, &played);
    let cases = cases.map_err(|error| error.to_string())?;
    let cases_path = arguments.page.with_file_name("interop-cases.md");
    for (path, text) in [(&arguments.page, summary), (&cases_path, cases)] {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(true)
}

fn load<T: DeserializeOwned>(arguments: &Arguments, title: &str) -> Result<T, String> {
    let path = arguments.out.join(format!("{title}.json"));
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; the step {title} writes it", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn all_cells<'a>(all: &'a [&Results]) -> impl Iterator<Item = &'a Cell> {
    all.iter().flat_map(|results| &results.cells)
}

/// An entry that was written after the run counts, too.
fn judged_again(mut results: Results, known: &[Known]) -> Results {
    for cell in results.cells.iter_mut().filter(|cell| cell.result == Outcome::Fail) {
        let entry = known::find(known, &cell.client, &cell.server, &cell.case, &cell.observed);
        if let Some(entry) = entry {
            cell.result = Outcome::Known;
            cell.known = Some(entry.sentence.clone());
        }
    }
    results
}

/// The page that is read: the peers, the matrix in numbers, and the deadlocks.
fn summary_page(
    measured: &str,
    matrix: &Results,
    deadlock: &Table,
) -> Result<String, std::fmt::Error> {
    let mut text = INTRODUCTION.to_owned() + measured;
    writeln!(text, "\n| peer | library |\n|---|---|")?;
    for peer in &matrix.peers {
        writeln!(text, "| `{}` | {} |", peer.name, peer.library)?;
    }
    text += MATRIX;
    summary(&mut text, matrix)?;
    text += DEADLOCKS;
    deadlock_tables(&mut text, deadlock)?;
    Ok(text)
}

/// The page in which cases are looked up.
fn cases_page(
    measured: &str,
    cases: &[Case],
    known: &[Known],
    matrix: &Results,
    wire: &Results,
    played: &Results,
) -> Result<String, std::fmt::Error> {
    let mut text = CASES.to_owned() + measured;
    let deviations = Deviations::among(known, &matrix.cells);
    writeln!(text, "\n## What differs, and whose doing it is\n")?;
    deviations.explain(&mut text, &matrix.cells)?;
    writeln!(text, "\n## Every client against every server")?;
    text += CELLS;
    for server in &matrix.peers {
        server_table(&mut text, server, cases, matrix, &deviations)?;
    }
    text += WIRE;
    wire_tables(&mut text, known, wire)?;
    text += PLAYED;
    played_tables(&mut text, known, played)?;
    Ok(text)
}

/// The deviations that are in a table, in the order in which they are numbered.
struct Deviations<'a> {
    known: &'a [Known],
    /// Each by its sentence: several entries may say the same.
    listed: Vec<(Fault, &'a str)>,
}

impl<'a> Deviations<'a> {
    fn among(known: &'a [Known], cells: &[Cell]) -> Self {
        let mut listed: Vec<(Fault, &str)> = Vec::new();
        for entry in known {
            let occurs = |cell: &Cell| {
                entry.covers(&cell.client, &cell.server, &cell.case)
                    && cell.known.as_ref() == Some(&entry.sentence)
            };
            let key = (entry.fault, entry.sentence.as_str());
            if cells.iter().any(occurs) && !listed.contains(&key) {
                listed.push(key);
            }
        }
        Deviations { known, listed }
    }

    fn label(&self, entry: &Known) -> Option<String> {
        let position = self.listed.iter().position(|(_, sentence)| *sentence == entry.sentence)?;
        let letter = match entry.fault {
            Fault::Client => 'c',
            Fault::Server => 's',
            Fault::Both => 'b',
        };
        let mark = if entry.sometimes { "~" } else { "" };
        Some(format!("{mark}{letter}{}", position + 1))
    }

    /// What stands in a cell.
    fn word(&self, cell: &Cell) -> String {
        let is_seen = |entry: &&Known| {
            entry.covers(&cell.client, &cell.server, &cell.case)
                && cell.known.as_ref() == Some(&entry.sentence)
        };
        match cell.result {
            Outcome::Unsupported => "–".to_owned(),
            _ => {
                let entry = self.known.iter().find(is_seen);
                entry.and_then(|entry| self.label(entry)).unwrap_or("✓".to_owned())
            }
        }
    }

    fn passes(&self, cell: &Cell) -> bool {
        self.word(cell) == "✓"
    }

    /// Each sentence with the peer that it is about and the cases in which it shows.
    fn explain(&self, text: &mut String, cells: &[Cell]) -> Written {
        writeln!(text, "| | whose | observed | cases |\n|---|---|---|---|")?;
        for (number, (fault, sentence)) in (1..).zip(&self.listed) {
            let mut names = BTreeSet::new();
            let mut cases = BTreeSet::new();
            let ending = format!("{number}");
            let shown =
                |cell: &&Cell| self.word(cell).trim_start_matches(['~', 'c', 's', 'b']) == ending;
            for cell in cells.iter().filter(shown) {
                cases.insert(format!(
                    "`{}`",
                    cell.case.trim_start_matches("wire/").trim_start_matches("played/")
                ));
                match fault {
                    Fault::Client => names.insert(cell.client.clone()),
                    Fault::Server => names.insert(cell.server.clone()),
                    Fault::Both => names.insert(format!("{} with {}", cell.client, cell.server)),
                };
            }
            let (letter, side) = match fault {
                Fault::Client => ('c', "client"),
                Fault::Server => ('s', "server"),
                Fault::Both => ('b', "both"),
            };
            let join = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(", ");
            writeln!(
                text,
                "| {letter}{number} | {side} {} | {sentence} | {} |",
                join(names),
                join(cases)
            )?;
        }
        Ok(())
    }
}

fn header(text: &mut String, first: &str, columns: &[Named]) -> Written {
    write!(text, "\n| {first} |")?;
    for column in columns {
        write!(text, " {} |", column.name)?;
    }
    writeln!(text, "\n|---|{}", "---|".repeat(columns.len()))
}

fn summary(text: &mut String, results: &Results) -> Written {
    header(text, "", &results.peers)?;
    for client in &results.peers {
        write!(text, "| **{}** |", client.name)?;
        for server in &results.peers {
            let of_pair = |cell: &&Cell| cell.client == client.name && cell.server == server.name;
            let (mut passed, mut asked) = (0, 0);
            for cell in results.cells.iter().filter(of_pair) {
                asked += usize::from(cell.result != Outcome::Unsupported);
                passed += usize::from(cell.result == Outcome::Pass);
            }
            write!(text, " {passed} of {asked} |")?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn server_table(
    text: &mut String,
    server: &Named,
    cases: &[Case],
    results: &Results,
    deviations: &Deviations,
) -> Written {
    writeln!(text, "\n### Server {}", server.name)?;
    header(text, "", &results.peers)?;
    for case in cases {
        write!(text, "| {} |", case.name)?;
        for client in &results.peers {
            let wanted = |cell: &&Cell| {
                cell.server == server.name && cell.client == client.name && cell.case == case.name
            };
            let word = results.cells.iter().find(wanted).map(|cell| deviations.word(cell));
            write!(text, " {} |", word.unwrap_or_default())?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn wire_tables(text: &mut String, known: &[Known], results: &Results) -> Written {
    let deviations = Deviations::among(known, &results.cells);
    writeln!(text, "\n| server | passed | deviates | needs streams |\n|---|---|---|---|")?;
    for server in &results.peers {
        let of_server = || results.cells.iter().filter(|cell| cell.server == server.name);
        let passed = of_server().filter(|cell| deviations.passes(cell)).count();
        let unsupported = of_server().filter(|cell| cell.result == Outcome::Unsupported).count();
        let deviates = of_server().count() - passed - unsupported;
        writeln!(text, "| {} | {passed} | {deviates} | {unsupported} |", server.name)?;
    }
    writeln!(text, "\n### What differs\n")?;
    deviations.explain(text, &results.cells)?;
    let mut names: Vec<&str> = Vec::new();
    for cell in &results.cells {
        if !names.contains(&cell.case.as_str()) {
            names.push(&cell.case);
        }
    }
    let cells_of =
        |name: &str| results.cells.iter().filter(move |cell| cell.case == name).collect::<Vec<_>>();
    let everywhere = |name: &&str| {
        let is_fine = |cell: &&Cell| cell.result == Outcome::Unsupported || deviations.passes(cell);
        cells_of(name).iter().all(is_fine)
    };
    let (fine, differing): (Vec<&str>, Vec<&str>) = names.into_iter().partition(everywhere);
    writeln!(
        text,
        "\n{} of {} cases pass with every server that has what they need. These do not:",
        fine.len(),
        fine.len() + differing.len()
    )?;
    header(text, "", &results.peers)?;
    for name in differing {
        write!(text, "| {} |", name.trim_start_matches("wire/"))?;
        for server in &results.peers {
            let cell = cells_of(name).into_iter().find(|cell| cell.server == server.name);
            write!(text, " {} |", cell.map(|cell| deviations.word(cell)).unwrap_or_default())?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn played_tables(text: &mut String, known: &[Known], results: &Results) -> Written {
    let deviations = Deviations::among(known, &results.cells);
    writeln!(text)?;
    deviations.explain(text, &results.cells)?;
    header(text, "", &results.peers)?;
    let mut names: Vec<&str> = results.cells.iter().map(|cell| cell.case.as_str()).collect();
    names.truncate(names.len() / results.peers.len().max(1));
    for name in names {
        write!(text, "| {} |", name.trim_start_matches("played/"))?;
        for client in &results.peers {
            let wanted = |cell: &&Cell| cell.client == client.name && cell.case == name;
            let word = results.cells.iter().find(wanted).map(|cell| deviations.word(cell));
            write!(text, " {} |", word.unwrap_or_default())?;
        }
        writeln!(text)?;
    }
    Ok(())
}

fn deadlock_tables(text: &mut String, table: &Table) -> Written {
    writeln!(text, "\n| load client | what it is |\n|---|---|")?;
    for client in &table.clients {
        writeln!(text, "| `{}` | {} |", client.name, client.library)?;
    }
    writeln!(text, "\nRows are clients, columns are servers; an empty cell was not tried.")?;
    header(text, "", &table.servers)?;
    for client in &table.clients {
        write!(text, "| **{}** |", client.name)?;
        for server in &table.servers {
            let of_pair = |row: &&Row| row.client == client.name && row.server == server.name;
            let word = match table.rows.iter().find(of_pair).map(|row| row.expected) {
                None => "",
                Some(Expected::Done) => "all calls end",
                Some(Expected::Deadlock) => "**deadlock**",
                Some(Expected::Either) => "may deadlock",
            };
            write!(text, " {word} |")?;
        }
        writeln!(text)?;
    }
    let loads: BTreeSet<_> = table.rows.iter().map(|row| row.load.as_str()).collect();
    writeln!(text, "\nThe loads: {}.", loads.into_iter().collect::<Vec<_>>().join("; "))
}
