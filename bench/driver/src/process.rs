//! Starting servers and clients, and what they print.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::plan::{Contender, Cpus};

/// How long a client may take; one that takes longer hangs.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// `name=value` pairs that a process has printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures(HashMap<String, f64>);

impl Figures {
    fn parse(text: &str) -> Self {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        let parse = |(name, value): (&str, &str)| Some((name.to_owned(), value.parse().ok()?));
        Figures(pairs.filter_map(parse).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    pub(crate) fn insert(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), value);
    }
}

/// Moves the driver, and with it every process that it starts from now on.
pub(crate) fn move_to(cpus: Cpus) {
    let mut set = CpuSet::new();
    let count = match cpus {
        Cpus::One => 1,
        Cpus::All => CpuSet::count(),
    };
    for cpu in 0..count {
        set.set(cpu).expect("it is a number of a CPU");
    }
    sched_setaffinity(Pid::from_raw(0), &set).expect("the driver may choose its CPUs");
}

/// A command that measures another, put before it.
pub(crate) type Prefix<'a> = &'a [&'a str];

fn command(prefix: Prefix<'_>, program: &Path) -> Command {
    match prefix {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// A server that runs. Dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    path: PathBuf,
}

impl Server {
    pub(crate) fn start(
        program: &Path,
        contender: &Contender,
        is_current_thread: bool,
        prefix: Prefix<'_>,
    ) -> io::Result<Self> {
        let path = fresh_path();
        let mut command = command(prefix, program);
        command.args(["server", "--contender", contender.argument(), "--runtime"]);
        command.arg(runtime(is_current_thread)).arg("--path").arg(&path);
        Server::spawn(command, path)
    }

    /// Starts a program that is a server and nothing else.
    pub(crate) fn start_minimal(program: &Path) -> io::Result<Self> {
        let path = fresh_path();
        let mut command = Command::new(program);
        command.arg(&path);
        Server::spawn(command, path)
    }

    fn spawn(mut command: Command, path: PathBuf) -> io::Result<Self> {
        let child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut server = Server { child, path };
        while !server.path.exists() {
            if server.child.try_wait()?.is_some() {
                return Err(io::Error::other("the server has ended instead of starting"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A field of the process's status, in KiB where it is memory.
    pub(crate) fn status(&self, field: &str) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Ends the server, and gives back what it prints then.
    pub(crate) fn stop(mut self) -> Figures {
        drop(self.child.stdin.take());
        let mut text = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            // One that cannot be read has nothing to say.
            let _ = output.read_to_string(&mut text);
        }
        let _ = self.child.wait();
        Figures::parse(&text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.path);
    }
}

fn runtime(is_current_thread: bool) -> &'static str {
    if is_current_thread { "current-thread" } else { "multi-thread" }
}

fn fresh_path() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    std::env::temp_dir().join(format!("bench-{}-{number}.sock", std::process::id()))
}

/// A client's command line.
pub(crate) struct Client<'a> {
    pub(crate) program: &'a Path,
    pub(crate) contender: &'a Contender,
    pub(crate) is_current_thread: bool,
    pub(crate) prefix: Prefix<'a>,
    pub(crate) options: &'a [&'a str],
}

impl<'a> Client<'a> {
    /// One with several threads, and nothing before it.
    pub(crate) fn new(program: &'a Path, contender: &'a Contender, options: &'a [&'a str]) -> Self {
        Client { program, contender, is_current_thread: false, prefix: &[], options }
    }

    fn spawn(&self, server: &Server) -> io::Result<Child> {
        let mut command = command(self.prefix, self.program);
        command.args(["client", "--contender", self.contender.argument(), "--runtime"]);
        command.arg(runtime(self.is_current_thread)).arg("--path").arg(server.path());
        command.args(self.options).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::null()).spawn()
    }

    /// Runs the client to its end. `None` if it skips the workload, fails or hangs; the latter two
    /// are said.
    pub(crate) fn run(&self, server: &Server) -> io::Result<Option<Figures>> {
        self.start(server)?.end()
    }

    /// Starts the client, for something else to run beside it.
    pub(crate) fn start(&self, server: &Server) -> io::Result<RunningClient> {
        let description = format!("{} at {:?}", self.contender.name, self.options);
        let deadline = Instant::now() + CLIENT_TIMEOUT;
        Ok(RunningClient { child: self.spawn(server)?, description, deadline })
    }

    /// Starts a client that holds idle connections, runs `look`, and ends it.
    pub(crate) fn hold<R>(&self, server: &Server, look: impl FnOnce() -> R) -> io::Result<R> {
        let mut child = self.spawn(server)?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let result = look();
        drop(child.stdin.take());
        child.wait()?;
        match line.contains("ready") {
            true => Ok(result),
            false => Err(io::Error::other("the client did not get its connections")),
        }
    }
}

/// A client that runs. Dropped, it is killed.
pub(crate) struct RunningClient {
    child: Child,
    description: String,
    deadline: Instant,
}

impl RunningClient {
    /// Waits for the client's end. `None` if it skips the workload, fails or hangs; the latter two are said.
    pub(crate) fn end(mut self) -> io::Result<Option<Figures>> {
        while self.child.try_wait()?.is_none() {
            if Instant::now() > self.deadline {
                eprintln!("{} hangs", self.description);
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let mut text = String::new();
        self.child.stdout.take().expect("it is piped").read_to_string(&mut text)?;
        let figures = Figures::parse(&text);
        if figures.get("units").is_none() && figures.get("skip").is_none() {
            eprintln!("{} fails", self.description);
        }
        Ok(figures.get("units").map(|_| figures))
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
