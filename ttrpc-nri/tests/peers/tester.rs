//! A plugin that does what a pod's annotations say, for `tests/nri/containerd`:
//!
//! - `nri.test/kill`, `nri.test/stop`: a handler's name, such as `start_container`. The process is killed in it, or stopped.
//! - `nri.test/slow`: a number. The creation of the pod's containers takes so many milliseconds.
//! - `nri.test/update`: the id of a container. Its share of processors is changed from inside the creation of another one, which
//!   sees in `UPDATED` what came of it.
//!
//! A container that it has adjusted sees `TESTED`. It writes what it does to standard error.
//!
//!     tester SOCKET [FATE]
//!
//! `FATE` is such as `kill-configure`: what befalls it before there are pods, in `register`, `configure` or `synchronize`. A plugin that the
//! runtime launches has it as its name.

use std::{env, os::unix::net::UnixStream, sync::Mutex, time::Duration};

use rustix::process::{Signal, getpid, kill_process};
use tokio::time::sleep;
use ttrpc_nri::{
    Backoff, Container, ContainerAdjustment, ContainerUpdate, Context, Creation, Error, EventMask,
    LinuxResources, Plugin, PodSandbox, Runtime, Status, Stub, Updates, plugin,
};

#[derive(Default)]
struct Tester {
    fate: String,
    runtime: Mutex<Option<Runtime>>,
}

impl Tester {
    fn runtime(&self) -> std::sync::MutexGuard<'_, Option<Runtime>> {
        self.runtime.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Kills or stops this process, as the system or an operator may.
fn befall(what: &str, step: &str) {
    let signal = match what {
        "kill" => Signal::KILL,
        "stop" => Signal::STOP,
        _ => return,
    };
    eprintln!("{what} in {step}");
    kill_process(getpid(), signal).expect("it is this process");
}

fn befall_fate(fate: &str, step: &str) {
    if let Some((what, fatal)) = fate.split_once('-')
        && fatal == step
    {
        befall(what, step);
    }
}

fn befall_in(pod: &PodSandbox, handler: &str) {
    for what in ["kill", "stop"] {
        if pod.annotation(&format!("nri.test/{what}")) == Some(handler) {
            befall(what, handler);
        }
    }
}

macro_rules! fatal {
    (pods: $($pod:ident)*; containers: $($container:ident)*) => {
        #[plugin]
        impl Plugin for Tester {
            async fn configure(&self, runtime: &Runtime, _: &str) -> Result<EventMask, Status> {
                befall_fate(&self.fate, "configure");
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
                befall_fate(&self.fate, "synchronize");
                eprintln!("synchronized with {} pods and {} containers", pods.len(), containers.len());
                Ok(Vec::new())
            }

            async fn create_container(
                &self,
                _: &Context,
                pod: &PodSandbox,
                _: &Container,
            ) -> Result<Creation, Status> {
                befall_in(pod, "create_container");
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

            async fn update_container(
                &self,
                _: &Context,
                pod: &PodSandbox,
                _: &Container,
                _: &LinuxResources,
            ) -> Result<Updates, Status> {
                befall_in(pod, "update_container");
                Ok(Updates::default())
            }

            async fn stop_container(
                &self,
                _: &Context,
                pod: &PodSandbox,
                _: &Container,
            ) -> Result<Vec<ContainerUpdate>, Status> {
                befall_in(pod, "stop_container");
                Ok(Vec::new())
            }

            $(async fn $pod(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
                befall_in(pod, stringify!($pod));
                Ok(())
            })*

            $(async fn $container(&self, _: &Context, pod: &PodSandbox, _: &Container) -> Result<(), Status> {
                befall_in(pod, stringify!($container));
                Ok(())
            })*
        }
    };
}

fatal! {
    pods: run_pod_sandbox stop_pod_sandbox remove_pod_sandbox;
    containers: post_create_container start_container post_start_container post_update_container remove_container
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut args = env::args().skip(1);
    let socket = args.next();
    let fate = env::var("NRI_PLUGIN_NAME").ok().or_else(|| args.next()).unwrap_or_default();
    if fate.ends_with("-register") {
        // Connected, as a launched one is.
        let _connection = socket.as_ref().map(UnixStream::connect);
        befall_fate(&fate, "register");
    }
    let stub = Stub::new(Tester { fate, ..Tester::default() });
    let stub = match socket {
        Some(socket) => stub
            .name("tester")
            .index("50")
            .socket(socket)
            .reconnect(Backoff::new().longest(Duration::from_secs(1))),
        None => stub,
    };
    stub.on_slow(|slow| eprintln!("slow: {slow}"))
        .on_close(|why| eprintln!("closed: {why}"))
        .run_until(ttrpc_nri::terminated())
        .await
}
