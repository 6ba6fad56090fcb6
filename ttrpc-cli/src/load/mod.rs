//! `ttrpc load`: how fast a server answers, and what happens to latencies under load.

mod call;
mod measured;
mod plot;
mod progress;
mod report;
mod run;

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use clap::{Args, ValueHint};
use clap_complete::ArgValueCompleter;
use serde_json::{Value, de::StrRead};

use crate::{
    completion::shell,
    failure::Failure,
    fields,
    json::Json,
    options::{self, DEFAULT_TIMEOUT, SchemaOptions, parse_duration},
    output,
    session::{self, Target},
    strict,
};
use measured::Measured;
use run::{Ending, Pace, Plan};

/// Call a method again and again, and measure
///
/// Without --rate the loop is closed: each of the calls in flight is followed by the next one, so a
/// server that slows down is asked less. With --rate the loop is open: calls are due at fixed times,
/// and latencies count from those times, also where a call had to wait for its turn (coordinated
/// omission). Latencies of streams are those of whole streams. After Ctrl-C no more calls begin, a second
/// one drops those in flight.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc load /run/greeter.sock Greeter/SayHello name=Ann
  ttrpc load /run/greeter.sock Greeter/SayHello -d @request.json --rate 5000 --duration 30s --svg load.svg
  ttrpc load /run/greeter.sock Greeter/Countdown -d '{\"from\": 100}' -c 4 --json")]
pub struct Arguments {
    /// Where the server listens
    #[arg(value_hint = ValueHint::AnyPath)]
    address: String,
    /// Service/Method; the service's name may be short where that is unambiguous
    #[arg(add = ArgValueCompleter::new(shell::methods))]
    method: String,
    /// Fields of the request, on top of --data
    #[arg(value_name = "NAME=VALUE", add = ArgValueCompleter::new(shell::fields))]
    fields: Vec<String>,
    /// The request: JSON, or @FILE; several values are the messages of a stream
    #[arg(short, long, value_name = "JSON | @FILE", default_value = "{}")]
    data: String,
    /// Calls in flight; with --rate, the most that may be
    #[arg(short, long, value_name = "COUNT", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    concurrency: u32,
    /// Connections, over which calls are spread
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Begin this many calls a second, whatever becomes of them
    #[arg(long, value_name = "CALLS")]
    rate: Option<f64>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Stop after this many calls
    #[arg(short = 'n', long, value_name = "COUNT")]
    calls: Option<u64>,
    /// Messages that each call with a stream of requests sends, those of --data in turn
    #[arg(long, value_name = "COUNT")]
    messages: Option<usize>,
    /// How long connecting, and then each call, may take; 0 for ever
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Metadata; may be repeated
    #[arg(short = 'H', long = "metadata", value_name = "KEY:VALUE", value_parser = options::parse_metadata)]
    metadata: Vec<(String, String)>,
    /// Draw latencies by percentile into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    schema: SchemaOptions,
}

/// Calls and measures.
///
/// # Errors
/// Those of connecting, of the request and of the picture's file, how a connection ended, and the last status if no
/// call succeeded.
pub async fn run(arguments: Arguments, json: bool) -> Result<(), Failure> {
    let pace = match arguments.rate {
        None => Pace::Closed,
        Some(rate) if rate > 0.0 && rate.is_finite() => Pace::Open { rate },
        Some(_) => return Err(Failure::usage("--rate is a number of calls a second, above 0")),
    };
    let timeout = options::limit(arguments.timeout.unwrap_or(DEFAULT_TIMEOUT));
    let mut clients = Vec::new();
    for _ in 0..arguments.connections {
        clients.push(session::connect(&arguments.address, timeout).await?);
    }
    let (schema, method) =
        session::find_schema_and_method(&clients[0], &arguments.schema, &arguments.method, timeout)
            .await?;
    let mut values = read_values(&arguments.data)?;
    if let Some(other) = arguments.fields.iter().find(|field| !fields::is_field(field)) {
        return Err(Failure::Usage(format!("`{other}` is not name=value; JSON is for --data")));
    }
    fields::put_on(&mut values, &method.input(), &arguments.fields).map_err(Failure::Usage)?;
    if values.len() > 1 && !method.is_client_streaming() {
        return Err(Failure::usage("the method takes one request, and --data has several"));
    }
    let encode = |value| {
        let bytes = Json::new(&schema).encode(&method.input(), value);
        bytes.map_err(|error| Failure::Usage(format!("the request does not fit: {error}")))
    };
    let requests: Vec<Bytes> = values.into_iter().map(encode).collect::<Result<_, _>>()?;
    let client = |client| session::with_defaults(client, arguments.metadata.clone(), timeout);
    let clients: Vec<_> = clients.into_iter().map(client).collect();
    let plan = Plan {
        target: Target::from(&method),
        name: output::plain_line(crate::schema::method_name(&method)),
        is_client_streaming: method.is_client_streaming(),
        is_server_streaming: method.is_server_streaming(),
        messages: arguments.messages.unwrap_or(requests.len()),
        requests,
        concurrency: arguments.concurrency as usize,
        connections: clients.len(),
        pace,
        duration: arguments.duration,
        calls: arguments.calls.unwrap_or(u64::MAX),
    };
    let picture = arguments.svg.as_deref().map(Picture::create).transpose()?;
    let Ending { measured, is_given_up } = run::measure(Arc::new(plan), clients, !json).await?;
    match json {
        true => output::line(report::to_json(&measured))?,
        false => {
            for line in report::lines(&measured, output::columns()) {
                output::line(line)?;
            }
        }
    }
    let drawn = picture.map_or(Ok(()), |picture| picture.write(&measured));
    let called = result(measured, is_given_up);
    match (drawn, called) {
        (Err(failure), Err(called)) => {
            output::note(failure);
            Err(called)
        }
        (drawn, called) => drawn.and(called),
    }
}

/// Whether a load counts as a success.
fn result(measured: Measured, is_given_up: bool) -> Result<(), Failure> {
    let succeeded = measured.succeeded();
    let start = measured.start;
    if let Some((ended, status)) = measured.connection_ended {
        let after = output::duration(ended.saturating_duration_since(start));
        let hint = Some(format!("a connection ended after {after}, and the load with it"));
        return Err(Failure::Call { status, hint, details: Vec::new() });
    }
    match measured.last_failure {
        _ if is_given_up => Err(Failure::Interrupted),
        Some(status) if succeeded == 0 => Err(Failure::call(status)),
        _ => Ok(()),
    }
}

/// The file of `--svg`, opened before the load so that no measurement is lost for it.
struct Picture {
    path: PathBuf,
    file: File,
}

impl Picture {
    fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| cannot_write(path, &error))?;
        Ok(Picture { path: path.to_owned(), file })
    }

    /// Draws what there is.
    fn write(mut self, measured: &Measured) -> Result<(), Failure> {
        if measured.succeeded() == 0 {
            let path = self.path.display();
            output::note(format_args!("no call succeeded, so {path} is left empty"));
            return Ok(());
        }
        let svg = plot::svg(measured)?;
        self.file.write_all(svg.as_bytes()).map_err(|error| cannot_write(&self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("cannot write {}: {error}", path.display()))
}

fn read_values(data: &str) -> Result<Vec<Value>, Failure> {
    let text = match data.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))?,
        None => data.to_owned(),
    };
    let values: Result<Vec<_>, _> = strict::stream(StrRead::new(&text)).collect();
    values.map_err(|error| Failure::Usage(format!("--data is no JSON: {error}")))
}
