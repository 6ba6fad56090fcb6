//! Everything that plugins can set, a row each: set by one, by two, and by one in the place of another.

use ttrpc::Code;

use super::{
    tests::{merge, reply},
    *,
};
use crate::{
    Container, ContainerUpdate, LinuxResources,
    proto::{
        IoPrioClass, LinuxContainer, LinuxDevice, LinuxIoPriority, LinuxNamespace, LinuxRdt,
        LinuxScheduler, LinuxSeccomp, Mount, MpolMode, PosixRlimit, UpdateContainerRequest,
    },
};

/// A field of an adjustment, set to a number.
struct Row {
    name: &'static str,
    set: fn(ContainerAdjustment, u8) -> ContainerAdjustment,
    /// Removes what another plugin has set, and sets it.
    replace: Option<fn(ContainerAdjustment, u8) -> ContainerAdjustment>,
    /// The number that the next plugin sees. None if containers do not have the field.
    seen: Option<fn(&Container) -> Option<String>>,
}

/// A resource, set to a number.
struct Resource {
    name: &'static str,
    adjust: fn(ContainerAdjustment, u8) -> ContainerAdjustment,
    update: fn(ContainerUpdate, u8) -> ContainerUpdate,
    get: fn(&LinuxResources) -> Option<String>,
}

macro_rules! resources {
    ($($name:ident($($key:literal)?) = |$number:ident| $value:expr, |$of:ident| $get:expr;)*) => {
        &[$(Resource {
            name: stringify!($name),
            adjust: |it, $number| it.$name($($key,)? $value),
            update: |it, $number| it.$name($($key,)? $value),
            get: |$of| $get.map(|value| value.to_string()),
        },)*
        Resource {
            name: "memory_disable_oom_killer",
            adjust: |it, _| it.memory_disable_oom_killer(),
            update: |it, _| it.memory_disable_oom_killer(),
            get: |of| of.memory_disable_oom_killer().map(|is_set| u8::from(is_set).to_string()),
        },
        Resource {
            name: "memory_use_hierarchy",
            adjust: |it, _| it.memory_use_hierarchy(),
            update: |it, _| it.memory_use_hierarchy(),
            get: |of| of.memory_use_hierarchy().map(|is_set| u8::from(is_set).to_string()),
        }]
    };
}

const RESOURCES: &[Resource] = resources! {
    memory_limit() = |n| n.into(), |of| of.memory_limit();
    memory_reservation() = |n| n.into(), |of| of.memory_reservation();
    memory_swap() = |n| n.into(), |of| of.memory_swap();
    memory_kernel() = |n| n.into(), |of| of.memory_kernel();
    memory_kernel_tcp() = |n| n.into(), |of| of.memory_kernel_tcp();
    memory_swappiness() = |n| n.into(), |of| of.memory_swappiness();
    cpu_shares() = |n| n.into(), |of| of.cpu_shares();
    cpu_quota() = |n| n.into(), |of| of.cpu_quota();
    cpu_period() = |n| n.into(), |of| of.cpu_period();
    cpu_realtime_runtime() = |n| n.into(), |of| of.cpu_realtime_runtime();
    cpu_realtime_period() = |n| n.into(), |of| of.cpu_realtime_period();
    cpuset_cpus() = |n| n.to_string(), |of| of.cpuset_cpus();
    cpuset_mems() = |n| n.to_string(), |of| of.cpuset_mems();
    pids_limit() = |n| n.into(), |of| of.pids_limit();
    hugepage_limit("2MB") = |n| n.into(), |of| of.hugepage_limit("2MB");
    blockio_class() = |n| n.to_string(), |of| of.blockio_class_name();
    rdt_class() = |n| n.to_string(), |of| of.rdt_class_name();
    unified("memory.high") = |n| n.to_string(), |of| of.unified.get("memory.high");
};

fn mount(number: u8) -> Mount {
    Mount { destination: "/x".into(), source: number.to_string(), ..Mount::default() }
}

fn device(number: u8) -> LinuxDevice {
    LinuxDevice { path: "/dev/x".into(), minor: number.into(), ..LinuxDevice::default() }
}

fn linux(container: &Container) -> &LinuxContainer {
    container.linux.as_ref().expect("something of it is set")
}

