//! A program that runs as a process of its own, watched and mistreated from outside.

use std::{
    fs, io,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{
        Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process, prlimit,
        setrlimit, waitid,
    },
};

/// Nanoseconds of a tick in `/proc/PID/stat`: Linux tells user space 100 ticks a second.
const TICK: Duration = Duration::from_millis(10);

/// A child process. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Process { child: command.spawn()? })
    }

    /// Starts a server of the conformance service and waits until it listens, which it says with a
    /// line on its standard output.
    ///
    /// # Errors
    /// If it cannot be started, or says something else.
    pub fn start_server(command: &mut Command) -> io::Result<Self> {
        let mut process = Process::start(command.stdout(Stdio::piped()))?;
        let stdout = process.child.stdout.take().expect("it was asked for");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        match line.starts_with("listening") {
            true => Ok(process),
            false => Err(io::Error::other(format!("the server does not listen: {line:?}"))),
        }
    }

    /// Starts `ttrpc-conformance-server`, the program at this path, on an address.
    ///
    /// # Errors
    /// Those of [`Process::start_server`].
    pub fn start_conformance_server(program: &str, address: &str) -> io::Result<Self> {
        Process::start_server(Command::new(program).args(["--listen", address]))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a child that was not waited for has its id");
    }

    /// Kills the process, as `kill -9` does, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the process until [`Process::resume`], and waits until it stands or has ended. Its threads stop when they
    /// next get to run, which may take a while on a busy machine.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        // One that has ended is still there for `try_wait`.
        let until = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = waitid(WaitId::Pid(self.pid()), until) {}
    }

    /// Lets the process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks the process to end, with SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Whether and how the process has ended.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Lets the process have no more than this many descriptors.
    pub fn limit_descriptors(&self, limit: u64) {
        let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
        prlimit(Some(self.pid()), Resource::Nofile, limit).expect("a lower limit may be set");
    }

    /// What the process uses now.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn usage(&self) -> io::Result<Usage> {
        Usage::of(&self.child.id().to_string())
    }

    /// The time for which the process has run on a CPU.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name, in brackets, may have spaces in it.
        let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let fields = behind_name.split(' ').skip(11).take(2);
        let ticks: u32 = fields.filter_map(|field| field.parse::<u32>().ok()).sum();
        Ok(TICK * ticks)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Resident memory, in bytes.
    pub memory: u64,
    /// The most that it has been, in bytes.
    pub peak_memory: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Usage {
    /// What this process uses.
    ///
    /// # Errors
    /// If `/proc` is not there.
    pub fn of_this_process() -> io::Result<Self> {
        Usage::of("self")
    }

    fn of(process: &str) -> io::Result<Self> {
        let folder = Path::new("/proc").join(process);
        let status = fs::read_to_string(folder.join("status"))?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other(format!("{process}: {name}?")))
        };
        Ok(Usage {
            memory: bytes("VmRSS:")?,
            peak_memory: bytes("VmHWM:")?,
            descriptors: fs::read_dir(folder.join("fd"))?.count() as u64,
        })
    }
}

/// Raises this process's limit on descriptors as far as it may, and gives back what it is then.
/// Children inherit it.
pub fn raise_descriptor_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
