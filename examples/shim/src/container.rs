//! A container of runc's: what the kit asks for, done with runc's commands.

use std::{ffi::OsString, fs, path::PathBuf};

use shim_kit::{
    Any, Bundle, ConsoleSocket, Given, Launch, New, Pid, Reaper, Remains, Runtime, Started, Status,
    Temporary, async_trait, read_pid, warn,
};

use ttrpc_containerd::{any, runc::Options};

use crate::{
    checkpoint, options,
    runc::{self, Error, Runc},
};

/// A container of runc's.
#[derive(Debug)]
pub struct RuncContainer {
    id: String,
    bundle: Bundle,
    runc: Runc,
    options: Options,
    /// The folder that it is restored from when it is started.
    restored_from: Option<PathBuf>,
}

#[async_trait]
impl Runtime for RuncContainer {
    type Options = Options;

    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const USER_NAMESPACES: bool = true;

    fn options(given: Given<'_>) -> Result<Options, Status> {
        options::understand(given)
    }

    fn shim_cgroup(options: &Options) -> Option<&str> {
        Some(&options.shim_cgroup)
    }

    async fn create(
        new: New<'_, Options>,
        launch: &mut Launch,
    ) -> Result<(RuncContainer, Option<Started>), Status> {
        let reaper = launch.reaper().clone();
        let container = RuncContainer {
            id: new.id.to_owned(),
            bundle: new.bundle.clone(),
            runc: Runc::new(&new.options, new.namespace, new.bundle, reaper),
            options: new.options,
            restored_from: new.checkpoint,
        };
        // runc restores and starts at once, so that has to wait for the start.
        if container.restored_from.is_some() {
            return Ok((container, None));
        }
        let mut args: Vec<OsString> = vec!["create".into(), "--bundle".into()];
        args.push(container.bundle.path().into());
        if container.options.no_pivot_root {
            args.push("--no-pivot".into());
        }
        if container.options.no_new_keyring {
            args.push("--no-new-keyring".into());
        }
        match container.make(launch, args, "create").await {
            Ok(pid) => Ok((container, Some(pid.into()))),
            Err(status) => {
                container.undo().await;
                Err(status)
            }
        }
    }

    async fn start(&self, launch: &mut Launch) -> Result<Option<Started>, Status> {
        match &self.restored_from {
            None => self.run("start", ["start"]).await.map(|_| None),
            Some(image) => {
                let args = checkpoint::restore(image, self.bundle.path(), &self.options);
                self.make(launch, args, "restore").await.map(|pid| Some(pid.into()))
            }
        }
    }

    async fn exec(&self, spec: &[u8], launch: &mut Launch) -> Result<Started, Status> {
        let path = self.bundle.path().join(format!("exec-{}.json", launch.number()));
        let spec = Temporary::with(path, spec)
            .map_err(|error| Status::internal(format!("cannot write the process: {error}")))?;
        let args = vec!["exec".into(), "--detach".into(), "--process".into(), spec.path().into()];
        self.make(launch, args, "exec").await.map(Into::into)
    }

