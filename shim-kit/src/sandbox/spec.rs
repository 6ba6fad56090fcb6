//! What the container behind a sandbox is, in the words of the OCI runtime specification.

use std::{collections::HashMap, path::Path};

use serde_json::{Map, Value};
use ttrpc::Status;

use super::{pause::Program, users::Users};
use crate::{
    bundle::{POD_LABEL, Spec},
    proto::cri::{LinuxSandboxSecurityContext, NamespaceMode, PodSandboxConfig},
};

/// The user that runs the pod's first process unless another is asked for: one without rights.
const NOBODY: i64 = 65535;
/// The kernel, short of memory, ends a pod's containers before what holds them together.
const OOM_SCORE: i32 = -998;
/// The first process only waits: the least share of the processors that there is.
const CPU_SHARES: u32 = 2;

/// What is known of a pod.
pub struct Pod<'a> {
    pub id: &'a str,
    pub config: Option<&'a PodSandboxConfig>,
    /// The file of its network namespace; empty for none in particular.
    pub network: &'a str,
    pub annotations: &'a HashMap<String, String>,
    /// Unless they are the machine's.
    pub users: Option<PodUsers<'a>>,
}

/// What is known of a pod with a user namespace.
pub struct PodUsers<'a> {
    pub users: &'a Users,
    /// The namespace's file, if it is there already.
    pub namespace: Option<&'a Path>,
    /// The root file system, if the client has none.
    pub root: Option<&'a Path>,
}

/// What is the same for all.
const TEMPLATE: &str = r#"{
    "ociVersion": "1.0.2",
    "process": {"cwd": "/", "capabilities": {}, "noNewPrivileges": true, "user": {}},
    "root": {"path": "rootfs", "readonly": true},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc",
            "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=64k"]}
    ],
    "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}], "cpu": {}}}
}"#;

/// Completes a specification that has no process. What the client has given stays.
///
/// # Errors
/// INVALID_ARGUMENT for a pod with a name of its own and its machine's network.
pub fn complete(given: Spec, pod: &Pod<'_>, program: &Program) -> Result<Spec, Status> {
    let default = PodSandboxConfig::default();
    let config = pod.config.unwrap_or(&default);
    let linux = config.linux.clone().unwrap_or_default();
    let context = linux.security_context.unwrap_or_default();
    let mut namespaces = namespaces(&context, pod.network);
    let has_own_hostname = namespaces.iter().any(|namespace| namespace["type"] == "uts");
    if !has_own_hostname && !config.hostname.is_empty() {
        let message = "a pod with its machine's network has its machine's name, and not";
        return Err(Status::invalid_argument(format!("{message} {}", config.hostname)));
    }

    let mut spec: Value = serde_json::from_str(TEMPLATE).unwrap_or_default();
    describe_process(&mut spec["process"], &context, pod, program);
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.extend(program.mounts());
    }
    spec["annotations"] = annotations(config, pod);
    if let Some(PodUsers { users, namespace: path, root }) = &pod.users {
        let path = path.map(Path::to_string_lossy).unwrap_or_default();
        namespaces.push(namespace("user", &path));
        for (key, mapping) in users.mappings() {
            spec["linux"][key] = mapping;
        }
        if let Some(root) = root {
            spec["root"]["path"] = root.to_string_lossy().into();
        }
    }
    spec["linux"]["namespaces"] = namespaces.into();
    spec["linux"]["sysctl"] = object(linux.sysctls);
    spec["linux"]["resources"]["cpu"]["shares"] = CPU_SHARES.into();
    if !config.hostname.is_empty() {
        spec["hostname"] = config.hostname.clone().into();
    }
    if !linux.cgroup_parent.is_empty() {
        spec["linux"]["cgroupsPath"] = cgroups_path(&linux.cgroup_parent, pod.id).into();
    }
    let has_root = given.has_root();
    if let (Value::Object(spec), Value::Object(given)) = (&mut spec, given.0) {
        // Go writes what was not given as an empty string.
        for (key, value) in given.into_iter().filter(|(_, value)| !value.is_null() && *value != "")
        {
            match (key.as_str(), value) {
                // What the program needs stays.
                ("process", _) => {}
                ("root", _) if !has_root => {}
                ("mounts", Value::Array(given)) => {
                    spec.insert(key, given.into_iter().chain(program.mounts()).collect());
                }
                ("linux", Value::Object(given)) => {
                    if let Some(linux) = spec["linux"].as_object_mut() {
                        linux.extend(given);
                    }
                }
                (_, value) => drop(spec.insert(key, value)),
            }
        }
    }
    let mut spec = Spec(spec);
    isolate_mounts(&mut spec);
    Ok(spec)
}

/// Gives a sandbox a mount namespace if it has none: what its runtime mounts would be the machine's, and stay there.
/// Says whether that changed it.
pub fn isolate_mounts(spec: &mut Spec) -> bool {
    let Some(linux) = spec
        .0
        .as_object_mut()
        .map(|spec| spec.entry("linux").or_insert_with(|| Value::Object(Map::new())))
    else {
        return false;
    };
    let Some(namespaces) = linux.as_object_mut().and_then(|linux| {
        linux.entry("namespaces").or_insert_with(|| Value::Array(Vec::new())).as_array_mut()
    }) else {
        return false;
    };
    let is_there = namespaces.iter().any(|namespace| namespace["type"] == "mount");
    if !is_there {
        namespaces.push(namespace("mount", ""));
    }
    !is_there
}

