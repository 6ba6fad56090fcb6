//! One process of a container: its first one, or one that came from Exec.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, Signal};
use tokio::sync::{Notify, watch};
use ttrpc::Status;

use crate::{
    console, log,
    reaper::Exit,
    stdio::{Io, Paths},
};

/// How far a process is.
///
/// ```text
/// Created ──> Running ──> Ended ──> Stopped
///    └──────────────────────────────────^     never ran
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Known, and not started.
    Created,
    Running,
    /// It has ended, and its output is being delivered. Nobody has been told.
    Ended,
    /// It has ended, and everybody may know.
    Stopped(Exit),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Set from when runc has made the process until its end was collected.
    pid: Option<Pid>,
    /// The same, but not forgotten.
    last_pid: u32,
    io: Option<Io>,
    terminal: Option<OwnedFd>,
}

/// One process of a container.
#[derive(Debug)]
pub struct Process {
    /// Empty for the container's first process.
    pub exec_id: String,
    pub paths: Paths,
    /// The process as the OCI runtime specification writes it; empty for the first.
    pub spec: Vec<u8>,
    /// Held by whoever starts, deletes, or reports the end, so that these do not overlap.
    pub order: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Fires when stdin may end; also before anything copies it.
    close_stdin: Arc<Notify>,
    stopped: watch::Sender<Option<Exit>>,
}

impl Process {
    pub fn new(exec_id: String, paths: Paths, spec: Vec<u8>) -> Process {
        let state =
            State { phase: Phase::Created, pid: None, last_pid: 0, io: None, terminal: None };
        Process {
            exec_id,
            paths,
            spec,
            order: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            close_stdin: Arc::default(),
            stopped: watch::Sender::new(None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// The pid that it has or had; 0 if it never had one.
    pub fn pid(&self) -> u32 {
        self.state().last_pid
    }

    /// Says which process runc made, with its copies and its terminal.
    pub fn made(&self, pid: Pid, io: Io, terminal: Option<OwnedFd>) {
        let mut state = self.state();
        state.pid = Some(pid);
        state.last_pid = pid.as_raw_nonzero().get().unsigned_abs();
        state.io = Some(io);
        state.terminal = terminal;
    }

    /// Says that it runs and may be given input, unless it has ended already.
    pub fn running(&self) {
        let mut state = self.state();
        if state.phase != Phase::Created {
            return;
        }
        state.phase = Phase::Running;
        let started = state.io.as_mut().map(|io| io.start_input(self.close_stdin.clone()));
        if let Some(Err(status)) = started {
            log::warn(status);
        }
    }

    /// Says that its end was collected. What is returned waits until its output is delivered.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state();
        state.phase = Phase::Ended;
        state.pid = None;
        let delivered = state.io.as_mut().map(Io::ended);
        async move {
            if let Some(delivered) = delivered {
                delivered.await;
            }
        }
    }

    /// Tells everybody of the end.
    pub fn stop(&self, exit: Exit) {
        self.state().phase = Phase::Stopped(exit);
        self.stopped.send_replace(Some(exit));
    }

    /// Gives back what the process has open, and ends its copies.
    pub fn close(&self) {
        let mut state = self.state();
        state.io = None;
        state.terminal = None;
    }

    /// Waits until everybody may know of the end. Cancel safe.
    pub async fn stopped(&self) -> Exit {
        let mut stopped = self.stopped.subscribe();
        loop {
            if let Some(exit) = *stopped.borrow_and_update() {
                return exit;
            }
            if stopped.changed().await.is_err() {
                // The sender is here; it cannot be gone.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sends a signal. The pid cannot be another process's: its end has not been collected.
    ///
    /// # Errors
    /// NOT_FOUND if it has ended or never ran.
    pub fn kill(&self, number: u32) -> Result<(), Status> {
        let signal = i32::try_from(number).ok().and_then(Signal::from_named_raw);
        let signal =
            signal.ok_or_else(|| Status::invalid_argument(format!("no signal {number}")))?;
        let state = self.state();
        let finished = || Status::not_found("process already finished");
        let pid = state.pid.ok_or_else(finished)?;
        rustix::process::kill_process(pid, signal).map_err(|error| match error {
            rustix::io::Errno::SRCH => finished(),
            error => Status::internal(format!("cannot send signal {number}: {error}")),
        })
    }

    /// Sets the size of its terminal, if it has one.
    ///
    /// # Errors
    /// INTERNAL if the kernel does not like it.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        match &self.state().terminal {
            Some(terminal) => console::resize(terminal, width, height)
                .map_err(|error| Status::internal(format!("cannot resize: {error}"))),
            None => Ok(()),
        }
    }

    /// Lets its stdin end.
    pub fn close_stdin(&self) {
        self.close_stdin.notify_one();
    }
}
