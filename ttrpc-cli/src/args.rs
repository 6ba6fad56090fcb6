//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ColorChoice, Parser, Subcommand, ValueEnum, ValueHint};

use crate::{load, replay, shims, trace};

/// How long a call may take unless the command line says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Look at ttrpc services and call them.
///
/// ttrpc is containerd's RPC protocol: it is what containerd speaks with its shims. An ADDRESS is a path,
/// unix:///path, unix://@abstract, vsock://CID:PORT, hvsock:///path:PORT or tcp://HOST:PORT.
#[derive(Debug, Parser)]
#[command(name = "ttrpc", version, after_help = EXAMPLES, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: Global,
}

const EXAMPLES: &str = "\
Examples:
  ttrpc list /run/greeter.sock
  ttrpc call /run/greeter.sock Greeter/SayHello name=Ann
  ttrpc shims
  ttrpc call unix:///run/containerd/s/4f2a Task/State id=web

Exit codes: 0 success, 1 failure, 2 usage, 3 cannot connect, 64 + code for a call that failed
(69 is NOT_FOUND), 130 interrupted.";

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Write JSON for machines, errors too
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    List(List),
    Describe(Describe),
    Schema(WriteSchema),
    Call(Call),
    Shims(shims::Arguments),
    Load(load::Arguments),
    Trace(trace::Arguments),
    Replay(replay::Arguments),
    Show(replay::ShowArguments),
    /// Write completions for a shell
    #[command(after_help = "Example:\n  ttrpc completions bash > /etc/bash_completion.d/ttrpc")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual page
    #[command(after_help = "Example:\n  ttrpc man > /usr/local/share/man/man1/ttrpc.1")]
    Man,
}

/// List services, or the methods of one
///
/// A server without reflection is asked for each built-in service by its name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc list /run/greeter.sock
  ttrpc list /run/greeter.sock Greeter
  ttrpc list -                              # what is built in")]
pub struct List {
    /// Where the server listens; - for none
    pub address: String,
    /// A service, by its full or short name
    pub service: Option<String>,
    #[command(flatten)]
    pub timeout: TimeoutOption,
    #[command(flatten)]
    pub schema: SchemaOptions,
}

/// Show services, methods and messages as .proto text
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc describe /run/greeter.sock Greeter
  ttrpc describe - containerd.task.v3.Task/Create --template")]
pub struct Describe {
    /// Where the server listens; - for none
    pub address: String,
    /// A service, a method, a message or an enum, by its full or short name
    pub name: String,
    /// Print a JSON request to fill in
    #[arg(long)]
    pub template: bool,
    #[command(flatten)]
    pub timeout: TimeoutOption,
    #[command(flatten)]
    pub schema: SchemaOptions,
}

/// Write a schema as .proto files or as a descriptor set
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc schema /run/greeter.sock --protos protos/
  ttrpc schema --schema builtin --set containerd.bin
  ttrpc schema --proto api.proto                       # to the standard output")]
pub struct WriteSchema {
    /// Where the server listens; without it, the built-in schemas or the files that are named
    pub address: Option<String>,
    /// Write .proto files into this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub protos: Option<PathBuf>,
    /// Write a descriptor set with all imports into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub set: Option<PathBuf>,
    #[command(flatten)]
    pub timeout: TimeoutOption,
    #[command(flatten)]
    pub schema: SchemaOptions,
}

/// Call a method
///
/// The request is JSON, name=value fields, or both. Requests of a stream are JSON values one after the
/// other, from the standard input unless they are given; replies of a stream are lines. Ctrl-C closes
/// the stream of requests, a second one gives up. On a terminal, requests of a stream are typed: fields
/// as a line, quoted as in a shell, or JSON, which may take several lines.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc call /run/greeter.sock Greeter/SayHello name=Ann
  ttrpc call /run/greeter.sock Greeter/SayHello '{\"name\": \"Ann\"}' -H user:ann --timeout 300ms
  ttrpc call /run/greeter.sock Greeter/Countdown from=3 | jq .message
  jq -c .[] people.json | ttrpc call /run/greeter.sock Greeter/GreetAll
  ttrpc call /run/containerd/s/4f2a Task/Kill id=web signal=15")]
pub struct Call {
    /// Where the server listens
    pub address: String,
    /// Service/Method; the service's name may be short where that is unambiguous
    pub method: String,
    /// JSON, @FILE, - for the standard input, or fields as name=value
    #[arg(value_name = "DATA")]
    pub data: Vec<String>,
    /// Metadata; may be repeated
    #[arg(short = 'H', long = "metadata", value_name = "KEY:VALUE", value_parser = parse_metadata)]
    pub metadata: Vec<(String, String)>,
    /// How long connecting, and then the call, may take: 300ms, 5s, 2m; 0 for ever [default: 5s, streams for ever]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// Show frames, sizes and times
    #[arg(short, long)]
    pub verbose: bool,
    /// Write fields that are not set, too
    #[arg(long)]
    pub emit_defaults: bool,
    /// Leave fields out that the request's message does not have
    #[arg(long)]
    pub allow_unknown_fields: bool,
    #[command(flatten)]
    pub schema: SchemaOptions,
}

/// Where schemas come from.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Schema")]
pub struct SchemaOptions {
    /// Compile this .proto file; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub proto: Vec<PathBuf>,
    /// Look for imports in this folder; may be repeated
    #[arg(short = 'I', long = "include", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub include: Vec<PathBuf>,
    /// Read this descriptor set; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "proto", value_hint = ValueHint::FilePath)]
    pub descriptor_set: Vec<PathBuf>,
    /// Use only this source, but files that are named add to reflection [default: files that are named, else
    /// reflection, else builtin]
    #[arg(long, value_name = "SOURCE")]
    pub schema: Option<SchemaSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaSource {
    /// What the server tells
    Reflection,
    /// What comes with this program: containerd, NRI, health, reflection
    Builtin,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct TimeoutOption {
    /// How long connecting, and then each answer, may take: 300ms, 5s, 2m; 0 for ever
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
}

impl TimeoutOption {
    /// `None` for ever.
    pub fn limit(&self) -> Option<Duration> {
        limit(self.timeout)
    }
}

/// 0 means for ever.
pub fn limit(timeout: Duration) -> Option<Duration> {
    (!timeout.is_zero()).then_some(timeout)
}

/// `300ms`, `5s`, `1m 30s`, or a number of seconds.
///
/// # Errors
/// With a sentence, for anything else.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    parsed.map_err(|error| format!("{error}; give a time such as 300ms, 5s or 2m"))
}

/// `key:value`.
///
/// # Errors
/// With a sentence, for anything else.
pub fn parse_metadata(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim_start().to_owned()))
        }
        _ => Err("metadata is KEY:VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        let of = |text| parse_duration(text).map_err(|_| ());
        assert_eq!(of("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(of("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(of("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(of("0"), Ok(Duration::ZERO));
        assert!(of("-1").is_err() && of("soon").is_err() && of("NaN").is_err());
    }

    #[test]
    fn metadata_is_read_as_headers_are() {
        let of = |text| parse_metadata(text);
        assert_eq!(of("user: ann:b"), Ok(("user".to_owned(), "ann:b".to_owned())));
        assert!(of("user").is_err() && of(":x").is_err());
    }
}
