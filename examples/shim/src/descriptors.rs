//! Descriptors that pass from a process to its child, and how many there may be: the few things for
//! which the standard library wants `unsafe`.

use std::{
    fs::File,
    io,
    mem::ManuallyDrop,
    os::{
        fd::{AsFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::OnceLock,
};

use rustix::process::{Resource, Rlimit};
use tokio::io::{Interest, unix::AsyncFd};

/// The descriptor on which the daemon is handed its listener: the first behind stdio.
const LISTENER: RawFd = 3;

/// An owner of descriptor 3.
#[allow(unsafe_code, reason = "the standard library knows no other way to a numbered descriptor")]
fn numbered_listener() -> OwnedFd {
    // SAFETY: the callers own the descriptor: the daemon since its parent put it there for it, the
    // parent since it owns whatever it overwrites and does not drop this owner.
    unsafe { OwnedFd::from_raw_fd(LISTENER) }
}

/// Puts a listener where a child will find it.
///
/// # Errors
/// Those of `dup2`.
pub fn hand_over(listener: OwnedFd) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    if listener.as_raw_fd() == LISTENER {
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty())?;
        // It stays open for the child.
        let _ = ManuallyDrop::new(listener);
        return Ok(());
    }
    let mut target = ManuallyDrop::new(numbered_listener());
    Ok(rustix::io::dup2(listener.as_fd(), &mut target)?)
}

/// Takes the listener that the parent put there. To be called once, at the start of the daemon.
///
/// # Errors
/// If no socket is there: the daemon was started by hand.
pub fn take_listener() -> io::Result<std::os::unix::net::UnixListener> {
    let listener = ManuallyDrop::new(numbered_listener());
    rustix::net::sockopt::socket_acceptconn(listener.as_fd())?;
    // No program that is started from here is to inherit it.
    rustix::io::fcntl_setfd(listener.as_fd(), rustix::io::FdFlags::CLOEXEC)?;
    Ok(ManuallyDrop::into_inner(listener).into())
}

/// Lets the runtime tell when something can be read or written.
///
/// # Errors
/// If it is a regular file, or the kernel has no room.
#[allow(unsafe_code, reason = "tokio asks for a promise that the type system does not know")]
pub fn watch(file: File, interest: Interest) -> io::Result<AsyncFd<File>> {
    // SAFETY: a `File` keeps the same descriptor open as long as it lives, and it is given away.
    Ok(unsafe { AsyncFd::register_with_interest(file, interest)? })
}

static INHERITED_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Lets this process have as many descriptors as it may: every exec under way needs six.
pub fn raise_limit() {
    let inherited = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: inherited.maximum, maximum: inherited.maximum };
    if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
        // The first time counts.
        let _ = INHERITED_LIMIT.set(inherited);
    }
}

/// Lets a child have no more descriptors than this process was given: a container inherits the limit
/// where its specification says none.
#[allow(unsafe_code, reason = "there is no safe way to set a child's limits before it starts")]
pub fn restore_limit(command: &mut Command) {
    let Some(inherited) = INHERITED_LIMIT.get() else { return };
    let limit = *inherited;
    // SAFETY: between fork and exec, one system call is made and nothing is allocated.
    unsafe {
        command.pre_exec(move || Ok(rustix::process::setrlimit(Resource::Nofile, limit)?));
    }
}
