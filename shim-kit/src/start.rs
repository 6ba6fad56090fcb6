//! The invocation `start`: makes sure that a shim serves the container, and prints its address.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    address::{self, Bound},
    args::Args,
    bootstrap::{self, Request},
    bundle::Bundle,
    cgroup, descriptors, log, options,
    runtime::Runtime,
};

/// More than containerd ever says on stdin.
const MAX_INPUT: u64 = 10 << 20;

/// Starts the daemon unless the container's group has one, and prints the address.
///
/// # Errors
/// Whatever is in the way; containerd gets the text.
pub fn start<R: Runtime>(args: &Args) -> io::Result<()> {
    let mut input = Vec::new();
    io::stdin().take(MAX_INPUT).read_to_end(&mut input)?;
    let max_version = env::var("MAX_SHIM_VERSION").ok();
    let request = Request::read(&input, max_version.as_deref(), &args.namespace, &args.id);

    let bundle = Bundle::new(env::current_dir()?);
    let spec = bundle.spec_if_any()?;
    let group = spec.group().unwrap_or(&args.id);
    let folder = request.socket_folder.as_deref().unwrap_or(Path::new(address::DEFAULT_FOLDER));
    let path = address::socket_path(folder, &args.address, &args.namespace, group)?;
    let uri = address::to_uri(&path);

    // Before there is a socket, so that `delete` finds it whatever becomes of this process.
    bundle.write_address(&uri)?;
    // For the sandbox, if this is its bundle: nobody says them again.
    bundle.write_options(request.options.as_ref())?;
    if let Bound::New(listener) = address::bind(&path)?
        && let Err(error) = spawn_daemon::<R>(args, &request, listener.into())
    {
        // Nobody will ever listen there.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    io::stdout().write_all(&bootstrap::answer(request.form, &uri))
}

/// Starts this program again, as the daemon, in the same folder. Its stdio is nothing: containerd
/// reads ours until it ends.
fn spawn_daemon<R: Runtime>(args: &Args, request: &Request, listener: OwnedFd) -> io::Result<()> {
    let options = options::read(request.options.as_ref(), R::options)
        .map_err(|status| io::Error::other(status.message().to_owned()))?;
    descriptors::hand_over(listener)?;
    if let Some(group) = R::shim_cgroup(&options).filter(|group| !group.is_empty()) {
        // The daemon is born into it.
        cgroup::join(group)?;
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(["-namespace", &args.namespace, "-id", &args.id, "-address", &args.address]);
    if args.debug || request.debug {
        command.arg("-debug");
    }
    if let Some(address) = &request.ttrpc_address {
        command.env("TTRPC_ADDRESS", address);
    }
    descriptors::schedule_cores().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot schedule cores, as SCHED_CORE asks: {error}"))
    })?;
    if let Err(error) = raise_oom_score() {
        log::warn(format_args!("cannot raise the OOM score: {error}"));
    }
    descriptors::reset_signals(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(())
}

/// Lets the kernel, short of memory, end the shim before it ends containerd. The daemon inherits it.
fn raise_oom_score() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let score: i32 = fs::read_to_string(FILE)?.trim().parse().unwrap_or(0);
    fs::write(FILE, (score + 1).min(1000).to_string())
}
