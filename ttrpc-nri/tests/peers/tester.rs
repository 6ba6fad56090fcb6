//! A plugin that does what a pod's annotations say, for `tests/nri/containerd`:
//!
//! - `nri.test/die`: a handler's name, such as `start_container`. The process is killed in it.
//! - `nri.test/slow`: a number. The creation of the pod's containers takes so many milliseconds.
//! - `nri.test/update`: the id of a container. Its share of processors is changed from inside the creation of another one, which
//!   sees in `UPDATED` what came of it.
//!
//! A container that it has adjusted sees `TESTED`. What it does is told on standard error.

use std::{env, process, sync::Mutex, time::Duration};

use tokio::time::sleep;
use ttrpc_nri::{
    Container, ContainerAdjustment, ContainerUpdate, Context, Creation, Error, EventMask, Plugin,
    PodSandbox, Runtime, Status, Stub, plugin,
};

#[derive(Default)]
struct Tester {
    runtime: Mutex<Option<Runtime>>,
}

impl Tester {
    fn runtime(&self) -> std::sync::MutexGuard<'_, Option<Runtime>> {
        self.runtime.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// As a plugin is that the system kills.
fn die_if_told(pod: &PodSandbox, handler: &str) {
    if pod.annotation("nri.test/die") == Some(handler) {
        eprintln!("killed in {handler}");
        process::abort();
    }
}

macro_rules! deadly {
    (pods: $($pod:ident)*; containers: $($container:ident)*) => {
        #[plugin]
        impl Plugin for Tester {
            async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
                // As for a program that has to be back before containerd's own limit for a request, 2 s.
                *self.runtime() = Some(runtime.clone().with_timeout(Duration::from_secs(1)));
                Ok(Self::EVENTS)
            }

            async fn synchronize(
                &self,
                _: &Context,
                pods: Vec<PodSandbox>,
                containers: Vec<Container>,
            ) -> Result<Vec<ContainerUpdate>, Status> {
                eprintln!("synchronized with {} pods and {} containers", pods.len(), containers.len());
                Ok(Vec::new())
            }

            async fn create_container(
                &self,
                _: &Context,
                pod: &PodSandbox,
                _: &Container,
            ) -> Result<Creation, Status> {
                die_if_told(pod, "create_container");
                let mut adjustment = ContainerAdjustment::new().env("TESTED", "1");
                let slow = pod.annotation("nri.test/slow").and_then(|millis| millis.parse().ok());
                if let Some(millis) = slow {
                    sleep(Duration::from_millis(millis)).await;
                }
                if let Some(id) = pod.annotation("nri.test/update") {
                    let runtime = self.runtime().clone();
                    let runtime = runtime.ok_or_else(|| Status::internal("not configured"))?;
                    let update = ContainerUpdate::of(id).cpu_shares(512);
                    let outcome = match runtime.update_containers(vec![update]).await {
                        Ok(failed) if failed.is_empty() => "ok".to_owned(),
                        Ok(failed) => format!("failed {}", failed.len()),
                        Err(status) => status.code().name().to_owned(),
                    };
                    eprintln!("updated {id}: {outcome}");
                    adjustment = adjustment.env("UPDATED", outcome);
                }
                Ok(adjustment.into())
            }

            $(async fn $pod(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
                die_if_told(pod, stringify!($pod));
                Ok(())
            })*

            $(async fn $container(&self, _: &Context, pod: &PodSandbox, _: &Container) -> Result<(), Status> {
                die_if_told(pod, stringify!($container));
                Ok(())
            })*
        }
    };
}

deadly! {
    pods: run_pod_sandbox stop_pod_sandbox remove_pod_sandbox;
    containers: post_create_container start_container post_start_container remove_container
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut stub = Stub::new(Tester::default()).name("tester").index("50");
    if let Some(socket) = env::args().nth(1) {
        stub = stub.socket(socket).reconnect(Duration::from_millis(50), Duration::from_secs(1));
    }
    stub.on_slow(|slow| eprintln!("slow: {slow}"))
        .on_close(|why| eprintln!("closed: {why}"))
        .run_until(ttrpc_nri::terminated())
        .await
}
