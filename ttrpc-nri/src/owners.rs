//! What validators ask: which plugin has set what of a container.

use std::sync::LazyLock;

use crate::proto::{Field, FieldOwners, OwningPlugins, ValidateContainerAdjustmentRequest};

/// The owners of a container that no plugin has changed.
static NOBODY: LazyLock<FieldOwners> = LazyLock::new(FieldOwners::default);

impl ValidateContainerAdjustmentRequest {
    /// Returns which plugins have set what of the container that is to be created.
    pub fn container_owners(&self) -> &FieldOwners {
        let id = self.container.as_ref().map_or("", |container| &container.id);
        self.owners.as_ref().map_or(&NOBODY, |owners| owners.of(id))
    }
}

impl OwningPlugins {
    /// Returns which plugins have set what of a container, which is another one if they update it.
    pub fn of(&self, container_id: &str) -> &FieldOwners {
        self.owners.get(container_id).unwrap_or(&NOBODY)
    }
}

/// Writes an accessor for each field with one value, and for each with several by a key.
macro_rules! owners {
    ($($(#[$attribute:meta])* $name:ident($($key:ident)?) = $field:ident;)*) => {
        /// The plugin that has set a field, such as `10-pinner`. `None` if none has.
        ///
        /// A plugin that has removed a field has a `-` in front: see [`marked_for_removal`](crate::marked_for_removal).
        impl FieldOwners {
            $(
                $(#[$attribute])*
                pub fn $name(&self $(, $key: &str)?) -> Option<&str> {
                    owners!(@find self, $field $(, $key)?)
                }
            )*
        }
    };
    (@find $self:ident, $field:ident) => { $self.owner(Field::$field) };
    (@find $self:ident, $field:ident, $key:ident) => { $self.entry_owner(Field::$field, $key) };
}

owners! {
    /// Returns the owner of an annotation.
    annotation_owner(key) = Annotations;
    /// Returns the owner of the mount at a path of the container.
    mount_owner(destination) = Mounts;
    /// Returns the owners of hooks, with commas between them: every plugin may add some.
    hooks_owner() = OciHooks;
    /// Returns the owner of the device at a path of the container.
    device_owner(path) = Devices;
    /// Returns the owner of a CDI device.
    cdi_device_owner(name) = CdiDevices;
    /// Returns the owner of an environment variable.
    env_owner(name) = Env;
    /// Returns the owner of the command and its arguments.
    args_owner() = Args;
    /// Returns the owner of the limit of memory.
    memory_limit_owner() = MemLimit;
    /// Returns the owner of the soft limit of memory.
    memory_reservation_owner() = MemReservation;
    /// Returns the owner of the limit of memory and swap together.
    memory_swap_owner() = MemSwapLimit;
    /// Returns the owner of the limit of the kernel's memory.
    memory_kernel_owner() = MemKernelLimit;
    /// Returns the owner of the limit of TCP buffers.
    memory_kernel_tcp_owner() = MemTcpLimit;
    /// Returns the owner of the swappiness.
    memory_swappiness_owner() = MemSwappiness;
    /// Returns the owner of the switch of the OOM killer.
    memory_disable_oom_killer_owner() = MemDisableOomKiller;
    /// Returns the owner of the switch of hierarchical accounting.
    memory_use_hierarchy_owner() = MemUseHierarchy;
    /// Returns the owner of the weight of the share of processors.
    cpu_shares_owner() = CpuShares;
    /// Returns the owner of the processor time in each period.
    cpu_quota_owner() = CpuQuota;
    /// Returns the owner of the quota's period.
    cpu_period_owner() = CpuPeriod;
    /// Returns the owner of the real-time scheduler's time in each period.
    cpu_realtime_runtime_owner() = CpuRealtimeRuntime;
    /// Returns the owner of the real-time scheduler's period.
    cpu_realtime_period_owner() = CpuRealtimePeriod;
    /// Returns the owner of the set of processors.
    cpuset_cpus_owner() = CpuSetCpUs;
    /// Returns the owner of the set of memory nodes.
    cpuset_mems_owner() = CpuSetMems;
    /// Returns the owner of the limit of processes.
    pids_limit_owner() = PidsLimit;
    /// Returns the owner of the limit of huge pages of a size such as `2MB`.
    hugepage_limit_owner(page_size) = HugepageLimits;
    /// Returns the owner of the class of block I/O.
    blockio_class_owner() = BlockioClass;
    /// Returns the owner of the class of RDT.
    rdt_class_owner() = RdtClass;
    /// Returns the owner of a file of the cgroup v2.
    unified_owner(file) = CgroupsUnified;
    /// Returns the owner of the cgroup's path.
    cgroups_path_owner() = CgroupsPath;
    /// Returns the owner of the adjustment of the OOM killer's score.
    oom_score_adj_owner() = OomScoreAdj;
    /// Returns the owner of the limit of a type such as `RLIMIT_NOFILE`.
    rlimit_owner(kind) = Rlimits;
    /// Returns the owner of the priority of I/O.
    io_priority_owner() = IoPriority;
    /// Returns the owner of the seccomp policy.
    seccomp_policy_owner() = SeccompPolicy;
    /// Returns the owner of the namespace of a type such as `network`.
    namespace_owner(kind) = Namespace;
    /// Returns the owner of a sysctl.
    sysctl_owner(key) = Sysctl;
    /// Returns the owner of the network device that has a name on the host.
    net_device_owner(name) = LinuxNetDevices;
    /// Returns the owner of the scheduler.
    scheduler_owner() = LinuxSched;
    /// Returns the owner of the RDT group's id.
    rdt_clos_id_owner() = RdtClosId;
    /// Returns the owner of the RDT schemata.
    rdt_schemata_owner() = RdtSchemata;
    /// Returns the owner of the switch of RDT monitoring.
    rdt_enable_monitoring_owner() = RdtEnableMonitoring;
    /// Returns the owner of the memory policy.
    memory_policy_owner() = MemoryPolicy;
}

impl FieldOwners {
    fn owner(&self, field: Field) -> Option<&str> {
        self.simple.get(&field.into()).map(String::as_str)
    }

    fn entry_owner(&self, field: Field, key: &str) -> Option<&str> {
        self.compound.get(&field.into())?.owners.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Container;

    #[test]
    fn the_owner_of_a_field_is_found_by_container_field_and_key() {
        let mut fields = FieldOwners::default();
        fields.simple.insert(Field::CpuShares.into(), "10-a".into());
        let env = fields.compound.entry(Field::Env.into()).or_default();
        env.owners.insert("X".into(), "20-b".into());
        let owners = OwningPlugins { owners: [("c".to_owned(), fields)].into() };
        let of = |id: &str| ValidateContainerAdjustmentRequest {
            container: Some(Container::named(id)),
            owners: Some(owners.clone()),
            ..Default::default()
        };
        let request = of("c");
        let fields = request.container_owners();
        assert_eq!(fields.cpu_shares_owner(), Some("10-a"));
        assert_eq!(fields.env_owner("X"), Some("20-b"));
        assert_eq!((fields.cpu_quota_owner(), fields.env_owner("Y")), (None, None));
        assert_eq!(fields.annotation_owner("X"), None);
        assert_eq!(of("d").container_owners().cpu_shares_owner(), None);
        let nothing = ValidateContainerAdjustmentRequest::default();
        assert_eq!(nothing.container_owners().cpu_shares_owner(), None);
    }
}