fn describe_process(
    process: &mut Value,
    context: &LinuxSandboxSecurityContext,
    pod: &Pod<'_>,
    program: &Program,
) {
    let nobody = pod.users.as_ref().map_or((NOBODY, NOBODY), |of_pod| of_pod.users.last());
    process["user"]["uid"] = context.run_as_user.map_or(nobody.0, |id| id.value).into();
    process["user"]["gid"] = context.run_as_group.map_or(nobody.1, |id| id.value).into();
    process["user"]["additionalGids"] = context.supplemental_groups.clone().into();
    process["args"] = program.args().into();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if may_lower_oom_score(&status) {
        process["oomScoreAdj"] = OOM_SCORE.into();
    }
}

/// To lower a score needs a capability.
fn may_lower_oom_score(status: &str) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask & (1 << CAP_SYS_RESOURCE) != 0)
}

fn namespaces(context: &LinuxSandboxSecurityContext, network: &str) -> Vec<Value> {
    let options = context.namespace_options.clone().unwrap_or_default();
    let mut namespaces = vec![namespace("mount", "")];
    if options.ipc() != NamespaceMode::Node {
        namespaces.push(namespace("ipc", ""));
    }
    if options.pid() != NamespaceMode::Node {
        namespaces.push(namespace("pid", ""));
    }
    if options.network() != NamespaceMode::Node {
        namespaces.push(namespace("uts", ""));
        namespaces.push(namespace("network", network));
    }
    namespaces
}

fn namespace(kind: &str, path: &str) -> Value {
    let mut namespace = Map::new();
    namespace.insert("type".to_owned(), kind.into());
    if !path.is_empty() {
        namespace.insert("path".to_owned(), path.into());
    }
    namespace.into()
}

/// What Kubernetes' tools look for, and what the client has given.
fn annotations(config: &PodSandboxConfig, pod: &Pod<'_>) -> Value {
    let metadata = config.metadata.clone().unwrap_or_default();
    let known = [
        (POD_LABEL, pod.id),
        ("io.kubernetes.cri.container-type", "sandbox"),
        ("io.kubernetes.cri.sandbox-name", &metadata.name),
        ("io.kubernetes.cri.sandbox-namespace", &metadata.namespace),
        ("io.kubernetes.cri.sandbox-uid", &metadata.uid),
        ("io.kubernetes.cri.sandbox-log-directory", &config.log_directory),
    ];
    let known = known.into_iter().filter(|(_, value)| !value.is_empty());
    let known = known.map(|(key, value)| (key.to_owned(), value.to_owned()));
    object(known.chain(pod.annotations.clone()))
}

fn object(entries: impl IntoIterator<Item = (String, String)>) -> Value {
    let mut object = Map::new();
    for (key, value) in entries {
        object.insert(key, value.into());
    }
    object.into()
}

