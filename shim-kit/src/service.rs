//! The Task service: what containerd calls, in both versions. The Sandbox service is beside it.

mod deleted;
mod making;
mod snapshot;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::sync::CancellationToken;
use ttrpc::{Context, Status, async_trait, prost_types::Timestamp};

pub(crate) use self::making::{Making, Slot};
use self::{deleted::Deleted, making::Place};
use crate::{
    bundle::Bundle,
    container::Container,
    ids, log,
    proto::{events, sandbox, sandbox::*, task::*, v2},
    reaper::Exit,
    runtime::Runtime,
    sandbox::Sandbox,
    shim::Shim,
    tasks::to_the_end,
};

/// What serves all containers of a shim, and its sandbox. Clones are the same service.
#[derive(Debug)]
pub(crate) struct TaskService<R> {
    pub(crate) shim: Shim,
    containers: Arc<Mutex<Containers<R>>>,
    sandbox: Arc<Mutex<Option<Slot<Sandbox<R>>>>>,
    /// What was said of containers that are deleted.
    deleted: Arc<Mutex<Deleted>>,
    /// Whether the shim was told to end while something was being made.
    is_forgotten: Arc<AtomicBool>,
    /// Fires when the shim is to end.
    pub(crate) shutdown: CancellationToken,
}

type Containers<R> = HashMap<String, Slot<Container<R>>>;

impl<R> Clone for TaskService<R> {
    fn clone(&self) -> TaskService<R> {
        TaskService {
            shim: self.shim.clone(),
            containers: self.containers.clone(),
            sandbox: self.sandbox.clone(),
            deleted: self.deleted.clone(),
            is_forgotten: self.is_forgotten.clone(),
            shutdown: self.shutdown.clone(),
        }
    }
}

pub(crate) fn at(exit: Exit) -> Option<Timestamp> {
    Some(exit.at.into())
}

impl<R: Runtime> TaskService<R> {
    /// A service without containers. The token fires when containerd wants the shim to end.
    pub fn new(shim: Shim, shutdown: CancellationToken) -> TaskService<R> {
        TaskService {
            shim,
            containers: Arc::default(),
            sandbox: Arc::default(),
            deleted: Arc::default(),
            is_forgotten: Arc::default(),
            shutdown,
        }
    }

