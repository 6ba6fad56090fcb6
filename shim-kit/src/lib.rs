//! A kit for containerd shims: all of a shim but its runtime.
//!
//! A shim stands between containerd and containers, so that these live on while containerd is
//! replaced. containerd runs the shim's program three ways: `start` starts a daemon and prints its
//! address, the daemon serves the Task service there, and `delete` cleans up after a daemon that
//! died. All of that is here. An author writes one type that implements [`Runtime`], and a `main`:
//!
//! ```no_run
//! # use shim_kit::{Launch, New, Remains, Runtime, Started, Status, async_trait};
//! # struct MyRuntime;
//! # #[async_trait]
//! # impl Runtime for MyRuntime {
//! #     type Options = ();
//! #     const VERSION: &'static str = env!("CARGO_PKG_VERSION");
//! #     async fn create(_: New<'_, ()>, _: &mut Launch) -> Result<(Self, Option<Started>), Status> { todo!() }
//! #     async fn start(&self, _: &mut Launch) -> Result<Option<Started>, Status> { todo!() }
//! #     async fn kill(&self, _: u32, _: bool) -> Result<(), Status> { todo!() }
//! #     async fn delete(&self) -> Result<(), Status> { todo!() }
//! #     fn clean_up(_: Remains<'_, ()>) -> Result<(), String> { todo!() }
//! # }
//! fn main() -> std::process::ExitCode {
//!     shim_kit::run::<MyRuntime>("io.containerd.my.v1")
//! }
//! ```
//!
//! Three rules run through all of it:
//!
//! - **One thread, nothing that blocks.** SIGCHLD reports the ends of children, stdio is copied between
//!   descriptors that never block, and nothing polls on a timer.
//! - **What was begun is finished.** The library drops a handler whose client is gone. No half-made container
//!   may stay, so every change runs in a task of its own.
//! - **Clients see events in the order in which they happened.** A process's start is published before its end.
//!   Its output is delivered before its end is reported. Execs end before their container.
//!
//! The feature `debug`, on by default, lets daemons serve reflection, health and a debug service. With these,
//! the command line `ttrpc` lists and calls their services and shows what they wait for.

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
mod files;
mod ids;
mod info;
mod inotify;
#[cfg(any(test, feature = "debug"))]
mod inspection;
mod launch;
mod lifecycle;
mod log;
mod memory;
pub mod mount;
mod options;
mod process;
mod proto;
mod reaper;
mod runtime;
mod sandbox;
mod service;
mod shim;
mod spawn;
mod start;
mod started;
mod stdio;
mod tasks;

use std::{env, error::Error, io, process::ExitCode};

pub use rustix::process::Pid;
pub use ttrpc::{Any, Code, Status, async_trait, server::ServerBuilder};
pub use ttrpc_containerd::events::{Event, Outbox};

use self::args::{Action, Args};
pub use self::{
    bundle::{Bundle, Spec, read_pid},
    cgroup::{ControlGroup, Limits},
    console::{ConsoleSocket, take_terminal},
    descriptors::{die_with_shim, kill},
    files::Temporary,
    launch::Launch,
    log::{debug, warn},
    options::Given,
    reaper::{Child, Exit, Reaper},
    runtime::{New, Remains, Runtime},
    started::{Handle, Started},
    stdio::Descriptors,
};

/// Does what containerd has started this program for: the whole `main` of a shim.
///
/// `name` is the runtime's, such as `io.containerd.runc.v2`, from which containerd makes the
/// program's, `containerd-shim-runc-v2`.
pub fn run<R: Runtime>(name: &'static str) -> ExitCode {
    log::set_runtime(name);
    match act::<R>(name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::fatal(name, error);
            ExitCode::FAILURE
        }
    }
}

fn act<R: Runtime>(name: &str) -> Result<(), Box<dyn Error>> {
    let args = Args::parse(env::args().skip(1))?;
    match args.action {
        Action::Start => start::start::<R>(&args)?,
        Action::Delete => delete::delete::<R>(&args)?,
        Action::Serve => daemon::serve::<R>(&args)?,
        Action::Hold => drop(io::copy(&mut io::stdin(), &mut io::sink())?),
        Action::Pause => sandbox::pause()?,
        Action::Info => info::print::<R>(name)?,
        Action::Version => println!("{name} {}", R::VERSION),
    }
    Ok(())
}
