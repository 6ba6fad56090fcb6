//! The generator as a plugin of protoc: `protoc --ttrpc-rust_out=FOLDER …`.

use std::io::{self, Read, Write};

fn main() -> io::Result<()> {
    let mut request = Vec::new();
    io::stdin().read_to_end(&mut request)?;
    let response = ttrpc_codegen::plugin::run(&request)?;
    io::stdout().write_all(&response)
}
