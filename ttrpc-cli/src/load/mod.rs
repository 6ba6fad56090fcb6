//! `ttrpc load`: how fast a server answers, and what happens to latencies under load.

mod call;
mod compare;
mod data;
mod html;
mod measured;
mod plan;
mod plot;
mod progress;
mod report;
mod run;
mod schedule;
mod timeline;

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand, ValueHint};
use clap_complete::ArgValueCompleter;
use ttrpc::Client;

use crate::{
    completion::shell,
    failure::Failure,
    options::{self, DEFAULT_TIMEOUT, SchemaOptions, parse_duration},
    output,
    schema::{Schema, method_name},
    session::{self, Target},
};
use data::Data;
use measured::Measured;
use plan::{Method, Pace, Plan};
use run::Ending;
use schedule::{Schedule, parse_counts};

/// Call a method again and again, and measure
///
/// Without --rate the loop is closed: a call begins when one before it has ended, so a server that slows down is asked less.
/// With --rate the loop is open: calls are due at fixed times, and latencies count from those times, also where a call had to wait
/// (coordinated omission). Latencies of streams are those of whole streams. After Ctrl-C no more calls begin; a second one drops
/// those in flight.
///
/// Several requests take turns. In a request, {{.RequestNumber}}, {{.UUID}}, {{.Timestamp}}, {{.TimestampUnix}}, {{.MethodName}},
/// {{randomInt 1 100}} and {{randomString 3 8}} are replaced for each call.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  ttrpc load /run/greeter.sock Greeter/SayHello name=Ann
  ttrpc load /run/greeter.sock Greeter/SayHello 'name=user{{.RequestNumber}}' --rate 100..5000 --html load.html
  ttrpc load /run/greeter.sock Greeter/SayHello -d @requests.json -c 1,8,64 --duration 30s
  ttrpc load /run/greeter.sock SayHello name=Ann --weight 9 --also '1 Countdown from=100'
  ttrpc load /run/greeter.sock Greeter/Countdown -d '{\"from\": 100}' -c 4 --json > new.json
  ttrpc load compare old.json new.json")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<LoadCommand>,
    /// Where the server listens
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    address: Option<String>,
    /// Service/Method; the service's name may be short where that is unambiguous
    #[arg(required = true, add = ArgValueCompleter::new(shell::methods))]
    method: Option<String>,
    /// Fields of the request, on top of --data
    #[arg(value_name = "NAME=VALUE", add = ArgValueCompleter::new(shell::fields))]
    fields: Vec<String>,
    /// Requests: JSON, or @FILE; may be repeated. Several values take turns; for a stream, those of one --data are its messages
    #[arg(short, long, value_name = "JSON | @FILE")]
    data: Vec<String>,
    /// Leave {{…}} in requests as it is
    #[arg(long)]
    literal: bool,
    /// Call another method, too: its weight, its name, and a request as JSON, @FILE or NAME=VALUE; may be repeated
    #[arg(long, value_name = "WEIGHT METHOD [DATA]")]
    also: Vec<String>,
    /// How often the method is called in proportion to those of --also
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MAX_WEIGHT))]
    weight: u32,
    /// Calls in flight; with --rate, the most that may be: COUNT, a ramp FROM..TO, or steps A,B,C over --duration
    #[arg(short, long, value_name = "COUNT", default_value = "16", value_parser = parse_counts)]
    concurrency: Schedule,
    /// Connections, over which calls are spread
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Begin so many calls a second: CALLS, a ramp FROM..TO, or steps A,B,C over --duration
    #[arg(long, value_name = "CALLS")]
    rate: Option<Schedule>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Stop after this many calls
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    calls: Option<u64>,
    /// Messages that each call with a stream of requests sends, those of --data in turn
    #[arg(long, value_name = "COUNT")]
    messages: Option<usize>,
    /// How long connecting, and then each call, may take; 0 for ever
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    metadata: options::MetadataOption,
    /// Draw latencies by percentile into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
    /// Write a report with pictures into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    #[command(flatten)]
    schema: SchemaOptions,
}

/// All weights together are no more.
const MAX_WEIGHT: i64 = 1000;

#[derive(Debug, Subcommand)]
enum LoadCommand {
    Compare(compare::Arguments),
}

