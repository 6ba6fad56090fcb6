//! Resources of control groups.

use oci_spec::runtime as oci;
use serde_json::json;

use super::*;
use crate::proto::*;

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
