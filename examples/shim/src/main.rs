//! A containerd shim for runc: a user of `shim-kit`, which has all that runc has nothing to do with.
//!
//! Begin to read at [`container`], which does with runc what the kit asks for.

mod checkpoint;
mod container;
mod options;
mod runc;
mod toml;

use std::process::ExitCode;

fn main() -> ExitCode {
    shim_kit::run::<container::RuncContainer>("io.containerd.runc-ttrpc.v2")
}
