//! Processes that the kernel ends for want of memory.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

use rustix::{event::EventfdFlags, fs::inotify::WatchFlags};
use tokio::io::Interest;

use super::{Cgroup, Files, write};
use crate::{descriptors, inotify::Inotify, log};

/// Calls whenever the kernel has ended processes of a group for want of memory, until the group is
/// gone.
pub(crate) async fn watch_oom(cgroup: Cgroup, inotify: Inotify, told: impl Fn()) {
    let result = match &cgroup {
        Cgroup::V1(folders) => match folders.get("memory") {
            Some(folder) => watch_v1(folder, told).await,
            None => Ok(()),
        },
        Cgroup::V2(folder) => watch_v2(folder, &inotify, told).await,
    };
    if let Err(error) = result {
        log::warn(format_args!("nothing will be told of the OOM killer: {error}"));
    }
}

/// The kernel counts into an eventfd that is registered for the group.
async fn watch_v1(folder: &Path, told: impl Fn()) -> io::Result<()> {
    let events =
        File::from(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let control = File::open(folder.join("memory.oom_control"))?;
    let registration = format!("{} {}", events.as_raw_fd(), control.as_raw_fd());
    write(folder, "cgroup.event_control", registration)?;
    let events = descriptors::watch(events, Interest::READABLE)?;
    loop {
        let mut guard = events.readable().await?;
        let read = guard.try_io(|events| {
            use std::io::Read;
            events.get_ref().read(&mut [0; 8])
        });
        if let Ok(read) = read {
            read?;
            // The last event is the end of the group itself.
            if !folder.join("cgroup.event_control").exists() {
                return Ok(());
            }
            told();
        }
    }
}

/// The kernel writes a count into a file that is watched.
async fn watch_v2(folder: &Path, inotify: &Inotify, told: impl Fn()) -> io::Result<()> {
    let path = folder.join("memory.events");
    let path = path.to_str().ok_or_else(|| io::Error::other("no path for inotify"))?;
    // A group without the memory controller.
    if !Path::new(path).exists() {
        return Ok(());
    }
    let killed = || Files(folder).table("memory.events").get("oom_kill");
    let mut before = killed();
    while Path::new(path).exists() {
        let has_changed = || killed() > before || !Path::new(path).exists();
        inotify.until(path, WatchFlags::MODIFY | WatchFlags::DELETE_SELF, has_changed).await;
        let now = killed();
        if now > before {
            told();
        }
        before = now.max(before);
    }
    Ok(())
}
