//! Ends of processes, and in which order they are told.

use std::{fs, sync::Arc};

use rustix::process::Pid;
use tokio::{
    sync::MutexGuard,
    time::{Instant, timeout, timeout_at},
};

use super::Container;
use crate::{
    lifecycle::Phase,
    log,
    process::Process,
    proto::events,
    runtime::Runtime,
    started::End,
    tasks::{self, contain},
};

impl<R: Runtime> Container<R> {
    /// Watches the first process and its control group from now on.
    pub(super) fn first_is_made(self: &Arc<Self>, ended: End) {
        if let Some(pid) = self.init.child() {
            self.look_at_first(pid);
        }
        self.clone().watch(self.init.clone(), ended);
    }

    fn look_at_first(&self, pid: Pid) {
        if let Err(error) = self.bundle.write_pid(pid) {
            log::warn(format_args!("cannot keep the pid of the first process: {error}"));
        }
        if let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) {
            // A container has one first process.
            let _ = self.leads_its_pids.set(leads_its_pids(&status));
        }
        self.find_cgroup();
    }

    /// Reports a process's end when it comes, after everything that has to come before.
    pub(super) fn watch(self: Arc<Self>, process: Arc<Process>, ended: End) {
        tasks::spawn(async move {
            let Some(exit) = ended.await else { return };
            let deadline = Instant::now() + self.shim.patience;
            let delivered = process.ended(exit);
            if process.is_init() {
                self.first_has_ended(deadline).await;
            }
            delivered.await;
            // A start that is under way has an event to send first.
            let _order = self.in_order(&process).await;
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

    /// Waits for a start that is under way. What it runs has nothing to wait for once the container's first process has
    /// ended, and is killed if it goes on.
    async fn in_order<'a>(&self, process: &'a Process) -> MutexGuard<'a, ()> {
        match timeout(self.shim.start_after_end, process.order.lock()).await {
            Ok(order) => order,
            Err(_) => {
                if process.is_init() {
                    log::warn(
                        "a start goes on though its process has ended; its programs are killed",
                    );
                    self.reaper.kill_family(libc::SIGKILL.unsigned_abs());
                }
                process.order.lock().await
            }
        }
    }

    /// Ends what the first process left behind, where the kernel does not, and waits until the ends
    /// of all execs are reported: they are over before the container is.
    async fn first_has_ended(&self, deadline: Instant) {
        if !self.leads_its_pids.get().is_some_and(|leads| *leads)
            && let Err(status) =
                contain(self.runtime.kill(libc::SIGKILL.unsigned_abs(), true)).await
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
}

/// Whether a process is the first of a pid namespace, whose others the kernel ends with it. A runtime
/// need not make the namespace that `config.json` asks for, so the kernel is asked.
fn leads_its_pids(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    // As the shim's namespace counts it, and so on to its own.
    numbers.split_whitespace().skip(1).last() == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_pid_namespace_is_known() {
        let leads =
            |numbers: &str| leads_its_pids(&format!("Name:\tsh\nNSpid:{numbers}\nUid:\t0\n"));
        assert!(leads("\t4711\t1"));
        assert!(leads("\t4711\t12\t1"));
        assert!(!leads("\t4711\t12"), "it is in another's");
        assert!(!leads("\t4711"), "it is in the shim's");
        assert!(!leads("\t1"), "the shim's own is not its own");
        assert!(!leads_its_pids(""));
    }
}
