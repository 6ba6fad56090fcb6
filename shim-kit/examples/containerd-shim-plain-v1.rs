//! A shim whose containers are plain processes: each in namespaces of its own, with the image as its
//! root. There is no runc, and no control group.
//!
//! This program also starts itself, to become a container's process. `init` enters new namespaces
//! and leaves its child `first` there, which waits for the start of the container. `join` enters
//! those of a container that runs and leaves its child `guest`. Both children become the program.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

use rustix::{
    fs::{CWD, FileType, Mode},
    mount::{MountFlags, MountPropagationFlags},
    process::{PidfdFlags, Signal},
    thread::{ThreadNameSpaceType, UnshareFlags},
};
use serde_json::Value;
use shim_kit::{
    Bundle, Launch, New, Pid, Remains, Runtime, Started, Status, Temporary, async_trait, read_pid,
};

/// Between two looks at whether a container has its root.
const PAUSE: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let result = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["init", folder, process] => init(Path::new(folder), process),
        ["join", pid, folder, process] => join(pid, Path::new(folder), process),
        ["first", folder, process] => first(Path::new(folder), process),
        ["guest", pid, spec, ..] => guest(pid, spec),
        _ => return shim_kit::run::<Plain>("io.containerd.plain.v1"),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot start the process: {error}");
            ExitCode::from(127)
        }
    }
}

/// A container.
struct Plain {
    bundle: Bundle,
    pid: Pid,
    /// A FIFO from which the first process reads a byte before it goes on.
    gate: File,
}

#[async_trait]
impl Runtime for Plain {
    type Options = ();
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn create(
        new: New<'_, ()>,
        launch: &mut Launch,
    ) -> Result<(Plain, Option<Started>), Status> {
        let folder = new.bundle.path();
        let spec = new.bundle.spec().map_err(|error| failed("read config.json", error))?;
        let process = folder.join("process.json");
        fs::write(&process, spec.json()["process"].to_string())
            .map_err(|error| failed("write the process", error))?;
        let gate = folder.join("gate");
        rustix::fs::mknodat(CWD, &gate, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|error| failed("make the gate", error.into()))?;
        // Open for reading too, it does not wait for the child.
        let gate = OpenOptions::new().read(true).write(true).open(gate);
        let gate = gate.map_err(|error| failed("open the gate", error))?;
        let pid = launch_process(launch, new.bundle, &["init"], "process.json").await?;
        Ok((Plain { bundle: new.bundle.clone(), pid, gate }, Some(pid.into())))
    }

    async fn start(&self, _: &mut Launch) -> Result<Option<Started>, Status> {
        (&self.gate).write_all(b"!").map_err(|error| failed("open the gate", error))?;
        Ok(None)
    }

    async fn exec(&self, spec: &[u8], launch: &mut Launch) -> Result<Started, Status> {
        let name = format!("exec-{}.json", launch.number());
        let _spec = Temporary::with(self.bundle.path().join(&name), spec)
            .map_err(|error| failed("write the process", error))?;
        let pid = self.pid.as_raw_nonzero().to_string();
        launch_process(launch, &self.bundle, &["join", &pid], &name).await.map(Into::into)
    }

    async fn kill(&self, signal: u32, _all: bool) -> Result<(), Status> {
        // It is the first of its pid namespace: with it, all end.
        shim_kit::kill(self.pid, signal).map_err(|_| Status::not_found("process already finished"))
    }

    async fn delete(&self) -> Result<(), Status> {
        Ok(())
    }

