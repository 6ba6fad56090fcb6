//! What the author of a shim writes.

use std::{path::PathBuf, time::Duration};

use rustix::process::Pid;
use ttrpc::{Any, Status, async_trait, server::ServerBuilder};
use ttrpc_containerd::events::Outbox;

use crate::{
    bundle::Bundle,
    launch::Launch,
    options::{self, Given},
    started::Started,
};

/// One container of a kind, and how it is made. The shim calls these methods; for one container
/// never two of `create`, `start` and `delete` at a time.
///
/// Whatever changes a container is finished even if its caller goes away. A method may take as long
/// as it needs but must not block the thread: the shim has one. Programs are run with
/// [`Launch::reaper`], or with [`crate::Reaper`] later.
#[async_trait]
pub trait Runtime: Sized + Send + Sync + 'static {
    /// The options of this runtime in containerd's configuration and in clients' requests.
    type Options: Default + Send + Sync + 'static;

    /// The version that containerd shows: `env!("CARGO_PKG_VERSION")` in the shim's own crate.
    const VERSION: &'static str;

    /// The longest time for which unread output delays the report of a process's end.
    ///
    /// It counts while a client has not read the output, or has not come yet.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// Set to true if containers get the user namespace that their `config.json` asks for. Otherwise, as by default,
    /// the shim makes no pods that have one.
    const USER_NAMESPACES: bool = false;

    /// Understands the options.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for whatever is not understood. By default all options are.
    fn options(given: Given<'_>) -> Result<Self::Options, Status> {
        match given {
            Given::Nothing => Ok(Self::Options::default()),
            Given::Message { name, .. } => Err(Status::invalid_argument(format!(
                "this runtime takes no options, but got {name}"
            ))),
            Given::Toml(_) => Err(Status::invalid_argument("this runtime takes no options")),
        }
    }

    /// Chooses the options among the messages that came with `start`. By default the first that
    /// [`options`](Runtime::options) understands.
    ///
    /// A containerd before 2.3 sends one message, a later one the extensions of its bootstrap protocol.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there are some and none is understood.
    fn choose(given: &[Any]) -> Result<Option<&Any>, Status> {
        options::choose(given, Self::options)
    }

    /// Returns the control group for the shim itself, for all controllers where there are version 1 groups. By default
    /// none.
    fn shim_cgroup(_options: &Self::Options) -> Option<&str> {
        None
    }

    /// Makes a container. Its root file system is mounted. Its first process is made here and waits for
    /// [`start`](Runtime::start). Where that is impossible, `start` makes it, and this returns no pid.
    ///
    /// If it is deleted meanwhile, since its client has left, the programs that were started with
    /// [`Launch::reaper`] are killed.
    ///
    /// # Errors
    /// Whatever is in the way. What was made is removed by then.
    async fn create(
        container: New<'_, Self::Options>,
        launch: &mut Launch,
    ) -> Result<(Self, Option<Started>), Status>;

    /// Lets the first process run. If `create` made none, makes it and returns its pid.
    ///
    /// # Errors
    /// Whatever is in the way.
    async fn start(&self, launch: &mut Launch) -> Result<Option<Started>, Status>;

    /// Makes a further process and lets it run. `spec` is the OCI runtime specification's `process`, as JSON.
    ///
    /// # Errors
    /// Whatever is in the way. UNIMPLEMENTED by default.
    async fn exec(&self, spec: &[u8], launch: &mut Launch) -> Result<Started, Status> {
        let _ = (spec, launch);
        Err(Status::unimplemented("this runtime has no exec"))
    }

    /// Sends a signal, by its number, to the first process, or to all that the container has.
    ///
    /// # Errors
    /// NOT_FOUND if it has ended.
    async fn kill(&self, signal: u32, all: bool) -> Result<(), Status>;

    /// Removes the container, whose first process has ended. Called again after an error, and never again after a success.
    ///
    /// # Errors
    /// Whatever is in the way. containerd's client gets it, and may delete the container once more.
    async fn delete(&self) -> Result<(), Status>;

    /// Removes what is left of a container whose shim has died, with all its processes. Nothing else
    /// is done meanwhile, so that this may block.
    ///
    /// # Errors
    /// The message for the log.
    fn clean_up(remains: Remains<'_, Self::Options>) -> Result<(), String>;

    /// Freezes all processes.
    ///
    /// # Errors
    /// Whatever is in the way. UNIMPLEMENTED by default.
    async fn pause(&self) -> Result<(), Status> {
        Err(Status::unimplemented("this runtime has no pause"))
    }

    /// Lets all processes go on.
    ///
    /// # Errors
    /// Whatever is in the way. UNIMPLEMENTED by default.
    async fn resume(&self) -> Result<(), Status> {
        Err(Status::unimplemented("this runtime has no resume"))
    }

    /// Returns the pids of all processes, as this machine counts them.
    ///
    /// # Errors
    /// Whatever is in the way. UNIMPLEMENTED by default.
    async fn pids(&self) -> Result<Vec<u32>, Status> {
        Err(Status::unimplemented("this runtime does not list processes"))
    }

    /// Changes resources: the OCI runtime specification's `linux.resources`, as JSON.
    ///
    /// # Errors
    /// Whatever is in the way. UNIMPLEMENTED by default.
    async fn update(&self, resources: &[u8]) -> Result<(), Status> {
        let _ = resources;
        Err(Status::unimplemented("this runtime has no update"))
    }

    /// Writes the container's state to a folder. `options` are the client's.
    ///
    /// # Errors
    /// Whatever is in the way. UNIMPLEMENTED by default.
    async fn checkpoint(&self, path: PathBuf, options: Option<&Any>) -> Result<(), Status> {
        let _ = (path, options);
        Err(Status::unimplemented("this runtime has no checkpoints"))
    }

    /// Returns the container's metrics, if they are not those of its first process's control group.
    ///
    /// The type is one that clients know, `io.containerd.cgroups.v1.Metrics` or `io.containerd.cgroups.v2.Metrics`.
    ///
    /// # Errors
    /// Whatever is in the way.
    async fn stats(&self) -> Result<Option<Any>, Status> {
        Ok(None)
    }

    /// Adds services, interceptors and observers of the runtime's own to the shim's server, next to containerd's services. `events`
    /// takes events of its own, which containerd gets in order with the kit's.
    fn serve(server: ServerBuilder, events: &Outbox) -> ServerBuilder {
        let _ = events;
        server
    }

    /// Called when containerd has ended the shim, after its last container; it has 5 s. Not called when a signal ends the shim.
    async fn at_end() {}

    /// Returns the runtime's features, for `-info`. By default none.
    fn features(options: &Self::Options) -> Option<Any> {
        let _ = options;
        None
    }
}

/// A container that is to be made.
#[derive(Debug)]
pub struct New<'a, O> {
    /// Its id.
    pub id: &'a str,
    /// containerd's namespace.
    pub namespace: &'a str,
    /// Its folder, with `config.json` and `rootfs`.
    pub bundle: &'a Bundle,
    /// Its options.
    pub options: O,
    /// The folder to restore it from, if it is not new.
    pub checkpoint: Option<PathBuf>,
    /// Takes events of the runtime's own.
    pub events: &'a Outbox,
}

/// A container whose shim has died.
#[derive(Debug)]
pub struct Remains<'a, O> {
    /// Its id.
    pub id: &'a str,
    /// containerd's namespace.
    pub namespace: &'a str,
    /// Its folder.
    pub bundle: &'a Bundle,
    /// The options that it was made with; the defaults if it never was.
    pub options: O,
    /// Its first process, if the shim learned of it, or a program of the runtime's wrote
    /// [`Bundle::pid_file`]. It may be gone, and its pid another's.
    pub pid: Option<Pid>,
}
