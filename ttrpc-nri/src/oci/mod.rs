//! Conversions from and to the types of the crate `oci-spec`, with the feature `oci-spec`.
//!
//! From the specification of a container that is to be created to what plugins see, and from what plugins want to the specification. What
//! the OCI has no word for is refused by name; what NRI has no field for (a processor's burst, id mappings of mounts) is left out.

use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::proto::*;

/// A value of NRI that the OCI specification does not have.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be expressed in the OCI specification")]
pub struct OciError {
    what: &'static str,
    source: serde_json::Error,
}

/// Makes a type of the specification, whose enumerations are words.
fn to_oci<T: DeserializeOwned>(what: &'static str, value: Value) -> Result<T, OciError> {
    serde_json::from_value(value).map_err(|source| OciError { what, source })
}

/// The word of the specification for an enumeration.
fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        // An enumeration without data is a string.
        _ => String::new(),
    }
}

fn words<T: Serialize>(values: Option<&Vec<T>>) -> Vec<String> {
    values.into_iter().flatten().map(word).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn optional_text(path: Option<&PathBuf>) -> String {
    path.map(|path| text(path)).unwrap_or_default()
}

/// Nothing for an empty string, which is how NRI says that something is not set.
fn unless_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// An object without what is not set: the specification's defaults are by absence.
fn without_nulls(mut value: Value) -> Value {
    if let Value::Object(object) = &mut value {
        object.retain(|_, value| !value.is_null());
    }
    value
}

/// `Some` of the value in a message such as [`OptionalInt64`].
macro_rules! value {
    ($message:expr) => {
        $message.as_ref().map(|set| set.value)
    };
}

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

impl From<&oci::LinuxResources> for LinuxResources {
    fn from(resources: &oci::LinuxResources) -> Self {
        let hugepages = resources.hugepage_limits().iter().flatten();
        LinuxResources {
            memory: resources.memory().as_ref().map(memory),
            cpu: resources.cpu().as_ref().map(cpu),
            hugepage_limits: hugepages
                .map(|limit| HugepageLimit {
                    page_size: limit.page_size().clone(),
                    limit: limit.limit().cast_unsigned(),
                })
                .collect(),
            unified: resources.unified().clone().unwrap_or_default(),
            devices: resources.devices().iter().flatten().map(device_rule).collect(),
            pids: resources.pids().as_ref().map(|pids| LinuxPids { limit: pids.limit() }),
            // The OCI has no classes.
            blockio_class: None,
            rdt_class: None,
        }
    }
}

fn memory(memory: &oci::LinuxMemory) -> LinuxMemory {
    let int = |value: Option<i64>| value.map(|value| OptionalInt64 { value });
    let bool = |value: Option<bool>| value.map(|value| OptionalBool { value });
    // Of cgroups v1 alone.
    #[allow(deprecated)]
    let kernel = int(memory.kernel());
    LinuxMemory {
        limit: int(memory.limit()),
        reservation: int(memory.reservation()),
        swap: int(memory.swap()),
        kernel,
        kernel_tcp: int(memory.kernel_tcp()),
        swappiness: memory.swappiness().map(|value| OptionalUInt64 { value }),
        disable_oom_killer: bool(memory.disable_oom_killer()),
        use_hierarchy: bool(memory.use_hierarchy()),
    }
}

fn cpu(cpu: &oci::LinuxCpu) -> LinuxCpu {
    let int = |value: Option<i64>| value.map(|value| OptionalInt64 { value });
    let unsigned = |value: Option<u64>| value.map(|value| OptionalUInt64 { value });
    LinuxCpu {
        shares: unsigned(cpu.shares()),
        quota: int(cpu.quota()),
        period: unsigned(cpu.period()),
        realtime_runtime: int(cpu.realtime_runtime()),
        realtime_period: unsigned(cpu.realtime_period()),
        cpus: cpu.cpus().clone().unwrap_or_default(),
        mems: cpu.mems().clone().unwrap_or_default(),
    }
}

fn device_rule(rule: &oci::LinuxDeviceCgroup) -> LinuxDeviceCgroup {
    let int = |value: Option<i64>| value.map(|value| OptionalInt64 { value });
    LinuxDeviceCgroup {
        allow: rule.allow(),
        r#type: rule.typ().as_ref().map(word).unwrap_or_default(),
        major: int(rule.major()),
        minor: int(rule.minor()),
        access: rule.access().clone().unwrap_or_default(),
    }
}

impl TryFrom<&LinuxResources> for oci::LinuxResources {
    type Error = OciError;

    fn try_from(resources: &LinuxResources) -> Result<Self, OciError> {
        let memory = resources.memory.as_ref().map(|memory| {
            without_nulls(json!({
                "limit": value!(memory.limit),
                "reservation": value!(memory.reservation),
                "swap": value!(memory.swap),
                "kernel": value!(memory.kernel),
                "kernelTCP": value!(memory.kernel_tcp),
                "swappiness": value!(memory.swappiness),
                "disableOOMKiller": value!(memory.disable_oom_killer),
                "useHierarchy": value!(memory.use_hierarchy),
            }))
        });
        let cpu = resources.cpu.as_ref().map(|cpu| {
            without_nulls(json!({
                "shares": value!(cpu.shares),
                "quota": value!(cpu.quota),
                "period": value!(cpu.period),
                "realtimeRuntime": value!(cpu.realtime_runtime),
                "realtimePeriod": value!(cpu.realtime_period),
                "cpus": unless_empty(&cpu.cpus),
                "mems": unless_empty(&cpu.mems),
            }))
        });
        let hugepages = resources.hugepage_limits.iter();
        let hugepages = hugepages.map(
            |limit| json!({ "pageSize": limit.page_size, "limit": limit.limit.cast_signed() }),
        );
        let devices = resources.devices.iter().map(|rule| {
            without_nulls(json!({
                "allow": rule.allow,
                "type": unless_empty(&rule.r#type),
                "major": value!(rule.major),
                "minor": value!(rule.minor),
                "access": unless_empty(&rule.access),
            }))
        });
        let value = json!({
            "memory": memory,
            "cpu": cpu,
            "hugepageLimits": hugepages.collect::<Vec<_>>(),
            "unified": resources.unified,
            "devices": devices.collect::<Vec<_>>(),
            "pids": resources.pids.as_ref().map(|pids| json!({ "limit": pids.limit })),
        });
        to_oci("resources", without_nulls(value))
    }
}

impl From<&oci::LinuxSeccomp> for LinuxSeccomp {
    fn from(seccomp: &oci::LinuxSeccomp) -> Self {
        let unsigned = |value: Option<u32>| value.map(|value| OptionalUInt32 { value });
        let argument = |arg: &oci::LinuxSeccompArg| LinuxSeccompArg {
            index: u32::try_from(arg.index()).unwrap_or(u32::MAX),
            value: arg.value(),
            value_two: arg.value_two().unwrap_or(0),
            op: word(&arg.op()),
        };
        let syscall = |call: &oci::LinuxSyscall| LinuxSyscall {
            names: call.names().clone(),
            action: word(&call.action()),
            errno_ret: unsigned(call.errno_ret()),
            args: call.args().iter().flatten().map(argument).collect(),
        };
        LinuxSeccomp {
            default_action: word(&seccomp.default_action()),
            default_errno: unsigned(seccomp.default_errno_ret()),
            architectures: words(seccomp.architectures().as_ref()),
            flags: words(seccomp.flags().as_ref()),
            listener_path: optional_text(seccomp.listener_path().as_ref()),
            listener_metadata: seccomp.listener_metadata().clone().unwrap_or_default(),
            syscalls: seccomp.syscalls().iter().flatten().map(syscall).collect(),
        }
    }
}

impl TryFrom<&LinuxSeccomp> for oci::LinuxSeccomp {
    type Error = OciError;

    fn try_from(seccomp: &LinuxSeccomp) -> Result<Self, OciError> {
        let argument = |arg: &LinuxSeccompArg| json!({ "index": arg.index, "value": arg.value, "valueTwo": arg.value_two, "op": arg.op });
        let syscall = |call: &LinuxSyscall| {
            without_nulls(json!({
                "names": call.names,
                "action": call.action,
                "errnoRet": value!(call.errno_ret),
                "args": call.args.iter().map(argument).collect::<Vec<_>>(),
            }))
        };
        let value = json!({
            "defaultAction": seccomp.default_action,
            "defaultErrnoRet": value!(seccomp.default_errno),
            "architectures": seccomp.architectures,
            "flags": seccomp.flags,
            "listenerPath": unless_empty(&seccomp.listener_path),
            "listenerMetadata": unless_empty(&seccomp.listener_metadata),
            "syscalls": seccomp.syscalls.iter().map(syscall).collect::<Vec<_>>(),
        });
        to_oci("a filter of system calls", without_nulls(value))
    }
}

impl From<&oci::LinuxIOPriority> for LinuxIoPriority {
    fn from(priority: &oci::LinuxIOPriority) -> Self {
        let class = IoPrioClass::from_str_name(&word(&priority.class())).unwrap_or_default();
        let clamped = priority.priority().clamp(i32::MIN.into(), i32::MAX.into());
        LinuxIoPriority { class: class.into(), priority: clamped as i32 }
    }
}

impl TryFrom<&LinuxIoPriority> for oci::LinuxIOPriority {
    type Error = OciError;

    fn try_from(priority: &LinuxIoPriority) -> Result<Self, OciError> {
        let class = priority.class().as_str_name();
        to_oci("a priority of I/O", json!({ "class": class, "priority": priority.priority }))
    }
}

/// The flags of schedulers. The crate has other words for them than the specification.
const SCHEDULER_FLAGS: [(LinuxSchedulerFlag, oci::LinuxSchedulerFlag); 7] = [
    (LinuxSchedulerFlag::SchedFlagResetOnFork, oci::LinuxSchedulerFlag::SchedResetOnFork),
    (LinuxSchedulerFlag::SchedFlagReclaim, oci::LinuxSchedulerFlag::SchedFlagReclaim),
    (LinuxSchedulerFlag::SchedFlagDlOverrun, oci::LinuxSchedulerFlag::SchedFlagDLOverrun),
    (LinuxSchedulerFlag::SchedFlagKeepPolicy, oci::LinuxSchedulerFlag::SchedFlagKeepPolicy),
    (LinuxSchedulerFlag::SchedFlagKeepParams, oci::LinuxSchedulerFlag::SchedFlagKeepParams),
    (LinuxSchedulerFlag::SchedFlagUtilClampMin, oci::LinuxSchedulerFlag::SchedFlagUtilClampMin),
    (LinuxSchedulerFlag::SchedFlagUtilClampMax, oci::LinuxSchedulerFlag::SchedFlagUtilClampMax),
];

impl From<&oci::Scheduler> for LinuxScheduler {
    fn from(scheduler: &oci::Scheduler) -> Self {
        let policy = LinuxSchedulerPolicy::from_str_name(&word(scheduler.policy()));
        let flags = scheduler.flags().iter().flatten();
        let flags = flags.filter_map(|flag| SCHEDULER_FLAGS.iter().find(|(_, oci)| oci == flag));
        LinuxScheduler {
            policy: policy.unwrap_or_default().into(),
            nice: scheduler.nice().unwrap_or(0),
            priority: scheduler.priority().unwrap_or(0),
            flags: flags.map(|(flag, _)| i32::from(*flag)).collect(),
            runtime: scheduler.runtime().unwrap_or(0),
            deadline: scheduler.deadline().unwrap_or(0),
            period: scheduler.period().unwrap_or(0),
        }
    }
}

impl TryFrom<&LinuxScheduler> for oci::Scheduler {
    type Error = OciError;

    fn try_from(scheduler: &LinuxScheduler) -> Result<Self, OciError> {
        let flags = scheduler.flags();
        let flags = flags.filter_map(|flag| SCHEDULER_FLAGS.iter().find(|(nri, _)| *nri == flag));
        let value = json!({
            "policy": scheduler.policy().as_str_name(),
            "nice": scheduler.nice,
            "priority": scheduler.priority,
            "flags": flags.map(|(_, oci)| oci).collect::<Vec<_>>(),
            "runtime": scheduler.runtime,
            "deadline": scheduler.deadline,
            "period": scheduler.period,
        });
        to_oci("a scheduler", value)
    }
}

impl From<&oci::LinuxNetDevice> for LinuxNetDevice {
    fn from(device: &oci::LinuxNetDevice) -> Self {
        LinuxNetDevice { name: device.name().clone().unwrap_or_default() }
    }
}

impl TryFrom<&LinuxNetDevice> for oci::LinuxNetDevice {
    type Error = OciError;

    fn try_from(device: &LinuxNetDevice) -> Result<Self, OciError> {
        to_oci("a network device", without_nulls(json!({ "name": unless_empty(&device.name) })))
    }
}

impl From<&oci::LinuxMemoryPolicy> for LinuxMemoryPolicy {
    fn from(policy: &oci::LinuxMemoryPolicy) -> Self {
        let mode = MpolMode::from_str_name(&word(&policy.mode())).unwrap_or_default();
        let flags = words(policy.flags().as_ref());
        let flags = flags.iter().filter_map(|flag| MpolFlag::from_str_name(flag));
        LinuxMemoryPolicy {
            mode: mode.into(),
            nodes: policy.nodes().clone().unwrap_or_default(),
            flags: flags.map(i32::from).collect(),
        }
    }
}

impl TryFrom<&LinuxMemoryPolicy> for oci::LinuxMemoryPolicy {
    type Error = OciError;

    fn try_from(policy: &LinuxMemoryPolicy) -> Result<Self, OciError> {
        let value = json!({
            "mode": policy.mode().as_str_name(),
            "nodes": unless_empty(&policy.nodes),
            "flags": policy.flags().map(|flag| flag.as_str_name()).collect::<Vec<_>>(),
        });
        to_oci("a memory policy", without_nulls(value))
    }
}

impl From<&oci::LinuxIntelRdt> for LinuxRdt {
    fn from(rdt: &oci::LinuxIntelRdt) -> Self {
        LinuxRdt {
            clos_id: rdt.clos_id().clone().map(|value| OptionalString { value }),
            schemata: rdt.schemata().clone().map(|value| OptionalRepeatedString { value }),
            enable_monitoring: rdt.enable_monitoring().map(|value| OptionalBool { value }),
            remove: false,
        }
    }
}

impl TryFrom<&LinuxRdt> for oci::LinuxIntelRdt {
    type Error = OciError;

    /// What is to be removed beforehand ([`LinuxRdt::remove`]) is the caller's to remove.
    fn try_from(rdt: &LinuxRdt) -> Result<Self, OciError> {
        let value = json!({
            "closID": rdt.clos_id.as_ref().map(|id| &id.value),
            "schemata": rdt.schemata.as_ref().map(|lines| &lines.value),
            "enableMonitoring": value!(rdt.enable_monitoring),
        });
        to_oci("settings of RDT", without_nulls(value))
    }
}

#[cfg(test)]
mod tests;
