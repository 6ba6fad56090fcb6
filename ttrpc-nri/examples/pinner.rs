//! Pins containers to processors: those that the pod's annotation `pin.example/cpus` names, or
//! `pin.example/cpus/container.NAME` for one container.
//!
//! Launched by containerd as `/opt/nri/plugins/10-pinner`, or started by hand or by systemd (`deploy/pinner.service`),
//! or by Kubernetes (`deploy/pinner.yaml`). An argument names another socket than NRI's usual one.

use std::process::ExitCode;

use ttrpc_nri::{
    Backoff, Container, ContainerAdjustment, Context, Creation, Error, Plugin, PodSandbox, Status,
    Stub, plugin,
};

struct Pinner;

#[plugin]
impl Plugin for Pinner {
    async fn create_container(
        &self,
        _ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        let Some(cpus) = pod.annotation_for(&container.name, "pin.example/cpus") else {
            return Ok(Creation::default());
        };
        if !cpus.bytes().all(|byte| byte.is_ascii_digit() || b",-".contains(&byte)) {
            let message = format!("pin.example/cpus is `{cpus}`, not a list such as 0-3,8");
            return Err(Status::invalid_argument(message));
        }
        tracing::info!(pod = pod.name, container = container.name, cpus, "pinned");
        Ok(ContainerAdjustment::new().env("PINNED_CPUS", cpus).cpuset_cpus(cpus).into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinner: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    // A plugin that containerd launches writes to /dev/null: log to a file there, as the example `logger` does.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let socket = std::env::args().nth(1).unwrap_or_else(|| ttrpc_nri::DEFAULT_SOCKET.to_owned());
    Stub::new(Pinner)
        .name("pinner")
        .index("10")
        .socket(socket)
        .reconnect(Backoff::new())
        .run_until(ttrpc_nri::terminated())
        .await
}

#[cfg(test)]
mod tests {
    use ttrpc_nri::testing::Runtime;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn containers_are_pinned_to_what_the_annotation_names() {
        let runtime = Runtime::start(Pinner).await;
        let pod = PodSandbox::named("p").with_annotation("pin.example/cpus", "0-1");
        let created =
            runtime.create_container(&pod, &Container::named("c")).await.expect("it is created");
        assert_eq!(created.adjustment.env_value("PINNED_CPUS"), Some("0-1"));
        let pod = PodSandbox::named("p").with_annotation("pin.example/cpus", "all");
        runtime.create_container(&pod, &Container::named("c")).await.expect_err("`all` is no list");
        runtime.shutdown().await.expect("it ends");
    }
}
