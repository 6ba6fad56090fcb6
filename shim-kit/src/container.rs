//! A container: its processes, what may be done to them, and in which order that is told.

use std::{
    collections::HashMap,
    fs, io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use rustix::process::Pid;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use ttrpc::{Any, Status};

use crate::{
    bundle::Bundle,
    cgroup::{self, Cgroup},
    launch::Launch,
    lifecycle::Phase,
    log, memory, mount, options,
    process::Process,
    proto::{self, events, task, types},
    reaper::{Ended, Exit},
    runtime::{New, Runtime},
    shim::Shim,
    stdio::Paths,
};

/// How long an exec waits for others to be made first. The limit is there for speed alone, so
/// whoever has waited this long goes ahead.
const TURN: Duration = Duration::from_secs(5);
/// What is said of a process that could not be started or was deleted before.
const NEVER_RAN: u32 = 255;

/// A container.
#[derive(Debug)]
pub(crate) struct Container<R> {
    pub id: String,
    pub bundle: Bundle,
    runtime: R,
    shim: Shim,
    init: Arc<Process>,
    execs: Mutex<HashMap<String, Arc<Process>>>,
    cgroup: OnceLock<Cgroup>,
    oom: OnceLock<JoinHandle<()>>,
    has_own_pids: bool,
    has_rootfs: bool,
    next_launch: AtomicU64,
    /// How many execs may be made at a time: that is all computing, and more of it than there are
    /// processors is only slower for everybody.
    turns: Semaphore,
}

impl<R: Runtime> Container<R> {
    /// Mounts a root file system and has the runtime make the container. Its first process exists
    /// then and waits for Start.
    ///
    /// # Errors
    /// The runtime's; others if something here fails.
    pub async fn create(
        shim: &Shim,
        request: &task::CreateTaskRequest,
    ) -> Result<Arc<Container<R>>, Status> {
        let options = options::read(request.options.as_ref(), R::options)?;
        let bundle = Bundle::new(&request.bundle);
        let spec = bundle.spec().map_err(|error| {
            Status::invalid_argument(format!("cannot read the bundle's config.json: {error}"))
        })?;
        let paths = Paths {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let init = Arc::new(Process::new(String::new(), paths, Vec::new()));
        let has_rootfs = !request.rootfs.is_empty();
        let made = async {
            bundle
                .write_options(request.options.as_ref())
                .map_err(|error| Status::internal(format!("cannot prepare the bundle: {error}")))?;
            if has_rootfs {
                make_rootfs(shim, &bundle, &request.rootfs).await.map_err(|error| {
                    Status::internal(format!("cannot make the rootfs: {error}"))
                })?;
            }
            let mut launch = Launch::new(shim, &request.id, &init, 0);
            let checkpoint = Some(&request.checkpoint).filter(|path| !path.is_empty());
            let new = New {
                id: &request.id,
                namespace: &shim.namespace,
                bundle: &bundle,
                options,
                checkpoint: checkpoint.map(Into::into),
            };
            let (runtime, pid) = R::create(new, &mut launch).await?;
            Ok((runtime, pid.map(|pid| (pid, launch.made(&init, pid)))))
        };
        let (runtime, first) = match made.await {
            Ok(made) => made,
            Err(status) => {
                // The runtime has taken back what it did.
                if has_rootfs && let Err(status) = unmount(&bundle).await {
                    log::warn(status);
                }
                return Err(status);
            }
        };
        let container = Arc::new(Container {
            id: request.id.clone(),
            runtime,
            shim: shim.clone(),
            init,
            execs: Mutex::default(),
            cgroup: OnceLock::new(),
            oom: OnceLock::new(),
            has_own_pids: spec.has_own_pids(),
            has_rootfs,
            next_launch: AtomicU64::new(1),
            turns: Semaphore::new(2 * thread::available_parallelism().map_or(2, usize::from)),
            bundle,
        });
        if let Some((pid, ended)) = first {
            container.first_is_made(pid, ended);
        }
        Ok(container)
    }

    /// Watches the first process and its control group from now on.
    fn first_is_made(self: &Arc<Self>, pid: Pid, ended: Ended) {
        match Cgroup::of(pid) {
            Ok(cgroup) => {
                let (outbox, container_id) = (self.shim.outbox.clone(), self.id.clone());
                let told = move || {
                    outbox.publish(&events::TaskOom { container_id: container_id.clone() });
                };
                let watch = cgroup::watch_oom(cgroup.clone(), self.shim.inotify().clone(), told);
                // A container has one first process.
                let _ = self.oom.set(tokio::spawn(watch));
                let _ = self.cgroup.set(cgroup);
            }
            Err(error) => log::warn(format_args!("no control group: {error}")),
        }
        self.clone().watch(self.init.clone(), ended);
    }

    /// Reports a process's end when it comes, after everything that has to come before.
    fn watch(self: Arc<Self>, process: Arc<Process>, ended: Ended) {
        tokio::spawn(async move {
            let Ok(exit) = ended.await else { return };
            let deadline = Instant::now() + self.shim.patience;
            let delivered = process.ended(exit);
            if process.is_init() {
                self.first_has_ended(deadline).await;
            }
            delivered.await;
            // A start that is under way has an event to send first.
            let _order = process.order.lock().await;
            self.shim.outbox.publish(&events::TaskExit {
                container_id: self.id.clone(),
                id: if process.is_init() { self.id.clone() } else { process.exec_id.clone() },
                pid: process.pid(),
                exit_status: exit.status,
                exited_at: Some(exit.at.into()),
            });
            process.tell();
        });
    }

    /// Ends what the first process left behind, where the kernel does not, and waits until the ends
    /// of all execs are reported: they are over before the container is.
    async fn first_has_ended(&self, deadline: Instant) {
        if !self.has_own_pids
            && let Err(status) = self.runtime.kill(libc::SIGKILL.unsigned_abs(), true).await
            && status.code() != ttrpc::Code::NotFound
        {
            log::warn(format_args!("cannot end the rest of a container: {status}"));
        }
        let running = |exec: &&Arc<Process>| {
            let phase = exec.phase();
            phase.is_alive() || matches!(phase, Phase::Ended(_))
        };
        let running: Vec<_> = self.execs().values().filter(running).cloned().collect();
        let all = async {
            for exec in running {
                exec.told().await;
            }
        };
        // An exec whose end the kernel holds back must not hold back the container's.
        if timeout_at(deadline, all).await.is_err() {
            log::warn("a container's end is told before that of its execs");
        }
    }

    fn execs(&self) -> MutexGuard<'_, HashMap<String, Arc<Process>>> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What a process is doing, in containerd's words. The container is frozen as a whole.
    pub fn status(&self, process: &Process) -> types::Status {
        match (process.phase(), self.init.phase()) {
            (Phase::Running, frozen @ (Phase::Pausing | Phase::Paused)) => frozen.status(),
            (phase, _) => phase.status(),
        }
    }

    /// Starts the first process or one that came from Exec, and gives its pid.
    ///
    /// # Errors
    /// The runtime's; FAILED_PRECONDITION if it was started before.
    pub async fn start(self: &Arc<Self>, exec_id: &str) -> Result<u32, Status> {
        let process = self.process(exec_id)?;
        let _order = process.order.lock().await;
        process.phase().may_start()?;
        if process.is_init() {
            let mut launch = Launch::new(&self.shim, &self.id, &process, 0);
            if let Some(pid) = self.runtime.start(&mut launch).await? {
                self.first_is_made(pid, launch.made(&process, pid));
            }
            process.started();
            let pid = process.pid();
            self.shim.outbox.publish(&events::TaskStart { container_id: self.id.clone(), pid });
            return Ok(pid);
        }
        match self.make_exec(&process).await {
            Ok(ended) => {
                process.started();
                self.shim.outbox.publish(&events::TaskExecStarted {
                    container_id: self.id.clone(),
                    exec_id: process.exec_id.clone(),
                    pid: process.pid(),
                });
                self.clone().watch(process.clone(), ended);
                Ok(process.pid())
            }
            Err(status) => {
                // Whoever waits for it shall not wait for ever.
                process.give_up(Exit { status: NEVER_RAN, at: SystemTime::now() });
                Err(status)
            }
        }
    }

    async fn make_exec(&self, process: &Process) -> Result<Ended, Status> {
        let _turn = self.turn().await;
        let number = self.next_launch.fetch_add(1, Ordering::Relaxed);
        let mut launch = Launch::new(&self.shim, &self.id, process, number);
        let pid = self.runtime.exec(&process.spec, &mut launch).await?;
        Ok(launch.made(process, pid))
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
        if self.init.phase().exit().is_some() {
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
        self.shim.outbox.publish(&events::TaskExecAdded {
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
        let exit = match process.phase() {
            Phase::Told(exit) => exit,
            Phase::Ended(_) => process.told().await,
            Phase::Created => Exit { status: NEVER_RAN, at: SystemTime::now() },
            _ => return Err(Status::failed_precondition("cannot delete a running process")),
        };
        let _order = process.order.lock().await;
        if process.phase().is_alive() {
            return Err(Status::failed_precondition("cannot delete a running process"));
        }
        process.give_up(exit);
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
    /// FAILED_PRECONDITION while it runs; the runtime's.
    pub async fn delete(&self) -> Result<(u32, Exit), Status> {
        if self.init.phase() == Phase::Created && self.init.pid() == 0 {
            self.init.give_up(Exit { status: NEVER_RAN, at: SystemTime::now() });
        }
        if self.init.phase() == Phase::Created {
            self.runtime.kill(libc::SIGKILL.unsigned_abs(), false).await?;
            self.init.told().await;
        }
        if self.init.phase().is_alive() {
            return Err(Status::failed_precondition("cannot delete a running container"));
        }
        let exit = self.init.told().await;
        let _order = self.init.order.lock().await;
        self.runtime.delete().await?;
        self.init.close();
        let execs = std::mem::take(&mut *self.execs());
        for exec in execs.into_values() {
            exec.give_up(exit);
        }
        if self.has_rootfs {
            unmount(&self.bundle).await?;
        }
        Ok((self.init.pid(), exit))
    }

    /// Sends a signal to a process, or to all.
    ///
    /// # Errors
    /// NOT_FOUND if it has ended.
    pub async fn kill(&self, exec_id: &str, signal: u32, all: bool) -> Result<(), Status> {
        if !exec_id.is_empty() {
            return self.process(exec_id)?.kill(signal);
        }
        if !all && self.init.phase().exit().is_some() {
            return Err(Status::not_found("process already finished"));
        }
        self.runtime.kill(signal, all).await
    }

    /// Freezes all processes.
    ///
    /// # Errors
    /// FAILED_PRECONDITION unless it runs; the runtime's.
    pub async fn pause(&self) -> Result<(), Status> {
        self.init.change(Phase::pausing)?;
        let paused = self.runtime.pause().await;
        self.init.change(|phase| phase.pause_tried(paused.is_ok()));
        paused?;
        self.shim.outbox.publish(&events::TaskPaused { container_id: self.id.clone() });
        Ok(())
    }

    /// Lets all processes go on.
    ///
    /// # Errors
    /// FAILED_PRECONDITION unless it is paused; the runtime's.
    pub async fn resume(&self) -> Result<(), Status> {
        self.init.phase().may_resume()?;
        self.runtime.resume().await?;
        self.init.change(Phase::resumed);
        self.shim.outbox.publish(&events::TaskResumed { container_id: self.id.clone() });
        Ok(())
    }

    /// All processes of the container, with the ids of those that came from Exec.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn pids(&self) -> Result<Vec<types::ProcessInfo>, Status> {
        let pids = self.runtime.pids().await?;
        let execs: HashMap<u32, String> =
            self.execs().values().map(|exec| (exec.pid(), exec.exec_id.clone())).collect();
        let details = |exec_id: &String| {
            proto::pack(&proto::runc::ProcessDetails { exec_id: exec_id.clone() })
        };
        let info = |pid: u32| types::ProcessInfo { pid, info: execs.get(&pid).map(details) };
        Ok(pids.into_iter().map(info).collect())
    }

    /// Changes the container's resources: the OCI runtime specification's `linux.resources`.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn update(&self, resources: &[u8]) -> Result<(), Status> {
        self.runtime.update(resources).await
    }

    /// Writes the container's state to a folder.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn checkpoint(&self, path: String, options: Option<&Any>) -> Result<(), Status> {
        self.runtime.checkpoint(path.clone().into(), options).await?;
        let event = events::TaskCheckpointed { container_id: self.id.clone(), checkpoint: path };
        self.shim.outbox.publish(&event);
        Ok(())
    }

    /// What the container uses.
    ///
    /// # Errors
    /// NOT_FOUND if its control group is not known; the runtime's.
    pub async fn stats(&self) -> Result<Any, Status> {
        if let Some(stats) = self.runtime.stats().await? {
            return Ok(stats);
        }
        let cgroup = self.cgroup.get();
        cgroup.map(Cgroup::metrics).ok_or_else(|| Status::not_found("no control group"))
    }
}

impl<R> Drop for Container<R> {
    fn drop(&mut self) {
        if let Some(oom) = self.oom.get() {
            oom.abort();
        }
    }
}

async fn make_rootfs(shim: &Shim, bundle: &Bundle, mounts: &[types::Mount]) -> io::Result<()> {
    let root = bundle.rootfs();
    fs::create_dir_all(&root)?;
    mount::mount_all(mounts, &root, &shim.reaper).await
}

async fn unmount(bundle: &Bundle) -> Result<(), Status> {
    mount::unmount_all(&bundle.rootfs())
        .await
        .map_err(|error| Status::internal(format!("cannot unmount the rootfs: {error}")))
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
