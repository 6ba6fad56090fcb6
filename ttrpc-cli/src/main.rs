//! The command line `ttrpc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ttrpc_cli::main()
}
