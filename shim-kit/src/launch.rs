//! What one process is made with: its stdio, and the reaper that learns of its end.

use std::os::fd::OwnedFd;

use ttrpc::Status;

use crate::{
    cgroup::Cgroup,
    console,
    process::Process,
    reaper::{Exit, Reaper, Starting},
    shim::Shim,
    started::{End, Handle, Started},
    stdio::{Descriptors, Io, Manner, Paths, give, logger::Logger, uri::Uri},
    tasks::contain,
};

/// A process that is being made. A runtime asks for its [`stdio`](Launch::stdio) once. One that makes
/// terminals by itself asks for [`pipes`](Launch::pipes) or connects a terminal, as
/// [`wants_terminal`](Launch::wants_terminal) says.
#[derive(Debug)]
pub struct Launch {
    id: String,
    shim: Shim,
    /// The container's.
    reaper: Reaper,
    /// From here on ends are kept, since the process may end before its pid is known.
    starting: Starting,
    paths: Paths,
    io: Io,
    number: u64,
    /// The container's, if the runtime has said it.
    cgroup: Option<Cgroup>,
}

/// The status of what has ended in a way that nobody knows.
const UNKNOWN: u32 = 255;

impl Launch {
    pub(crate) fn new(
        shim: &Shim,
        reaper: &Reaper,
        id: &str,
        process: &Process,
        number: u64,
    ) -> Launch {
        // A container's reader may be a containerd that is away; an exec's is the client of the exec.
        let manner = Manner { patience: shim.patience, is_lasting: process.is_init() };
        Launch {
            id: id.to_owned(),
            reaper: reaper.clone(),
            starting: reaper.begin(),
            io: Io::new(shim.copies.clone(), manner),
            paths: process.paths.clone(),
            shim: shim.clone(),
            number,
            cgroup: None,
        }
    }

    /// Returns whether the process is to have a terminal.
    pub fn wants_terminal(&self) -> bool {
        self.paths.terminal
    }

    /// Makes the process's standard streams, a terminal or pipes as the client asked, owned by this user and group.
    ///
    /// A process with a terminal calls [`crate::take_terminal`].
    ///
    /// # Errors
    /// Those of [`pipes`](Launch::pipes) and [`connect_terminal`](Launch::connect_terminal);
    /// RESOURCE_EXHAUSTED if there is no terminal to be had.
    pub async fn stdio(&mut self, owner: (u32, u32)) -> Result<Descriptors, Status> {
        if !self.wants_terminal() {
            return self.pipes(owner).await;
        }
        let failed = |error| Status::resource_exhausted(format!("cannot make a terminal: {error}"));
        let (master, process) = console::open().map_err(failed)?;
        give(&process, owner).map_err(failed)?;
        let copy = || process.try_clone().map_err(failed);
        let (stdin, stdout) = (copy()?, copy()?);
        self.connect_terminal(master).await?;
        Ok(Descriptors { stdin, stdout, stderr: process })
    }

    /// Makes pipes for a process without a terminal, owned by this user and group.
    ///
    /// # Errors
    /// If a FIFO cannot be opened, a logger does not start, or a descriptor is not to be had.
    pub async fn pipes(&mut self, owner: (u32, u32)) -> Result<Descriptors, Status> {
        match self.logger().await? {
            Some(Logger { stdout, stderr, program }) => {
                self.io.see_off(program);
                Ok(Descriptors {
                    stdin: self.io.open_stdin(&self.paths.stdin, owner).await?,
                    stdout,
                    stderr,
                })
            }
            None => self.io.open_pipes(&self.paths, owner).await,
        }
    }

    /// Connects the master of the process's terminal.
    ///
    /// # Errors
    /// If a FIFO cannot be opened, a logger does not start, or a descriptor is not to be had.
    pub async fn connect_terminal(&mut self, master: OwnedFd) -> Result<(), Status> {
        let sink = self.logger().await?.map(|logger| {
            self.io.see_off(logger.program);
            logger.stdout
        });
        self.io.open_terminal(&self.paths, master, sink).await
    }

    async fn logger(&self) -> Result<Option<Logger>, Status> {
        match Uri::parse(&self.paths.stdout)? {
            Some(Uri::Program(program)) => {
                program.start(&self.shim.loggers, &self.shim.namespace, &self.id).await.map(Some)
            }
            Some(Uri::File(_)) | None => Ok(None),
        }
    }

    /// Says that the process cannot be made, and returns the end of what the program that was to make it wrote to the
    /// process's outputs: at most 64 KiB of each, for the error. No client sees it.
    pub async fn last_words(&mut self) -> String {
        self.io.last_words().await
    }

    /// Returns a number that no other process of the container has, for the names of files.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the container's reaper, which starts programs and collects their ends. Programs that still run when the
    /// container is deleted are killed, also while it is being made.
    pub fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    /// Sets the container's control group, where its first process is in another one or joins it later.
    ///
    /// `path` is the folder of the group, without the mount point. Metrics and events of the OOM killer are read there.
    pub fn set_cgroup(&mut self, path: &str) {
        self.cgroup = Some(Cgroup::at(path));
    }

    pub(crate) fn take_cgroup(&mut self) -> Option<Cgroup> {
        self.cgroup.take()
    }

    /// Hands the process over, now that its pid is known.
    pub(crate) fn made(self, process: &Process, started: Started) -> End {
        match started {
            Started::Pid(pid) => {
                process.made(pid, self.io);
                let ended = self.starting.claim(pid);
                Box::pin(async { ended.await.ok() })
            }
            Started::Handle(Handle { pid, ended, kill }) => {
                process.made_elsewhere(pid, kill, self.io);
                // It has ended, in whatever way.
                Box::pin(async {
                    let ended = contain(async { Ok(ended.await) }).await;
                    Some(ended.unwrap_or_else(|_| Exit::now(UNKNOWN)))
                })
            }
        }
    }
}
