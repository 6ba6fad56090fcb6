//! A container: its processes, and what may be done to them.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use rustix::process::Pid;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tokio_util::task::TaskTracker;
use ttrpc::Status;

use crate::{
    bundle::{self, Bundle},
    cgroup::Cgroup,
    console::ConsoleSocket,
    events::Outbox,
    log, memory, mount,
    process::{Phase, Process},
    proto::{self, events, runc::Options, task, types},
    reaper::{Ended, Exit, Reaper},
    runc::{Descriptors, Error, Runc},
    stdio::{self, Io, Paths},
};

/// How long an exec waits for others to be made first. The limit is there for speed alone, so
/// whoever has waited this long goes ahead.
const TURN: Duration = Duration::from_secs(5);
/// What is said of a process that could not be started or was deleted before.
const NEVER_RAN: u32 = 255;

/// What all containers of a shim share.
#[derive(Clone, Debug)]
pub struct Shared {
    pub namespace: String,
    pub reaper: Reaper,
    pub outbox: Outbox,
    /// The copies of all processes' stdio.
    pub copies: TaskTracker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    No,
    Pausing,
    Paused,
}

/// A container.
#[derive(Debug)]
pub struct Container {
    pub id: String,
    pub bundle: Bundle,
    runc: Runc,
    options: Options,
    shared: Shared,
    init: Arc<Process>,
    execs: Mutex<HashMap<String, Arc<Process>>>,
    pause: Mutex<Pause>,
    cgroup: Option<Cgroup>,
    has_own_pids: bool,
    has_rootfs: bool,
    /// Numbers the files of runc's commands.
    next_command: AtomicU64,
    /// How many execs may be made at a time: runc is all computing, and more of it than there are
    /// processors is only slower for everybody.
    turns: Semaphore,
}

