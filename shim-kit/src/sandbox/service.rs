//! The Sandbox service: what containerd calls where the shim makes the pods.

use std::{collections::HashMap, env::consts, sync::Arc, time::Duration, time::SystemTime};

use serde_json::json;
use ttrpc::{Any, Status};

use super::Sandbox;
use crate::{
    container::Container,
    ids,
    proto::{sandbox::*, types},
    runtime::Runtime,
    service::{Making, Slot, TaskService, at, end_making},
    tasks::to_the_end,
};

/// What OCI specifications are packed as.
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// The fields of a sandbox that a shim makes something of.
const UPDATED: &str = "spec";

/// Holds the sandbox's place until this is dropped; longer if the sandbox is made by then.
struct Place<R: Runtime> {
    service: TaskService<R>,
    making: Making,
}

impl<R: Runtime> Drop for Place<R> {
    fn drop(&mut self) {
        self.service.sandbox_slot().take_if(|slot| matches!(slot, Slot::Reserved(_)));
        self.making.is_over();
    }
}

impl<R: Runtime> TaskService<R> {
    fn sandbox(&self, id: &str) -> Result<Arc<Sandbox<R>>, Status> {
        match &*self.sandbox_slot() {
            Some(Slot::Made(sandbox)) if sandbox.id == id => Ok(sandbox.clone()),
            _ => Err(Status::not_found(format!("sandbox {id} is not created"))),
        }
    }

    pub(crate) async fn create_sandbox(
        &self,
        request: CreateSandboxRequest,
    ) -> Result<CreateSandboxResponse, Status> {
        ids::check("sandbox", &request.sandbox_id)?;
        let making = Making::new(&self.shim.reaper);
        let reaper = making.reaper.clone();
        let place = {
            let mut slot = self.sandbox_slot();
            if slot.is_some() {
                return Err(Status::already_exists("the shim has its sandbox"));
            }
            *slot = Some(Slot::Reserved(making.clone()));
            Place { service: self.clone(), making }
        };
        to_the_end(async move {
            let made = Sandbox::create(&place.service.shim, reaper, request).await?;
            *place.service.sandbox_slot() = Some(Slot::Made(Arc::new(made)));
            Ok(CreateSandboxResponse {})
        })
        .await
    }

    pub(crate) async fn start_sandbox(
        &self,
        request: StartSandboxRequest,
    ) -> Result<StartSandboxResponse, Status> {
        let sandbox = self.sandbox(&request.sandbox_id)?;
        to_the_end(async move {
            let pid = sandbox.start().await?;
            let value = sandbox.spec()?.json().to_string().into_bytes();
            Ok(StartSandboxResponse {
                pid,
                created_at: Some(sandbox.created_at.into()),
                spec: Some(Any { type_url: SPEC.to_owned(), value }),
            })
        })
        .await
    }

    pub(crate) async fn platform(&self, _: PlatformRequest) -> Result<PlatformResponse, Status> {
        let (architecture, variant) = match consts::ARCH {
            "x86_64" => ("amd64", ""),
            "x86" => ("386", ""),
            "aarch64" => ("arm64", ""),
            "arm" => ("arm", "v7"),
            "powerpc64" => ("ppc64le", ""),
            "loongarch64" => ("loong64", ""),
            other => (other, ""),
        };
        let platform = types::Platform {
            os: consts::OS.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
            ..types::Platform::default()
        };
        Ok(PlatformResponse { platform: Some(platform) })
    }

    pub(crate) async fn stop_sandbox(
        &self,
        request: StopSandboxRequest,
    ) -> Result<StopSandboxResponse, Status> {
        let sandbox = self.sandbox(&request.sandbox_id)?;
        let members = self.members();
        let limit = Some(request.timeout_secs).filter(|seconds| *seconds > 0);
        let limit = limit.map(|seconds| Duration::from_secs(seconds.into()));
        to_the_end(async move { sandbox.stop(&members, limit).await }).await?;
        Ok(StopSandboxResponse {})
    }

