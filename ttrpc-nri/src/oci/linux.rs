//! Seccomp, priorities, schedulers, network devices, memory policies and RDT.

use oci_spec::runtime as oci;
use serde_json::json;

use super::*;
use crate::proto::*;

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
pub(super) const SCHEDULER_FLAGS: [(LinuxSchedulerFlag, oci::LinuxSchedulerFlag); 7] = [
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
