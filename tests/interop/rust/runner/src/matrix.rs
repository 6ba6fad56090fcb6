//! Every client against every server and every case.

use crate::known::{self, Known};
use crate::peers::{self, Case, Peer, Peers, Side, matches};
use crate::process::{Server, Sockets, run_client};
use crate::{Arguments, report};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// A client gives up a case after this long. Some wire cases are hundreds of connections, one after the other.
const CASE_BOUND: Duration = Duration::from_secs(60);
const WIRE_CASE_BOUND: Duration = Duration::from_secs(180);
/// A client that doesn't is killed after this much more, which is for machines on which a process takes long to start.
const CLIENT_GRACE: Duration = Duration::from_secs(60);

/// The peer that is this library.
const OWN: &str = "own";
/// Its client's cases of what it alone can do.
const OWN_CASES: &str = "own/*";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Pass,
    /// A failure that nobody expected.
    Fail,
    /// A failure that is listed as known.
    Known,
    Unsupported,
}

#[derive(Deserialize, Serialize)]
pub struct Cell {
    pub client: String,
    pub server: String,
    pub case: String,
    pub result: Outcome,
    pub millis: u64,
    pub expected: String,
    pub observed: String,
    /// The sentence about a known deviation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
}

/// The line of JSON that a client writes about a case.
#[derive(Deserialize)]
struct Line {
    result: String,
    millis: u64,
    #[serde(default)]
    expected: String,
    observed: String,
}

struct Runnable {
    peer: Peer,
    command: Vec<String>,
}

struct Run<'a> {
    arguments: &'a Arguments,
    cases: Vec<Case>,
    known: Vec<Known>,
    sockets: Sockets,
    case_bound: Duration,
    /// Whether each case has a server of its own, but for this library's, which has to stand all of them. Frames may leave
    /// handlers behind that another implementation never ends, also where the case passes, and which the next case would find.
    has_fresh_servers: bool,
}

/// Every client against every server.
pub fn run(arguments: &Arguments) -> Result<bool, String> {
    let data: Peers = peers::read(arguments, "peers.json")?;
    let mut missing = Vec::new();
    let clients = runnable(arguments, &data.peers, Side::Client, &mut missing)?;
    let servers = runnable(arguments, &data.peers, Side::Server, &mut missing)?;
    // They come first: they count the calls of a server that has no others.
    let mut cases = match clients.iter().find(|client| client.peer.name == OWN) {
        Some(own) => peers::list_cases(&own.command, OWN_CASES)?,
        None => Vec::new(),
    };
    let shared: Vec<Case> = peers::read(arguments, "cases.json")?;
    cases.extend(shared);
    Run::new(arguments, cases, CASE_BOUND)?.all("matrix", &data.peers, &clients, &servers, missing)
}

/// The client that speaks frames against every server.
pub fn run_wire(arguments: &Arguments) -> Result<bool, String> {
    let data: Peers = peers::read(arguments, "peers.json")?;
    let mut missing = Vec::new();
    let client = peers::program(arguments, &data.wire.client, Side::Client).ok_or(
        "This library's client, which speaks the frames of the wire cases, was not built.",
    )?;
    let servers = runnable(arguments, &data.peers, Side::Server, &mut missing)?;
    let cases = peers::list_cases(&client, &data.wire.cases)?;
    let client = [Runnable { peer: data.wire.client, command: client }];
    let mut run = Run::new(arguments, cases, WIRE_CASE_BOUND)?;
    run.has_fresh_servers = true;
    run.all("wire", &data.peers, &client, &servers, missing)
}

/// Every client against a server that is played.
pub fn run_played(arguments: &Arguments) -> Result<bool, String> {
    let data: Peers = peers::read(arguments, "peers.json")?;
    let mut missing = Vec::new();
    let clients = runnable(arguments, &data.peers, Side::Client, &mut missing)?;
    let server = peers::program(arguments, &data.played.server, Side::Server)
        .ok_or("This library's server, which can also be played, was not built.")?;
    let cases = peers::list_answers(&server)?;
    let server = [Runnable { peer: data.played.server, command: server }];
    Run::new(arguments, cases, CASE_BOUND)?.all("played", &data.peers, &clients, &server, missing)
}

