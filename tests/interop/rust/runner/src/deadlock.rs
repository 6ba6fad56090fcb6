//! The table of historic deadlocks: load clients of several versions against servers that stop reading once they can't
//! write, which is what it takes for those deadlocks to show.

use crate::Arguments;
use crate::peers::{self, Load, LoadPeer, Peers, Side, matches};
use crate::process::{Server, Sockets, log_file, run_client};
use crate::report::{Named, save};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

/// A load that neither ends nor reports a deadlock by then is killed. Both sides look for deadlocks themselves, so this is for
/// a load client that hangs.
const LOAD_BOUND: Duration = Duration::from_secs(600);

/// What a load client says of its load.
#[derive(Clone, Deserialize, Serialize)]
struct Seen {
    calls_done: u64,
    deadlocked: bool,
    after_millis: u64,
    /// What went wrong otherwise.
    #[serde(default)]
    wrong: String,
}

/// A shape of load in the report of this library's own load client.
#[derive(Deserialize)]
struct Shape {
    shape: String,
    verdict: String,
    evidence: String,
    calls: u64,
    seconds: f64,
}

#[derive(Deserialize)]
struct Shapes {
    shapes: Vec<Shape>,
}

#[derive(Deserialize, Serialize)]
pub struct Row {
    pub client: String,
    pub server: String,
    pub load: String,
    seen: Option<Seen>,
    pub expected: Expected,
}

/// What a client may come to against a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Expected {
    Done,
    Deadlock,
    /// It depends on timing.
    Either,
}

#[derive(Deserialize, Serialize)]
pub struct Table {
    pub clients: Vec<Named>,
    pub servers: Vec<Named>,
    pub rows: Vec<Row>,
    pub missing: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<bool, String> {
    let data = peers::read::<Peers>(arguments, "peers.json")?.deadlock;
    let sockets = Sockets::create()?;
    let mut table = Table { clients: vec![], servers: vec![], rows: vec![], missing: vec![] };
    let clients = built(arguments, &data.clients, Side::Client, &mut table.missing)?;
    let servers = built(arguments, &data.servers, Side::Server, &mut table.missing)?;
    table.clients = clients.iter().map(|(client, _)| client.named()).collect();
    table.servers = servers.iter().map(|(server, _)| server.named()).collect();
    for (server, server_command) in &servers {
        for (client, client_command) in clients.iter().filter(|(client, _)| server.meets(client)) {
            let chosen = |load: &&Load| matches(&arguments.load, &load.name);
            for load in data.loads.iter().filter(chosen) {
                let seen = run_load(
                    arguments,
                    &sockets,
                    (server, server_command),
                    (client, client_command),
                    load,
                )?;
                let row = Row {
                    client: client.name.clone(),
                    server: server.name.clone(),
                    load: load.name.clone(),
                    seen,
                    expected: server.expected(client),
                };
                println!("{row}");
                table.rows.push(row);
            }
        }
    }
    let path = save(&arguments.out, "deadlock", &table)?;
    table.missing.iter().for_each(|sentence| println!("{sentence}"));
    let unexpected = table.rows.iter().filter(|row| !row.is_as_expected()).count();
    println!("{} loads, {unexpected} unexpected results; see {path}", table.rows.len());
    Ok(unexpected == 0)
}

/// Picks the load peers whose programs were built.
fn built<'a>(
    arguments: &Arguments,
    peers: &'a [LoadPeer],
    side: Side,
    missing: &mut Vec<String>,
) -> Result<Vec<(&'a LoadPeer, Vec<String>)>, String> {
    let pattern = match side {
        Side::Client => &arguments.client,
        Side::Server => &arguments.server,
    };
    let mut found = Vec::new();
    for peer in peers.iter().filter(|peer| matches(pattern, &peer.name)) {
        match peers::command(arguments, &peer.command) {
            Some(command) => found.push((peer, command)),
            None if matches(&arguments.required, &peer.name) => {
                return Err(format!(
                    "The load {side} {} was not built, and it is required.",
                    peer.name
                ));
            }
            None => {
                missing
                    .push(format!("The load {side} {} was not built and is left out.", peer.name));
            }
        }
    }
    Ok(found)
}

impl LoadPeer {
    fn named(&self) -> Named {
        Named { name: self.name.clone(), library: self.library.clone() }
    }

    /// Whether this server is one for that client.
    fn meets(&self, client: &LoadPeer) -> bool {
        self.clients.as_ref().is_none_or(|pattern| matches(pattern, &client.name))
    }

    /// What that client comes to against this server.
    fn expected(&self, client: &LoadPeer) -> Expected {
        if self.shows.contains(&client.name) {
            Expected::Deadlock
        } else if self.may_show.contains(&client.name) {
            Expected::Either
        } else {
            Expected::Done
        }
    }
}

fn run_load(
    arguments: &Arguments,
    sockets: &Sockets,
    (server, server_command): (&LoadPeer, &[String]),
    (client, client_command): (&LoadPeer, &[String]),
    load: &Load,
) -> Result<Option<Seen>, String> {
    let log =
        arguments.out.join("logs").join(format!("deadlock--{}--{}.log", client.name, server.name));
    let process = Server::start(server_command, sockets, &log)?;
    let file = sockets.file();
    let path = file.to_string_lossy();
    let mut options = vec!["--connect", process.address.as_str()];
    let output = if client.is_stress {
        options.extend(["--json", &path]);
        options.extend(load.stress.iter().map(String::as_str));
        Stdio::from(log_file(&log)?)
    } else {
        options.extend(load.arguments.iter().map(String::as_str));
        Stdio::from(File::create(&file).map_err(|error| error.to_string())?)
    };
    run_client(client_command, &options, output, &log, LOAD_BOUND)?;
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    Ok(if client.is_stress {
        let shapes: Option<Shapes> = serde_json::from_str(&text).ok();
        shapes.and_then(|shapes| shapes.shapes.into_iter().next()).map(Seen::from)
    } else {
        serde_json::from_str(text.trim()).ok()
    })
}

impl From<Shape> for Seen {
    fn from(shape: Shape) -> Self {
        // The control's verdict is that it deadlocked; that of every other shape, that it did not.
        let deadlocked = shape.shape == "control" && shape.verdict == "pass";
        Seen {
            calls_done: shape.calls,
            deadlocked,
            after_millis: (shape.seconds * 1e3) as u64,
            wrong: if shape.verdict == "fail" { shape.evidence } else { String::new() },
        }
    }
}

impl Row {
    pub fn is_as_expected(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| {
            seen.wrong.is_empty()
                && match self.expected {
                    Expected::Done => !seen.deadlocked,
                    Expected::Deadlock => seen.deadlocked,
                    Expected::Either => true,
                }
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_as_expected() { "" } else { "unexpected: " };
        write!(f, "{mark}client {}, server {}, {}: ", self.client, self.server, self.load)?;
        match &self.seen {
            None => write!(f, "the load client ended without a report"),
            Some(seen) if !seen.wrong.is_empty() => write!(f, "{}", seen.wrong),
            Some(Seen { calls_done, deadlocked, after_millis, .. }) => {
                let end = if *deadlocked { "deadlocked" } else { "done" };
                write!(f, "{end} after {calls_done} calls and {after_millis} ms")
            }
        }
    }
}
