//! Generates the bindings of the crate `trapeze` with its own code generator. That generator would call protoc; a
//! descriptor set that was compiled in Rust spares it that.

use std::error::Error;

const PROTOS: &str = "../../../proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTOS}/conformance.proto");
    let descriptors = protox::compile(["conformance.proto"], [PROTOS])?;
    trapeze_codegen::Config::new().compile_fds(descriptors)?;
    Ok(())
}