    pub(crate) async fn wait_sandbox(
        &self,
        request: WaitSandboxRequest,
    ) -> Result<WaitSandboxResponse, Status> {
        let exit = self.sandbox(&request.sandbox_id)?.ended().await;
        Ok(WaitSandboxResponse { exit_status: exit.status, exited_at: at(exit) })
    }

    pub(crate) async fn sandbox_status(
        &self,
        request: SandboxStatusRequest,
    ) -> Result<SandboxStatusResponse, Status> {
        let sandbox = self.sandbox(&request.sandbox_id)?;
        let phase = sandbox.phase();
        let state = if phase.is_alive() { "SANDBOX_READY" } else { "SANDBOX_NOTREADY" };
        let mut info = HashMap::new();
        if request.verbose {
            let spec = sandbox.spec()?;
            let told = json!({
                "pid": sandbox.pid(),
                "processStatus": phase.status().as_str_name().to_lowercase(),
                "runtimeSpec": spec.json(),
            });
            info.insert("info".to_owned(), told.to_string());
        }
        Ok(SandboxStatusResponse {
            sandbox_id: request.sandbox_id,
            pid: sandbox.pid(),
            state: state.to_owned(),
            info,
            created_at: Some(sandbox.created_at.into()),
            exited_at: phase.exit().and_then(at),
            extra: None,
        })
    }

    pub(crate) async fn ping_sandbox(&self, request: PingRequest) -> Result<PingResponse, Status> {
        self.sandbox(&request.sandbox_id).map(|_| PingResponse {})
    }

    pub(crate) async fn shutdown_sandbox(
        &self,
        request: ShutdownSandboxRequest,
    ) -> Result<ShutdownSandboxResponse, Status> {
        let making = match &*self.sandbox_slot() {
            Some(Slot::Reserved(making)) => Some(making.clone()),
            _ => None,
        };
        end_making(making).await?;
        let Ok(sandbox) = self.sandbox(&request.sandbox_id) else {
            // It could not be made, and containerd has no more use for the shim.
            self.end_if_empty();
            return Ok(ShutdownSandboxResponse {});
        };
        let (this, members) = (self.clone(), self.members());
        to_the_end(async move {
            sandbox.stop(&members, None).await?;
            sandbox.delete().await?;
            *this.sandbox_slot() = None;
            // containerd deletes the pod's containers that are left by itself.
            this.shutdown.cancel();
            Ok(ShutdownSandboxResponse {})
        })
        .await
    }

    pub(crate) async fn sandbox_metrics(
        &self,
        request: SandboxMetricsRequest,
    ) -> Result<SandboxMetricsResponse, Status> {
        let sandbox = self.sandbox(&request.sandbox_id)?;
        let metrics = types::Metric {
            timestamp: Some(SystemTime::now().into()),
            id: request.sandbox_id,
            data: Some(sandbox.stats().await?),
        };
        Ok(SandboxMetricsResponse { metrics: Some(metrics) })
    }

    pub(crate) async fn update_sandbox(
        &self,
        request: UpdateSandboxRequest,
    ) -> Result<UpdateSandboxResponse, Status> {
        let sandbox = self.sandbox(&request.sandbox_id)?;
        let is_new = request.fields.is_empty() || request.fields.iter().any(|name| name == UPDATED);
        let spec = request.sandbox.and_then(|sandbox| sandbox.spec).filter(|_| is_new);
        if let Some(spec) = spec {
            to_the_end(async move { sandbox.update(&spec).await }).await?;
        }
        Ok(UpdateSandboxResponse {})
    }

    /// The pod's containers.
    fn members(&self) -> Vec<Arc<Container<R>>> {
        let containers = self.containers();
        let made = containers.values().filter_map(|slot| match slot {
            Slot::Made(container) => Some(container.clone()),
            Slot::Reserved(_) => None,
        });
        made.collect()
    }
}