/// The control group: a folder below the pod's, or what systemd's driver makes a scope of.
fn cgroups_path(parent: &str, id: &str) -> String {
    let slice = Path::new(parent).file_name().unwrap_or_default().to_string_lossy();
    match slice.ends_with(".slice") {
        true => format!("{slice}:cri-containerd:{id}"),
        false => format!("{}/{id}", parent.trim_end_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proto::cri::{
        IdMapping, LinuxPodSandboxConfig, NamespaceOption, PodSandboxMetadata, UserNamespace,
    };

    fn config(options: NamespaceOption, cgroup_parent: &str) -> PodSandboxConfig {
        let context =
            LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata { name: "web".to_owned(), ..Default::default() }),
            hostname: "web-0".to_owned(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: cgroup_parent.to_owned(),
                security_context: Some(context),
                sysctls: HashMap::from([("net.core.somaxconn".to_owned(), "9".to_owned())]),
            }),
            ..Default::default()
        }
    }

    fn completed(given: Value, config: Option<&PodSandboxConfig>) -> Result<Value, Status> {
        let annotations = HashMap::from([("own".to_owned(), "1".to_owned())]);
        let users = config.map(Users::of).transpose()?.flatten();
        let users = users.as_ref().map(|users| PodUsers {
            users,
            namespace: Some(Path::new("/run/users")),
            root: Some(Path::new("/run/root")),
        });
        let network = "/run/netns/a";
        let pod = Pod { id: "p1", config, network, annotations: &annotations, users };
        complete(Spec(given), &pod, &Program::this().unwrap()).map(|spec| spec.0)
    }

    fn namespaces_of(spec: &Value) -> Vec<&str> {
        let namespaces = spec["linux"]["namespaces"].as_array().unwrap();
        namespaces.iter().map(|namespace| namespace["type"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_pod_of_kubernetes_has_what_its_configuration_says() {
        let pod = config(NamespaceOption::default(), "/kubepods/pod1");
        let spec = completed(Value::Null, Some(&pod)).unwrap();
        assert_eq!(namespaces_of(&spec), ["mount", "ipc", "pid", "uts", "network"]);
        assert_eq!(spec["linux"]["namespaces"][4]["path"], "/run/netns/a");
        assert_eq!(spec["linux"]["cgroupsPath"], "/kubepods/pod1/p1");
        assert_eq!(spec["linux"]["sysctl"]["net.core.somaxconn"], "9");
        assert_eq!(spec["hostname"], "web-0");
        assert_eq!(spec["process"]["user"]["uid"], NOBODY);
        assert_eq!(spec["process"]["capabilities"], json!({}));
        assert_eq!(spec["annotations"]["io.kubernetes.cri.sandbox-name"], "web");
        assert_eq!(spec["annotations"]["own"], "1");
        assert_eq!(Spec(spec).pod(), Some("p1"));
    }

    #[test]
    fn a_pod_may_share_its_machines_namespaces() {
        let node = NamespaceMode::Node.into();
        let options = NamespaceOption { network: node, pid: node, ipc: node, ..Default::default() };
        let pod = config(options, "/kubepods.slice/kubepods-pod1.slice");
        let pod = PodSandboxConfig { hostname: String::new(), ..pod };
        let spec = completed(Value::Null, Some(&pod)).unwrap();
        assert_eq!(namespaces_of(&spec), ["mount"]);
        assert_eq!(spec.get("hostname"), None, "it has no name of its own");
        assert_eq!(spec["linux"]["cgroupsPath"], "kubepods-pod1.slice:cri-containerd:p1");
    }

    #[test]
    fn what_a_client_has_given_stays() {
        let given = json!({"ociVersion": "", "hostname": "mine", "root": {"path": "/r"}});
        let spec = completed(given, None).unwrap();
        assert_eq!((&spec["hostname"], &spec["root"]["path"]), (&json!("mine"), &json!("/r")));
        assert_eq!(spec["ociVersion"], "1.0.2");
        assert!(spec["process"]["args"].as_array().unwrap().len() > 1);
    }

    /// Without a mount namespace what runc mounted stayed in the machine's; a specification with mounts of its own lost
    /// those of the program, which then was not found.
    #[test]
    fn a_sandbox_has_its_program_and_a_mount_namespace_whatever_a_client_gives() {
        let given = json!({
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": "pid"}]},
            "root": {"path": ""}, "process": null,
        });
        let spec = completed(given, None).unwrap();
        assert_eq!(namespaces_of(&spec), ["pid", "mount"]);
        assert_eq!(spec["root"]["path"], "rootfs");
        let mounts = spec["mounts"].as_array().unwrap();
        assert_eq!(mounts[0]["destination"], "/proc");
        assert!(mounts.iter().any(|mount| mount["destination"] == "/pause"), "{mounts:?}");

        let mut own = Spec(json!({"process": {"args": ["sh"]}}));
        assert!(isolate_mounts(&mut own) && !isolate_mounts(&mut own));
        assert_eq!(namespaces_of(&own.0), ["mount"]);
    }

    /// In a container of its own containerd may not, and no pod was made.
    #[test]
    fn a_pods_oom_score_is_lowered_where_that_is_allowed() {
        assert!(may_lower_oom_score("CapPrm:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_lower_oom_score("CapPrm:\t0\nCapEff:\t000001fffeffffff\n"));
        assert!(!may_lower_oom_score(""));
    }

    /// The name was dropped, and the pod ran with another than it asked for.
    #[test]
    fn a_pod_with_its_machines_network_cannot_have_another_name() {
        let node = NamespaceOption { network: NamespaceMode::Node.into(), ..Default::default() };
        let status = completed(Value::Null, Some(&config(node, ""))).unwrap_err();
        assert_eq!(status.code(), ttrpc::Code::InvalidArgument);
        assert!(status.message().contains("web-0"), "{status}");
    }

    #[test]
    fn a_pod_with_a_user_namespace_has_its_mappings_and_a_root_of_its_own() {
        let ids = |host_id| vec![IdMapping { host_id, container_id: 0, length: 1000 }];
        let mode = NamespaceMode::Pod.into();
        let users = Some(UserNamespace { mode, uids: ids(70_000), gids: ids(80_000) });
        let pod = config(NamespaceOption { userns_options: users, ..Default::default() }, "");
        let spec = completed(Value::Null, Some(&pod)).unwrap();
        assert_eq!(namespaces_of(&spec), ["mount", "ipc", "pid", "uts", "network", "user"]);
        let mapping = |host| json!([{"containerID": 0, "hostID": host, "size": 1000}]);
        assert_eq!(spec["linux"]["namespaces"][5]["path"], "/run/users");
        assert_eq!(spec["linux"]["uidMappings"], mapping(70_000));
        assert_eq!(spec["linux"]["gidMappings"], mapping(80_000));
        assert_eq!(spec["root"]["path"], "/run/root");
        assert_eq!(spec["process"]["user"]["uid"], 999, "65535 is nobody there");
    }
}
