//! The bundle: the folder that containerd makes for a container, and what the shim keeps there for
//! an invocation of `delete` that comes after its death.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::process::Pid;
use serde_json::Value;
use ttrpc::{Any, prost::Message};

use crate::files::write_whole;

/// Labels by which containers share a shim, in the order of their weight.
const GROUP_LABELS: [&str; 2] = ["io.containerd.runc.v2.group", POD_LABEL];
pub(crate) const POD_LABEL: &str = "io.kubernetes.cri.sandbox-id";

/// A container's bundle.
#[derive(Clone, Debug)]
pub struct Bundle(PathBuf);

impl Bundle {
    /// The bundle in this folder.
    pub fn new(path: impl Into<PathBuf>) -> Bundle {
        Bundle(path.into())
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the root of the container's file system.
    pub fn rootfs(&self) -> PathBuf {
        self.0.join("rootfs")
    }

    /// Returns the file with the pid of the container's first process, for
    /// [`Runtime::clean_up`](crate::Runtime::clean_up).
    ///
    /// The kit writes it when it learns the pid. A runtime whose program writes it before that loses no process if
    /// the shim dies in between.
    pub fn pid_file(&self) -> PathBuf {
        self.0.join("init.pid")
    }

    /// Returns the pid of the container's first process, if it was ever known.
    pub fn pid(&self) -> Option<Pid> {
        read_pid(&self.pid_file()).ok()
    }

    /// Keeps the pid of the container's first process, unless it is there.
    ///
    /// # Errors
    /// Those of writing a file.
    pub(crate) fn write_pid(&self, pid: Pid) -> io::Result<()> {
        match self.pid() == Some(pid) {
            true => Ok(()),
            false => write_whole(&self.pid_file(), pid.to_string().as_bytes()),
        }
    }

    /// Says where the shim listens that serves this container.
    ///
    /// # Errors
    /// Those of writing a file.
    pub(crate) fn write_address(&self, address: &str) -> io::Result<()> {
        write_whole(&self.0.join("address"), address.as_bytes())
    }

    /// Where the shim listens, or listened.
    pub(crate) fn address(&self) -> Option<String> {
        fs::read_to_string(self.0.join("address")).ok()
    }

    /// Keeps the options for `delete`.
    ///
    /// # Errors
    /// Those of writing a file.
    pub(crate) fn write_options(&self, options: Option<&Any>) -> io::Result<()> {
        let Some(options) = options else { return Ok(()) };
        write_whole(&self.0.join("options.pb"), &options.encode_to_vec())
    }

    /// The options that the container was made with, if there were any.
    ///
    /// # Errors
    /// If they are there and cannot be read.
    pub(crate) fn options(&self) -> io::Result<Option<Any>> {
        let path = self.0.join("options.pb");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let wrong = |error| io::Error::other(format!("cannot read {}: {error}", path.display()));
        Any::decode(bytes.as_slice()).map(Some).map_err(wrong)
    }

    /// The folder for the files that the containers of a pod share, in the bundle of its sandbox.
    pub(crate) fn pod(&self) -> PathBuf {
        self.0.join("pod")
    }

    /// Says what the container is to be.
    ///
    /// # Errors
    /// Those of writing a file.
    pub(crate) fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        write_whole(&self.0.join("config.json"), spec.0.to_string().as_bytes())
    }

    /// What the container is to be; nothing where that is not said yet, as in a sandbox's bundle.
    ///
    /// # Errors
    /// Those of reading a file and parsing JSON.
    pub(crate) fn spec_if_any(&self) -> io::Result<Spec> {
        match self.spec() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Spec(Value::Null)),
            result => result,
        }
    }

    /// Reads the container's `config.json`, the OCI runtime specification.
    ///
    /// # Errors
    /// Those of reading a file and parsing JSON.
    pub fn spec(&self) -> io::Result<Spec> {
        Ok(Spec(serde_json::from_slice(&fs::read(self.0.join("config.json"))?)?))
    }
}

/// A container's config.json, as far as a shim cares.
#[derive(Debug)]
pub struct Spec(pub(crate) Value);

impl Spec {
    /// The pod that Kubernetes has put the container into.
    pub(crate) fn pod(&self) -> Option<&str> {
        self.0.get("annotations")?.get(POD_LABEL)?.as_str()
    }

    /// Returns the group of containers that one shim serves, if it is not this one alone.
    pub fn group(&self) -> Option<&str> {
        let annotations = self.0.get("annotations")?;
        GROUP_LABELS.iter().find_map(|label| annotations.get(label)?.as_str())
    }

    /// Whether it says which program to run.
    pub(crate) fn has_process(&self) -> bool {
        self.0.get("process").is_some_and(Value::is_object)
    }

    /// Whether it says where the root file system is.
    pub(crate) fn has_root(&self) -> bool {
        self.0.pointer("/root/path").and_then(Value::as_str).is_some_and(|path| !path.is_empty())
    }

    /// Returns the whole specification.
    pub fn json(&self) -> &Value {
        &self.0
    }
}

/// Reads a pid file.
///
/// # Errors
/// If it is not there or holds no pid.
pub fn read_pid(path: &Path) -> io::Result<Pid> {
    let text = fs::read_to_string(path)?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other(format!("no pid in {}", path.display())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_of_a_pod_share_a_shim() {
        let group = |annotations: Value| {
            let spec = Spec(json!({ "annotations": annotations }));
            spec.group().map(str::to_owned)
        };
        assert_eq!(group(json!({})), None);
        assert_eq!(group(json!({"io.kubernetes.cri.sandbox-id": "pod"})).as_deref(), Some("pod"));
        let both =
            json!({"io.kubernetes.cri.sandbox-id": "pod", "io.containerd.runc.v2.group": "group"});
        assert_eq!(group(both).as_deref(), Some("group"));
        assert_eq!(Spec(json!({})).group(), None);
    }

    #[test]
    fn what_is_kept_for_delete_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = Bundle::new(folder.path());
        assert_eq!(bundle.options().unwrap(), None);
        assert_eq!((bundle.address(), bundle.pid()), (None, None));

        let options = Any { type_url: "a.v1.Options".to_owned(), value: vec![8, 1] };
        bundle.write_options(Some(&options)).unwrap();
        bundle.write_address("unix:///s").unwrap();
        fs::write(bundle.pid_file(), "42\n").unwrap();
        assert_eq!(bundle.options().unwrap(), Some(options));
        assert_eq!(bundle.address().as_deref(), Some("unix:///s"));
        assert_eq!(bundle.pid(), Pid::from_raw(42));
    }
}
