//! The invocation `delete`: cleans up after a daemon that died, and prints how the container ended.

use std::{
    env,
    error::Error,
    io::{self, Write},
    path::Path,
    time::{Duration, SystemTime},
};

use ttrpc::{Client, prost::Message};

use crate::{
    address,
    args::Args,
    bundle::Bundle,
    log, mount, options,
    proto::{
        task::{DeleteResponse, ShutdownRequest},
        v2::TaskClient,
    },
    runtime::{Remains, Runtime},
};

/// How long a daemon may take to answer.
const LAST_CALL: Duration = Duration::from_secs(2);
/// What a container's exit status is when nobody saw its end: that of a process killed by SIGKILL.
const KILLED: u32 = 128 + 9;

/// Removes the container with all its processes, its mounts, and the dead shim's socket.
///
/// # Errors
/// If stdout cannot be written, or the working folder is gone. What cannot be removed is said on
/// stderr, which containerd logs, and the rest is removed.
pub fn delete<R: Runtime>(args: &Args) -> io::Result<()> {
    let bundle = match &args.bundle {
        Some(path) => Bundle::new(path),
        None => Bundle::new(env::current_dir()?),
    };
    let pid = bundle.pid();
    let options = options::read(bundle.options().as_ref(), R::options).unwrap_or_default();
    let (id, namespace) = (args.id.as_str(), args.namespace.as_str());
    if let Err(error) = R::clean_up(Remains { id, namespace, bundle: &bundle, options, pid }) {
        log::warn(format_args!("cannot delete the container: {error}"));
    }
    if let Err(error) = mount::unmount_now(&bundle.rootfs()) {
        log::warn(format_args!("cannot unmount the rootfs: {error}"));
    }
    if let Some(path) = bundle.address().as_deref().and_then(address::from_uri) {
        end_if_idle(path, id);
        address::remove_if_dead(path);
    }
    let response = DeleteResponse {
        pid: pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs()),
        exit_status: KILLED,
        exited_at: Some(SystemTime::now().into()),
    };
    io::stdout().write_all(&response.encode_to_vec())
}

/// Tells a daemon that is alive to end, which it does if it has no containers: containerd may have
/// given up `start` when the daemon was there already, and nobody else would ever end it.
fn end_if_idle(path: &Path, id: &str) {
    if !address::is_alive(path) {
        return;
    }
    let request = ShutdownRequest { id: id.to_owned(), now: false };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    // One that is about to end need not answer.
    let _ = runtime.block_on(async {
        let client = Client::connect(&address::to_uri(path)).await?;
        let ended = TaskClient::new(client).shutdown(request).timeout(LAST_CALL).await;
        Ok::<_, Box<dyn Error>>(ended?)
    });
}
