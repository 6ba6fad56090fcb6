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
///
/// The child is made by `fork`, as for everything that is to be done before it starts. glibc's
/// `posix_spawn`, which it would be made by else, leaves signal 32 ignored.
#[allow(unsafe_code, reason = "there is no safe way to set a child's limits before it starts")]
pub fn restore_limit(command: &mut Command) {
    let limit = INHERITED_LIMIT.get().copied();
    // SAFETY: between fork and exec, one system call is made and nothing is allocated.
    unsafe {
        command.pre_exec(move || match limit {
            Some(limit) => Ok(rustix::process::setrlimit(Resource::Nofile, limit)?),
            None => Ok(()),
        });
    }
}

/// Has the kernel kill the command's program when the shim's thread is gone, whatever ends it. For programs that
/// make, change or end a container: what cleans up after the shim does not know of one that goes on. The
/// program's own children are not concerned.
#[allow(unsafe_code, reason = "there is no safe way to ask for this before a child starts")]
pub fn die_with_shim(command: &mut Command) {
    let shim = rustix::process::getpid();
    // SAFETY: between fork and exec, system calls are made and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            let signal = Some(rustix::process::Signal::KILL);
            rustix::process::set_parent_process_death_signal(signal)?;
            // It may have died before.
            match rustix::process::getppid() == Some(shim) {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
}

/// Lets the daemon start with no signal ignored, whatever containerd or its parents ignore: its
/// containers would inherit that.
#[allow(unsafe_code, reason = "there is no safe way to reset a child's signals before it starts")]
pub fn reset_signals(command: &mut Command) {
    // SAFETY: between fork and exec, system calls are made and nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            (1..=LAST_SIGNAL).for_each(reset_signal);
            Ok(())
        });
    }
}

const LAST_SIGNAL: libc::c_int = 64;

/// Gives a signal its default action. By the system call itself, since glibc refuses its own two.
#[allow(unsafe_code, reason = "the standard library sets no signals")]
fn reset_signal(signal: libc::c_int) {
    /// The kernel's `struct sigaction`, all zero: the default action, no flags, an empty mask.
    const DEFAULT: [u64; 4] = [0; 4];
    /// Bytes of the kernel's signal set.
    const MASK_LEN: usize = 8;
    // SAFETY: the kernel reads no more than `DEFAULT` and writes nothing. KILL and STOP are refused,
    // and need nothing.
    unsafe {
        let nothing = std::ptr::null_mut::<u64>();
        libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), nothing, MASK_LEN);
    }
}

/// Gives a child these descriptors as its numbers 3, 4 and so on. It has them until the command is
/// dropped.
///
/// # Errors
/// If a descriptor is not to be had.
#[allow(unsafe_code, reason = "the standard library knows stdio alone")]
pub fn pass<const COUNT: usize>(
    command: &mut Command,
    descriptors: [OwnedFd; COUNT],
) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // Beyond the numbers that they will have, so that none overwrites another.
    let floor = LISTENER + COUNT as RawFd;
    let mut moved = Vec::with_capacity(COUNT);
    for descriptor in &descriptors {
        moved.push(rustix::io::fcntl_dupfd_cloexec(descriptor, floor)?);
    }
    // SAFETY: between fork and exec, system calls are made and nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            for (number, descriptor) in (LISTENER..).zip(&moved) {
                if libc::dup2(descriptor.as_raw_fd(), number) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(())
}

/// Sends a signal, which may be one of those that have no name.
///
/// # Errors
/// Those of kill(2).
#[allow(unsafe_code, reason = "rustix leaves real-time signals to libc")]
pub fn kill(pid: rustix::process::Pid, signal: u32) -> io::Result<()> {
    let signal = i32::try_from(signal).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: kill(2) touches no memory of this process.
    match unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this process's group share processors with nobody else, where the environment asks for core
/// scheduling. Children inherit it.
///
/// # Errors
/// If the kernel does not know it.
#[allow(unsafe_code, reason = "no crate here knows this prctl(2)")]
pub fn schedule_cores() -> io::Result<()> {
    /// The kernel's `PR_SCHED_CORE_SCOPE_PROCESS_GROUP`.
    const PROCESS_GROUP: libc::c_ulong = 2;
    if std::env::var_os("SCHED_CORE").is_none_or(|value| value.is_empty()) {
        return Ok(());
    }
    let nothing: libc::c_ulong = 0;
    // SAFETY: the request takes and writes no memory.
    let result = unsafe {
        libc::prctl(
            libc::PR_SCHED_CORE,
            libc::c_ulong::from(libc::PR_SCHED_CORE_CREATE.unsigned_abs()),
            nothing,
            PROCESS_GROUP,
            nothing,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