    async fn kill(&self, signal: u32, all: bool) -> Result<(), Status> {
        let signal = signal.to_string();
        let mut args = vec!["kill", &self.id, &signal];
        if all {
            args.insert(1, "--all");
        }
        match self.runc.run(args).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_no_process() => {
                Err(Status::not_found("process already finished"))
            }
            Err(error) if error.is_no_container() => Err(Status::not_found("no such container")),
            Err(error) => Err(error.to_status("kill")),
        }
    }

    async fn delete(&self) -> Result<(), Status> {
        match self.runc.run(["delete", &self.id]).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_no_container() => Ok(()),
            Err(error) => Err(error.to_status("delete")),
        }
    }

    fn clean_up(remains: Remains<'_, Options>) -> Result<(), String> {
        let Remains { options, namespace, bundle, id, .. } = remains;
        let runc = Runc::new(&options, namespace, bundle, Reaper::default());
        if !runc.knows(id) {
            return Ok(());
        }
        runc.delete_now(id).map_err(|error| error.to_string())
    }

    async fn pause(&self) -> Result<(), Status> {
        self.run("pause", ["pause"]).await.map(drop)
    }

    async fn resume(&self) -> Result<(), Status> {
        self.run("resume", ["resume"]).await.map(drop)
    }

    async fn pids(&self) -> Result<Vec<u32>, Status> {
        let listed = self.run("ps", ["ps", "--format", "json"]).await?;
        // runc writes `null` for none.
        let pids: Option<Vec<u32>> = serde_json::from_str(&listed)
            .map_err(|error| Status::internal(format!("runc ps gave no list: {error}")))?;
        Ok(pids.unwrap_or_default())
    }

    async fn update(&self, resources: &[u8]) -> Result<(), Status> {
        let path = self.bundle.path().join(format!("resources-{}.json", self.runc.number()));
        let file = Temporary::with(path, resources)
            .map_err(|error| Status::internal(format!("cannot write the resources: {error}")))?;
        let args = [OsString::from("update"), "--resources".into(), file.path().into()];
        self.run("update", args).await.map(drop)
    }

    async fn checkpoint(&self, image: PathBuf, options: Option<&Any>) -> Result<(), Status> {
        let options = checkpoint::options(options)?;
        let work = self.bundle.path().join("criu-work");
        let made = self.run("checkpoint", checkpoint::checkpoint(&image, &work, &options)).await;
        if let Err(status) = made {
            // CRIU's log says why; it is kept where operators look for it.
            let kept = self.bundle.path().join("criu-dump.log");
            if let Err(error) = fs::copy(work.join("dump.log"), &kept) {
                warn(format_args!("CRIU left no log: {error}"));
            }
            return Err(Status::unknown(format!("{} path= {}", status.message(), kept.display())));
        }
        // It is not there if the options named another.
        let _ = fs::remove_dir_all(work);
        Ok(())
    }

    fn features(options: &Options) -> Option<Any> {
        let value = runc::features(&options.binary_name)?;
        Some(Any { type_url: any::FEATURES.to_owned(), value })
    }
}

impl RuncContainer {
    /// Runs a command that ends with the container's id.
    async fn run(
        &self,
        what: &str,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<String, Status> {
        let mut args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        args.push(self.id.clone().into());
        self.runc.run(args).await.map_err(|error: Error| error.to_status(what))
    }

    /// Has runc make a process with its stdio, and learns its pid.
    async fn make(
        &self,
        launch: &mut Launch,
        mut args: Vec<OsString>,
        what: &str,
    ) -> Result<Pid, Status> {
        let number = launch.number();
        // The first process's stays for the invocation `delete`.
        let (pid_file, _temporary) = match number {
            0 => (self.bundle.pid_file(), None),
            _ => {
                let path = self.bundle.path().join(format!("exec-{number}.pid"));
                (path.clone(), Some(Temporary::new(path)))
            }
        };
        args.extend(["--pid-file".into(), pid_file.clone().into()]);
        let (socket, said, descriptors) = if launch.wants_terminal() {
            let socket = ConsoleSocket::bind(self.bundle.path(), &format!("tty-{number}"))
                .map_err(|error| {
                    Status::internal(format!("cannot listen for a terminal: {error}"))
                })?;
            args.extend(["--console-socket".into(), socket.path().into()]);
            let (said, descriptors) = runc::aside()
                .map_err(|error| Status::internal(format!("cannot take runc's words: {error}")))?;
            (Some(socket), Some(said), descriptors)
        } else {
            (None, None, launch.pipes((self.options.io_uid, self.options.io_gid)).await?)
        };
        args.push(self.id.clone().into());
        match self.runc.run_with(descriptors, args).await {
            Ok(()) => {}
            Err(Error::Silent(status, _)) => {
                let words = match said {
                    Some(said) => runc::last_words(said).unwrap_or_default().trim().to_owned(),
                    None => launch.last_words().await,
                };
                return Err(Error::Silent(status, words).to_status(what));
            }
            Err(error) => return Err(error.to_status(what)),
        }
        if let Some(socket) = socket {
            let master = socket
                .receive()
                .map_err(|error| Status::internal(format!("cannot take the terminal: {error}")))?;
            launch.connect_terminal(master).await?;
        }
        read_pid(&pid_file).map_err(|error| Status::internal(format!("runc told no pid: {error}")))
    }

    /// Takes back what a failed create left.
    async fn undo(&self) {
        if !self.runc.knows(&self.id) {
            return;
        }
        if let Err(error) = self.runc.run(["delete", "--force", &self.id]).await {
            warn(format_args!("cannot remove what a failed create left: {error}"));
        }
    }
}