/// Picks the peers whose programs were built.
fn runnable(
    arguments: &Arguments,
    peers: &[Peer],
    side: Side,
    missing: &mut Vec<String>,
) -> Result<Vec<Runnable>, String> {
    let pattern = match side {
        Side::Client => &arguments.client,
        Side::Server => &arguments.server,
    };
    let mut found = Vec::new();
    for peer in peers.iter().filter(|peer| matches(pattern, &peer.name)) {
        match peers::program(arguments, peer, side) {
            Some(command) => found.push(Runnable { peer: peer.clone(), command }),
            None if matches(&arguments.required, &peer.name) => {
                return Err(format!(
                    "The {side} of {} was not built, and it is required.",
                    peer.name
                ));
            }
            None => {
                missing.push(format!("The {side} of {} was not built and is left out.", peer.name));
            }
        }
    }
    Ok(found)
}

impl<'a> Run<'a> {
    fn new(
        arguments: &'a Arguments,
        cases: Vec<Case>,
        case_bound: Duration,
    ) -> Result<Self, String> {
        let chosen = cases.into_iter().filter(|case| matches(&arguments.case, &case.name));
        Ok(Run {
            arguments,
            cases: chosen.collect(),
            known: peers::read(arguments, "known.json")?,
            sockets: Sockets::create()?,
            case_bound,
            has_fresh_servers: false,
        })
    }

