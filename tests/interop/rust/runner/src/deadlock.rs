//! The table of historic deadlocks: load clients of several versions against servers that stop reading once they can't
//! write, which is what it takes for those deadlocks to show.

use crate::Arguments;
use crate::peers::{self, DeadlockClient, DeadlockServer, Load, Peers, matches};
use crate::process::{Server, Sockets, run_client};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

/// A load that neither ends nor reports a deadlock by then is killed.
const LOAD_BOUND: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Deserialize, Serialize)]
struct Report {
    calls_done: u64,
    pending: u64,
    deadlocked: bool,
    after_millis: u64,
}

#[derive(Serialize)]
struct Row {
    client: String,
    server: String,
    load: String,
    report: Option<Report>,
    expected_deadlock: bool,
    as_expected: bool,
}

pub fn run(arguments: &Arguments) -> Result<bool, String> {
    let data = peers::read::<Peers>(arguments, "peers.json")?.deadlock;
    let sockets = Sockets::create()?;
    let mut rows = Vec::new();
    for server in data.servers.iter().filter(|server| matches(&arguments.server, &server.name)) {
        let Some(server_command) = peers::command(arguments, &server.command) else {
            if arguments.required.contains(&server.name) {
                return Err(format!(
                    "The server {} was not built, and it is required.",
                    server.name
                ));
            }
            println!("The server {} was not built and is left out.", server.name);
            continue;
        };
        for client in data.clients.iter().filter(|client| matches(&arguments.client, &client.name))
        {
            let Some(client_command) = peers::command(arguments, &client.command) else {
                println!("The load client {} was not built and is left out.", client.name);
                continue;
            };
            for load in &data.loads {
                let report = run_load(
                    arguments,
                    &sockets,
                    (server, &server_command),
                    (client, &client_command),
                    load,
                )?;
                let row = judge(server, client, load, report);
                println!("{}", describe(&row));
                rows.push(row);
            }
        }
    }
    let json = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    let save = |name: &str, text: &str| {
        std::fs::write(arguments.out.join(name), text).map_err(|error| format!("{name}: {error}"))
    };
    save("deadlock.json", &json)?;
    save("deadlock.md", &markdown(&rows).map_err(|error| error.to_string())?)?;
    Ok(rows.iter().all(|row| row.as_expected))
}

fn run_load(
    arguments: &Arguments,
    sockets: &Sockets,
    (server, server_command): (&DeadlockServer, &[String]),
    (client, client_command): (&DeadlockClient, &[String]),
    load: &Load,
) -> Result<Option<Report>, String> {
    let log =
        arguments.out.join("logs").join(format!("deadlock--{}--{}.log", client.name, server.name));
    let process = Server::start(server_command, sockets, &log)?;
    let file = sockets.file();
    let output = File::create(&file).map_err(|error| error.to_string())?;
    let mut options = vec!["--connect", process.address.as_str()];
    options.extend(load.arguments.iter().map(String::as_str));
    run_client(client_command, &options, Stdio::from(output), &log, LOAD_BOUND)?;
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    Ok(serde_json::from_str(text.trim()).ok())
}

fn judge(
    server: &DeadlockServer,
    client: &DeadlockClient,
    load: &Load,
    report: Option<Report>,
) -> Row {
    let expected_deadlock = server.shows.contains(&client.name);
    Row {
        client: client.name.clone(),
        server: server.name.clone(),
        load: load.name.clone(),
        report,
        expected_deadlock,
        as_expected: report.is_some_and(|report| report.deadlocked == expected_deadlock),
    }
}

fn verdict(row: &Row) -> String {
    match row.report {
        Some(Report { deadlocked: true, calls_done, pending, after_millis }) => {
            format!(
                "deadlocked after {after_millis} ms, with {calls_done} calls done and {pending} pending"
            )
        }
        Some(Report { calls_done, after_millis, .. }) => {
            format!("done: {calls_done} calls in {after_millis} ms")
        }
        None => "the load client ended without a report".to_owned(),
    }
}

fn describe(row: &Row) -> String {
    let mark = if row.as_expected { "" } else { "unexpected: " };
    format!("{mark}client {}, server {}, {}: {}", row.client, row.server, row.load, verdict(row))
}

fn markdown(rows: &[Row]) -> Result<String, std::fmt::Error> {
    let mut text = String::from(
        "# Deadlocks under load\n\n| server | client | load | seen | expected |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let expected = if row.expected_deadlock { "deadlock" } else { "done" };
        let mark = if row.as_expected { "" } else { " **(unexpected)**" };
        writeln!(
            text,
            "| {} | {} | {} | {}{mark} | {expected} |",
            row.server,
            row.client,
            row.load,
            verdict(row)
        )?;
    }
    Ok(text)
}