const ROWS: &[Row] = &[
    Row {
        name: "annotation",
        set: |it, n| it.annotation("x", n.to_string()),
        replace: Some(|it, n| it.remove_annotation("x").annotation("x", n.to_string())),
        seen: Some(|container| container.annotation("x").map(str::to_owned)),
    },
    Row {
        name: "mount",
        set: |it, n| it.mount(mount(n)),
        replace: Some(|it, n| it.remove_mount("/x").mount(mount(n))),
        seen: Some(|container| {
            let mut mounts = container.mounts.iter().filter(|mount| mount.destination == "/x");
            mounts.next().map(|mount| mount.source.clone())
        }),
    },
    Row {
        name: "env",
        set: |it, n| it.env("X", n.to_string()),
        replace: Some(|it, n| it.remove_env("X").env("X", n.to_string())),
        seen: Some(|container| container.env_value("X").map(str::to_owned)),
    },
    Row {
        name: "args",
        set: |it, n| it.args([n.to_string()]),
        replace: Some(|it, n| it.replace_args([n.to_string()])),
        seen: Some(|container| Some(container.args.concat())),
    },
    Row {
        name: "rlimit",
        set: |it, n| it.rlimit("RLIMIT_NOFILE", n.into(), 0),
        replace: None,
        seen: Some(|container| {
            let is_there = |limit: &&PosixRlimit| limit.r#type == "RLIMIT_NOFILE";
            container.rlimits.iter().find(is_there).map(|limit| limit.hard.to_string())
        }),
    },
    Row { name: "cdi_device", set: |it, _| it.cdi_device("a.b/c=d"), replace: None, seen: None },
    Row {
        name: "device",
        set: |it, n| it.device(device(n)),
        replace: Some(|it, n| it.remove_device("/dev/x").device(device(n))),
        seen: Some(|container| {
            let mut devices = linux(container).devices.iter();
            devices.find(|device| device.path == "/dev/x").map(|device| device.minor.to_string())
        }),
    },
    Row {
        name: "namespace",
        set: |it, n| it.namespace("network", n.to_string()),
        replace: None,
        seen: Some(|container| {
            let is_there = |namespace: &&LinuxNamespace| namespace.r#type == "network";
            let found = linux(container).namespaces.iter().find(is_there);
            found.map(|namespace| namespace.path.clone())
        }),
    },
    Row {
        name: "remove_namespace",
        set: |it, _| it.remove_namespace("ipc"),
        replace: None,
        seen: None,
    },
    Row {
        name: "net_device",
        set: |it, n| it.net_device("eth0", n.to_string()),
        replace: Some(|it, n| it.remove_net_device("eth0").net_device("eth0", n.to_string())),
        seen: Some(|container| {
            linux(container).net_devices.get("eth0").map(|device| device.name.clone())
        }),
    },
    Row {
        name: "sysctl",
        set: |it, n| it.sysctl("a.b", n.to_string()),
        replace: Some(|it, n| it.sysctl("-a.b", "").sysctl("a.b", n.to_string())),
        seen: Some(|container| linux(container).sysctl.get("a.b").cloned()),
    },
    Row {
        name: "rdt_clos_id",
        set: |it, n| it.rdt_clos_id(n.to_string()),
        replace: Some(|it, n| it.remove_rdt().rdt_clos_id(n.to_string())),
        seen: None,
    },
    Row {
        name: "rdt_schemata",
        set: |it, n| it.rdt_schemata([n.to_string()]),
        replace: Some(|it, n| it.remove_rdt().rdt_schemata([n.to_string()])),
        seen: None,
    },
    Row {
        name: "rdt_monitoring",
        set: |it, n| it.rdt_monitoring(n == 1),
        replace: Some(|it, n| it.remove_rdt().rdt_monitoring(n == 1)),
        seen: None,
    },
    Row {
        name: "cgroups_path",
        set: |it, n| it.cgroups_path(n.to_string()),
        replace: None,
        seen: Some(|container| Some(linux(container).cgroups_path.clone())),
    },
    Row {
        name: "oom_score_adj",
        set: |it, n| it.oom_score_adj(n.into()),
        replace: None,
        seen: Some(|container| Some(linux(container).oom_score_adj.as_ref()?.value.to_string())),
    },
    Row {
        name: "io_priority",
        set: |it, n| {
            let class = IoPrioClass::IoprioClassBe.into();
            it.io_priority(LinuxIoPriority { class, priority: n.into() })
        },
        replace: None,
        seen: Some(|container| Some(linux(container).io_priority.as_ref()?.priority.to_string())),
    },
    Row {
        name: "seccomp_policy",
        set: |it, n| {
            it.seccomp_policy(LinuxSeccomp { listener_path: n.to_string(), ..Default::default() })
        },
        replace: None,
        seen: Some(|container| {
            Some(linux(container).seccomp_policy.as_ref()?.listener_path.clone())
        }),
    },
    Row {
        name: "scheduler",
        set: |it, n| it.scheduler(LinuxScheduler { nice: n.into(), ..Default::default() }),
        replace: None,
        seen: Some(|container| Some(linux(container).scheduler.as_ref()?.nice.to_string())),
    },
    Row {
        name: "memory_policy",
        set: |it, n| it.memory_policy(MpolMode::MpolBind, n.to_string(), []),
        replace: None,
        seen: None,
    },
];

