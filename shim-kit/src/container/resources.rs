//! A container's control group: what it uses, and whether it runs out of memory.

use std::sync::{MutexGuard, PoisonError};

use tokio::task::JoinHandle;

use super::Container;
use crate::{
    cgroup::{self, Cgroup},
    proto::events,
    tasks,
};

/// The group that is known, and who waits for the OOM killer there.
#[derive(Debug, Default)]
pub struct Watched {
    pub cgroup: Option<Cgroup>,
    pub oom: Option<JoinHandle<()>>,
    /// Whether the runtime has said which group it is.
    is_given: bool,
}

impl<R> Container<R> {
    pub(super) fn watched(&self) -> MutexGuard<'_, Watched> {
        self.cgroup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the runtime's word for the group.
    pub(super) fn set_cgroup(&self, cgroup: Option<Cgroup>) {
        if cgroup.is_some() {
            self.watched().is_given = true;
            self.watch_cgroup(cgroup);
        }
    }

    /// Looks in which group the first process is now. One that has not joined its own is still in the shim's.
    pub(super) fn find_cgroup(&self) {
        let Some(pid) = self.init.child() else { return };
        if !self.watched().is_given {
            self.watch_cgroup(Cgroup::own_of(pid));
        }
    }

    fn watch_cgroup(&self, cgroup: Option<Cgroup>) {
        let mut watched = self.watched();
        let Some(cgroup) = cgroup.filter(|cgroup| watched.cgroup.as_ref() != Some(cgroup)) else {
            return;
        };
        let (outbox, container_id) = (self.shim.outbox.clone(), self.id.clone());
        let told = move || outbox.publish(&events::TaskOom { container_id: container_id.clone() });
        let watch = cgroup::watch_oom(cgroup.clone(), self.shim.inotify().clone(), told);
        watched.cgroup = Some(cgroup);
        if let Some(before) = watched.oom.replace(tasks::spawn(watch)) {
            before.abort();
        }
    }
}