impl Container {
    /// Mounts a root file system and has runc make the container. Its first process exists then and
    /// waits for Start.
    ///
    /// # Errors
    /// UNKNOWN with runc's own words; others if something here fails.
    pub async fn create(
        shared: &Shared,
        request: &task::CreateTaskRequest,
    ) -> Result<Arc<Container>, Status> {
        if !request.checkpoint.is_empty() {
            return Err(Status::unimplemented("restoring from a checkpoint is not supported"));
        }
        let options: Options = request.options.as_ref().and_then(proto::unpack).unwrap_or_default();
        let bundle = Bundle::new(&request.bundle);
        let spec = bundle.spec().map_err(|error| {
            Status::invalid_argument(format!("cannot read the bundle's config.json: {error}"))
        })?;
        let failed = |error| Status::internal(format!("cannot prepare the bundle: {error}"));
        bundle.write_options(&options).map_err(failed)?;
        let paths = Paths {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let mut container = Container {
            id: request.id.clone(),
            runc: Runc::new(&options, &shared.namespace, bundle.path(), shared.reaper.clone()),
            options,
            shared: shared.clone(),
            init: Arc::new(Process::new(String::new(), paths, Vec::new())),
            execs: Mutex::default(),
            pause: Mutex::new(Pause::No),
            cgroup: None,
            has_own_pids: spec.has_own_pids(),
            has_rootfs: !request.rootfs.is_empty(),
            next_command: AtomicU64::new(0),
            turns: Semaphore::new(turns()),
            bundle,
        };
        match container.mount_and_make(&request.rootfs).await {
            Ok((pid, ended)) => {
                container.cgroup = Cgroup::of(pid)
                    .inspect_err(|error| log::warn(format_args!("no control group: {error}")))
                    .ok();
                let container = Arc::new(container);
                container.clone().watch(container.init.clone(), ended);
                Ok(container)
            }
            Err(status) => {
                container.undo().await;
                Err(status)
            }
        }
    }

    async fn mount_and_make(&self, rootfs: &[types::Mount]) -> Result<(Pid, Ended), Status> {
        if self.has_rootfs {
            let root = self.bundle.rootfs();
            fs::create_dir_all(&root)
                .and_then(|()| mount::mount_all(rootfs, &root))
                .map_err(|error| Status::internal(format!("cannot make the rootfs: {error}")))?;
        }
        let pid_file = self.bundle.pid_file();
        let mut args: Vec<OsString> = vec!["create".into(), "--bundle".into()];
        args.push(self.bundle.path().into());
        if self.options.no_pivot_root {
            args.push("--no-pivot".into());
        }
        if self.options.no_new_keyring {
            args.push("--no-new-keyring".into());
        }
        self.make(&self.init, args, &pid_file, "create").await
    }

    /// Takes back what a failed create left.
    async fn undo(&self) {
        self.init.close();
        if self.runc.knows(&self.id) {
            let deleted = self.runc.run(&self.log_file(), ["delete", "--force", &self.id]).await;
            if let Err(error) = deleted {
                log::warn(format_args!("cannot remove what a failed create left: {error}"));
            }
        }
        if let Err(status) = self.unmount().await {
            log::warn(status);
        }
    }

    /// Has runc make a process with its stdio, and learns its pid.
    async fn make(
        &self,
        process: &Process,
        mut args: Vec<OsString>,
        pid_file: &Path,
        what: &str,
    ) -> Result<(Pid, Ended), Status> {
        let starting = self.shared.reaper.begin();
        let mut io = Io::new(self.shared.copies.clone());
        args.extend(["--pid-file".into(), pid_file.into()]);
        let socket = match process.paths.terminal {
            true => Some(self.console_socket()?),
            false => None,
        };
        let descriptors = match &socket {
            Some(socket) => {
                args.extend(["--console-socket".into(), socket.path().into()]);
                let null = Stdio::null;
                Descriptors { stdin: null(), stdout: null(), stderr: null() }
            }
            None => io.open_pipes(&process.paths, (self.options.io_uid, self.options.io_gid))?,
        };
        args.push(self.id.clone().into());
        let log = self.log_file();
        let result = self.runc.run_with(descriptors, &log, args).await;
        // It is there only if runc had something to say.
        let _ = fs::remove_file(&log);
        result.map_err(|error| error.to_status(what))?;

        let terminal = match socket {
            Some(socket) => Some(self.terminal(socket, process, &mut io)?),
            None => None,
        };
        let pid = bundle::read_pid(pid_file)
            .map_err(|error| Status::internal(format!("runc told no pid: {error}")))?;
        process.made(pid, io, terminal);
        Ok((pid, starting.claim(pid)))
    }

    fn console_socket(&self) -> Result<ConsoleSocket, Status> {
        ConsoleSocket::bind(self.bundle.path(), &format!("tty-{}", self.number()))
            .map_err(|error| Status::internal(format!("cannot listen for a terminal: {error}")))
    }

    fn terminal(
        &self,
        socket: ConsoleSocket,
        process: &Process,
        io: &mut Io,
    ) -> Result<OwnedFd, Status> {
        let master = socket
            .receive()
            .map_err(|error| Status::internal(format!("cannot take the terminal: {error}")))?;
        io.open_terminal(&process.paths, &master)?;
        Ok(master)
    }

    fn number(&self) -> u64 {
        self.next_command.fetch_add(1, Ordering::Relaxed)
    }

    /// A log for one command: commands run side by side.
    fn log_file(&self) -> PathBuf {
        self.bundle.path().join(format!("runc-{}.log", self.number()))
    }

    /// Reports a process's end when it comes, after everything that has to come before.
    fn watch(self: Arc<Self>, process: Arc<Process>, ended: Ended) {
        tokio::spawn(async move {
            let Ok(exit) = ended.await else { return };
            let is_init = process.exec_id.is_empty();
            let delivered = process.ended();
            if is_init && !self.has_own_pids {
                self.kill_rest().await;
            }
            delivered.await;
            if is_init {
                self.execs_stopped().await;
            }
            // A start that is under way has an event to send first.
            let _order = process.order.lock().await;
            self.shared.outbox.publish(&events::TaskExit {
                container_id: self.id.clone(),
                id: if is_init { self.id.clone() } else { process.exec_id.clone() },
                pid: process.pid(),
                exit_status: exit.status,
                exited_at: Some(exit.at.into()),
            });
            process.stop(exit);
        });
    }

    /// Ends what the first process left behind, where the kernel does not.
    async fn kill_rest(&self) {
        let killed = self.runc.run(&self.log_file(), ["kill", "--all", &self.id, "9"]).await;
        if let Err(error) = killed
            && !error.is_no_process()
            && !error.is_no_container()
        {
            log::warn(format_args!("cannot end the rest of a container: {error}"));
        }
    }

    /// Waits until the ends of all execs are reported: they are over before the container is.
    async fn execs_stopped(&self) {
        let running: Vec<_> = self
            .execs()
            .values()
            .filter(|exec| matches!(exec.phase(), Phase::Running | Phase::Ended))
            .cloned()
            .collect();
        let all = async {
            for exec in running {
                exec.stopped().await;
            }
        };
        // An exec whose end the kernel holds back must not hold back the container's.
        if timeout(2 * stdio::PATIENCE, all).await.is_err() {
            log::warn("a container ended before its execs did");
        }
    }

    fn execs(&self) -> MutexGuard<'_, HashMap<String, Arc<Process>>> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause_state(&self) -> MutexGuard<'_, Pause> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first process, or the one with this exec id.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub fn process(&self, exec_id: &str) -> Result<Arc<Process>, Status> {
        if exec_id.is_empty() {
            return Ok(self.init.clone());
        }
        let found = self.execs().get(exec_id).cloned();
        found.ok_or_else(|| Status::not_found(format!("process {exec_id} does not exist")))
    }

    /// The pid of the first process.
    pub fn pid(&self) -> u32 {
        self.init.pid()
    }

    /// How many processes came from Exec and are not deleted.
    pub fn exec_count(&self) -> usize {
        self.execs().len()
    }

    /// What a process is doing, in containerd's words.
    pub fn status(&self, process: &Process) -> types::Status {
        match (process.phase(), *self.pause_state()) {
            (Phase::Stopped(_), _) => types::Status::Stopped,
            (Phase::Created, _) => types::Status::Created,
            (_, Pause::Pausing) => types::Status::Pausing,
            (_, Pause::Paused) => types::Status::Paused,
            (Phase::Running | Phase::Ended, Pause::No) => types::Status::Running,
        }
    }

    /// Starts the first process or one that came from Exec, and gives its pid.
    ///
    /// # Errors
    /// UNKNOWN with runc's own words; FAILED_PRECONDITION if it was started before.
    pub async fn start(self: &Arc<Self>, exec_id: &str) -> Result<u32, Status> {
        let process = self.process(exec_id)?;
        let _order = process.order.lock().await;
        if process.phase() != Phase::Created {
            return Err(Status::failed_precondition("cannot start a process twice"));
        }
        match exec_id {
            "" => self.start_init().await?,
            _ => self.start_exec(&process).await?,
        }
        Ok(process.pid())
    }

    async fn start_init(&self) -> Result<(), Status> {
        let started = self.runc.run(&self.log_file(), ["start", &self.id]).await;
        started.map_err(|error| error.to_status("start"))?;
        self.init.running();
        let pid = self.init.pid();
        self.shared.outbox.publish(&events::TaskStart { container_id: self.id.clone(), pid });
        Ok(())
    }

    async fn start_exec(self: &Arc<Self>, process: &Arc<Process>) -> Result<(), Status> {
        let (pid, ended) = match self.make_exec(process).await {
            Ok(made) => made,
            Err(status) => {
                // Whoever waits for it shall not wait for ever.
                process.close();
                process.stop(Exit { status: NEVER_RAN, at: SystemTime::now() });
                return Err(status);
            }
        };
        process.running();
        self.shared.outbox.publish(&events::TaskExecStarted {
            container_id: self.id.clone(),
            exec_id: process.exec_id.clone(),
            pid: pid.as_raw_nonzero().get().unsigned_abs(),
        });
        self.clone().watch(process.clone(), ended);
        Ok(())
    }

    async fn make_exec(&self, process: &Process) -> Result<(Pid, Ended), Status> {
        let _turn = self.turn().await;
        let number = self.number();
        let file = |suffix: &str| self.bundle.path().join(format!("exec-{number}.{suffix}"));
        let (spec, pid_file) = (file("json"), file("pid"));
        fs::write(&spec, &process.spec)
            .map_err(|error| Status::internal(format!("cannot write the process: {error}")))?;
        let args = vec!["exec".into(), "--detach".into(), "--process".into(), spec.clone().into()];
        let made = self.make(process, args, &pid_file, "exec").await;
        for path in [&spec, &pid_file] {
            // The pid file is not there if runc failed.
            let _ = fs::remove_file(path);
        }
        made
    }

    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        timeout(TURN, self.turns.acquire()).await.ok()?.ok()
    }