    fn clean_up(remains: Remains<'_, ()>) -> Result<(), String> {
        let Some(pid) = remains.pid else { return Ok(()) };
        // The pid may be another's by now.
        let root = fs::read_link(format!("/proc/{}/root", pid.as_raw_nonzero()));
        if root.is_ok_and(|root| root.starts_with(remains.bundle.path())) {
            rustix::process::kill_process(pid, Signal::KILL).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn pids(&self) -> Result<Vec<u32>, Status> {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(&self.pid.as_raw_nonzero().to_string());
        let all = fs::read_dir("/proc").map_err(|error| failed("read /proc", error))?;
        let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let members = names.filter(|name| own.is_some() && namespace(name) == own);
        Ok(members.filter_map(|name| name.parse().ok()).collect())
    }
}

fn failed(what: &str, error: io::Error) -> Status {
    Status::internal(format!("cannot {what}: {error}"))
}

/// Starts this program again as a process of the container, and learns its pid.
async fn launch_process(
    launch: &mut Launch,
    bundle: &Bundle,
    stage: &[&str],
    process: &str,
) -> Result<Pid, Status> {
    let pid_file = pid_file(bundle.path(), process);
    let mut command = Command::new("/proc/self/exe");
    command.args(stage).arg(bundle.path()).arg(process);
    let descriptors = launch.stdio((0, 0)).await?;
    command.stdin(descriptors.stdin).stdout(descriptors.stdout).stderr(descriptors.stderr);
    let stage =
        launch.reaper().spawn(&mut command).await.map_err(|error| failed("start", error))?;
    // The command holds the process's ends of the pipes.
    drop(command);
    let exit = stage.exit().await.map_err(|error| failed("wait", error))?;
    let pid = read_pid(&pid_file);
    if process != "process.json" {
        // It may not be there.
        let _ = fs::remove_file(pid_file);
    }
    match (exit.status, pid) {
        (0, Ok(pid)) => Ok(pid),
        _ => Err(Status::unknown("the process did not start; its stderr says why")),
    }
}

/// Where a stage writes the pid of its child: for the first process where `delete` looks for it.
fn pid_file(folder: &Path, process: &str) -> PathBuf {
    match process {
        "process.json" => Bundle::new(folder).pid_file(),
        process => folder.join(process).with_extension("pid"),
    }
}

/// Enters new namespaces. Its child is the first process of the new pid namespace.
fn init(folder: &Path, process: &str) -> io::Result<()> {
    let new =
        UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    // Not the file descriptors, for which alone this call has its bad name.
    #[allow(deprecated)]
    rustix::thread::unshare(new)?;
    leave_child(&["first"], folder, process)
}

/// Enters the namespaces of a container's process. The child is a guest there.
fn join(pid: &str, folder: &Path, process: &str) -> io::Result<()> {
    let host = pid.parse().ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    // The first process may still be on its way to its root.
    let root = format!("/proc/{pid}/root");
    while !fs::read_link(&root)?.starts_with(folder) {
        thread::sleep(PAUSE);
    }
    let container = rustix::process::pidfd_open(host, PidfdFlags::empty())?;
    let all = ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
    rustix::thread::move_into_thread_name_spaces(container.as_fd(), all)?;
    // The file lives no longer than this process.
    let spec = fs::read_to_string(folder.join(process))?;
    leave_child(&["guest", pid, &spec], folder, process)
}

/// Starts the last stage, which the shim inherits when this process has ended.
fn leave_child(stage: &[&str], folder: &Path, process: &str) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    let child = command.args(stage).arg(folder).arg(process).spawn()?;
    fs::write(pid_file(folder, process), child.id().to_string())
}

/// Waits until the container is started, and becomes its first process.
fn first(folder: &Path, process: &str) -> io::Result<()> {
    let spec = read_process(folder, process)?;
    File::open(folder.join("gate"))?.read_exact(&mut [0])?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let root = Bundle::new(folder).rootfs();
    // An image need not have the folder.
    let _ = rustix::mount::mount("proc", root.join("proc"), "proc", MountFlags::NOSUID, None);
    become_program(&root, &spec)
}

/// Becomes another process of a container.
fn guest(pid: &str, spec: &str) -> io::Result<()> {
    become_program(&PathBuf::from(format!("/proc/{pid}/root")), &serde_json::from_str(spec)?)
}

fn read_process(folder: &Path, process: &str) -> io::Result<Value> {
    Ok(serde_json::from_slice(&fs::read(folder.join(process))?)?)
}

/// Runs what the specification says, in place of this program.
fn become_program(root: &Path, spec: &Value) -> io::Result<()> {
    let texts = |key: &str| spec[key].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut args = texts("args");
    let mut command = Command::new(args.next().ok_or(io::ErrorKind::InvalidInput)?);
    command.args(args).env_clear().envs(texts("env").filter_map(|entry| entry.split_once('=')));
    match spec["terminal"] == true {
        true => shim_kit::take_terminal()?,
        false => drop(rustix::process::setsid()?),
    }
    rustix::process::chroot(root)?;
    env::set_current_dir(spec["cwd"].as_str().unwrap_or("/"))?;
    Err(command.exec())
}
