use std::fmt::Debug;

use oci_spec::runtime as oci;
use serde_json::json;

use super::{linux::SCHEDULER_FLAGS, *};
use crate::proto::*;

/// From JSON of the specification to NRI and back is the same.
fn returns<O, N>(value: Value) -> N
where
    O: DeserializeOwned + PartialEq + Debug,
    N: for<'a> From<&'a O>,
    for<'a> O: TryFrom<&'a N, Error = OciError>,
{
    let oci: O = serde_json::from_value(value).expect("it is of the specification");
    let nri = N::from(&oci);
    assert_eq!(O::try_from(&nri).expect("it is of the specification"), oci);
    nri
}

#[test]
fn what_both_have_returns_as_it_was() {
    let mount: Mount = returns::<oci::Mount, _>(
        json!({ "destination": "/b", "type": "bind", "source": "/a", "options": ["ro"] }),
    );
    assert_eq!((&*mount.destination, &*mount.source, &*mount.r#type), ("/b", "/a", "bind"));

    let hook = json!({ "path": "/bin/true", "args": ["true"], "env": ["A=1"], "timeout": 3 });
    let hooks = json!({
        "prestart": [hook], "createRuntime": [], "createContainer": [], "startContainer": [], "poststart": [], "poststop": [hook],
    });
    let hooks: Hooks = returns::<oci::Hooks, _>(hooks);
    assert_eq!(hooks.poststop[0].timeout, Some(OptionalInt { value: 3 }));
    assert_eq!(hooks.prestart, hooks.poststop);

    let device: LinuxDevice = returns::<oci::LinuxDevice, _>(
        json!({ "path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 420, "uid": 0, "gid": 5 }),
    );
    assert_eq!((&*device.r#type, device.minor), ("c", 3));

    let namespace = json!({ "type": "network", "path": "/proc/1/ns/net" });
    assert_eq!(returns::<oci::LinuxNamespace, LinuxNamespace>(namespace).r#type, "network");
    let limit = json!({ "type": "RLIMIT_NOFILE", "hard": 9, "soft": 8 });
    assert_eq!(returns::<oci::PosixRlimit, PosixRlimit>(limit).r#type, "RLIMIT_NOFILE");
    let device = json!({ "name": "eth7" });
    assert_eq!(returns::<oci::LinuxNetDevice, LinuxNetDevice>(device).name, "eth7");
    let rdt = json!({ "closID": "gold", "schemata": ["L3:0=ff"], "enableMonitoring": true });
    let rdt: LinuxRdt = returns::<oci::LinuxIntelRdt, _>(rdt);
    assert_eq!(rdt.clos_id.map(|id| id.value).as_deref(), Some("gold"));
}

#[test]
fn resources_return_as_they_were() {
    let resources: LinuxResources = returns::<oci::LinuxResources, _>(json!({
        "memory": {
            "limit": 1, "reservation": 2, "swap": -1, "kernel": 4, "kernelTCP": 5, "swappiness": 6, "disableOOMKiller": true,
            "useHierarchy": false,
        },
        "cpu": {
            "shares": 1, "quota": -2, "period": 3, "realtimeRuntime": 4, "realtimePeriod": 5, "cpus": "0-1", "mems": "0",
        },
        "hugepageLimits": [{ "pageSize": "2MB", "limit": 7 }],
        "unified": { "memory.high": "8" },
        "devices": [{ "allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw" }, { "allow": false }],
        "pids": { "limit": 9 },
    }));
    assert_eq!(resources.memory.and_then(|memory| memory.swap).map(|swap| swap.value), Some(-1));
    assert_eq!(resources.cpu.map(|cpu| cpu.cpus).as_deref(), Some("0-1"));
}

#[test]
fn words_of_the_specification_are_those_of_nri() {
    let seccomp: LinuxSeccomp = returns::<oci::LinuxSeccomp, _>(json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86_64"],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"], "listenerPath": "/s", "listenerMetadata": "m",
        "syscalls": [{
            "names": ["clone"], "action": "SCMP_ACT_ALLOW", "errnoRet": 2,
            "args": [{ "index": 0, "value": 3, "valueTwo": 4, "op": "SCMP_CMP_MASKED_EQ" }],
        }],
    }));
    assert_eq!(seccomp.architectures, ["SCMP_ARCH_X86_64"]);
    assert_eq!(seccomp.syscalls[0].args[0].op, "SCMP_CMP_MASKED_EQ");

    let priority = json!({ "class": "IOPRIO_CLASS_RT", "priority": 5 });
    let priority: LinuxIoPriority = returns::<oci::LinuxIOPriority, _>(priority);
    assert_eq!(priority.class(), IoPrioClass::IoprioClassRt);
    let policy =
        json!({ "mode": "MPOL_INTERLEAVE", "nodes": "0,1", "flags": ["MPOL_F_STATIC_NODES"] });
    let policy: LinuxMemoryPolicy = returns::<oci::LinuxMemoryPolicy, _>(policy);
    assert_eq!(policy.mode(), MpolMode::MpolInterleave);
    for (flag, _) in SCHEDULER_FLAGS {
        let scheduler = LinuxScheduler {
            policy: LinuxSchedulerPolicy::SchedFifo.into(),
            priority: 10,
            flags: vec![flag.into()],
            ..LinuxScheduler::default()
        };
        let oci = oci::Scheduler::try_from(&scheduler).expect("it is of the specification");
        assert_eq!(LinuxScheduler::from(&oci), scheduler);
    }
}

#[test]
fn what_the_specification_has_no_word_for_is_refused_by_name() {
    let limit = PosixRlimit { r#type: "RLIMIT_NONE".into(), hard: 1, soft: 1 };
    let error = oci::PosixRlimit::try_from(&limit).expect_err("there is no such limit");
    assert_eq!(error.to_string(), "a resource limit cannot be expressed in the OCI specification");
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("RLIMIT_NONE"), "{source}");
    let priority = LinuxIoPriority::default();
    oci::LinuxIOPriority::try_from(&priority).expect_err("the class `none` is not there");
}