    pub(crate) fn containers(&self) -> MutexGuard<'_, Containers<R>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sandbox_slot(&self) -> MutexGuard<'_, Option<Slot<Sandbox<R>>>> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deleted(&self) -> MutexGuard<'_, Deleted> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn container(&self, id: &str) -> Result<Arc<Container<R>>, Status> {
        match self.containers().get(id) {
            Some(Slot::Made(container)) => Ok(container.clone()),
            _ => Err(Status::not_found(format!("container {id} is not created"))),
        }
    }

    pub(crate) async fn create(
        &self,
        request: CreateTaskRequest,
    ) -> Result<CreateTaskResponse, Status> {
        let id = request.id.clone();
        ids::check("container", &id)?;
        let making = Making::new(&self.shim.reaper);
        let place = {
            let mut containers = self.containers();
            if containers.contains_key(&id) {
                return Err(Status::already_exists(format!("container {id} exists already")));
            }
            Place::take(self, &mut containers, id.clone(), making.clone())
        };
        self.deleted().forget(&id);
        self.is_forgotten.store(false, Ordering::Relaxed);
        let this = self.clone();
        let sandbox = match &*self.sandbox_slot() {
            Some(Slot::Made(sandbox)) => Some(sandbox.clone()),
            _ => None,
        };
        to_the_end(async move {
            // Its end frees the id, unless the container is there by then.
            let _place = place;
            if let Some(sandbox) = sandbox {
                sandbox.share_files(&Bundle::new(&request.bundle))?;
            }
            let container = Container::create(&this.shim, making.reaper.clone(), &request).await?;
            let pid = container.pid();
            this.shim.outbox.publish(&created(request, pid));
            this.containers().insert(id, Slot::Made(container));
            Ok(CreateTaskResponse { pid })
        })
        .await
    }

    pub(crate) async fn start(&self, request: StartRequest) -> Result<StartResponse, Status> {
        let container = self.container(&request.id)?;
        to_the_end(async move { container.start(&request.exec_id).await })
            .await
            .map(|pid| StartResponse { pid })
    }

    async fn delete(&self, request: DeleteRequest) -> Result<DeleteResponse, Status> {
        if request.exec_id.is_empty() {
            let making = match self.containers().get(&request.id) {
                Some(Slot::Reserved(making)) => Some(making.clone()),
                _ => None,
            };
            end_making(making).await?;
        }
        let container = match self.container(&request.id) {
            Ok(container) => container,
            Err(missing) if !request.exec_id.is_empty() => return Err(missing),
            Err(missing) => return self.deleted().delete(&request.id).ok_or(missing),
        };
        let this = self.clone();
        to_the_end(async move {
            if !request.exec_id.is_empty() {
                let (pid, exit) = container.delete_exec(&request.exec_id).await?;
                return Ok(DeleteResponse { pid, exit_status: exit.status, exited_at: at(exit) });
            }
            let (pid, exit) = container.delete().await?;
            this.is_deleted(&container, pid, exit)?;
            Ok(DeleteResponse { pid, exit_status: exit.status, exited_at: at(exit) })
        })
        .await
    }

    /// Takes note that a container is deleted, and publishes it; once, however many calls delete it.
    fn is_deleted(
        &self,
        container: &Arc<Container<R>>,
        pid: u32,
        exit: Exit,
    ) -> Result<(), Status> {
        {
            let mut containers = self.containers();
            match containers.get(&container.id) {
                Some(Slot::Made(found)) if Arc::ptr_eq(found, container) => {
                    containers.remove(&container.id);
                }
                // Another call was first.
                _ => return Ok(()),
            }
            self.deleted().keep(state(container, String::new())?);
        }
        self.shim.outbox.publish(&events::TaskDelete {
            container_id: container.id.clone(),
            pid,
            exit_status: exit.status,
            exited_at: at(exit),
            id: String::new(),
        });
        Ok(())
    }

    async fn exec(&self, request: ExecProcessRequest) -> Result<(), Status> {
        self.container(&request.id)?.exec(&request)
    }

    async fn state(&self, request: StateRequest) -> Result<StateResponse, Status> {
        match self.container(&request.id) {
            Ok(container) => state(&container, request.exec_id),
            Err(missing) if !request.exec_id.is_empty() => Err(missing),
            Err(missing) => self.deleted().state(&request.id).cloned().ok_or(missing),
        }
    }

    async fn wait(&self, request: WaitRequest) -> Result<WaitResponse, Status> {
        let container = match self.container(&request.id) {
            Ok(container) => container,
            Err(missing) => {
                let kept =
                    self.deleted().delete(&request.id).filter(|_| request.exec_id.is_empty());
                let kept = kept.ok_or(missing)?;
                let DeleteResponse { exit_status, exited_at, .. } = kept;
                return Ok(WaitResponse { exit_status, exited_at });
            }
        };
        let exit = container.process(&request.exec_id)?.told().await;
        Ok(WaitResponse { exit_status: exit.status, exited_at: at(exit) })
    }

    async fn kill(&self, request: KillRequest) -> Result<(), Status> {
        let container = self.container(&request.id)?;
        to_the_end(
            async move { container.kill(&request.exec_id, request.signal, request.all).await },
        )
        .await
    }

    async fn pids(&self, request: PidsRequest) -> Result<PidsResponse, Status> {
        let container = self.container(&request.id)?;
        let processes = to_the_end(async move { container.pids().await }).await?;
        Ok(PidsResponse { processes })
    }

    async fn pause(&self, request: PauseRequest) -> Result<(), Status> {
        let container = self.container(&request.id)?;
        to_the_end(async move { container.pause().await }).await
    }

    async fn resume(&self, request: ResumeRequest) -> Result<(), Status> {
        let container = self.container(&request.id)?;
        to_the_end(async move { container.resume().await }).await
    }

    async fn checkpoint(&self, request: CheckpointTaskRequest) -> Result<(), Status> {
        let container = self.container(&request.id)?;
        to_the_end(
            async move { container.checkpoint(request.path, request.options.as_ref()).await },
        )
        .await
    }

    async fn resize_pty(&self, request: ResizePtyRequest) -> Result<(), Status> {
        let process = self.container(&request.id)?.process(&request.exec_id)?;
        process.resize(request.width, request.height)
    }

    async fn close_io(&self, request: CloseIoRequest) -> Result<(), Status> {
        let process = self.container(&request.id)?.process(&request.exec_id)?;
        if request.stdin {
            process.close_stdin();
        }
        Ok(())
    }

    async fn update(&self, request: UpdateTaskRequest) -> Result<(), Status> {
        let container = self.container(&request.id)?;
        let resources = request
            .resources
            .ok_or_else(|| Status::invalid_argument("there are no resources to set"))?;
        to_the_end(async move { container.update(&resources.value).await }).await
    }

    async fn stats(&self, request: StatsRequest) -> Result<StatsResponse, Status> {
        Ok(StatsResponse { stats: Some(self.container(&request.id)?.stats().await?) })
    }

    async fn connect(&self, request: ConnectRequest) -> Result<ConnectResponse, Status> {
        Ok(ConnectResponse {
            shim_pid: std::process::id(),
            task_pid: self.container(&request.id).map_or(0, |container| container.pid()),
            version: R::VERSION.to_owned(),
        })
    }

    pub(crate) async fn shutdown(&self, request: ShutdownRequest) -> Result<(), Status> {
        self.deleted().forget(&request.id);
        self.end_if_empty();
        Ok(())
    }

    /// Ends the shim, unless there is anything that needs it still. What is being made may come to nothing; then
    /// nobody says this again.
    pub(crate) fn end_if_empty(&self) {
        let is_empty = {
            let (containers, sandbox) = (self.containers(), self.sandbox_slot());
            let is_made = containers.values().any(|slot| matches!(slot, Slot::Made(_)));
            self.is_forgotten.store(!is_made, Ordering::Relaxed);
            containers.is_empty() && sandbox.is_none()
        };
        if is_empty {
            self.shutdown.cancel();
        }
    }

    /// Ends the shim if it was told to before, and nothing has come of what kept it.
    fn end_if_forgotten(&self) {
        if self.is_forgotten.load(Ordering::Relaxed) {
            self.end_if_empty();
        }
    }
}

