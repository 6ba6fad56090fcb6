//! Child processes that never outlive their bound nor this program's interest in them.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Reached only by a server that does not start, on whatever machine.
const READY_BOUND: Duration = Duration::from_secs(120);

/// A directory for sockets. It is short, since the path of a socket has about 100 bytes.
pub struct Sockets(PathBuf);

impl Sockets {
    pub fn create() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("interop-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Sockets(path))
    }

    fn next(&self, ending: &str) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        self.0.join(format!("{}.{ending}", COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn file(&self) -> PathBuf {
        self.next("json")
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // What stays behind in the temporary directory harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn log_file(path: &Path) -> Result<File, String> {
    let open = || {
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        OpenOptions::new().create(true).append(true).open(path)
    };
    open().map_err(|error| format!("{}: {error}", path.display()))
}

pub struct Server {
    child: Child,
    pub address: String,
}

impl Server {
    /// Starts a server and waits for the line by which it says that it listens.
    pub fn start(command: &[String], sockets: &Sockets, log: &Path) -> Result<Self, String> {
        let address = format!("unix://{}", sockets.next("sock").display());
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .args(["--listen", &address])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file(log)?)
            .spawn()
            .map_err(|error| format!("{}: {error}", command[0]))?;
        let output = child.stdout.take().ok_or("the server has no standard output")?;
        let server = Server { child, address };
        let (sender, first_line) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Nobody waits for the lines after the first one, but a server must be able to write them.
                let _ = sender.send(line);
            }
        });
        match first_line.recv_timeout(READY_BOUND) {
            Ok(line) if line.starts_with("listening ") || line == "ready" => Ok(server),
            Ok(line) => Err(format!("{} said {line:?} instead of that it listens", command[0])),
            Err(_) => {
                Err(format!("{} did not say within {READY_BOUND:?} that it listens", command[0]))
            }
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.ended(Duration::ZERO).is_none()
    }

    /// Returns how the server ended, if it did. One that is about to end is given a moment to do so.
    pub fn ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        wait(&mut self.child, patience)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

fn kill(child: &mut Child) {
    // Both fail only when the child has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

fn wait(child: &mut Child, bound: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + bound;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a client, and returns how it ended, or nothing when it had to be killed.
pub fn run_client(
    command: &[String],
    arguments: &[&str],
    output: Stdio,
    log: &Path,
    bound: Duration,
) -> Result<Option<ExitStatus>, String> {
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(log_file(log)?)
        .spawn()
        .map_err(|error| format!("{}: {error}", command[0]))?;
    let status = wait(&mut child, bound);
    if status.is_none() {
        kill(&mut child);
    }
    Ok(status)
}
