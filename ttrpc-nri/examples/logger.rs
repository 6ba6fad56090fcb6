//! Writes every event to a file: the one that its configuration names, or standard error.
//!
//! Launched by containerd as `/opt/nri/plugins/00-logger` it needs the file, since all that a launched plugin prints is lost:
//! `echo /var/log/nri.log >/etc/nri/conf.d/logger.conf`.

use std::{fs::File, io::Write, process::ExitCode, sync::Mutex};

use ttrpc_nri::{
    Container, ContainerUpdate, Context, Creation, Error, EventMask, LinuxResources, Plugin,
    PodSandbox, Runtime, Status, Stub, Updates, plugin,
};

#[derive(Default)]
struct Logger {
    file: Mutex<Option<File>>,
}

impl Logger {
    fn log(&self, event: &str, pod: &PodSandbox, container: Option<&Container>) {
        let of = container.map_or("", |container| &container.name);
        let line = format!("{event} {}/{} {of}\n", pod.namespace, pod.name);
        let written = match &mut *self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
        // An event that cannot be logged is no reason to fail a container.
        drop(written);
    }
}

/// Handlers that only log.
macro_rules! logged {
    (pods: $($pod:ident)*; containers: $($container:ident)*) => {
        #[plugin]
        impl Plugin for Logger {
            async fn configure(&self, runtime: &Runtime, config: &str) -> Result<EventMask, Status> {
                let path = config.trim();
                if !path.is_empty() {
                    let file = File::options().create(true).append(true).open(path);
                    let failed = |error| Status::invalid_argument(format!("cannot log to `{path}`: {error}"));
                    *self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(file.map_err(failed)?);
                }
                self.log(&format!("configured by {} {}", runtime.name(), runtime.version()), &PodSandbox::default(), None);
                Ok(Self::EVENTS)
            }

            async fn synchronize(&self, _: &Context, pods: Vec<PodSandbox>, containers: Vec<Container>) -> Result<Vec<ContainerUpdate>, Status> {
                self.log(&format!("synchronized with {} pods and {} containers", pods.len(), containers.len()), &PodSandbox::default(), None);
                Ok(Vec::new())
            }

            async fn create_container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<Creation, Status> {
                self.log("create_container", pod, Some(container));
                Ok(Creation::default())
            }

            async fn update_container(&self, _: &Context, pod: &PodSandbox, container: &Container, _: &LinuxResources) -> Result<Updates, Status> {
                self.log("update_container", pod, Some(container));
                Ok(Updates::default())
            }

            async fn stop_container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<Vec<ContainerUpdate>, Status> {
                self.log("stop_container", pod, Some(container));
                Ok(Vec::new())
            }

            $(async fn $pod(&self, _: &Context, pod: &PodSandbox) -> Result<(), Status> {
                self.log(stringify!($pod), pod, None);
                Ok(())
            })*

            $(async fn $container(&self, _: &Context, pod: &PodSandbox, container: &Container) -> Result<(), Status> {
                self.log(stringify!($container), pod, Some(container));
                Ok(())
            })*
        }
    };
}

logged! {
    pods: run_pod_sandbox post_update_pod_sandbox stop_pod_sandbox remove_pod_sandbox;
    containers: post_create_container start_container post_start_container post_update_container remove_container
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("logger: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    Stub::new(Logger::default()).name("logger").index("00").run_until(ttrpc_nri::terminated()).await
}
