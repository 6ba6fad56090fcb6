//! A process beside a trace that wraps a socket: when the trace is gone, in whatever way, it gives the server its name
//! again.
//!
//! It is this program under another name, with the socket's two names as its arguments. It has a process group of its
//! own, so that what ends the trace's does not end it as well, and learns of the end from its standard input.

use std::{
    env,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
};

use tokio::signal::unix::{SignalKind, signal};

use super::names::Names;
use crate::output;

/// What the process is called.
const NAME: &str = "ttrpc-trace-guard";

/// What it says when it is ready.
const READY: [u8; 6] = *b"ready\n";

/// A guard that is ready. It restores the names when this is dropped.
#[derive(Debug)]
pub struct Guard {
    process: Child,
}

impl Guard {
    /// Starts one, and waits until it has both sockets.
    ///
    /// # Errors
    /// If there can be none.
    pub fn start(names: &Names) -> io::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg0(NAME)
            .args([&names.path, &names.aside])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take();
        let guard = Guard { process };
        let mut said = [0; READY.len()];
        let heard = stdout.map(|mut stdout| stdout.read_exact(&mut said));
        match heard {
            Some(Ok(())) if said == READY => Ok(guard),
            _ => Err(io::Error::other("there is no process that would put it back in any case")),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // It has nothing to say that it has not said itself.
        let _ = self.process.wait();
    }
}

/// Runs as a guard if the process was started as one.
pub fn main() -> Option<ExitCode> {
    let mut arguments = env::args_os();
    if arguments.next()? != NAME {
        return None;
    }
    let watched = watch(arguments.map(PathBuf::from).collect());
    Some(match watched {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("the socket could not be put back: {error}"));
            ExitCode::FAILURE
        }
    })
}

fn watch(arguments: Vec<PathBuf>) -> io::Result<()> {
    let [path, aside] = <[_; 2]>::try_from(arguments).map_err(|_| io::ErrorKind::InvalidInput)?;
    let names = Names::open(path, aside)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // Nobody is to end it but the end of the trace.
    let _ignored = {
        let _context = runtime.enter();
        let kinds = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
        ];
        kinds.map(signal)
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(&READY)?;
    stdout.flush()?;
    // Nothing comes but the end.
    let mut nothing = Vec::new();
    io::stdin().lock().read_to_end(&mut nothing)?;
    names.restore()
}
