//! Serves the conformance service, for any client to be tested against.

use std::process::ExitCode;

use clap::Parser;
use ttrpc_tests::conformance_suite::{ServerArguments, run_server};

fn main() -> ExitCode {
    run_server(&ServerArguments::parse())
}
