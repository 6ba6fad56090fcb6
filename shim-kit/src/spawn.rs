//! Starting programs without waiting for them.
//!
//! The standard library's `spawn` blocks its thread until the child has become the program. On a machine that is short of
//! processors the child waits for one first, and whatever else the shim's thread has to do would wait with it: containerd
//! gives a shim two seconds to tell a process's state. So the child is forked here, and says over a pipe what became of it.

use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::Command,
};

use rustix::process::Pid;
use tokio::io::{Interest, unix::AsyncFd};

use crate::descriptors;

/// What a child says before it becomes the program: nothing, or the error that keeps it from it.
#[derive(Debug)]
pub(crate) struct Report(AsyncFd<File>);

/// Makes a child that becomes the command's program, and returns at once.
///
/// # Errors
/// If there is no process, or no descriptor to be had.
pub(crate) fn fork(command: &mut Command) -> io::Result<(Pid, Report)> {
    let (reader, writer) = io::pipe()?;
    // Before there is a child, since this may fail.
    let report = Report::new(reader)?;
    match fork_process()? {
        Some(child) => Ok((child, report)),
        None => become_program(command, writer),
    }
}

impl Report {
    fn new(reader: PipeReader) -> io::Result<Report> {
        let reader = OwnedFd::from(reader);
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok(Report(descriptors::watch(File::from(reader), Interest::READABLE)?))
    }

    /// Waits until the child has become the program. Cancel safe.
    ///
    /// # Errors
    /// Whatever has kept the child from it.
    pub async fn wait(&self) -> io::Result<()> {
        let mut error = [0; size_of::<i32>()];
        loop {
            let mut guard = self.0.readable().await?;
            match guard.try_io(|pipe: &AsyncFd<File>| pipe.get_ref().read(&mut error)) {
                // The program's start has closed it.
                Ok(Ok(0)) => return Ok(()),
                Ok(Ok(_)) => return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error))),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

/// Forks. Gives the child's pid to the parent, and nothing to the child.
#[allow(unsafe_code, reason = "the standard library does not fork without waiting")]
fn fork_process() -> io::Result<Option<Pid>> {
    // SAFETY: the child calls nothing but `become_program`. A shim's other threads open files and mount, and hold no
    // lock that the child takes but the allocator's, which glibc and musl put in order for it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// In the child: becomes the program, or ends.
fn become_program(command: &mut Command, mut report: PipeWriter) -> ! {
    // A panic as well ends the child: what it would unwind to is the parent's.
    let _end = EndOnDrop;
    let error = command.exec().raw_os_error().unwrap_or(libc::EINVAL);
    // Nobody listens any more if the parent has died.
    let _ = report.write_all(&error.to_ne_bytes());
    end()
}

struct EndOnDrop;

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        end();
    }
}

/// Ends this process without anything that is to be done at its end: that is the parent's.
#[allow(unsafe_code, reason = "the standard library's exit runs what is registered for it")]
fn end() -> ! {
    /// What shells say of a program that cannot be run.
    const NOT_RUN: libc::c_int = 127;
    // SAFETY: it ends the process and touches nothing of it.
    unsafe { libc::_exit(NOT_RUN) }
}
