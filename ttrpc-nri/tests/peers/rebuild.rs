//! Makes an adjustment or update anew by the builders, and compares.

use ttrpc_nri::{
    ContainerAdjustment, ContainerUpdate, LinuxResources, Status, marked_for_removal,
    proto::{LinuxContainerAdjustment, MpolFlag},
};

/// Sets what a message of resources has by the builders of the type of `$made`.
macro_rules! resources {
    ($made:ident, $resources:expr) => {{
        let resources: LinuxResources = $resources;
        let memory = resources.memory.unwrap_or_default();
        let cpu = resources.cpu.unwrap_or_default();
        resources!(@ $made, memory, limit memory_limit, reservation memory_reservation, swap memory_swap,
            kernel memory_kernel, kernel_tcp memory_kernel_tcp, swappiness memory_swappiness);
        resources!(@ $made, cpu, shares cpu_shares, quota cpu_quota, period cpu_period,
            realtime_runtime cpu_realtime_runtime, realtime_period cpu_realtime_period);
        resources!(@ $made, resources, blockio_class blockio_class, rdt_class rdt_class);
        if memory.disable_oom_killer.is_some_and(|is_set| is_set.value) {
            $made = $made.memory_disable_oom_killer();
        }
        if memory.use_hierarchy.is_some_and(|is_set| is_set.value) {
            $made = $made.memory_use_hierarchy();
        }
        if !cpu.cpus.is_empty() {
            $made = $made.cpuset_cpus(cpu.cpus);
        }
        if !cpu.mems.is_empty() {
            $made = $made.cpuset_mems(cpu.mems);
        }
        if let Some(pids) = resources.pids {
            $made = $made.pids_limit(pids.limit);
        }
        for limit in resources.hugepage_limits {
            $made = $made.hugepage_limit(limit.page_size, limit.limit);
        }
        for (file, value) in resources.unified {
            $made = $made.unified(file, value);
        }
    }};
    (@ $made:ident, $message:ident, $($field:ident $builder:ident),*) => {
        $(if let Some(set) = $message.$field {
            $made = $made.$builder(set.value);
        })*
    };
}

fn differ<T: std::fmt::Debug>(wanted: &T, made: &T) -> Status {
    Status::internal(format!("the builders make {made:?} of {wanted:?}"))
}

pub fn updates(wanted: Vec<ContainerUpdate>) -> Result<Vec<ContainerUpdate>, Status> {
    wanted.into_iter().map(update).collect()
}

fn update(wanted: ContainerUpdate) -> Result<ContainerUpdate, Status> {
    let mut made = ContainerUpdate::of(&wanted.container_id);
    if let Some(resources) = wanted.linux.clone().and_then(|linux| linux.resources) {
        resources!(made, resources);
    }
    if wanted.ignore_failure {
        made = made.ignore_failure();
    }
    if made == wanted { Ok(made) } else { Err(differ(&wanted, &made)) }
}

pub fn adjustment(wanted: ContainerAdjustment) -> Result<ContainerAdjustment, Status> {
    let mut made = ContainerAdjustment::new();
    let parts = wanted.clone();
    for (key, value) in parts.annotations {
        made = match marked_for_removal(&key) {
            Some(key) => made.remove_annotation(key),
            None => made.annotation(key, value),
        };
    }
    for mount in parts.mounts {
        made = match marked_for_removal(&mount.destination) {
            Some(destination) => made.remove_mount(destination),
            None => made.mount(mount),
        };
    }
    for pair in parts.env {
        made = match marked_for_removal(&pair.key) {
            Some(key) => made.remove_env(key),
            None => made.env(pair.key, pair.value),
        };
    }
    if let Some((first, rest)) = parts.args.split_first() {
        made = if first.is_empty() { made.replace_args(rest) } else { made.args(&parts.args) };
    }
    if let Some(hooks) = parts.hooks {
        made = made.hooks(hooks);
    }
    for limit in parts.rlimits {
        made = made.rlimit(limit.r#type, limit.hard, limit.soft);
    }
    for device in parts.cdi_devices {
        made = made.cdi_device(device.name);
    }
    if let Some(parts) = parts.linux {
        made = linux(made, parts);
    }
    if made == wanted { Ok(made) } else { Err(differ(&wanted, &made)) }
}

fn linux(mut made: ContainerAdjustment, parts: LinuxContainerAdjustment) -> ContainerAdjustment {
    for device in parts.devices {
        made = match marked_for_removal(&device.path) {
            Some(path) => made.remove_device(path),
            None => made.device(device),
        };
    }
    if let Some(resources) = parts.resources {
        resources!(made, resources);
    }
    if !parts.cgroups_path.is_empty() {
        made = made.cgroups_path(parts.cgroups_path);
    }
    if let Some(score) = parts.oom_score_adj {
        made = made.oom_score_adj(score.value);
    }
    if let Some(priority) = parts.io_priority {
        made = made.io_priority(priority);
    }
    if let Some(policy) = parts.seccomp_policy {
        made = made.seccomp_policy(policy);
    }
    for namespace in parts.namespaces {
        made = match marked_for_removal(&namespace.r#type) {
            Some(kind) => made.remove_namespace(kind),
            None => made.namespace(namespace.r#type, namespace.path),
        };
    }
    for (key, value) in parts.sysctl {
        made = made.sysctl(key, value);
    }
    for (host, device) in parts.net_devices {
        made = match marked_for_removal(&host) {
            Some(host) => made.remove_net_device(host),
            None => made.net_device(host, device.name),
        };
    }
    if let Some(scheduler) = parts.scheduler {
        made = made.scheduler(scheduler);
    }
    if let Some(rdt) = parts.rdt {
        if rdt.remove {
            made = made.remove_rdt();
        }
        if let Some(id) = rdt.clos_id {
            made = made.rdt_clos_id(id.value);
        }
        if let Some(schemata) = rdt.schemata {
            made = made.rdt_schemata(schemata.value);
        }
        if let Some(is_on) = rdt.enable_monitoring {
            made = made.rdt_monitoring(is_on.value);
        }
    }
    if let Some(policy) = parts.memory_policy {
        let flags = policy.flags().collect::<Vec<MpolFlag>>();
        made = made.memory_policy(policy.mode(), &*policy.nodes, flags);
    }
    made
}
