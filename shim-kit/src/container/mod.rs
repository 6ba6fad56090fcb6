//! A container: its processes, what may be done to them, and in which order that is told.

mod create;
mod ends;
mod execs;
mod resources;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::Semaphore;
use ttrpc::{Any, Status};

use self::resources::Watched;
use crate::{
    bundle::Bundle,
    cgroup,
    launch::Launch,
    lifecycle::Phase,
    mount,
    process::Process,
    proto::{self, events, types},
    reaper::{Exit, Reaper},
    runtime::Runtime,
    shim::Shim,
    tasks::{blocking, contain},
};

/// What is said of a process that could not be started or was deleted before.
const NEVER_RAN: u32 = 255;

/// A container.
#[derive(Debug)]
pub(crate) struct Container<R> {
    pub id: String,
    pub bundle: Bundle,
    runtime: R,
    shim: Shim,
    /// Starts the runtime's programs.
    reaper: Reaper,
    init: Arc<Process>,
    execs: Mutex<HashMap<String, Arc<Process>>>,
    cgroup: Mutex<Watched>,
    /// Whether the kernel ends all processes with the first.
    leads_its_pids: OnceLock<bool>,
    has_rootfs: bool,
    /// Whether the runtime has deleted it. What comes after that may fail and be tried again.
    is_removed: AtomicBool,
    next_launch: AtomicU64,
    /// How many execs may be made at a time: that is all computing, and more of it than there are
    /// processors is only slower for everybody.
    turns: Semaphore,
}

impl<R: Runtime> Container<R> {
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
            let mut launch = Launch::new(&self.shim, &self.reaper, &self.id, &process, 0);
            let started = contain(self.runtime.start(&mut launch)).await?;
            self.set_cgroup(launch.take_cgroup());
            match started {
                Some(started) => self.first_is_made(launch.made(&process, started)),
                // It may have joined its group only now.
                None => {
                    drop(launch);
                    self.find_cgroup();
                }
            }
            let reader = process.started();
            let pid = process.pid();
            self.shim.outbox.publish(&events::TaskStart { container_id: self.id.clone(), pid });
            reader.await;
            return Ok(pid);
        }
        if self.init.phase().exit().is_some() {
            let message = format!("container {} init process is not running", self.id);
            return Err(Status::failed_precondition(message));
        }
        match self.make_exec(&process).await {
            Ok(ended) => {
                let reader = process.started();
                self.shim.outbox.publish(&events::TaskExecStarted {
                    container_id: self.id.clone(),
                    exec_id: process.exec_id.clone(),
                    pid: process.pid(),
                });
                self.clone().watch(process.clone(), ended);
                reader.await;
                Ok(process.pid())
            }
            Err(status) => {
                // Whoever waits for it shall not wait for ever.
                process.failed(Exit { status: NEVER_RAN, at: SystemTime::now() });
                Err(status)
            }
        }
    }

    /// Deletes the container, with whatever program still runs for it. After an error it goes on where it failed.
    ///
    /// # Errors
    /// FAILED_PRECONDITION while it runs; the runtime's; INTERNAL if its root file system is in use.
    pub async fn delete(&self) -> Result<(u32, Exit), Status> {
        if self.init.phase() == Phase::Created && self.init.pid() == 0 {
            self.init.give_up(Exit { status: NEVER_RAN, at: SystemTime::now() });
        }
        if self.init.phase() == Phase::Created {
            contain(self.runtime.kill(libc::SIGKILL.unsigned_abs(), false)).await?;
            self.init.told().await;
        }
        if self.init.phase().is_alive() {
            return Err(Status::failed_precondition("cannot delete a running container"));
        }
        let exit = self.init.told().await;
        let _order = self.init.order.lock().await;
        if !self.is_removed.load(Ordering::Relaxed) {
            contain(self.runtime.delete()).await?;
            self.is_removed.store(true, Ordering::Relaxed);
        }
        self.reaper.close();
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
        contain(self.runtime.kill(signal, all)).await
    }

    /// Freezes all processes.
    ///
    /// # Errors
    /// FAILED_PRECONDITION unless it runs; the runtime's.
    pub async fn pause(&self) -> Result<(), Status> {
        self.init.change(Phase::pausing)?;
        let paused = contain(self.runtime.pause()).await;
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
        contain(self.runtime.resume()).await?;
        self.init.change(Phase::resumed);
        self.shim.outbox.publish(&events::TaskResumed { container_id: self.id.clone() });
        Ok(())
    }

    /// All processes of the container, with the ids of those that came from Exec.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn pids(&self) -> Result<Vec<types::ProcessInfo>, Status> {
        let pids = contain(self.runtime.pids()).await?;
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
        contain(self.runtime.update(resources)).await
    }

    /// Writes the container's state to a folder.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn checkpoint(&self, path: String, options: Option<&Any>) -> Result<(), Status> {
        contain(self.runtime.checkpoint(path.clone().into(), options)).await?;
        let event = events::TaskCheckpointed { container_id: self.id.clone(), checkpoint: path };
        self.shim.outbox.publish(&event);
        Ok(())
    }

    /// What the container uses.
    ///
    /// # Errors
    /// NOT_FOUND if its control group is not known; the runtime's.
    pub async fn stats(&self) -> Result<Any, Status> {
        if let Some(stats) = contain(self.runtime.stats()).await? {
            return Ok(stats);
        }
        self.find_cgroup();
        if let Some(cgroup) = self.watched().cgroup.clone() {
            return Ok(cgroup.metrics());
        }
        if self.init.child().is_none() {
            return Err(Status::not_found(
                "the container has no process, and its runtime gives no metrics",
            ));
        }
        let execs = || self.execs().values().map(|exec| exec.pid()).chain([self.pid()]).collect();
        let pids = contain(self.runtime.pids()).await.unwrap_or_else(|_| execs());
        Ok(cgroup::processes::metrics(&pids))
    }
}

impl<R> Drop for Container<R> {
    fn drop(&mut self) {
        if let Some(oom) = self.watched().oom.take() {
            oom.abort();
        }
    }
}

async fn unmount(bundle: &Bundle) -> Result<(), Status> {
    let rootfs = bundle.rootfs();
    blocking(move || mount::unmount_all(&rootfs))
        .await
        .map_err(|error| Status::internal(format!("cannot unmount the rootfs: {error}")))
}
