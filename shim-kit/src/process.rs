//! One process of a container: its first one, or one that came from Exec.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::Pid;
use tokio::sync::{Notify, watch};
use ttrpc::Status;

use crate::{
    descriptors,
    lifecycle::Phase,
    reaper::Exit,
    started::Kill,
    stdio::{Io, Paths},
    tasks::contain_now,
};

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Set from when the runtime has made the process until its end was collected.
    target: Option<Target>,
    /// Its pid, which is not forgotten.
    last_pid: u32,
    io: Option<Io>,
}

/// How a signal reaches a process.
enum Target {
    Pid(Pid),
    Handle(Kill),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Pid(pid) => write!(f, "{pid:?}"),
            Target::Handle(_) => f.write_str("Handle"),
        }
    }
}

/// One process of a container.
#[derive(Debug)]
pub(crate) struct Process {
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
    told: watch::Sender<Option<Exit>>,
}

impl Process {
    pub fn new(exec_id: String, paths: Paths, spec: Vec<u8>) -> Process {
        let state = State { phase: Phase::Created, target: None, last_pid: 0, io: None };
        Process {
            exec_id,
            paths,
            spec,
            order: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            close_stdin: Arc::default(),
            told: watch::Sender::new(None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the container's first process.
    pub fn is_init(&self) -> bool {
        self.exec_id.is_empty()
    }

    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Changes the phase by one of its methods.
    pub fn change<T>(&self, act: impl FnOnce(&mut Phase) -> T) -> T {
        act(&mut self.state().phase)
    }

    /// The pid that it has or had; 0 if it never had one.
    pub fn pid(&self) -> u32 {
        self.state().last_pid
    }

    /// Says which process the runtime made, with its copies.
    pub fn made(&self, pid: Pid, io: Io) {
        self.is_made(Target::Pid(pid), pid.as_raw_nonzero().get().unsigned_abs(), io);
    }

    /// Says that the runtime made something that is no child of the shim's.
    pub fn made_elsewhere(&self, pid: u32, kill: Kill, io: Io) {
        self.is_made(Target::Handle(kill), pid, io);
    }

    fn is_made(&self, target: Target, pid: u32, io: Io) {
        io.made();
        let mut state = self.state();
        state.target = Some(target);
        state.last_pid = pid;
        state.io = Some(io);
    }

    /// Its pid, until its end is collected, if it is a process of this machine that the shim looks after.
    pub fn child(&self) -> Option<Pid> {
        match self.state().target {
            Some(Target::Pid(pid)) => Some(pid),
            _ => None,
        }
    }

    /// Says that it runs and may be given input, unless it has ended already. What is returned waits until its stdin has a
    /// reader.
    pub fn started(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state();
        let has_started = state.phase.started();
        let io = state.io.as_mut().filter(|_| has_started);
        let reader = io.map(|io| io.start_input(self.close_stdin.clone()));
        async move {
            if let Some(reader) = reader {
                reader.await;
            }
        }
    }

    /// Says that its end was collected. What is returned waits until its output is delivered.
    pub fn ended(&self, exit: Exit) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state();
        state.phase.ended(exit);
        state.target = None;
        let delivered = state.io.as_mut().map(Io::ended);
        async move {
            if let Some(delivered) = delivered {
                delivered.await;
            }
        }
    }

    /// Tells everybody of the end.
    pub fn tell(&self) {
        if let Some(exit) = self.state().phase.told() {
            self.told.send_replace(Some(exit));
        }
    }

    /// Says that it could not be started, and tells everybody.
    pub fn failed(&self, exit: Exit) {
        self.close();
        if let Some(exit) = self.state().phase.failed(exit) {
            self.told.send_replace(Some(exit));
        }
    }

    /// Ends what never ran, and tells everybody.
    pub fn give_up(&self, exit: Exit) {
        self.state().phase.ended(exit);
        self.close();
        self.tell();
    }

    /// Gives back what the process has open, and ends its copies.
    pub fn close(&self) {
        let io = self.state().io.take();
        drop(io);
    }

    /// Waits until everybody may know of the end. Cancel safe.
    pub async fn told(&self) -> Exit {
        let mut told = self.told.subscribe();
        loop {
            if let Some(exit) = *told.borrow_and_update() {
                return exit;
            }
            if told.changed().await.is_err() {
                // The sender is here; it cannot be gone.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sends a signal. The pid cannot be another process's: its end has not been collected.
    ///
    /// # Errors
    /// NOT_FOUND if it has ended or never ran; INVALID_ARGUMENT for a signal that does not exist.
    pub fn kill(&self, signal: u32) -> Result<(), Status> {
        let state = self.state();
        let finished = || Status::not_found("process already finished");
        let pid = match state.target.as_ref().ok_or_else(finished)? {
            Target::Pid(pid) => *pid,
            Target::Handle(kill) => return contain_now(|| kill(signal)),
        };
        descriptors::kill(pid, signal).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => finished(),
            Some(libc::EINVAL) => Status::invalid_argument(format!("no signal {signal}")),
            _ => Status::internal(format!("cannot send signal {signal}: {error}")),
        })
    }

    /// Sets the size of its terminal, if it has one.
    ///
    /// # Errors
    /// INTERNAL if the kernel does not like it.
    pub fn resize(&self, width: u32, height: u32) -> Result<(), Status> {
        let failed = |error| Status::internal(format!("cannot resize: {error}"));
        self.state().io.as_ref().map_or(Ok(()), |io| io.resize(width, height)).map_err(failed)
    }

    /// Lets its stdin end.
    pub fn close_stdin(&self) {
        self.close_stdin.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use tokio::time::timeout;
    use ttrpc::Code;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn process() -> Process {
        Process::new("e1".to_owned(), Paths::default(), Vec::new())
    }

    fn exit(status: u32) -> Exit {
        Exit { status, at: SystemTime::UNIX_EPOCH }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_end_is_told_to_all_who_wait_and_all_who_come_later() {
        let process = Arc::new(process());
        assert!(!process.is_init());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let process = process.clone();
                tokio::spawn(async move { process.told().await })
            })
            .collect();
        drop(process.started());
        process.ended(exit(7)).await;
        assert_eq!(process.phase(), Phase::Ended(exit(7)), "it is stopped, and not told");
        assert!(timeout(Duration::ZERO, process.told()).await.is_err());
        process.tell();
        for waiting in waiting {
            assert_eq!(timeout(LONG, waiting).await.unwrap().unwrap(), exit(7));
        }
        assert_eq!(process.told().await, exit(7));
        assert_eq!(process.phase(), Phase::Told(exit(7)));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_process_that_never_ran_is_given_up() {
        let process = process();
        assert_eq!(process.kill(9).unwrap_err().code(), Code::NotFound);
        process.give_up(exit(255));
        assert_eq!(process.told().await, exit(255));
        // Its end is what it was given up with, whatever comes later.
        process.ended(exit(1)).await;
        process.tell();
        drop(process.started());
        assert_eq!(process.phase(), Phase::Told(exit(255)));
        assert_eq!(process.pid(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_signal_reaches_a_process_until_its_end_is_collected() {
        // Else another test may collect the child.
        let _alone = crate::reaper::COLLECTING.lock().await;
        let process = process();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let manner = crate::stdio::Manner { patience: LONG, is_lasting: false };
        process.made(pid, Io::new(crate::stdio::Copies::default(), manner));
        assert_eq!(process.kill(1000).unwrap_err().code(), Code::InvalidArgument);
        process.kill(0).unwrap();
        process.kill(9).unwrap();
        child.wait().unwrap();
        process.ended(exit(137)).await;
        assert_eq!(process.kill(9).unwrap_err().code(), Code::NotFound);
        assert_eq!(process.pid(), child.id(), "it is not forgotten");
        // There is no terminal.
        process.resize(80, 24).unwrap();
    }
}
