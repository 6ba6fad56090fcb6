//! What all containers of a shim share.

use std::time::Duration;

use crate::{events::Outbox, inotify::Inotify, reaper::Reaper, stdio::Copies};

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
}

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
        }
    }

    /// Tells of changes of files.
    pub fn inotify(&self) -> &Inotify {
        &self.copies.readers
    }
}
