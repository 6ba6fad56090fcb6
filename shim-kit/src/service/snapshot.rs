//! What the service holds, in words.

use std::fmt;

use super::{Slot, TaskService};
use crate::runtime::Runtime;

/// What the service holds, for the log.
impl<R: Runtime> fmt::Display for TaskService<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, lost) = self.shim.outbox.counts();
        let (children, unclaimed) = self.shim.reaper.counts();
        writeln!(f, "events: {waiting} waiting, {lost} lost")?;
        if let Some(connection) = self.shim.outbox.snapshot() {
            writeln!(f, "  {connection}")?;
        }
        writeln!(f, "children: {children} waited for, {unclaimed} ends unclaimed")?;
        write!(f, "copies of stdio: {}", self.shim.copies.tasks.len())?;
        match &*self.sandbox_slot() {
            None => {}
            Some(Slot::Reserved(_)) => write!(f, "\nsandbox: being created")?,
            Some(Slot::Made(sandbox)) => {
                let status = sandbox.phase().status().as_str_name();
                write!(f, "\nsandbox {}: {status}, pid {}", sandbox.id, sandbox.pid())?;
            }
        }
        for (id, slot) in self.containers().iter() {
            match slot {
                Slot::Reserved(_) => write!(f, "\ncontainer {id}: being created")?,
                Slot::Made(container) => {
                    let init = container.process("").map(|init| container.status(&init));
                    let status = init.map_or("GONE", |status| status.as_str_name());
                    let (pid, execs) = (container.pid(), container.exec_count());
                    write!(f, "\ncontainer {id}: {status}, pid {pid}, {execs} execs")?;
                }
            }
        }
        Ok(())
    }
}
