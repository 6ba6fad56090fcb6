//! What the daemon and its supervisor tell each other: `sd_listen_fds(3)`, `sd_notify(3)`, `sd_watchdog_enabled(3)`.
//! Without a supervisor nothing is passed, and notifications go nowhere.

use std::{env, os::fd::OwnedFd, time::Duration};

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::Error;

/// The Unix socket that was passed under this name (`FileDescriptorName=`), if any.
pub(crate) fn socket(name: &str) -> Result<Option<OwnedFd>, Error> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let Some(index) = names.split(':').position(|passed| passed == name) else { return Ok(None) };
    Ok(ListenFd::from_env().take_unix_listener(index)?.map(OwnedFd::from))
}

/// Reports that calls are answered.
pub(crate) fn ready() -> Result<(), Error> {
    notify(&[NotifyState::Ready])
}

/// Reports that no new calls are accepted.
pub(crate) fn stopping() -> Result<(), Error> {
    notify(&[NotifyState::Stopping])
}

/// Reports that a reload has begun. [`ready`] ends it.
pub(crate) fn reloading() -> Result<(), Error> {
    notify(&[NotifyState::Reloading, NotifyState::monotonic_usec_now()?])
}

/// Reports which process the service is from now on.
pub(crate) fn succeeded_by(pid: u32) -> Result<(), Error> {
    notify(&[NotifyState::MainPid(pid), NotifyState::Ready])
}

/// How often the supervisor wants a sign of life at the least.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Gives the supervisor a sign of life.
pub(crate) fn alive() -> Result<(), Error> {
    notify(&[NotifyState::Watchdog])
}

fn notify(state: &[NotifyState<'_>]) -> Result<(), Error> {
    Ok(sd_notify::notify(state)?)
}
