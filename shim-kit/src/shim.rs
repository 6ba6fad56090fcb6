//! What all containers of a shim share.

use std::time::Duration;

use ttrpc_containerd::events::Outbox;

use crate::{inotify::Inotify, reaper::Reaper, stdio::Copies};

/// What all containers of a shim share. Clones are the same shim.
#[derive(Clone, Debug)]
pub(crate) struct Shim {
    /// containerd's.
    pub namespace: String,
    pub reaper: Reaper,
    /// Starts the programs that take output.
    pub loggers: Reaper,
    pub outbox: Outbox,
    /// The copies of all processes' stdio.
    pub copies: Copies,
    /// How long output may hold back an exit.
    pub patience: Duration,
    /// How long a start may go on after the end of the process that it starts.
    pub start_after_end: Duration,
}

/// Far more than a start takes on a machine that is busy: one that is killed is an error.
const START_AFTER_END: Duration = Duration::from_secs(60);

impl Shim {
    pub fn new(namespace: &str, patience: Duration) -> Shim {
        let reaper = Reaper::default();
        Shim {
            namespace: namespace.to_owned(),
            loggers: reaper.with_family(),
            reaper,
            outbox: Outbox::new(namespace),
            copies: Copies::default(),
            patience,
            start_after_end: START_AFTER_END,
        }
    }

    /// Tells of changes of files.
    pub fn inotify(&self) -> &Inotify {
        &self.copies.readers
    }
}
