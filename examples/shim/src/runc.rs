//! The runc command line.

use std::{
    ffi::OsStr,
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::MemfdFlags;
use shim_kit::{Bundle, Descriptors, Reaper, Status, Temporary};

use ttrpc_containerd::runc::Options;

/// Where runc keeps its state unless the options say otherwise; the namespace goes below.
const DEFAULT_ROOT: &str = "/run/containerd/runc";
const DEFAULT_BINARY: &str = "runc";

/// runc with what all its commands share.
#[derive(Clone, Debug)]
pub struct Runc {
    binary: String,
    root: PathBuf,
    systemd_cgroup: bool,
    /// Where commands run. Also where their logs are.
    bundle: PathBuf,
    reaper: Reaper,
    /// Numbers the files of commands, which run side by side.
    next_number: Arc<AtomicU64>,
}

/// Why a command failed.
#[derive(Debug)]
pub enum Error {
    /// It could not be started or watched.
    Io(io::Error),
    /// It ended otherwise than with 0; the text is its own.
    Failed(String),
    /// It ended with this status, and its log does not say why; the text is what it printed.
    Silent(u32, String),
}

impl Error {
    /// What runc says.
    fn text(&self) -> &str {
        match self {
            Error::Io(_) => "",
            Error::Failed(text) | Error::Silent(_, text) => text,
        }
    }

    /// Whether runc says that there is no such container.
    pub fn is_no_container(&self) -> bool {
        self.text().contains("does not exist")
    }

    /// Whether runc says that the process to be signalled has ended.
    pub fn is_no_process(&self) -> bool {
        let text = self.text().to_ascii_lowercase();
        ["process already finished", "container not running", "no such process"]
            .iter()
            .any(|sign| text.contains(sign))
    }

    /// A status that says what failed. Tools look for these words.
    pub fn to_status(&self, what: &str) -> Status {
        Status::unknown(format!("OCI runtime {what} failed: {self}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(error) => write!(f, "{error}"),
            Error::Failed(text) => f.write_str(text),
            Error::Silent(status, text) if text.is_empty() => write!(f, "exit status {status}"),
            Error::Silent(status, text) => write!(f, "exit status {status}: {text}"),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Error {
        Error::Io(error.into())
    }
}

impl Runc {
    /// runc for the containers of a namespace.
    pub fn new(options: &Options, namespace: &str, bundle: &Bundle, reaper: Reaper) -> Runc {
        let or = |given: &str, default: &str| match given {
            "" => default.to_owned(),
            given => given.to_owned(),
        };
        Runc {
            binary: or(&options.binary_name, DEFAULT_BINARY),
            root: Path::new(&or(&options.root, DEFAULT_ROOT)).join(namespace),
            systemd_cgroup: options.systemd_cgroup,
            bundle: bundle.path().to_owned(),
            reaper,
            next_number: Arc::default(),
        }
    }

    /// A number that no other command of this container's has.
    pub fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether runc keeps anything of this container.
    pub fn knows(&self, id: &str) -> bool {
        self.root.join(id).exists()
    }

    /// A command with its log. What the container says in the log of its own is kept apart, since
    /// commands run side by side.
    fn command(&self, log: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command.current_dir(&self.bundle).arg("--root").arg(&self.root);
        command.arg("--log").arg(log).args(["--log-format", "json"]);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        command
    }

    /// Runs a command whose descriptors will be a container's, and waits for its end.
    ///
    /// # Errors
    /// [`Error::Failed`] with the last error in its log, or [`Error::Silent`].
    pub async fn run_with(
        &self,
        descriptors: Descriptors,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<(), Error> {
        let log = Temporary::new(self.bundle.join(format!("runc-{}.log", self.number())));
        let mut command = self.command(log.path());
        command.args(args);
        command.stdin(descriptors.stdin).stdout(descriptors.stdout).stderr(descriptors.stderr);
        // `delete_now` finds what it has made, not what it would make later.
        shim_kit::die_with_shim(&mut command);
        let child = self.reaper.spawn(&mut command).await?;
        // The command holds the container's ends of the pipes, which must see their end.
        drop(command);
        match child.exit().await?.status {
            0 => Ok(()),
            status => Err(match last_error(log.path()) {
                Some(text) => Error::Failed(text),
                None => Error::Silent(status, String::new()),
            }),
        }
    }

    /// Runs a command and gives what it printed.
    ///
    /// # Errors
    /// [`Error::Failed`] with the last error in its log, or [`Error::Silent`] with what it wrote to stderr.
    pub async fn run(
        &self,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<String, Error> {
        let (output, errors) = (memory_file()?, memory_file()?);
        let descriptors = Descriptors {
            stdin: File::open("/dev/null")?.into(),
            stdout: output.try_clone()?.into(),
            stderr: errors.try_clone()?.into(),
        };
        match self.run_with(descriptors, args).await {
            Ok(()) => Ok(read_back(output)?),
            Err(Error::Silent(status, _)) => {
                Err(Error::Silent(status, last_words(errors)?.trim().to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes a container whose processes may be alive, waiting as the only thing that this
    /// process does: for the invocation `delete`.
    ///
    /// # Errors
    /// [`Error::Failed`] with the last error in its log.
    pub fn delete_now(&self, id: &str) -> Result<(), Error> {
        let log = Temporary::new(self.bundle.join("delete.log"));
        let output = self
            .command(log.path())
            .args(["delete", "--force", id])
            .stdin(Stdio::null())
            .output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::Failed(
                last_error(log.path())
                    .unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            )),
        }
    }
}

/// What the runtime says that it can do, as JSON; for the invocation `-info`.
pub fn features(binary: &str) -> Option<Vec<u8>> {
    let binary = if binary.is_empty() { DEFAULT_BINARY } else { binary };
    let output = Command::new(binary).arg("features").stdin(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// Takes what a command prints on the way to a terminal that it makes for the container.
pub fn aside() -> io::Result<(File, Descriptors)> {
    let said = memory_file()?;
    let descriptors = Descriptors {
        stdin: File::open("/dev/null")?.into(),
        stdout: said.try_clone()?.into(),
        stderr: said.try_clone()?.into(),
    };
    Ok((said, descriptors))
}

/// A file without a name, for what a command prints: it needs nobody to read while it is written.
fn memory_file() -> io::Result<File> {
    let file: OwnedFd = rustix::fs::memfd_create("runc", MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

fn read_back(mut file: File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What was written last: no more of it than an error is to hold.
pub fn last_words(mut file: File) -> io::Result<String> {
    const MAX_LEN: u64 = 64 << 10;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LEN)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LEN).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last error in a log of runc's: JSON objects, one a line.
fn last_error(log: &Path) -> Option<String> {
    last_error_in(&last_words(File::open(log).ok()?).ok()?)
}

fn last_error_in(log: &str) -> Option<String> {
    log.lines().rev().find_map(|line| {
        let entry: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_error = matches!(entry.get("level")?.as_str()?, "error" | "fatal");
        is_error.then(|| entry.get("msg")?.as_str().map(|text| text.trim().to_owned())).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_log_is_found() {
        let log = "{\"level\":\"warning\",\"msg\":\"first\"}\n\
                   {\"level\":\"error\",\"msg\":\"second\",\"time\":\"2026-01-01T00:00:00Z\"}\n\
                   not json\n\
                   {\"level\":\"error\",\"msg\":\" exec: \\\"x\\\": not found \"}\n\
                   {\"level\":\"debug\",\"msg\":\"last\"}\n";
        assert_eq!(last_error_in(log).unwrap(), "exec: \"x\": not found");
        assert_eq!(last_error_in("{\"level\":\"info\",\"msg\":\"all is well\"}"), None);
        assert_eq!(last_error_in(""), None);
    }

    #[test]
    fn of_a_runc_that_says_much_the_last_is_told() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, "x".repeat(3_000_000).as_bytes()).unwrap();
        std::io::Write::write_all(&mut file, b"why").unwrap();
        let said = last_words(file).unwrap();
        assert!(said.len() == 64 << 10 && said.ends_with("why"));
    }

    #[test]
    fn failures_are_told_apart_by_what_runc_says() {
        let failed = |text: &str| Error::Failed(text.to_owned());
        assert!(failed("container \"c1\" does not exist").is_no_container());
        assert!(failed("container not running").is_no_process());
        assert!(failed("os: process already finished").is_no_process());
        assert!(!failed("permission denied").is_no_process());
        let silent = Error::Silent(1, "container \"c1\" does not exist".to_owned());
        assert!(silent.is_no_container());
        assert_eq!(silent.to_string(), "exit status 1: container \"c1\" does not exist");
        assert_eq!(Error::Silent(127, String::new()).to_string(), "exit status 127");
        let status = failed("no such file").to_status("exec");
        assert_eq!(status.message(), "OCI runtime exec failed: no such file");
    }

    #[test]
    fn options_choose_the_program_and_the_folder_of_its_state() {
        let reaper = Reaper::default();
        let options = Options::default();
        let runc = Runc::new(&options, "default", &Bundle::new("/b"), reaper.clone());
        assert_eq!(runc.binary, "runc");
        assert_eq!(runc.root, Path::new("/run/containerd/runc/default"));
        let options = Options {
            binary_name: "crun".to_owned(),
            root: "/run/crun".to_owned(),
            ..Default::default()
        };
        let runc = Runc::new(&options, "k8s.io", &Bundle::new("/b"), reaper);
        assert_eq!(
            (runc.binary.as_str(), runc.root.as_path()),
            ("crun", Path::new("/run/crun/k8s.io"))
        );
    }
}