    /// Runs all pairs and writes down what was seen. Returns whether all of it was expected.
    fn all(
        &self,
        title: &str,
        peers: &[Peer],
        clients: &[Runnable],
        servers: &[Runnable],
        missing: Vec<String>,
    ) -> Result<bool, String> {
        let mut pairs = VecDeque::new();
        for server in servers {
            let wanted = |client: &&Runnable| {
                [client, &server].iter().any(|side| matches(&self.arguments.with, &side.peer.name))
            };
            pairs.extend(clients.iter().filter(wanted).map(|client| (client, server)));
        }
        let pairs = Mutex::new(pairs);
        let cells = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let jobs = 0..self.arguments.jobs.max(1);
            let workers: Vec<_> = jobs.map(|_| scope.spawn(|| self.work(&pairs, &cells))).collect();
            for worker in workers {
                worker.join().unwrap_or_else(|_| Err("a worker panicked".to_owned()))?;
            }
            Ok::<(), String>(())
        })?;
        let mut cells = cells.into_inner().map_err(|_| "a worker panicked")?;
        let position =
            |list: &[Runnable], name: &str| list.iter().position(|entry| entry.peer.name == name);
        let case_position = |name: &str| self.cases.iter().position(|case| case.name == name);
        cells.sort_by_key(|cell: &Cell| {
            (
                position(servers, &cell.server),
                position(clients, &cell.client),
                case_position(&cell.case),
            )
        });
        let took_part = |peer: &&Peer| {
            [clients, servers].iter().any(|list| position(list, &peer.name).is_some())
        };
        let peers = peers.iter().filter(took_part).map(report::Named::from).collect();
        let mut results = report::Results { peers, cells, gone: Vec::new(), missing };
        if self.arguments.is_part() {
            results = results.put_into(&self.arguments.out, title);
        }
        results.gone = self.gone(&results.cells);
        results.save(&self.arguments.out, title)
    }

    /// Finds the known deviations that no cell showed, although some could have.
    fn gone(&self, cells: &[Cell]) -> Vec<Known> {
        let shown = |entry: &Known| {
            let mut covered = cells
                .iter()
                .filter(|cell| entry.covers(&cell.client, &cell.server, &cell.case))
                .peekable();
            covered.peek().is_none()
                || covered.any(|cell| cell.known.as_ref() == Some(&entry.sentence))
        };
        self.known.iter().filter(|entry| !entry.sometimes && !shown(entry)).cloned().collect()
    }

    fn work(
        &self,
        pairs: &Mutex<VecDeque<(&Runnable, &Runnable)>>,
        cells: &Mutex<Vec<Cell>>,
    ) -> Result<(), String> {
        loop {
            let next = pairs.lock().map_err(|_| "a worker panicked")?.pop_front();
            let Some((client, server)) = next else { return Ok(()) };
            let of_pair = self.run_pair(client, server)?;
            let count = |outcome| of_pair.iter().filter(|cell| cell.result == outcome).count();
            println!(
                "client {:12} server {:12} {:3} passed {:3} known {:3} unsupported {:3} unexpected",
                client.peer.name,
                server.peer.name,
                count(Outcome::Pass),
                count(Outcome::Known),
                count(Outcome::Unsupported),
                count(Outcome::Fail),
            );
            cells.lock().map_err(|_| "a worker panicked")?.extend(of_pair);
        }
    }

    fn run_pair(&self, client: &Runnable, server: &Runnable) -> Result<Vec<Cell>, String> {
        let log = |side: &str| -> PathBuf {
            let name = format!("{}--{}.{side}.log", client.peer.name, server.peer.name);
            self.arguments.out.join("logs").join(name)
        };
        let mut running: Option<Server> = None;
        let mut cells = Vec::new();
        for case in self.cases.iter().filter(|case| self.is_wanted(client, server, case)) {
            // A server may have ended after its last case had passed.
            let kept =
                running.take().and_then(|mut process| process.is_running().then_some(process));
            let mut process = match kept {
                Some(process) => process,
                None => {
                    let command = [&server.command[..], &case.server_options].concat();
                    Server::start(&command, &self.sockets, &log("server"))?
                }
            };
            let line = self.run_case(client, &process, case, &log("client"))?;
            let mut cell = Cell {
                client: client.peer.name.clone(),
                server: server.peer.name.clone(),
                case: case.name.clone(),
                result: match line.result.as_str() {
                    "pass" => Outcome::Pass,
                    "unsupported" => Outcome::Unsupported,
                    _ => Outcome::Fail,
                },
                millis: line.millis,
                expected: line.expected,
                observed: line.observed,
                known: None,
            };
            if cell.result == Outcome::Fail {
                // A server that ends does so at once, but its client may notice before the kernel has reaped it.
                if let Some(status) = process.ended(Duration::from_millis(500)) {
                    cell.observed += &format!("; the server process ended {}", how(status));
                }
                self.judge(&mut cell, case, server);
                // Whatever the failure left behind must not trouble the next case.
                drop(process);
            } else if case.server_options.is_empty()
                && (!self.has_fresh_servers || server.peer.name == OWN)
            {
                running = Some(process);
            }
            cells.push(cell);
        }
        Ok(cells)
    }

    fn is_wanted(&self, client: &Runnable, server: &Runnable, case: &Case) -> bool {
        let mut entries = self.known.iter().filter(|entry| !entry.sometimes);
        let can_play = client.peer.name == OWN || !matches(OWN_CASES, &case.name);
        can_play
            && (!self.arguments.skip_known
                || !entries
                    .any(|entry| entry.covers(&client.peer.name, &server.peer.name, &case.name)))
    }

    fn run_case(
        &self,
        client: &Runnable,
        server: &Server,
        case: &Case,
        log: &Path,
    ) -> Result<Line, String> {
        let file = self.sockets.file();
        let path = file.to_string_lossy();
        let bound = self.case_bound.as_secs().to_string();
        let arguments = [
            "--connect",
            &server.address,
            "--case",
            case.run_as.as_ref().unwrap_or(&case.name),
            "--json",
            &path,
            "--case-timeout",
            &bound,
        ];
        let limit = self.case_bound + CLIENT_GRACE;
        let status = run_client(&client.command, &arguments, Stdio::null(), log, limit)?;
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        // The file may be missing when the client ended before it wrote.
        let _ = std::fs::remove_file(&file);
        let line = text.lines().next().and_then(|line| serde_json::from_str(line).ok());
        Ok(match (line, status) {
            (Some(line), _) => line,
            (None, Some(status)) => failed(format!("the client process ended {}", how(status))),
            (None, None) => failed(format!("hung: the client was killed after {limit:?}")),
        })
    }

    /// Decides what a failure means.
    fn judge(&self, cell: &mut Cell, case: &Case, server: &Runnable) {
        if let Some(known) =
            known::find(&self.known, &cell.client, &cell.server, &cell.case, &cell.observed)
        {
            cell.result = Outcome::Known;
            cell.known = Some(known.sentence.clone());
        } else if case.needs_streams() && !server.peer.streams {
            cell.result = Outcome::Unsupported;
            cell.observed = format!("this server speaks unary calls only; {}", cell.observed);
        }
    }
}

fn failed(observed: String) -> Line {
    Line { result: "fail".to_owned(), millis: 0, expected: String::new(), observed }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with code {code}"),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "in an unknown way".to_owned(),
    }
}
