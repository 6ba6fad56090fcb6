//! The server process, as the harness sees it.

use std::{
    env, fs, io,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};

use crate::{meter::Figures, options::Options, server::READY};

/// A server that runs as a process of its own. Dropped, it is killed.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    _stdin: Option<ChildStdin>,
    figures: watch::Receiver<Figures>,
    reading: JoinHandle<()>,
}

/// A path for a socket that nobody else uses. The socket is removed when this is dropped: a server
/// that is killed leaves it behind.
#[derive(Debug)]
pub struct SocketPath(PathBuf);

impl SocketPath {
    /// A path that no other process and no earlier server uses.
    pub fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
        SocketPath(env::temp_dir().join(format!("ttrpc-stress-{process}-{number}.sock")))
    }

    /// The path as an address.
    pub fn address(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // A server that ended well has removed it.
        let _ = fs::remove_file(&self.0);
    }
}

impl ServerProcess {
    /// Starts a server and waits until it listens.
    ///
    /// A server that is not measured binds its address as a user's server would.
    pub async fn start(options: &Options, address: &str, is_measured: bool) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("--supervised").arg("--listen").arg(address);
        if is_measured {
            command.arg("--measured");
        }
        let settings: [(&str, u64); 5] = [
            ("--send-buffer", options.send_buffer as u64),
            ("--queue-frames", options.queue_frames as u64),
            ("--queue-bytes", options.queue_bytes as u64),
            ("--handlers", options.handlers as u64),
            ("--stall-timeout", options.stall_timeout),
        ];
        for (name, value) in settings {
            command.arg(name).arg(value.to_string());
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it was asked for");
        let mut lines = BufReader::new(stdout).lines();
        match lines.next_line().await? {
            Some(line) if line == READY => {}
            _ => return Err(io::Error::other("the server process ended before it listened")),
        }
        let (sender, figures) = watch::channel(Figures::default());
        let reading = tokio::spawn(read_figures(lines, sender));
        Ok(ServerProcess { child, _stdin: stdin, figures, reading })
    }

    /// What its sockets did, as it last said.
    pub fn figures(&self) -> watch::Receiver<Figures> {
        self.figures.clone()
    }

    /// Kills it with SIGKILL and waits for its end.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Stops it (SIGSTOP) and waits until it stands: from then on nothing is read.
    pub async fn pause(&self) -> io::Result<()> {
        let pid = self.pid()?;
        kill_process(pid, Signal::STOP)?;
        // Its threads stop when they next get to run, which may take a while on a busy machine.
        let stands = spawn_blocking(move || waitpid(Some(pid), WaitOptions::UNTRACED));
        stands.await??;
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    pub fn go_on(&self) -> io::Result<()> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }

    fn pid(&self) -> io::Result<Pid> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        pid.ok_or_else(|| io::Error::other("the server process has ended"))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read_figures(mut lines: Lines<BufReader<ChildStdout>>, sender: watch::Sender<Figures>) {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(figures) = Figures::from_line(&line) {
            sender.send_replace(figures);
        }
    }
}
