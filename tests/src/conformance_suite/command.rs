//! The command lines of the conformance client and server.

use std::{
    fs::File,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use tokio::{
    net::UnixListener,
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use ttrpc::{Client, Error, Server, ServerConfig};
use ttrpc_reflection::{Debug, Health, Reflection, proto};

use super::{Report, all_cases, answers::Answer, matches, run_case, server::socket_name, trial};
use crate::{
    conformance::{ConformanceServer, FILE_DESCRIPTOR_SET},
    service::ConformanceService,
};

/// The exit code for a command line that makes no sense, and for a server that is not there.
const UNUSABLE: u8 = 2;

/// Serves the conformance service until SIGTERM or ctrl-c, or plays a server that answers oddly.
#[derive(Debug, Parser)]
#[command(name = "ttrpc-conformance-server")]
pub struct ServerArguments {
    /// Where to listen: unix:///path, unix://@abstract, a path, vsock://CID:PORT, tcp://HOST:PORT.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "list_answers")]
    pub listen: Option<String>,
    /// How long calls may take to finish once the server shuts down.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub drain_timeout: Duration,
    /// How long handlers and consumers may make no progress before calls are refused.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub stall_timeout: Duration,
    /// Serve nothing, but answer every call in this way. The client's case that stands next to it
    /// in the list has to pass nevertheless.
    #[arg(long, value_name = "WAY")]
    pub answer: Option<String>,
    /// Print the ways of --answer, each with the case of the client that has to pass.
    #[arg(long)]
    pub list_answers: bool,
}

/// Runs named cases against a conformance server and prints what came of them.
///
/// Exits with 0 if no case failed, with 1 if some did, and with 2 if none could be run.
#[derive(Debug, Parser)]
#[command(name = "ttrpc-conformance-client")]
pub struct ClientArguments {
    /// The server's address: unix:///path, unix://@abstract, a path, hvsock:///path:PORT, or
    /// vsock://CID:PORT. Cases of the API alone also run over tcp://.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "list")]
    pub connect: Option<String>,
    /// The cases to run; a star stands for any text, and a bar between patterns means any of them.
    #[arg(long, value_name = "GLOB", default_value = "*")]
    pub case: String,
    /// Print the names of the cases instead of running them.
    #[arg(long)]
    pub list: bool,
    /// Also write the results to this file, a line of JSON a case.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// How long a case may take.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub case_timeout: Duration,
    /// Where the specification leaves freedom, accept only what this library does.
    #[arg(long)]
    pub strict: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Serves until a signal asks for the end.
pub fn run_server(arguments: &ServerArguments) -> ExitCode {
    if arguments.list_answers {
        Answer::all().iter().for_each(|answer| println!("{} {}", answer.name, answer.case));
        return ExitCode::SUCCESS;
    }
    match try_run_server(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(UNUSABLE)
        }
    }
}

fn try_run_server(arguments: &ServerArguments) -> Result<(), String> {
    let address = arguments.listen.as_deref().unwrap_or_default();
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    let Some(name) = &arguments.answer else {
        return runtime.block_on(serve(address, arguments)).map_err(|error| error.to_string());
    };
    let mut answers = Answer::all().into_iter();
    let answer = answers.find(|answer| answer.name == name).ok_or(format!("no way is {name:?}"))?;
    let played = runtime.block_on(play(address, &answer));
    played.map_err(|error| format!("cannot listen on `{address}`: {error}"))
}

/// Answers until the process is ended.
async fn play(address: &str, answer: &Answer) -> io::Result<()> {
    let listener = UnixListener::bind(socket_name(address))?;
    println!("listening {address}");
    answer.serve(listener).await
}

async fn serve(address: &str, arguments: &ServerArguments) -> Result<(), Error> {
    let service = Arc::new(ConformanceService::default());
    let routes = ConformanceServer::from_arc(service.clone());
    let config = ServerConfig { stall_timeout: arguments.stall_timeout, ..ServerConfig::default() };
    let reflection = Reflection::new(FILE_DESCRIPTOR_SET)
        .and_then(|reflection| reflection.and(proto::health::FILE_DESCRIPTOR_SET))
        .and_then(|reflection| reflection.and(proto::debug::FILE_DESCRIPTOR_SET))
        .expect("the build made the sets");
    let (health, debug) = (Health::new(), Debug::new());
    let server = Server::builder()
        .config(config)
        .add_service(routes)
        .add_service(reflection)
        .add_service(health.service())
        .add_service(debug.service())
        .bind(address)?
        .build()?;
    service.observe(server.handle());
    debug.show(server.handle());
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Listener)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Listener)?;
    // The socket listens since it was bound, and signals are heard since just now: whoever reads
    // this line can connect and can end the server.
    println!("listening {address}");
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        health.shut_down();
    };
    server.serve_until(end, arguments.drain_timeout).await
}

/// Runs the cases that the command line chooses.
pub fn run_client(arguments: &ClientArguments) -> ExitCode {
    match try_run_client(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(UNUSABLE)
        }
    }
}

fn try_run_client(arguments: &ClientArguments) -> Result<bool, String> {
    let chosen: Vec<_> =
        all_cases().into_iter().filter(|case| matches(&arguments.case, &case.name)).collect();
    if chosen.is_empty() {
        return Err(format!("no case matches {:?}", arguments.case));
    }
    let mut table = io::stdout();
    let text = |error: io::Error| error.to_string();
    if arguments.list {
        for case in &chosen {
            writeln!(table, "{}", case.name).map_err(text)?;
        }
        return Ok(true);
    }
    let json = match &arguments.json {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(file)
        }
        None => None,
    };
    let address = arguments.connect.as_deref().unwrap_or_default();
    let runtime = Runtime::new().map_err(text)?;
    let mut report = Report::new(json);
    runtime.block_on(async {
        // A server that is not there is no case's failure.
        Client::connect(address).await.map_err(|error| error.to_string())?;
        for case in &chosen {
            let trial = trial(address, arguments.strict);
            let row = run_case(case, &trial, arguments.case_timeout).await;
            report.add(&row, &mut table).map_err(text)?;
            // What ends a server would otherwise be said of every case that comes after.
            if row.has_failed() && Client::connect(address).await.is_err() {
                writeln!(table, "the server is gone, so no more cases are run").map_err(text)?;
                break;
            }
        }
        Ok::<(), String>(())
    })?;
    report.finish(&mut table).map_err(text)
}
