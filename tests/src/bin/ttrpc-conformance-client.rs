//! Runs the conformance cases against any server of the conformance service.

use std::process::ExitCode;

use clap::Parser;
use ttrpc_tests::conformance_suite::{ClientArguments, run_client};

fn main() -> ExitCode {
    run_client(&ClientArguments::parse())
}
