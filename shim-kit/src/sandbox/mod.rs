//! A sandbox: what the containers of a pod share, made by the shim where containerd is configured
//! with `sandboxer = "shim"`.
//!
//! Behind a sandbox is a container of the runtime, whose first process keeps the pod's namespaces. A
//! client may say what it runs; otherwise it is this program, which then waits and collects
//! processes that nobody else does ([`pause`]). Its events are not published: containerd asks for the
//! sandbox and knows of no task behind it.

mod files;
mod pause;
mod service;
mod spec;
mod users;

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tokio::time::timeout;
use ttrpc::{
    Any, Status,
    prost::{Message, Name},
};
use ttrpc_containerd::events::Outbox;

pub(crate) use self::pause::pause;
use self::{
    files::Files,
    spec::{Pod, PodUsers},
    users::Users,
};
use crate::{
    bundle::{Bundle, Spec},
    container::Container,
    lifecycle::Phase,
    log, options,
    process::Process,
    proto::{cri::PodSandboxConfig, sandbox::CreateSandboxRequest, task::CreateTaskRequest, types},
    reaper::{Exit, Reaper},
    runtime::Runtime,
    shim::Shim,
    tasks,
};

const KILL: u32 = libc::SIGKILL.unsigned_abs();

/// What the containers of a pod share.
#[derive(Debug)]
pub(crate) struct Sandbox<R> {
    pub id: String,
    pub created_at: SystemTime,
    bundle: Bundle,
    /// The one whose first process keeps the namespaces.
    container: Arc<Container<R>>,
    init: Arc<Process>,
    /// Where Kubernetes said what belongs into them.
    files: Option<Files>,
}

impl<R: Runtime> Sandbox<R> {
    /// Makes the sandbox's container, which waits for [`start`](Sandbox::start).
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the client's options are not understood, UNIMPLEMENTED for a user namespace
    /// where the runtime has none; the runtime's. Nothing is left then.
    pub async fn create(
        shim: &Shim,
        reaper: Reaper,
        request: CreateSandboxRequest,
    ) -> Result<Sandbox<R>, Status> {
        let bundle = Bundle::new(&request.bundle_path);
        let made = Sandbox::make(shim, reaper, request, bundle.clone()).await;
        if made.is_err()
            && let Err(status) = clean_up_aside(&bundle).await
        {
            log::warn(status);
        }
        made
    }

    /// As [`create`](Sandbox::create). What was made stays after an error.
    async fn make(
        shim: &Shim,
        reaper: Reaper,
        request: CreateSandboxRequest,
        bundle: Bundle,
    ) -> Result<Sandbox<R>, Status> {
        let failed = |error| Status::internal(format!("cannot prepare the sandbox: {error}"));
        let config = pod_config(request.options.as_ref())?;
        let users = config.as_ref().map(Users::of).transpose()?.flatten();
        if users.is_some() && !R::USER_NAMESPACES {
            return Err(Status::unimplemented("this runtime has no user namespaces"));
        }
        let mut given = bundle.spec_if_any().map_err(failed)?;
        let mut rootfs = request.rootfs;
        if given.has_process() {
            if rootfs.is_empty() && !given.has_root() {
                let message =
                    "the sandbox's specification has a process and no root file system for it";
                return Err(Status::invalid_argument(message));
            }
            if spec::isolate_mounts(&mut given) {
                bundle.write_spec(&given).map_err(failed)?;
            }
        } else {
            let (mut root, mut namespace) = (None, None);
            if rootfs.is_empty() && !given.has_root() {
                rootfs = vec![match &users {
                    None => empty_root(),
                    Some(users) => {
                        let made = users.make_root(&bundle, &reaper).await.map_err(failed)?;
                        users::same_as(root.insert(made))
                    }
                }];
            }
            if let Some(users) = users.as_ref().filter(|_| !request.netns_path.is_empty()) {
                let network = Path::new(&request.netns_path);
                namespace = Some(users.make_namespace(&bundle, network).map_err(failed)?);
            }
            let pod = Pod {
                id: &request.sandbox_id,
                config: config.as_ref(),
                network: &request.netns_path,
                annotations: &request.annotations,
                users: users.as_ref().map(|users| PodUsers {
                    users,
                    namespace: namespace.as_deref(),
                    root: root.as_deref(),
                }),
            };
            let spec = spec::complete(given, &pod, &pause::Program::this().map_err(failed)?)?;
            bundle.write_spec(&spec).map_err(failed)?;
        }
        let files = match &config {
            Some(config) => {
                let (folder, owner) = match &users {
                    None => (bundle.pod(), None),
                    Some(users) => (users.files(&bundle).map_err(failed)?, Some(users.root())),
                };
                Some(Files::make(&folder, config, owner, &reaper).await.map_err(failed)?)
            }
            None => None,
        };
        // Nobody takes these events. They are few.
        let silent = Shim { outbox: Outbox::new(&shim.namespace), ..shim.clone() };
        let task = CreateTaskRequest {
            id: request.sandbox_id.clone(),
            bundle: request.bundle_path,
            rootfs,
            // `start` has kept them.
            options: bundle.options().map_err(failed)?,
            ..CreateTaskRequest::default()
        };
        let container = Container::create(&silent, reaper, &task).await?;
        Ok(Sandbox {
            id: request.sandbox_id,
            created_at: SystemTime::now(),
            bundle,
            init: container.process("")?,
            container,
            files,
        })
    }

    /// Lets the first process run, and gives its pid.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it was started before; the runtime's.
    pub async fn start(&self) -> Result<u32, Status> {
        self.container.start("").await
    }

