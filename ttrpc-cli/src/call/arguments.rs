//! The command line of `ttrpc call`.

use std::time::Duration;

use clap::{Args, ValueHint};
use clap_complete::ArgValueCompleter;

use crate::{
    completion::shell,
    options::{MetadataOption, SchemaOptions, parse_duration},
};

/// Call a method
///
/// The request is JSON, name=value fields, or both. Requests of a stream are JSON values one after the
/// other, from the standard input unless they are given; replies of a stream are lines. Ctrl-C closes
/// the stream of requests, a second one cancels the call. On a terminal, requests of a stream are typed: fields
/// as a line, quoted as in a shell, or JSON, which may take several lines.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ttrpc call /run/greeter.sock Greeter/SayHello name=Ann
  ttrpc call /run/greeter.sock Greeter/SayHello '{\"name\": \"Ann\"}' -H user:ann --timeout 300ms
  ttrpc call /run/greeter.sock Greeter/Countdown from=3 | jq .message
  jq -c .[] people.json | ttrpc call /run/greeter.sock Greeter/GreetAll
  ttrpc call /run/containerd/s/4f2a Task/Kill id=web signal=15")]
pub struct Arguments {
    /// Where the server listens
    #[arg(value_hint = ValueHint::AnyPath)]
    pub address: String,
    /// Service/Method; the service's name may be short where that is unambiguous
    #[arg(add = ArgValueCompleter::new(shell::methods))]
    pub method: String,
    /// JSON, @FILE, - for the standard input, or fields as name=value
    #[arg(value_name = "DATA", add = ArgValueCompleter::new(shell::fields))]
    pub data: Vec<String>,
    #[command(flatten)]
    pub metadata: MetadataOption,
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
