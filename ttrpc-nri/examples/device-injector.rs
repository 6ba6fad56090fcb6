//! Adds the devices that a pod's annotation names to its containers: `devices.example/inject: /dev/fuse,/dev/kvm`.
//!
//! Each is looked up on the host, and has the same path and numbers in the container.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    process::ExitCode,
};

use ttrpc_nri::{
    Container, ContainerAdjustment, Context, Creation, Error, FailurePolicy, Plugin, PodSandbox,
    Status, Stub, plugin,
    proto::{LinuxDevice, OptionalFileMode},
};

struct DeviceInjector;

#[plugin]
impl Plugin for DeviceInjector {
    async fn create_container(
        &self,
        _ctx: &Context,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<Creation, Status> {
        let wanted = pod.annotation_for(&container.name, "devices.example/inject").unwrap_or("");
        let paths = wanted.split(',').map(str::trim).filter(|path| !path.is_empty());
        let adjustment =
            paths.map(device).try_fold(ContainerAdjustment::new(), |adjustment, device| {
                Ok::<_, Status>(adjustment.device(device?))
            })?;
        Ok(adjustment.into())
    }
}

fn device(path: &str) -> Result<LinuxDevice, Status> {
    let missing =
        |error| Status::not_found(format!("the device {path} cannot be looked at: {error}"));
    let found = fs::metadata(path).map_err(missing)?;
    let kind = match found.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return Err(Status::invalid_argument(format!("{path} is no device"))),
    };
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    Ok(LinuxDevice {
        path: path.to_owned(),
        r#type: kind.to_owned(),
        major: major.into(),
        minor: minor.into(),
        file_mode: Some(OptionalFileMode { value: found.mode() & 0o777 }),
        ..LinuxDevice::default()
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("device-injector: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    // A container that was promised a device does not run without it.
    let policy = FailurePolicy { fail_request: true, keep_connected: true };
    let stub = Stub::new(DeviceInjector).name("device-injector").index("20").failure_policy(policy);
    stub.run_until(ttrpc_nri::terminated()).await
}

#[cfg(test)]
mod tests {
    use ttrpc_nri::testing::Runtime;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn devices_are_injected_as_they_are_on_the_host() {
        let runtime = Runtime::start(DeviceInjector).await;
        let pod = PodSandbox::named("p")
            .with_annotation("devices.example/inject", "/dev/null, /dev/zero");
        let created =
            runtime.create_container(&pod, &Container::named("c")).await.expect("it is created");
        let devices = created.adjustment.linux.expect("it has devices").devices;
        assert_eq!((&*devices[0].path, devices[0].major, devices[0].minor), ("/dev/null", 1, 3));
        assert_eq!((&*devices[1].r#type, devices[1].minor), ("c", 5));
        let pod = PodSandbox::named("p").with_annotation("devices.example/inject", "/etc");
        runtime.create_container(&pod, &Container::named("c")).await.expect_err("it is a folder");
    }
}
