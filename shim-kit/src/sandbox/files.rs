//! The files that the containers of a pod share: its names and its shared memory. Kubernetes leaves
//! them to the sandbox.

use std::{
    fs, io,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use rustix::mount::UnmountFlags;
use serde_json::Value;

use super::{bind_mount, unremoved};
use crate::{
    bundle::Spec,
    mount,
    proto::{
        cri::{DnsConfig, NamespaceMode, PodSandboxConfig},
        types::Mount,
    },
    reaper::Reaper,
};

const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const SHARED_MEMORY: &str = "/dev/shm";

/// The files of a pod: where they are, and where they belong in a container.
#[derive(Debug)]
pub struct Files {
    names: Vec<(PathBuf, &'static str)>,
    /// Unless the pod has its machine's.
    shared_memory: Option<PathBuf>,
}

impl Files {
    /// Writes the files into a folder. They belong to this user and group, if not to the shim's.
    ///
    /// # Errors
    /// Those of writing and mounting. What was made is for [`remove`].
    pub async fn make(
        folder: &Path,
        pod: &PodSandboxConfig,
        owner: Option<(u32, u32)>,
        reaper: &Reaper,
    ) -> io::Result<Files> {
        fs::create_dir_all(folder)?;
        let hostname = match pod.hostname.as_str() {
            "" => fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned(),
            name => name.to_owned(),
        };
        let names = [
            ("hostname", HOSTNAME, format!("{hostname}\n").into_bytes()),
            ("hosts", HOSTS, of_machine(HOSTS)?),
            (
                "resolv.conf",
                RESOLV_CONF,
                match &pod.dns_config {
                    Some(dns) => resolv_conf(dns).into_bytes(),
                    None => of_machine(RESOLV_CONF)?,
                },
            ),
        ];
        let mut files = Files { names: Vec::new(), shared_memory: None };
        for (name, destination, content) in names {
            let path = folder.join(name);
            fs::write(&path, content)?;
            if let Some((user, group)) = owner {
                chown(&path, Some(user), Some(group))?;
            }
            files.names.push((path, destination));
        }
        let options = pod.linux.iter().flat_map(|linux| &linux.security_context);
        let mut options = options.flat_map(|context| &context.namespace_options);
        if !options.any(|options| options.ipc() == NamespaceMode::Node) {
            let path = folder.join("shm");
            fs::create_dir_all(&path)?;
            let options = ["nosuid", "nodev", "noexec", "mode=1777", "size=64m"];
            let memory = Mount {
                r#type: "tmpfs".to_owned(),
                source: "shm".to_owned(),
                options: options.map(str::to_owned).into(),
                ..Mount::default()
            };
            mount::mount_all(&[memory], &path, reaper).await?;
            files.shared_memory = Some(path);
        }
        Ok(files)
    }

    /// Adds the files to a container where it has none of its own. Says whether that changed it.
    pub fn add_to(&self, spec: &mut Spec) -> bool {
        let is_read_only = spec.0.pointer("/root/readonly").and_then(Value::as_bool);
        let access = if is_read_only.unwrap_or(false) { "ro" } else { "rw" };
        let Some(spec) = spec.0.as_object_mut() else { return false };
        let Some(mounts) =
            spec.entry("mounts").or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
        else {
            return false;
        };
        let before = mounts.len();
        let mut is_changed = false;
        if let Some(source) = &self.shared_memory
            && !has_own(mounts, SHARED_MEMORY)
        {
            // What every container has by default would hide the pod's.
            mounts.retain(|mount| mount["destination"] != SHARED_MEMORY);
            mounts.push(bind_mount(source, SHARED_MEMORY, options("rw")));
            is_changed = true;
        }
        for (source, destination) in &self.names {
            if !mounts.iter().any(|mount| mount["destination"] == *destination) {
                mounts.push(bind_mount(source, destination, options(access)));
            }
        }
        is_changed || mounts.len() != before
    }
}

/// Removes the files with their folder, if there are any.
///
/// # Errors
/// Those of unmounting and removing, with the path.
pub fn remove(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    let memory = folder.join("shm");
    match rustix::mount::unmount(&memory, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // It is not there, or nothing is mounted there.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(unremoved(&memory, error.into())),
    }
    fs::remove_dir_all(folder).map_err(|error| unremoved(folder, error))
}

/// In a user namespace the kernel refuses to drop what restricts the source.
fn options(access: &'static str) -> [&'static str; 6] {
    ["rbind", "rprivate", "nosuid", "nodev", "noexec", access]
}

/// A file of the machine's; empty if there is none.
fn of_machine(path: &str) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result,
    }
}