    /// Takes note of a process that is to be started later.
    ///
    /// # Errors
    /// ALREADY_EXISTS, or INVALID_ARGUMENT if the process's description is none.
    pub fn exec(&self, request: &task::ExecProcessRequest) -> Result<(), Status> {
        let spec = request.spec.as_ref().map(|spec| spec.value.as_slice()).unwrap_or_default();
        let spec = exec_spec(spec, request.terminal)?;
        if request.exec_id.is_empty() {
            return Err(Status::invalid_argument("an exec needs an id"));
        }
        if matches!(self.init.phase(), Phase::Ended | Phase::Stopped(_)) {
            return Err(Status::failed_precondition("the container has stopped"));
        }
        let paths = Paths {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let mut execs = self.execs();
        if execs.contains_key(&request.exec_id) {
            let message = format!("process {} exists already", request.exec_id);
            return Err(Status::already_exists(message));
        }
        let process = Process::new(request.exec_id.clone(), paths, spec);
        execs.insert(request.exec_id.clone(), Arc::new(process));
        drop(execs);
        self.shared.outbox.publish(&events::TaskExecAdded {
            container_id: self.id.clone(),
            exec_id: request.exec_id.clone(),
        });
        Ok(())
    }

    /// Deletes a process that came from Exec.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while it runs.
    pub async fn delete_exec(&self, exec_id: &str) -> Result<(u32, Exit), Status> {
        let process = self.process(exec_id)?;
        let _order = process.order.lock().await;
        let exit = match process.phase() {
            Phase::Stopped(exit) => exit,
            Phase::Created => Exit { status: NEVER_RAN, at: SystemTime::now() },
            Phase::Running | Phase::Ended => {
                return Err(Status::failed_precondition("cannot delete a running process"));
            }
        };
        process.stop(exit);
        process.close();
        let mut execs = self.execs();
        execs.remove(exec_id);
        if execs.is_empty() {
            // Many execs at a time leave a large table, and a heap full of holes.
            *execs = HashMap::new();
            memory::give_back();
        }
        Ok((process.pid(), exit))
    }

    /// Deletes the container.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while it runs; UNKNOWN with runc's own words.
    pub async fn delete(&self) -> Result<(u32, Exit), Status> {
        if self.init.phase() == Phase::Created {
            self.kill_init(9, false).await?;
            self.init.stopped().await;
        }
        let _order = self.init.order.lock().await;
        let Phase::Stopped(exit) = self.init.phase() else {
            return Err(Status::failed_precondition("cannot delete a running container"));
        };
        match self.runc.run(&self.log_file(), ["delete", &self.id]).await {
            Ok(_) => {}
            Err(error) if error.is_no_container() => {}
            Err(error) => return Err(error.to_status("delete")),
        }
        self.init.close();
        self.execs().drain().for_each(|(_, exec)| {
            exec.stop(exit);
            exec.close();
        });
        self.unmount().await?;
        Ok((self.init.pid(), exit))
    }

    async fn unmount(&self) -> Result<(), Status> {
        if !self.has_rootfs {
            return Ok(());
        }
        mount::unmount_all(&self.bundle.rootfs())
            .await
            .map_err(|error| Status::internal(format!("cannot unmount the rootfs: {error}")))
    }

    /// Sends a signal to a process, or to all.
    ///
    /// # Errors
    /// NOT_FOUND if it has ended.
    pub async fn kill(&self, exec_id: &str, signal: u32, all: bool) -> Result<(), Status> {
        match exec_id {
            "" => self.kill_init(signal, all).await,
            _ => self.process(exec_id)?.kill(signal),
        }
    }

    async fn kill_init(&self, signal: u32, all: bool) -> Result<(), Status> {
        if !all && matches!(self.init.phase(), Phase::Ended | Phase::Stopped(_)) {
            return Err(Status::not_found("process already finished"));
        }
        let signal = signal.to_string();
        let mut args = vec!["kill", &self.id, &signal];
        if all {
            args.insert(1, "--all");
        }
        match self.runc.run(&self.log_file(), args).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_no_process() => {
                Err(Status::not_found("process already finished"))
            }
            Err(error) if error.is_no_container() => Err(Status::not_found("no such container")),
            Err(error) => Err(error.to_status("kill")),
        }
    }

