//! Places of containers that are being made.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Containers, TaskService};
use crate::{reaper::Reaper, runtime::Runtime};

/// How long programs may run that take back what was made, until they are killed as well. Far more than they
/// take on a machine that is busy.
const TAKING_BACK: Duration = Duration::from_secs(60);

/// A container's place, taken before the container is there so that an id is not made twice. Also a
/// sandbox's.
#[derive(Debug)]
pub(crate) enum Slot<T> {
    Reserved(Making),
    Made(Arc<T>),
}

/// Something that is being made. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    /// Starts the programs that make it.
    pub reaper: Reaper,
    /// Fires when it is made, or nothing is left of it.
    over: CancellationToken,
}

impl Making {
    /// Programs are started with a reaper that is like this one, and this container's own.
    pub fn new(reaper: &Reaper) -> Making {
        Making { reaper: reaper.with_family(), over: CancellationToken::new() }
    }

    /// Says that it is made, or that nothing is left of it.
    pub fn is_over(&self) {
        self.over.cancel();
    }

    /// Kills what makes it, so that it fails, until it is over. It may have succeeded before that.
    pub async fn end(self) {
        loop {
            self.reaper.kill_family(libc::SIGKILL.unsigned_abs());
            if timeout(TAKING_BACK, self.over.cancelled()).await.is_ok() {
                return;
            }
        }
    }
}

/// Holds a container's place until this is dropped; longer if the container is made by then.
pub(crate) struct Place<R: Runtime> {
    service: TaskService<R>,
    id: String,
    making: Making,
}

impl<R: Runtime> Place<R> {
    /// Takes a place that is free.
    pub fn take(
        service: &TaskService<R>,
        containers: &mut Containers<R>,
        id: String,
        making: Making,
    ) -> Place<R> {
        containers.insert(id.clone(), Slot::Reserved(making.clone()));
        Place { service: service.clone(), id, making }
    }
}

impl<R: Runtime> Drop for Place<R> {
    fn drop(&mut self) {
        let is_free = {
            let mut containers = self.service.containers();
            let has_failed = matches!(containers.get(&self.id), Some(Slot::Reserved(_)));
            has_failed && containers.remove(&self.id).is_some()
        };
        self.making.is_over();
        if is_free {
            self.service.end_if_forgotten();
        }
    }
}