fn resolv_conf(dns: &DnsConfig) -> String {
    let listed = |key: &str, values: &[String]| match values {
        [] => String::new(),
        values => format!("{key} {}\n", values.join(" ")),
    };
    let servers: String =
        dns.servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    listed("search", &dns.searches) + &servers + &listed("options", &dns.options)
}

/// Whether somebody has chosen what is there.
fn has_own(mounts: &[Value], destination: &str) -> bool {
    mounts.iter().any(|mount| mount["destination"] == destination && mount["type"] == "bind")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proto::cri::{LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceOption};

    /// A pod with its machine's shared memory, so that nothing is mounted.
    fn pod() -> PodSandboxConfig {
        let options =
            NamespaceOption { ipc: NamespaceMode::Node.into(), ..NamespaceOption::default() };
        let context = LinuxSandboxSecurityContext {
            namespace_options: Some(options),
            ..LinuxSandboxSecurityContext::default()
        };
        PodSandboxConfig {
            hostname: "web-0".to_owned(),
            dns_config: Some(DnsConfig {
                servers: vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()],
                searches: vec!["a.local".to_owned(), "local".to_owned()],
                options: vec!["ndots:5".to_owned()],
            }),
            linux: Some(LinuxPodSandboxConfig {
                security_context: Some(context),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pods_names_are_written_and_removed() {
        let bundle = tempfile::tempdir().unwrap();
        let folder = bundle.path().join("pod");
        Files::make(&folder, &pod(), None, &Reaper::default()).await.unwrap();
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(text("hostname"), "web-0\n");
        assert_eq!(
            text("resolv.conf"),
            "search a.local local\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n"
        );
        remove(&folder).unwrap();
        assert!(!folder.exists());
        remove(&folder).unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_pod_without_names_has_its_machines() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let pod = PodSandboxConfig { hostname: String::new(), dns_config: None, ..pod() };
        Files::make(folder, &pod, None, &Reaper::default()).await.unwrap();
        assert_eq!(fs::read(folder.join("hosts")).unwrap(), of_machine(HOSTS).unwrap());
        let found = fs::read(folder.join("resolv.conf")).unwrap();
        assert_eq!(found, of_machine(RESOLV_CONF).unwrap());
        assert!(fs::read(folder.join("hostname")).unwrap().len() > 1);
    }

    #[test]
    fn a_container_keeps_the_files_that_it_has_of_its_own() {
        let files = Files {
            names: vec![("/p/hosts".into(), HOSTS), ("/p/hostname".into(), HOSTNAME)],
            shared_memory: Some("/p/shm".into()),
        };
        let mut spec = Spec(json!({
            "root": {"readonly": true},
            "mounts": [
                {"destination": HOSTS, "type": "bind", "source": "/own"},
                {"destination": SHARED_MEMORY, "type": "tmpfs", "source": "shm"},
            ],
        }));
        assert!(files.add_to(&mut spec));
        let found: Vec<_> = spec.0["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| {
                let options = mount["options"].as_array();
                let access = options.and_then(|options| options.last()?.as_str());
                (mount["source"].as_str().unwrap(), access)
            })
            .collect();
        let expected = [("/own", None), ("/p/shm", Some("rw")), ("/p/hostname", Some("ro"))];
        assert_eq!(found, expected);
        assert!(!files.add_to(&mut spec), "it has them all");
    }
}
