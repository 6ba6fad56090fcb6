//! The command lines of `ttrpc list`, `ttrpc describe` and `ttrpc schema`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use clap_complete::ArgValueCompleter;

use crate::{
    completion::shell,
    options::{MetadataOption, SchemaOptions, TimeoutOption},
};

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
