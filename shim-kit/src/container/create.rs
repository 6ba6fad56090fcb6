//! How a container comes into being.

use std::{
    fs, io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use tokio::sync::Semaphore;
use ttrpc::Status;

use super::{Container, unmount};
use crate::{
    bundle::Bundle,
    launch::Launch,
    log, mount, options,
    process::Process,
    proto::{task, types},
    reaper::Reaper,
    runtime::{New, Runtime},
    shim::Shim,
    stdio::Paths,
    tasks::{blocking, contain, contain_now},
};

impl<R: Runtime> Container<R> {
    /// Mounts a root file system and has the runtime make the container. Its first process exists
    /// then and waits for Start. `reaper` is for this container alone.
    ///
    /// # Errors
    /// The runtime's; others if something here fails.
    pub async fn create(
        shim: &Shim,
        reaper: Reaper,
        request: &task::CreateTaskRequest,
    ) -> Result<Arc<Container<R>>, Status> {
        let options = match request.options.clone() {
            None => contain_now(|| options::read(None, R::options))?,
            // They may name a file.
            given => {
                let read = move || Ok(contain_now(|| options::read(given.as_ref(), R::options)));
                blocking(read).await.map_err(|error| Status::internal(error.to_string()))??
            }
        };
        let bundle = Bundle::new(&request.bundle);
        bundle.spec().map_err(|error| {
            Status::invalid_argument(format!("cannot read the bundle's config.json: {error}"))
        })?;
        let paths = Paths {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let init = Arc::new(Process::new(String::new(), paths, Vec::new()));
        let has_rootfs = !request.rootfs.is_empty();
        let made = async {
            bundle
                .write_options(request.options.as_ref())
                .map_err(|error| Status::internal(format!("cannot prepare the bundle: {error}")))?;
            if has_rootfs {
                make_rootfs(&reaper, &bundle, &request.rootfs).await.map_err(|error| {
                    Status::internal(format!("cannot make the rootfs: {error}"))
                })?;
            }
            let mut launch = Launch::new(shim, &reaper, &request.id, &init, 0);
            let checkpoint = Some(&request.checkpoint).filter(|path| !path.is_empty());
            let new = New {
                id: &request.id,
                namespace: &shim.namespace,
                bundle: &bundle,
                options,
                checkpoint: checkpoint.map(Into::into),
                events: &shim.outbox,
            };
            let (runtime, started) = contain(R::create(new, &mut launch)).await?;
            let cgroup = launch.take_cgroup();
            Ok((runtime, cgroup, started.map(|started| launch.made(&init, started))))
        };
        let (runtime, cgroup, first) = match made.await {
            Ok(made) => made,
            Err(status) => {
                // The runtime has taken back what it did.
                if has_rootfs && let Err(status) = unmount(&bundle).await {
                    log::warn(status);
                }
                return Err(status);
            }
        };
        let container = Arc::new(Container {
            id: request.id.clone(),
            runtime,
            shim: shim.clone(),
            reaper,
            init,
            execs: Mutex::default(),
            cgroup: Mutex::default(),
            leads_its_pids: OnceLock::new(),
            has_rootfs,
            is_removed: AtomicBool::new(false),
            next_launch: AtomicU64::new(1),
            turns: Semaphore::new(2 * processors()),
            bundle,
        });
        container.set_cgroup(cgroup);
        if let Some(ended) = first {
            container.first_is_made(ended);
        }
        Ok(container)
    }
}

async fn make_rootfs(reaper: &Reaper, bundle: &Bundle, mounts: &[types::Mount]) -> io::Result<()> {
    let root = bundle.rootfs();
    fs::create_dir_all(&root)?;
    mount::mount_all(mounts, &root, reaper).await
}

/// The processors that this process may use.
fn processors() -> usize {
    // The standard library's number takes the quota of the control group into account, and five times the code.
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or(1, |set| set.count().max(1) as usize)
}
