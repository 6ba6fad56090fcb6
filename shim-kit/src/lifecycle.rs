//! How far a process of a container is. Pure: no process is touched.
//!
//! ```text
//!             ┌──────> Running <──┐
//! Created ────┤         │  │      │
//!    │        │         │  v      │
//!    │        │         │ Pausing ┤
//!    │        │         │  v      │
//!    │        │         │ Paused ─┘
//!    v        v         v  v
//!    ├──────────────> Ended ──────> Told
//!    v                  ^
//! Failed ───────────────┘
//! ```
//!
//! `Failed` is "created" for containerd: an exec that could not be started. It ends when it is deleted.
//! `Ended` and `Told` are both "stopped" for containerd. Between them the process's output is
//! delivered; whoever waits for the end is answered when it is told. A method whose transition is
//! not in the picture changes nothing and says so.

use ttrpc::Status;

use crate::{proto::types, reaper::Exit};

/// A process's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Known, and not started.
    Created,
    /// It could not be started, and whoever waited was told this.
    Failed(Exit),
    /// Started, and not known to have ended.
    Running,
    /// It is being frozen.
    Pausing,
    /// It is frozen.
    Paused,
    /// It has ended, and its output is being delivered.
    Ended(Exit),
    /// It has ended, and whoever waited was told.
    Told(Exit),
}

impl Phase {
    /// Whether it may be started.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub fn may_start(self) -> Result<(), Status> {
        match self {
            Phase::Created => Ok(()),
            Phase::Failed(_) => Err(Status::failed_precondition("it could not be started before")),
            _ => Err(Status::failed_precondition("cannot start a process twice")),
        }
    }

    /// It was started. Not so if its end came first.
    pub fn started(&mut self) -> bool {
        let is_new = *self == Phase::Created;
        if is_new {
            *self = Phase::Running;
        }
        is_new
    }

    /// It could not be started. Gives what is to be told, unless it was started after all.
    pub fn failed(&mut self, exit: Exit) -> Option<Exit> {
        if *self != Phase::Created {
            return None;
        }
        *self = Phase::Failed(exit);
        Some(exit)
    }

    /// It is to be frozen.
    ///
    /// # Errors
    /// FAILED_PRECONDITION unless it runs.
    pub fn pausing(&mut self) -> Result<(), Status> {
        if *self != Phase::Running {
            return Err(Status::failed_precondition("the container is not running"));
        }
        *self = Phase::Pausing;
        Ok(())
    }

    /// The attempt to freeze it has succeeded or failed. Its end may have come meanwhile.
    pub fn pause_tried(&mut self, has_succeeded: bool) {
        if *self == Phase::Pausing {
            *self = if has_succeeded { Phase::Paused } else { Phase::Running };
        }
    }

    /// Whether it is frozen.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub fn may_resume(self) -> Result<(), Status> {
        match self {
            Phase::Paused => Ok(()),
            _ => Err(Status::failed_precondition("the container is not paused")),
        }
    }

    /// It goes on. Its end may have come meanwhile.
    pub fn resumed(&mut self) {
        if *self == Phase::Paused {
            *self = Phase::Running;
        }
    }

    /// It has ended. The first end counts.
    pub fn ended(&mut self, exit: Exit) {
        if self.exit().is_none() {
            *self = Phase::Ended(exit);
        }
    }

    /// Its end is told. Gives the exit, unless it has not ended or was told before.
    pub fn told(&mut self) -> Option<Exit> {
        let Phase::Ended(exit) = *self else { return None };
        *self = Phase::Told(exit);
        Some(exit)
    }

    /// How it ended, if it has.
    pub fn exit(self) -> Option<Exit> {
        match self {
            Phase::Ended(exit) | Phase::Told(exit) => Some(exit),
            _ => None,
        }
    }

    /// Whether it has been started and not ended.
    pub fn is_alive(self) -> bool {
        matches!(self, Phase::Running | Phase::Pausing | Phase::Paused)
    }

    /// What it is doing, in containerd's words.
    pub fn status(self) -> types::Status {
        match self {
            Phase::Created | Phase::Failed(_) => types::Status::Created,
            Phase::Running => types::Status::Running,
            Phase::Pausing => types::Status::Pausing,
            Phase::Paused => types::Status::Paused,
            Phase::Ended(_) | Phase::Told(_) => types::Status::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn exit(status: u32) -> Exit {
        Exit { status, at: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn a_process_is_created_started_ended_and_told() {
        let mut phase = Phase::Created;
        assert!(phase.may_start().is_ok());
        assert!(phase.started());
        assert_eq!(phase.status(), types::Status::Running);
        assert!(phase.may_start().is_err());
        assert_eq!(phase.told(), None, "it has not ended");
        phase.ended(exit(3));
        assert_eq!(phase.status(), types::Status::Stopped);
        assert_eq!(phase.told(), Some(exit(3)));
        assert_eq!(phase.told(), None, "once");
        assert_eq!(phase.status(), types::Status::Stopped);
    }

    #[test]
    fn a_process_that_could_not_be_started_stays_created_until_it_is_deleted() {
        let mut phase = Phase::Created;
        assert_eq!(phase.failed(exit(255)), Some(exit(255)));
        assert_eq!((phase.status(), phase.exit()), (types::Status::Created, None));
        assert!(phase.may_start().is_err() && phase.failed(exit(1)).is_none());
        assert!(!phase.is_alive());
        phase.ended(exit(255));
        assert_eq!(phase.told(), Some(exit(255)));
    }

    #[test]
    fn an_end_before_the_start_is_known_stays_the_end() {
        let mut phase = Phase::Created;
        phase.ended(exit(1));
        assert!(!phase.started());
        phase.ended(exit(2));
        assert_eq!(phase, Phase::Ended(exit(1)));
    }

    #[test]
    fn an_end_while_it_is_frozen_or_thawed_stays_the_end() {
        for succeeded in [true, false] {
            let mut phase = Phase::Running;
            phase.pausing().unwrap();
            assert_eq!(phase.status(), types::Status::Pausing);
            phase.ended(exit(137));
            phase.pause_tried(succeeded);
            assert_eq!(phase, Phase::Ended(exit(137)));
        }
        let mut phase = Phase::Paused;
        phase.may_resume().unwrap();
        phase.ended(exit(137));
        phase.resumed();
        assert_eq!(phase, Phase::Ended(exit(137)));
    }

    #[test]
    fn what_is_not_running_is_not_paused_and_what_is_not_paused_is_not_resumed() {
        for mut phase in [Phase::Created, Phase::Paused, Phase::Pausing, Phase::Told(exit(0))] {
            let before = phase;
            assert!(phase.pausing().is_err());
            assert_eq!(phase, before);
        }
        for phase in [Phase::Created, Phase::Running, Phase::Pausing, Phase::Ended(exit(0))] {
            assert!(phase.may_resume().is_err());
        }
        let mut phase = Phase::Running;
        phase.pausing().unwrap();
        phase.pause_tried(false);
        assert_eq!(phase, Phase::Running);
        assert!(phase.is_alive() && !Phase::Created.is_alive());
    }
}