    /// Freezes all processes.
    ///
    /// # Errors
    /// FAILED_PRECONDITION unless it runs; UNKNOWN with runc's own words.
    pub async fn pause(&self) -> Result<(), Status> {
        {
            let mut pause = self.pause_state();
            if self.init.phase() != Phase::Running || *pause != Pause::No {
                return Err(Status::failed_precondition("the container is not running"));
            }
            *pause = Pause::Pausing;
        }
        let paused = self.runc.run(&self.log_file(), ["pause", &self.id]).await;
        *self.pause_state() = if paused.is_ok() { Pause::Paused } else { Pause::No };
        paused.map_err(|error| error.to_status("pause"))?;
        self.shared.outbox.publish(&events::TaskPaused { container_id: self.id.clone() });
        Ok(())
    }

    /// Lets all processes go on.
    ///
    /// # Errors
    /// FAILED_PRECONDITION unless it is paused; UNKNOWN with runc's own words.
    pub async fn resume(&self) -> Result<(), Status> {
        if *self.pause_state() != Pause::Paused {
            return Err(Status::failed_precondition("the container is not paused"));
        }
        let resumed = self.runc.run(&self.log_file(), ["resume", &self.id]).await;
        resumed.map_err(|error| error.to_status("resume"))?;
        *self.pause_state() = Pause::No;
        self.shared.outbox.publish(&events::TaskResumed { container_id: self.id.clone() });
        Ok(())
    }