/// What one plugin sets, and what another one does after it.
struct Check {
    name: String,
    merge: CreateMerge,
}

impl Check {
    /// The first plugin sets a number, alone.
    fn new(name: &str, first: ContainerAdjustment) -> Self {
        let mut merge = merge();
        merge.apply("00-a", reply(first.clone())).expect("it is the first");
        assert_eq!(merge.adjust, first, "{name}: it is what the plugin wants");
        Check { name: name.to_owned(), merge }
    }

    /// The second plugin sets it too.
    fn is_in_conflict(&mut self, second: ContainerAdjustment) {
        let status = self.merge.apply("10-b", reply(second)).expect_err(&self.name);
        assert_eq!(status.code(), Code::Aborted, "{}", self.name);
        assert!(
            status.message().contains("00-a") && status.message().contains("10-b"),
            "{}: {status}",
            self.name
        );
    }

    fn container(&self) -> &Container {
        self.merge.request.container.as_ref().expect("it is there")
    }
}

#[test]
fn what_one_plugin_sets_is_merged_and_seen_by_the_next_and_is_in_conflict_with_another() {
    for row in ROWS {
        let new = ContainerAdjustment::new;
        let mut check = Check::new(row.name, (row.set)(new(), 1));
        if let Some(seen) = row.seen {
            assert_eq!(seen(check.container()).as_deref(), Some("1"), "{}", row.name);
        }
        check.is_in_conflict((row.set)(new(), 2));
    }
    for resource in RESOURCES {
        let adjusted = (resource.adjust)(ContainerAdjustment::new(), 1);
        let mut check = Check::new(resource.name, adjusted);
        let seen = (resource.get)(check.container().linux_resources());
        assert_eq!(seen.as_deref(), Some("1"), "{}", resource.name);
        check.is_in_conflict((resource.adjust)(ContainerAdjustment::new(), 2));
    }
}

#[test]
fn what_can_be_removed_is_replaced_once_and_the_next_plugin_sees_that() {
    for row in ROWS {
        let Some(replace) = row.replace else { continue };
        let mut check = Check::new(row.name, (row.set)(ContainerAdjustment::new(), 1));
        let replaced = replace(ContainerAdjustment::new(), 2);
        check
            .merge
            .apply("10-b", reply(replaced))
            .unwrap_or_else(|status| panic!("{}: {status}", row.name));
        if let Some(seen) = row.seen {
            assert_eq!(seen(check.container()).as_deref(), Some("2"), "{}", row.name);
        }
        let adjusted = check.merge.adjust.clone();
        let third = (row.set)(ContainerAdjustment::new(), 3);
        let status = check.merge.apply("20-c", reply(third)).expect_err(row.name);
        assert!(status.message().contains("10-b"), "{}: {status}", row.name);
        // A runtime gets the second value, and of the first one nothing.
        let mut alone = merge();
        let mut expected = replace(ContainerAdjustment::new(), 2);
        alone.apply("10-b", reply(std::mem::take(&mut expected))).expect("it is the first");
        assert_eq!(adjusted, alone.adjust, "{}", row.name);
    }
}

