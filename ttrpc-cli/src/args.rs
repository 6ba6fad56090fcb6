//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ColorChoice, Parser, Subcommand, ValueHint};
use clap_complete::ArgValueCompleter;

use crate::{
    completion::shell,
    load, nri,
    options::{MetadataOption, SchemaOptions, TimeoutOption, parse_duration},
    repl, replay, shims, top, trace,
};

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
    Explore(repl::Arguments),
    Shims(shims::Arguments),
    Top(top::Arguments),
    Nri(nri::Arguments),
    Load(load::Arguments),
    Trace(trace::Arguments),
    Replay(replay::Arguments),
    Show(replay::ShowArguments),
    /// Write completions for a shell
    ///
    /// The script asks this program, and this program asks the server that the command line names, for half a second at most: its
    /// services, its methods, and the fields of their requests are completed as well.
    #[command(after_help = "Examples:
  ttrpc completions bash > /etc/bash_completion.d/ttrpc
  ttrpc completions zsh > /usr/local/share/zsh/site-functions/_ttrpc
  ttrpc completions fish > ~/.config/fish/completions/ttrpc.fish")]
    Completions {
        /// The shell
        #[arg(value_parser = ["bash", "fish", "zsh"])]
        shell: String,
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
    #[arg(value_hint = ValueHint::AnyPath)]
    pub address: String,
    /// A service, by its full or short name
    #[arg(add = ArgValueCompleter::new(shell::services))]
    pub service: Option<String>,
    #[command(flatten)]
    pub metadata: MetadataOption,
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
    #[arg(value_hint = ValueHint::AnyPath)]
    pub address: String,
    /// A service, a method, a message or an enum, by its full or short name; every service without
    #[arg(add = ArgValueCompleter::new(shell::symbols))]
    pub name: Option<String>,
    /// Print a JSON request to fill in
    #[arg(long)]
    pub template: bool,
    #[command(flatten)]
    pub metadata: MetadataOption,
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
    #[arg(value_hint = ValueHint::AnyPath)]
    pub address: Option<String>,
    /// Write .proto files into this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub protos: Option<PathBuf>,
    /// Write a descriptor set with all imports into this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub set: Option<PathBuf>,
    #[command(flatten)]
    pub metadata: MetadataOption,
    #[command(flatten)]
    pub timeout: TimeoutOption,
    #[command(flatten)]
    pub schema: SchemaOptions,
}

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
pub struct Call {
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