/// Ends the making of what is to be deleted: who wanted it has left.
pub(crate) async fn end_making(making: Option<Making>) -> Result<(), Status> {
    let Some(making) = making else { return Ok(()) };
    to_the_end(async move {
        making.end().await;
        Ok(())
    })
    .await
}

fn state<R: Runtime>(container: &Container<R>, exec_id: String) -> Result<StateResponse, Status> {
    let process = container.process(&exec_id)?;
    let exit = process.phase().exit();
    Ok(StateResponse {
        id: if exec_id.is_empty() { container.id.clone() } else { exec_id.clone() },
        bundle: container.bundle.path().display().to_string(),
        pid: process.pid(),
        status: container.status(&process).into(),
        stdin: process.paths.stdin.clone(),
        stdout: process.paths.stdout.clone(),
        stderr: process.paths.stderr.clone(),
        terminal: process.paths.terminal,
        exit_status: exit.map_or(0, |exit| exit.status),
        exited_at: exit.and_then(at),
        exec_id,
    })
}

fn created(request: CreateTaskRequest, pid: u32) -> events::TaskCreate {
    events::TaskCreate {
        container_id: request.id,
        bundle: request.bundle,
        rootfs: request.rootfs,
        io: Some(events::TaskIo {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        }),
        checkpoint: request.checkpoint,
        pid,
    }
}

/// Takes note of what a call failed with.
#[inline(never)]
fn failed(ctx: &Context, status: Status) -> Status {
    log::debug(format_args!("{} failed: {status}", ctx.method()));
    status
}

/// Serves the methods of a service with those of the same name.
macro_rules! serve {
    ($service:path: $($method:ident($request:ident) -> $response:ty,)*) => {
        #[async_trait]
        impl<R: Runtime> $service for TaskService<R> {
            $(async fn $method(&self, ctx: &Context, request: $request) -> Result<$response, Status> {
                TaskService::<R>::$method(self, request).await.map_err(|status| failed(ctx, status))
            })*
        }
    };
}

// Version 3 is served by the same code, under its own name.
serve! {
    v2::Task:
    state(StateRequest) -> StateResponse,
    create(CreateTaskRequest) -> CreateTaskResponse,
    start(StartRequest) -> StartResponse,
    delete(DeleteRequest) -> DeleteResponse,
    pids(PidsRequest) -> PidsResponse,
    pause(PauseRequest) -> (),
    resume(ResumeRequest) -> (),
    checkpoint(CheckpointTaskRequest) -> (),
    kill(KillRequest) -> (),
    exec(ExecProcessRequest) -> (),
    resize_pty(ResizePtyRequest) -> (),
    close_io(CloseIoRequest) -> (),
    update(UpdateTaskRequest) -> (),
    wait(WaitRequest) -> WaitResponse,
    stats(StatsRequest) -> StatsResponse,
    connect(ConnectRequest) -> ConnectResponse,
    shutdown(ShutdownRequest) -> (),
}

serve! {
    sandbox::Sandbox:
    create_sandbox(CreateSandboxRequest) -> CreateSandboxResponse,
    start_sandbox(StartSandboxRequest) -> StartSandboxResponse,
    platform(PlatformRequest) -> PlatformResponse,
    stop_sandbox(StopSandboxRequest) -> StopSandboxResponse,
    wait_sandbox(WaitSandboxRequest) -> WaitSandboxResponse,
    sandbox_status(SandboxStatusRequest) -> SandboxStatusResponse,
    ping_sandbox(PingRequest) -> PingResponse,
    shutdown_sandbox(ShutdownSandboxRequest) -> ShutdownSandboxResponse,
    sandbox_metrics(SandboxMetricsRequest) -> SandboxMetricsResponse,
    update_sandbox(UpdateSandboxRequest) -> UpdateSandboxResponse,
}

#[cfg(test)]
pub(crate) mod tests;
