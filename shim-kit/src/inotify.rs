//! Changes of files that nothing else tells of: who opens a FIFO, what a control group counts.
//!
//! One inotify instance for the whole shim, which exists only while something is watched: of these
//! instances a user may have no more than 128 by default (inotify(7), `max_user_instances`).

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    task::JoinHandle,
    time::sleep,
};

use crate::{descriptors, log, tasks};

/// How often it is looked where the kernel gives no instance.
const LOOK: Duration = Duration::from_secs(1);

/// Tells of changes. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inotify {
    instance: Arc<Mutex<Option<Instance>>>,
    changed: Arc<Notify>,
}

/// What the kernel knows as an instance, and how many wait for each of its watches.
#[derive(Debug)]
struct Instance {
    file: Arc<AsyncFd<File>>,
    users: HashMap<i32, usize>,
    reader: JoinHandle<()>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A watch that is removed when its last user is gone.
struct Watch<'a> {
    of: &'a Inotify,
    number: i32,
}

impl Inotify {
    /// Waits until something is so. It is looked now, and again when one of these signs is seen on
    /// the file that the path names now. Cancel safe.
    pub async fn until(&self, path: &str, signs: WatchFlags, mut is_so: impl FnMut() -> bool) {
        let watch = self.watch(path, signs);
        if let Err(error) = &watch {
            log::warn(format_args!("cannot watch {path}: {error}; it is looked every second"));
        }
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if is_so() {
                return;
            }
            match watch {
                Ok(_) => changed.await,
                Err(_) => sleep(LOOK).await,
            }
        }
    }

    fn instance(&self) -> MutexGuard<'_, Option<Instance>> {
        self.instance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, path: &str, signs: WatchFlags) -> io::Result<Watch<'_>> {
        let mut place = self.instance();
        if place.is_none() {
            *place = Some(self.open()?);
        }
        let Some(instance) = place.as_mut() else { return Err(io::Error::other("no instance")) };
        // A file that is watched already keeps its number, and the signs that others want.
        let signs = signs | WatchFlags::MASK_ADD;
        let number = inotify::add_watch(instance.file.get_ref(), path, signs);
        match number {
            Ok(number) => {
                *instance.users.entry(number).or_default() += 1;
                Ok(Watch { of: self, number })
            }
            Err(error) => {
                if instance.users.is_empty() {
                    *place = None;
                }
                Err(error.into())
            }
        }
    }

    fn open(&self) -> io::Result<Instance> {
        let file = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let file = Arc::new(descriptors::watch(File::from(file), Interest::READABLE)?);
        let reader = tasks::spawn(read_events(file.clone(), self.changed.clone()));
        Ok(Instance { file, users: HashMap::new(), reader })
    }
}

/// Wakes all who wait. They look for themselves: such events are rare.
async fn read_events(file: Arc<AsyncFd<File>>, changed: Arc<Notify>) {
    let mut events = [0; 4096];
    while let Ok(mut guard) = file.readable().await {
        if let Ok(Ok(_)) = guard.try_io(|file| file.get_ref().read(&mut events)) {
            changed.notify_waiters();
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut place = self.of.instance();
        let Some(instance) = place.as_mut() else { return };
        let Some(users) = instance.users.get_mut(&self.number) else { return };
        *users -= 1;
        if *users == 0 {
            instance.users.remove(&self.number);
            // The kernel has removed it already where the file is gone.
            let _ = inotify::remove_watch(instance.file.get_ref(), self.number);
        }
        if instance.users.is_empty() {
            *place = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_change_is_told_and_the_instance_lasts_as_long_as_somebody_waits() {
        let inotify = Inotify::default();
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let looks = AtomicU32::new(0);
        let is_written = || {
            looks.fetch_add(1, Ordering::Relaxed);
            fs::read_to_string(&path).unwrap() == "now"
        };
        {
            let mut told = std::pin::pin!(inotify.until(&path, WatchFlags::MODIFY, is_written));
            assert!(futures_are_pending(told.as_mut()).await);
            assert!(inotify.instance().is_some());
            fs::write(&path, "now").unwrap();
            told.await;
        }
        assert!(looks.load(Ordering::Relaxed) >= 2);
        assert!(inotify.instance().is_none(), "nobody waits");
    }

    /// Whether a future has to wait when it is polled once.
    async fn futures_are_pending(mut future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }
}
