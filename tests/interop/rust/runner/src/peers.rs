//! The data: peers, cases, and the loads of the deadlock table.

use crate::Arguments;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::Path;
use std::process::Command;

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

/// The client that speaks frames.
#[derive(Deserialize)]
pub struct Wire {
    pub client: Peer,
    /// Which of its cases are those of the wire.
    pub cases: String,
}

/// The server that is played, frame by frame, and answers in a way that is chosen on its command line.
#[derive(Deserialize)]
pub struct Played {
    pub server: Peer,
}

#[derive(Clone, Default, Deserialize)]
pub struct Case {
    pub name: String,
    #[serde(default)]
    pub needs: Vec<String>,
    /// The client's case, where it has another name.
    #[serde(skip)]
    pub run_as: Option<String>,
    /// Options of the server, where the case needs one for itself.
    #[serde(skip)]
    pub server_options: Vec<String>,
}

impl Case {
    pub fn needs_streams(&self) -> bool {
        self.needs.iter().any(|need| need == "streams")
    }
}

#[derive(Deserialize)]
pub struct Deadlock {
    pub servers: Vec<LoadPeer>,
    pub clients: Vec<LoadPeer>,
    pub loads: Vec<Load>,
}

/// One side of a load.
#[derive(Clone, Deserialize)]
pub struct LoadPeer {
    pub name: String,
    /// The library and how its buffers are bounded, for people.
    pub library: String,
    pub command: Vec<String>,
    /// Of a client: whether it is this library's own, which has a command line of its own.
    #[serde(default)]
    pub is_stress: bool,
    /// Of a server: the clients that it is for, all unless stated.
    pub clients: Option<String>,
    /// Of a server: the clients that deadlock against it.
    #[serde(default)]
    pub shows: Vec<String>,
    /// Of a server: the clients that may deadlock against it.
    #[serde(default)]
    pub may_show: Vec<String>,
}

#[derive(Clone, Deserialize)]
pub struct Load {
    pub name: String,
    /// The load in the words of the foreign load clients.
    pub arguments: Vec<String>,
    /// The same in the words of this library's own.
    pub stress: Vec<String>,
}

#[derive(Deserialize)]
pub struct Peers {
    pub peers: Vec<Peer>,
    pub wire: Wire,
    pub played: Played,
    pub deadlock: Deadlock,
}

pub fn read<T: DeserializeOwned>(arguments: &Arguments, name: &str) -> Result<T, String> {
    let path = arguments.data.join(name);
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The side of a peer.
#[derive(Clone, Copy)]
pub enum Side {
    Client,
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Client => "client",
            Side::Server => "server",
        })
    }
}

/// The command line of a peer, if its program exists.
pub fn program(arguments: &Arguments, peer: &Peer, side: Side) -> Option<Vec<String>> {
    let template = match side {
        Side::Client => peer.client.as_ref()?,
        Side::Server => peer.server.as_ref()?,
    };
    command(arguments, template)
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

/// Asks a client for the names of its cases.
pub fn list_cases(client: &[String], pattern: &str) -> Result<Vec<Case>, String> {
    let names = list(client, &["--list", "--case", pattern])?;
    Ok(names.into_iter().map(|name| Case { name, ..Case::default() }).collect())
}

/// Asks a played server for its ways to answer.
pub fn list_answers(server: &[String]) -> Result<Vec<Case>, String> {
    let lines = list(server, &["--list-answers"])?;
    let case = |line: String| {
        let (way, case) = line.split_once(' ').unwrap_or((&line, ""));
        // The one case of them that is a stream.
        let needs = if case == "server_streaming" { vec!["streams".to_owned()] } else { vec![] };
        Case {
            name: format!("played/{way}"),
            needs,
            run_as: Some(case.to_owned()),
            server_options: vec!["--answer".to_owned(), way.to_owned()],
        }
    };
    Ok(lines.into_iter().map(case).collect())
}

fn list(command: &[String], options: &[&str]) -> Result<Vec<String>, String> {
    let output = Command::new(&command[0]).args(&command[1..]).args(options).output();
    let output = output.map_err(|error| format!("{}: {error}", command[0]))?;
    if !output.status.success() {
        return Err(format!("{} {}: {}", command[0], options.join(" "), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
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