    /// What the sandbox's container is.
    ///
    /// # Errors
    /// INTERNAL if that cannot be read any more.
    pub fn spec(&self) -> Result<Spec, Status> {
        let failed = |error| Status::internal(format!("cannot read the sandbox's spec: {error}"));
        self.bundle.spec().map_err(failed)
    }

    /// The pid of the first process.
    pub fn pid(&self) -> u32 {
        self.init.pid()
    }

    /// How far the first process is.
    pub fn phase(&self) -> Phase {
        self.init.phase()
    }

    /// Waits for the end of the first process. Cancel safe.
    pub async fn ended(&self) -> Exit {
        self.init.told().await
    }

    /// Gives a container of this pod the pod's files, as far as it has none of its own.
    ///
    /// # Errors
    /// INTERNAL if its bundle cannot be changed.
    pub fn share_files(&self, bundle: &Bundle) -> Result<(), Status> {
        let failed = |error| Status::internal(format!("cannot share the pod's files: {error}"));
        let Some(files) = &self.files else { return Ok(()) };
        // What is wrong with it is said where the container is made.
        let Ok(mut spec) = bundle.spec() else { return Ok(()) };
        if spec.pod() == Some(&self.id) && files.add_to(&mut spec) {
            bundle.write_spec(&spec).map_err(failed)?;
        }
        Ok(())
    }

    /// Ends all processes: those of the pod's containers, then its own.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED if that takes longer than is allowed; the runtime's.
    pub async fn stop(
        &self,
        members: &[Arc<Container<R>>],
        limit: Option<Duration>,
    ) -> Result<(), Status> {
        let all = async {
            for container in members.iter().chain([&self.container]) {
                end(container).await?;
            }
            Ok(())
        };
        let Some(limit) = limit else { return all.await };
        let late = |_| Status::deadline_exceeded("the sandbox's processes do not end");
        timeout(limit, all).await.map_err(late)?
    }

    /// Removes what was made. To be called when it has stopped. After an error it goes on where it failed.
    ///
    /// # Errors
    /// The runtime's.
    pub async fn delete(&self) -> Result<(), Status> {
        self.container.delete().await?;
        clean_up_aside(&self.bundle).await
    }

    /// What the sandbox's container uses.
    ///
    /// # Errors
    /// Those of [`Container::stats`].
    pub async fn stats(&self) -> Result<Any, Status> {
        self.container.stats().await
    }

    /// Takes note of a new specification: its resources are set.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it is none; the runtime's.
    pub async fn update(&self, spec: &Any) -> Result<(), Status> {
        let wrong = |error| Status::invalid_argument(format!("the sandbox's spec: {error}"));
        let spec: Value = serde_json::from_slice(&spec.value).map_err(wrong)?;
        match spec.pointer("/linux/resources") {
            Some(resources) => self.container.update(resources.to_string().as_bytes()).await,
            None => Ok(()),
        }
    }
}

/// Kills a container, and waits until its end is told.
async fn end<R: Runtime>(container: &Container<R>) -> Result<(), Status> {
    let init = container.process("")?;
    if init.phase().exit().is_none() && init.pid() == 0 {
        return Ok(());
    }
    match container.kill("", KILL, false).await {
        // It has ended, or the runtime sees that before its end is collected.
        Err(status) if status.code() == ttrpc::Code::NotFound => {}
        result => result?,
    }
    init.told().await;
    Ok(())
}

/// Understands what a client says about the pod.
fn pod_config(options: Option<&Any>) -> Result<Option<PodSandboxConfig>, Status> {
    let Some(any) = options.filter(|any| options::is_something(any)) else { return Ok(None) };
    let wrong = |what: String| Status::invalid_argument(format!("the sandbox's options {what}"));
    let name = any.type_url.rsplit('/').next().unwrap_or_default();
    if name != PodSandboxConfig::full_name() {
        return Err(wrong(format!("are of the unknown type {name}")));
    }
    let decoded = PodSandboxConfig::decode(any.value.as_slice());
    decoded.map(Some).map_err(|error| wrong(format!("cannot be read: {error}")))
}

/// A root file system with nothing in it.
fn empty_root() -> types::Mount {
    let options = ["nosuid", "size=1m", "mode=755"];
    types::Mount {
        r#type: "tmpfs".to_owned(),
        source: "sandbox".to_owned(),
        options: options.map(str::to_owned).into(),
        ..types::Mount::default()
    }
}

/// An entry of the OCI runtime specification's `mounts`.
fn bind_mount<const N: usize>(source: &Path, destination: &str, options: [&str; N]) -> Value {
    json!({
        "destination": destination,
        "type": "bind",
        "source": source,
        "options": options.as_slice(),
    })
}

/// Removes what was made for the sandbox in this bundle, if it was. A shim that has died leaves it.
///
/// # Errors
/// The first thing that cannot be removed. The rest is, and the next call tries again.
pub(crate) fn clean_up(bundle: &Bundle) -> io::Result<()> {
    let files = files::remove(&bundle.pod());
    users::remove(bundle).and(files)
}

async fn clean_up_aside(bundle: &Bundle) -> Result<(), Status> {
    let bundle = bundle.clone();
    let failed = |error| Status::internal(format!("cannot remove the sandbox's files: {error}"));
    tasks::blocking(move || clean_up(&bundle)).await.map_err(failed)
}

/// An error that names what cannot be removed.
fn unremoved(what: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", what.display()))
}

#[cfg(test)]
mod tests;