/// Calls and measures, or compares what was measured.
///
/// # Errors
/// Those of connecting, of the requests and of the files, how a connection ended, and the last status if no
/// call succeeded.
pub async fn run(mut arguments: Arguments, json: bool) -> Result<(), Failure> {
    if let Some(LoadCommand::Compare(arguments)) = &arguments.command {
        return compare::run(arguments, json);
    }
    let (Some(address), Some(method)) = (arguments.address.take(), arguments.method.take()) else {
        return Err(Failure::usage("a load needs an ADDRESS and a METHOD"));
    };
    if arguments.duration.is_zero() {
        return Err(Failure::usage("--duration is a time above 0, such as 300ms, 5s or 2m"));
    }
    if arguments.rate.is_some() && !arguments.concurrency.is_constant() {
        return Err(Failure::usage(
            "with --rate, --concurrency is one number: the most calls in flight",
        ));
    }
    let timeout = options::limit(arguments.timeout.unwrap_or(DEFAULT_TIMEOUT));
    let mut clients = Vec::new();
    for _ in 0..arguments.connections {
        let (client, metadata) = (session::connect(&address, timeout).await?, &arguments.metadata);
        clients.push(session::with_defaults(client, metadata.metadata.clone(), None));
    }
    let schema = session::find_schema(&clients[0], &arguments.schema, timeout).await?;
    let also = arguments.also.iter().map(|text| Also::parse(text));
    let mut wanted: Vec<Also> = also.collect::<Result<_, _>>()?;
    let (data, fields) = (arguments.data.clone(), arguments.fields.clone());
    wanted.insert(0, Also { weight: arguments.weight, method, data, fields });
    let weights: Vec<_> = wanted.iter().map(|also| also.weight).collect();
    if weights.iter().copied().map(i64::from).sum::<i64>() > MAX_WEIGHT && weights.len() > 1 {
        return Err(Failure::Usage(format!("all weights together are no more than {MAX_WEIGHT}")));
    }
    let mut methods = Vec::new();
    for also in wanted {
        methods.push(plan_method(also, &clients[0], &schema, &arguments, timeout).await?);
    }
    let client = |client| session::with_defaults(client, [], timeout);
    let clients: Vec<_> = clients.into_iter().map(client).collect();
    let plan = Plan {
        turns: if weights.len() == 1 { plan::turns(&[1]) } else { plan::turns(&weights) },
        methods,
        concurrency: arguments.concurrency,
        connections: clients.len(),
        pace: arguments.rate.map_or(Pace::Closed, |rate| Pace::Open { rate }),
        duration: arguments.duration,
        calls: arguments.calls.unwrap_or(u64::MAX),
    };
    let picture = |path: Option<&Path>| path.map(Picture::create).transpose();
    let (svg, html) = (picture(arguments.svg.as_deref())?, picture(arguments.html.as_deref())?);
    let Ending { measured, is_given_up } = run::measure(Arc::new(plan), clients, !json).await?;
    match json {
        true => output::line(report::to_json(&measured))?,
        false => {
            for line in report::lines(&measured, output::columns()) {
                output::line(line)?;
            }
        }
    }
    let drawn = [
        svg.map(|file| file.write(&measured, plot::percentiles)),
        html.map(|file| file.write(&measured, html::page)),
    ];
    let mut failures = drawn.into_iter().flatten().filter_map(Result::err);
    let called = result(measured, is_given_up);
    match (failures.next(), called) {
        (Some(failure), Err(called)) => {
            output::note(failure);
            Err(called)
        }
        (Some(failure), Ok(())) => Err(failure),
        (None, called) => called,
    }
}

/// A method, and what it is called with.
struct Also {
    weight: u32,
    method: String,
    data: Vec<String>,
    fields: Vec<String>,
}

impl Also {
    fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::Usage(format!(
                "--also `{text}` is not WEIGHT METHOD [DATA], such as '1 Greeter/SayHello name=Ann'"
            ))
        };
        let (head, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
        let weight = head.parse().ok().filter(|weight| *weight > 0).ok_or_else(wrong)?;
        let (method, rest) = match rest.trim().split_once(char::is_whitespace) {
            Some((method, rest)) => (method, rest.trim()),
            None => (rest.trim(), ""),
        };
        // JSON stays as it is; a shell's quotation marks are for fields.
        let (data, fields) = match rest.starts_with(['{', '[', '@']) {
            true => (vec![rest.to_owned()], Vec::new()),
            false => (Vec::new(), shlex::split(rest).ok_or_else(wrong)?),
        };
        Ok(Also { weight, method: method.to_owned(), data, fields })
    }
}

async fn plan_method(
    also: Also,
    client: &Client,
    schema: &Schema,
    arguments: &Arguments,
    timeout: Option<Duration>,
) -> Result<Method, Failure> {
    let options = &arguments.schema;
    let (schema, method) =
        session::find_method_of(client, schema, options, &also.method, timeout).await?;
    let schema = Arc::new(schema);
    let data = Data::new(&also.data, &also.fields, &method, &schema, arguments.literal)?;
    Ok(Method {
        target: Target::from(&method),
        name: output::plain_line(method_name(&method)),
        is_client_streaming: method.is_client_streaming(),
        is_server_streaming: method.is_server_streaming(),
        data,
        messages: arguments.messages.filter(|_| method.is_client_streaming()),
        weight: if arguments.also.is_empty() { 1 } else { also.weight },
    })
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

/// The file of `--svg` or `--html`, opened before the load so that no measurement is lost for it.
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
    fn write(
        mut self,
        measured: &Measured,
        draw: fn(&Measured) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        if measured.succeeded() == 0 {
            let path = self.path.display();
            output::note(format_args!("no call succeeded, so {path} is left empty"));
            return Ok(());
        }
        self.file
            .write_all(draw(measured)?.as_bytes())
            .map_err(|error| cannot_write(&self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("cannot write {}: {error}", path.display()))
}