    /// All processes of the container, with the ids of those that came from Exec.
    ///
    /// # Errors
    /// UNKNOWN with runc's own words.
    pub async fn pids(&self) -> Result<Vec<types::ProcessInfo>, Status> {
        let listed = self.runc.run(&self.log_file(), ["ps", "--format", "json", &self.id]).await;
        let listed = listed.map_err(|error| error.to_status("ps"))?;
        // runc writes `null` for none.
        let pids: Option<Vec<u32>> = serde_json::from_str(&listed)
            .map_err(|error| Status::internal(format!("runc ps gave no list: {error}")))?;
        let execs: HashMap<u32, String> =
            self.execs().values().map(|exec| (exec.pid(), exec.exec_id.clone())).collect();
        let details = |exec_id: &String| {
            proto::pack(&proto::runc::ProcessDetails { exec_id: exec_id.clone() })
        };
        let info = |pid: u32| types::ProcessInfo { pid, info: execs.get(&pid).map(details) };
        Ok(pids.unwrap_or_default().into_iter().map(info).collect())
    }

    /// Changes the container's resources: the OCI runtime specification's `linux.resources`.
    ///
    /// # Errors
    /// UNKNOWN with runc's own words.
    pub async fn update(&self, resources: &[u8]) -> Result<(), Status> {
        let file = self.bundle.path().join(format!("resources-{}.json", self.number()));
        fs::write(&file, resources)
            .map_err(|error| Status::internal(format!("cannot write the resources: {error}")))?;
        let args =
            ["update".into(), "--resources".into(), file.clone().into(), OsString::from(&self.id)];
        let updated = self.runc.run(&self.log_file(), args).await;
        // It was written above.
        let _ = fs::remove_file(&file);
        updated.map(drop).map_err(|error: Error| error.to_status("update"))
    }

    /// What the container uses.
    ///
    /// # Errors
    /// NOT_FOUND if its control group is not known.
    pub fn stats(&self) -> Result<ttrpc::Any, Status> {
        let cgroup = self.cgroup.as_ref();
        cgroup.map(Cgroup::metrics).ok_or_else(|| Status::not_found("no control group"))
    }
}

/// How many execs are made at a time.
fn turns() -> usize {
    2 * thread::available_parallelism().map_or(2, usize::from)
}

/// The process that an exec is to be, with the terminal that the request asks for.
fn exec_spec(json: &[u8], terminal: bool) -> Result<Vec<u8>, Status> {
    let wrong = |what: &str| Status::invalid_argument(format!("the process to exec {what}"));
    let mut spec: serde_json::Value =
        serde_json::from_slice(json).map_err(|error| wrong(&format!("is no JSON: {error}")))?;
    let object = spec.as_object_mut().ok_or_else(|| wrong("is no JSON object"))?;
    object.insert("terminal".to_owned(), terminal.into());
    Ok(spec.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_on_the_terminal() {
        let spec = exec_spec(br#"{"args":["sh"],"terminal":false}"#, true).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
        assert_eq!(spec, serde_json::json!({"args": ["sh"], "terminal": true}));
        for wrong in [&b""[..], b"[]", b"{"] {
            assert_eq!(exec_spec(wrong, false).unwrap_err().code(), ttrpc::Code::InvalidArgument);
        }
    }
}
