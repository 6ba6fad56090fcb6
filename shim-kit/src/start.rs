//! The invocation `start`: makes sure that a shim serves the container, and prints its address.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::time::timeout;
use ttrpc::{Code, Raw, Status, prost::Message};
use ttrpc_containerd::{shims, unix};

use crate::{
    address::{self, Bound},
    args::Args,
    bootstrap::{self, Form, Request, TASK_VERSION},
    bundle::Bundle,
    cgroup, descriptors, log, options,
    proto::{
        task::{ConnectRequest, ConnectResponse},
        v3,
    },
    runtime::Runtime,
    tasks::contain_now,
};

/// More than containerd ever says on stdin.
const MAX_INPUT: u64 = 10 << 20;
/// How long a shim may take to say which version it serves.
const PATIENCE: Duration = Duration::from_secs(10);

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
    let folder = request.socket_folder.as_deref().unwrap_or(Path::new(shims::DEFAULT_SOCKETS));
    let path = shims::socket_path(folder, &args.address, &args.namespace, group)?;
    let uri = address::to_uri(&path);

    let understood = |status: Status| io::Error::other(status.message().to_owned());
    let given = contain_now(|| R::choose(&request.given)).map_err(understood)?;
    let options = contain_now(|| options::read(given, R::options)).map_err(understood)?;

    // Before there is a socket, so that `delete` finds it whatever becomes of this process.
    bundle.write_address(&uri)?;
    // For the sandbox, if this is its bundle: nobody says them again.
    bundle.write_options(given)?;
    let version = match address::bind(&path)? {
        Bound::New(listener, socket) => {
            if let Err(error) = spawn_daemon::<R>(args, &request, &options, listener.into()) {
                // Nobody will ever listen there.
                socket.remove()?;
                return Err(error);
            }
            TASK_VERSION
        }
        // It may be older than this program.
        Bound::Taken if request.form != Form::Plain => version_at(&uri, &args.id),
        Bound::Taken => TASK_VERSION,
    };
    io::stdout().write_all(&bootstrap::answer(request.form, &uri, version))
}

/// The version of the Task service that a shim serves: this one unless it says that it does not know it.
fn version_at(uri: &str, id: &str) -> i32 {
    let asked = async {
        let client =
            unix::connect(uri).await.map_err(|error| Status::unavailable(error.to_string()))?;
        // Of the type that the outbox's calls have.
        let request = Raw(ConnectRequest { id: id.to_owned() }.encode_to_vec().into());
        let answer = client.unary::<Raw, Raw>(v3::TaskClient::NAME, "Connect", request).await?;
        let answer = ConnectResponse::decode(answer.0);
        answer.map_err(|error| Status::internal(format!("the answer does not decode: {error}")))
    };
    let asked = async { timeout(PATIENCE, asked).await };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let answer = match runtime.map(|runtime| runtime.block_on(asked)) {
        Ok(Ok(answer)) => answer,
        // containerd will find out for itself that it does not answer.
        Ok(Err(_)) | Err(_) => return TASK_VERSION,
    };
    match answer {
        // What the libraries for Go and Rust say of a service that is not there, older ones by NOT_FOUND; the latter
        // may also be said of the container.
        Err(status)
            if matches!(status.code(), Code::Unimplemented | Code::InvalidArgument)
                || status.message().contains("containerd.task.v3") =>
        {
            TASK_VERSION - 1
        }
        _ => TASK_VERSION,
    }
}

/// Starts this program again, as the daemon, in the same folder. Its stdio is nothing: containerd
/// reads ours until it ends.
fn spawn_daemon<R: Runtime>(
    args: &Args,
    request: &Request,
    options: &R::Options,
    listener: OwnedFd,
) -> io::Result<()> {
    descriptors::hand_over(listener)?;
    if let Some(group) = R::shim_cgroup(options).filter(|group| !group.is_empty()) {
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
