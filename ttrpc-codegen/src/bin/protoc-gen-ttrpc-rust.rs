//! The generator as a plugin of protoc: `protoc --ttrpc-rust_out=FOLDER …`.

use std::{
    env,
    io::{self, Read, Write},
    process::ExitCode,
};

const NAME: &str = env!("CARGO_BIN_NAME");
const USAGE: &str =
    "A plugin of protoc, which runs it: protoc --ttrpc-rust_out=FOLDER -I INCLUDES FILES

Options: --version, --help";

fn main() -> io::Result<ExitCode> {
    match env::args().nth(1).as_deref() {
        None => {
            let mut request = Vec::new();
            io::stdin().read_to_end(&mut request)?;
            let response = ttrpc_codegen::plugin::run(&request)?;
            io::stdout().write_all(&response)?;
        }
        Some("--version") => println!("{NAME} {}", env!("CARGO_PKG_VERSION")),
        Some("--help") => println!("{USAGE}"),
        Some(_) => {
            eprintln!("{USAGE}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}
