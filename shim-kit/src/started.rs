//! What a runtime has started: a process that the kit's reaper sees, or something else that ends.

use std::{fmt, pin::Pin};

use rustix::process::Pid;
use ttrpc::Status;

use crate::reaper::Exit;

/// A process, or something else with an end, that a runtime has started. A [`Pid`] converts into it.
#[derive(Debug)]
pub enum Started {
    /// A process whose end this shim collects: its child, or a process that a child has left behind.
    Pid(Pid),
    /// Something else: a virtual machine, a process that another program looks after, a module that runs in the shim.
    Handle(Handle),
}

impl From<Pid> for Started {
    fn from(pid: Pid) -> Started {
        Started::Pid(pid)
    }
}

impl From<Handle> for Started {
    fn from(handle: Handle) -> Started {
        Started::Handle(handle)
    }
}

pub(crate) type End = Pin<Box<dyn Future<Output = Option<Exit>> + Send>>;
pub(crate) type Kill = Box<dyn Fn(u32) -> Result<(), Status> + Send + Sync>;

/// Something that ends otherwise than as a child of the shim's.
pub struct Handle {
    pub(crate) pid: u32,
    pub(crate) ended: Pin<Box<dyn Future<Output = Exit> + Send>>,
    pub(crate) kill: Kill,
}

impl Handle {
    /// Makes a handle of something that ends when this future does.
    ///
    /// `pid` is what containerd shows: the pid of a process of this machine, or a number of the runtime's own other
    /// than 0.
    pub fn new(pid: u32, ended: impl Future<Output = Exit> + Send + 'static) -> Handle {
        let unknown = |_| Err(Status::unimplemented("this process cannot be signalled"));
        Handle { pid, ended: Box::pin(ended), kill: Box::new(unknown) }
    }

    /// Sets the function that sends a signal, by its number, to what came from Exec. It must not block. A container's
    /// first process has [`Runtime::kill`](crate::Runtime::kill).
    pub fn with_kill(
        mut self,
        kill: impl Fn(u32) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Handle {
        self.kill = Box::new(kill);
        self
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.pid)
    }
}
