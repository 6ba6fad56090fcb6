//! What a container is made of: mounts, hooks, devices, namespaces, limits.

use oci_spec::runtime as oci;
use serde_json::json;

use super::*;
use crate::proto::*;

impl From<&oci::Mount> for Mount {
    fn from(mount: &oci::Mount) -> Self {
        Mount {
            destination: text(mount.destination()),
            r#type: mount.typ().clone().unwrap_or_default(),
            source: optional_text(mount.source().as_ref()),
            options: mount.options().clone().unwrap_or_default(),
        }
    }
}

impl TryFrom<&Mount> for oci::Mount {
    type Error = OciError;

    fn try_from(mount: &Mount) -> Result<Self, OciError> {
        let value = json!({
            "destination": mount.destination,
            "type": unless_empty(&mount.r#type),
            "source": unless_empty(&mount.source),
            "options": mount.options,
        });
        to_oci("a mount", without_nulls(value))
    }
}

impl From<&oci::Hook> for Hook {
    fn from(hook: &oci::Hook) -> Self {
        Hook {
            path: text(hook.path()),
            args: hook.args().clone().unwrap_or_default(),
            env: hook.env().clone().unwrap_or_default(),
            timeout: hook.timeout().map(|value| OptionalInt { value }),
        }
    }
}

impl TryFrom<&Hook> for oci::Hook {
    type Error = OciError;

    fn try_from(hook: &Hook) -> Result<Self, OciError> {
        let Hook { path, args, env, timeout } = hook;
        let value = json!({ "path": path, "args": args, "env": env, "timeout": value!(timeout) });
        to_oci("a hook", without_nulls(value))
    }
}

impl From<&oci::Hooks> for Hooks {
    fn from(hooks: &oci::Hooks) -> Self {
        let all =
            |hooks: Option<&Vec<oci::Hook>>| hooks.into_iter().flatten().map(Hook::from).collect();
        // The specification has replaced `prestart`, which runtimes still run.
        #[allow(deprecated)]
        let prestart = all(hooks.prestart().as_ref());
        Hooks {
            prestart,
            create_runtime: all(hooks.create_runtime().as_ref()),
            create_container: all(hooks.create_container().as_ref()),
            start_container: all(hooks.start_container().as_ref()),
            poststart: all(hooks.poststart().as_ref()),
            poststop: all(hooks.poststop().as_ref()),
        }
    }
}

impl TryFrom<&Hooks> for oci::Hooks {
    type Error = OciError;

    fn try_from(hooks: &Hooks) -> Result<Self, OciError> {
        let all =
            |hooks: &[Hook]| hooks.iter().map(oci::Hook::try_from).collect::<Result<Vec<_>, _>>();
        let value = json!({
            "prestart": all(&hooks.prestart)?,
            "createRuntime": all(&hooks.create_runtime)?,
            "createContainer": all(&hooks.create_container)?,
            "startContainer": all(&hooks.start_container)?,
            "poststart": all(&hooks.poststart)?,
            "poststop": all(&hooks.poststop)?,
        });
        to_oci("hooks", value)
    }
}

impl From<&oci::LinuxDevice> for LinuxDevice {
    fn from(device: &oci::LinuxDevice) -> Self {
        LinuxDevice {
            path: text(device.path()),
            r#type: word(&device.typ()),
            major: device.major(),
            minor: device.minor(),
            file_mode: device.file_mode().map(|value| OptionalFileMode { value }),
            uid: device.uid().map(|value| OptionalUInt32 { value }),
            gid: device.gid().map(|value| OptionalUInt32 { value }),
        }
    }
}

impl TryFrom<&LinuxDevice> for oci::LinuxDevice {
    type Error = OciError;

    fn try_from(device: &LinuxDevice) -> Result<Self, OciError> {
        let value = json!({
            "path": device.path,
            "type": device.r#type,
            "major": device.major,
            "minor": device.minor,
            "fileMode": value!(device.file_mode),
            "uid": value!(device.uid),
            "gid": value!(device.gid),
        });
        to_oci("a device", without_nulls(value))
    }
}

impl From<&oci::LinuxNamespace> for LinuxNamespace {
    fn from(namespace: &oci::LinuxNamespace) -> Self {
        LinuxNamespace {
            r#type: word(&namespace.typ()),
            path: optional_text(namespace.path().as_ref()),
        }
    }
}

impl TryFrom<&LinuxNamespace> for oci::LinuxNamespace {
    type Error = OciError;

    fn try_from(namespace: &LinuxNamespace) -> Result<Self, OciError> {
        let value = json!({ "type": namespace.r#type, "path": unless_empty(&namespace.path) });
        to_oci("a namespace", without_nulls(value))
    }
}

impl From<&oci::PosixRlimit> for PosixRlimit {
    fn from(limit: &oci::PosixRlimit) -> Self {
        PosixRlimit { r#type: word(&limit.typ()), hard: limit.hard(), soft: limit.soft() }
    }
}

impl TryFrom<&PosixRlimit> for oci::PosixRlimit {
    type Error = OciError;

    fn try_from(limit: &PosixRlimit) -> Result<Self, OciError> {
        let PosixRlimit { r#type, hard, soft } = limit;
        to_oci("a resource limit", json!({ "type": r#type, "hard": hard, "soft": soft }))
    }
}
