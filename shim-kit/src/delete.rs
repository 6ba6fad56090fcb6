//! The invocation `delete`: cleans up after a daemon that died, and prints how the container ended.

use std::{
    env,
    io::{self, Write},
    time::SystemTime,
};

use ttrpc::prost::Message;

use crate::{
    address,
    args::Args,
    bundle::Bundle,
    log, mount, options,
    proto::task::DeleteResponse,
    runtime::{Remains, Runtime},
    sandbox,
};

/// What a container's exit status is when nobody saw its end: that of a process killed by SIGKILL.
const KILLED: u32 = 128 + 9;

/// Removes the container with all its processes, its mounts, and the dead shim's socket.
///
/// # Errors
/// If stdout cannot be written, the working folder is gone, or the container's options cannot be read, without which
/// its runtime would not find it. What else cannot be removed is written to stderr, which containerd logs, and the
/// rest is removed.
pub fn delete<R: Runtime>(args: &Args) -> io::Result<()> {
    let bundle = match &args.bundle {
        Some(path) => Bundle::new(path),
        None => Bundle::new(env::current_dir()?),
    };
    let pid = bundle.pid();
    // With other options the runtime would look for the container where it is not, and find nothing to do.
    let options = bundle.options().and_then(|given| {
        options::read(given.as_ref(), R::options)
            .map_err(|status| io::Error::other(status.message().to_owned()))
    });
    let (id, namespace) = (args.id.as_str(), args.namespace.as_str());
    let understood = options.map(|options| {
        if let Err(error) = R::clean_up(Remains { id, namespace, bundle: &bundle, options, pid }) {
            log::warn(format_args!("cannot delete the container: {error}"));
        }
    });
    if let Err(error) = mount::unmount_all(&bundle.rootfs()) {
        log::warn(format_args!("cannot unmount the rootfs: {error}"));
    }
    if let Err(error) = sandbox::clean_up(&bundle) {
        log::warn(format_args!("cannot remove the sandbox's files: {error}"));
    }
    if let Some(path) = bundle.address().as_deref().and_then(address::from_uri)
        && let Err(error) = address::remove_if_dead(path)
    {
        log::warn(format_args!("cannot remove the socket {}: {error}", path.display()));
    }
    understood.map_err(|error| {
        io::Error::new(error.kind(), format!("the container's processes are left: {error}"))
    })?;
    let response = DeleteResponse {
        pid: pid.map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs()),
        exit_status: KILLED,
        exited_at: Some(SystemTime::now().into()),
    };
    io::stdout().write_all(&response.encode_to_vec())
}
