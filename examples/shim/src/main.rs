//! A containerd shim for runc: what stands between containerd and the containers, so that they live
//! on while containerd is replaced.
//!
//! containerd runs this program three ways: `start` starts a daemon and prints its address, the
//! daemon serves the Task service there, and `delete` cleans up after a daemon that died. Begin to
//! read at [`service`]; the README beside says what to read next.

mod address;
mod args;
mod bootstrap;
mod bundle;
mod cgroup;
mod console;
mod container;
mod daemon;
mod delete;
mod descriptors;
mod events;
mod info;
mod log;
mod memory;
mod mount;
mod process;
mod proto;
mod reaper;
mod runc;
mod service;
mod start;
mod stdio;

use std::{env, error::Error, process::ExitCode};

use args::{Action, Args};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::warn(format_args!("containerd-shim-runc-ttrpc-v2: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = Args::parse(env::args().skip(1))?;
    match args.action {
        Action::Start => start::start(&args)?,
        Action::Delete => delete::delete(&args)?,
        Action::Serve => daemon::serve(&args)?,
        Action::Info => info::print()?,
        Action::Version => println!("containerd-shim-runc-ttrpc-v2 {}", env!("CARGO_PKG_VERSION")),
    }
    Ok(())
}