#[test]
fn two_plugins_set_two_entries_of_a_field() {
    let mut merge = merge();
    for (plugin, entry) in [("00-a", "1"), ("10-b", "2")] {
        let adjustment = ContainerAdjustment::new()
            .annotation(entry, entry)
            .env(entry, entry)
            .mount(Mount { destination: entry.into(), ..Mount::default() })
            .device(LinuxDevice { path: entry.into(), ..LinuxDevice::default() })
            .rlimit(entry, 1, 1)
            .cdi_device(entry)
            .namespace(entry, entry)
            .net_device(entry, entry)
            .sysctl(entry, entry)
            .hugepage_limit(entry, 1)
            .unified(entry, entry);
        merge.apply(plugin, reply(adjustment)).expect("they set different entries");
    }
    let adjust = &merge.adjust;
    let linux = adjust.linux.as_ref().expect("it is set");
    let resources = adjust.linux_resources();
    assert_eq!((adjust.annotations.len(), adjust.env.len(), adjust.mounts.len()), (2, 2, 2));
    assert_eq!((adjust.rlimits.len(), adjust.cdi_devices.len(), linux.devices.len()), (2, 2, 2));
    assert_eq!((linux.namespaces.len(), linux.net_devices.len(), linux.sysctl.len()), (2, 2, 2));
    assert_eq!((resources.hugepage_limits.len(), resources.unified.len()), (2, 2));
}

#[test]
fn what_one_plugin_removes_of_rdt_is_removed() {
    let mut merge = merge();
    let set = ContainerAdjustment::new().rdt_clos_id("1").rdt_schemata(["1"]).rdt_monitoring(true);
    merge.apply("00-a", reply(set)).expect("it is the first");
    merge.apply("10-b", reply(ContainerAdjustment::new().remove_rdt())).expect("it may remove");
    let rdt = merge.adjust.linux.and_then(|linux| linux.rdt);
    assert_eq!(rdt, Some(LinuxRdt { remove: true, ..LinuxRdt::default() }));
}

/// A container that has all resources already.
fn with_all_resources(id: &str) -> UpdateContainerRequest {
    let all = RESOURCES
        .iter()
        .fold(ContainerUpdate::of(id), |update, resource| (resource.update)(update, 9));
    let linux_resources = all.linux.and_then(|linux| linux.resources);
    UpdateContainerRequest { container: Some(Container::named(id)), linux_resources, pod: None }
}

#[test]
fn an_update_of_another_container_is_merged_and_is_in_conflict_with_a_second_one() {
    for Resource { name, update, .. } in RESOURCES {
        let mut merge = UpdateMerge::default();
        let first = update(ContainerUpdate::of("o"), 1);
        merge.apply("00-a", vec![first.clone()], None).expect("it is the first");
        assert_eq!(merge.updates, std::slice::from_ref(&first), "{name}");
        let second = update(ContainerUpdate::of("o"), 2);
        let status = merge.apply("10-b", vec![second.clone()], None).expect_err(name);
        assert_eq!(status.code(), Code::Aborted, "{name}");
        merge.apply("10-b", vec![second.ignore_failure()], None).expect("its failure is ignored");
        assert_eq!(merge.updates, std::slice::from_ref(&first), "{name}");
        let other = update(ContainerUpdate::of("p"), 2);
        merge.apply("10-b", vec![other.clone()], None).expect("it is another container");
        assert_eq!(merge.updates, [first, other], "{name}");
    }
}

#[test]
fn an_update_of_the_requested_container_sets_one_resource_and_leaves_the_others() {
    for Resource { name, update, get, .. } in RESOURCES {
        let mut request = with_all_resources("c");
        let mut merge = UpdateMerge::default();
        let first = vec![update(ContainerUpdate::of("c"), 1)];
        merge.apply("00-a", first, Some(&mut request)).expect("it is the first");
        let seen = request.linux_resources.as_ref().expect("they are there");
        assert_eq!(get(seen).as_deref(), Some("1"), "{name}: the next plugin sees it");
        let second = vec![update(ContainerUpdate::of("c"), 2)];
        let status = merge.apply("10-b", second, Some(&mut request)).expect_err(name);
        assert_eq!(status.code(), Code::Aborted, "{name}");
        let reply = merge.finish(request);
        let [wanted] = &*reply.update else { panic!("{name}: {:?}", reply.update) };
        let expected = RESOURCES.iter().fold(ContainerUpdate::of("c"), |all, resource| {
            (resource.update)(all, if resource.name == *name { 1 } else { 9 })
        });
        assert_eq!(*wanted, expected, "{name}");
    }
}
