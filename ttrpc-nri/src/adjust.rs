//! Builders of what a plugin wants of a container: adjustments of a new one, updates and evictions of others.

use crate::{
    proto::{
        CdiDevice, ContainerAdjustment, ContainerEviction, ContainerUpdate, Hooks, KeyValue,
        LinuxContainerAdjustment, LinuxDevice, LinuxIoPriority, LinuxMemoryPolicy, LinuxNamespace,
        LinuxNetDevice, LinuxRdt, LinuxResources, LinuxScheduler, LinuxSeccomp, Mount, MpolFlag,
        MpolMode, OptionalBool, OptionalInt, OptionalRepeatedString, OptionalString, PosixRlimit,
    },
    resources::resource_builders,
};

/// Marks a key for removal, as keys of adjustments are: a `-` in front.
pub fn mark_for_removal(key: &str) -> String {
    format!("-{key}")
}

/// Returns the key without its mark, if it is marked for removal.
pub fn marked_for_removal(key: &str) -> Option<&str> {
    key.strip_prefix('-')
}

resource_builders!(ContainerAdjustment);
resource_builders!(ContainerUpdate);

impl ContainerAdjustment {
    /// Starts an adjustment that changes nothing.
    pub fn new() -> Self {
        ContainerAdjustment::default()
    }

    fn linux(&mut self) -> &mut LinuxContainerAdjustment {
        self.linux.get_or_insert_default()
    }

    fn resources(&mut self) -> &mut LinuxResources {
        self.linux().resources.get_or_insert_default()
    }

    fn rdt(&mut self) -> &mut LinuxRdt {
        self.linux().rdt.get_or_insert_default()
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }

    /// Removes an annotation. One that is set besides replaces that of another plugin.
    #[must_use]
    pub fn remove_annotation(mut self, key: &str) -> Self {
        self.annotations.insert(mark_for_removal(key), String::new());
        self
    }

    /// Adds a mount.
    #[must_use]
    pub fn mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Removes the mount at this path of the container.
    #[must_use]
    pub fn remove_mount(mut self, destination: &str) -> Self {
        self.mounts.push(Mount { destination: mark_for_removal(destination), ..Mount::default() });
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push(KeyValue { key: key.into(), value: value.into() });
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn remove_env(mut self, key: &str) -> Self {
        self.env.push(KeyValue { key: mark_for_removal(key), value: String::new() });
        self
    }

    /// Sets the command line. It is a conflict if another plugin has set it.
    #[must_use]
    pub fn args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args = args.into_iter().map(T::into).collect();
        self
    }

    /// Sets the command line, also where another plugin has set it.
    #[must_use]
    pub fn replace_args<T: Into<String>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        // An empty argument in front says so.
        self.args = [String::new()].into_iter().chain(args.into_iter().map(T::into)).collect();
        self
    }

    /// Adds hooks of the OCI runtime.
    #[must_use]
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks.get_or_insert_default().append(hooks);
        self
    }

    /// Sets a resource limit, such as `RLIMIT_NOFILE`.
    #[must_use]
    pub fn rlimit(mut self, kind: impl Into<String>, hard: u64, soft: u64) -> Self {
        self.rlimits.push(PosixRlimit { r#type: kind.into(), hard, soft });
        self
    }

    /// Adds a device.
    #[must_use]
    pub fn device(mut self, device: LinuxDevice) -> Self {
        self.linux().devices.push(device);
        self
    }

    /// Removes the device at this path of the container.
    #[must_use]
    pub fn remove_device(mut self, path: &str) -> Self {
        let device = LinuxDevice { path: mark_for_removal(path), ..LinuxDevice::default() };
        self.linux().devices.push(device);
        self
    }

    /// Adds a CDI device, such as `vendor.com/class=name`.
    #[must_use]
    pub fn cdi_device(mut self, name: impl Into<String>) -> Self {
        self.cdi_devices.push(CdiDevice { name: name.into() });
        self
    }

    /// Adds a namespace of a kind such as `network`, or replaces that of the same kind. An empty path makes a new one.
    #[must_use]
    pub fn namespace(mut self, kind: impl Into<String>, path: impl Into<String>) -> Self {
        self.linux().namespaces.push(LinuxNamespace { r#type: kind.into(), path: path.into() });
        self
    }

    /// Removes the namespace of this kind: the container shares the runtime's.
    #[must_use]
    pub fn remove_namespace(self, kind: &str) -> Self {
        self.namespace(mark_for_removal(kind), "")
    }

    /// Moves a network device of the host into the container, under a name of its own unless that is empty.
    #[must_use]
    pub fn net_device(mut self, host: impl Into<String>, name: impl Into<String>) -> Self {
        self.linux().net_devices.insert(host.into(), LinuxNetDevice { name: name.into() });
        self
    }

    /// Leaves a network device on the host.
    #[must_use]
    pub fn remove_net_device(self, host: &str) -> Self {
        self.net_device(mark_for_removal(host), "")
    }

    /// Sets the policy by which memory is allocated from nodes.
    #[must_use]
    pub fn memory_policy(
        mut self,
        mode: MpolMode,
        nodes: impl Into<String>,
        flags: impl IntoIterator<Item = MpolFlag>,
    ) -> Self {
        let flags = flags.into_iter().map(i32::from).collect();
        let policy = LinuxMemoryPolicy { mode: mode.into(), nodes: nodes.into(), flags };
        self.linux().memory_policy = Some(policy);
        self
    }

    /// Sets the class of service of RDT.
    #[must_use]
    pub fn rdt_clos_id(mut self, id: impl Into<String>) -> Self {
        self.rdt().clos_id = Some(OptionalString { value: id.into() });
        self
    }

    /// Sets the lines of RDT's `schemata`.
    #[must_use]
    pub fn rdt_schemata<T: Into<String>>(mut self, lines: impl IntoIterator<Item = T>) -> Self {
        let value = lines.into_iter().map(T::into).collect();
        self.rdt().schemata = Some(OptionalRepeatedString { value });
        self
    }

    /// Sets whether RDT monitors the container.
    #[must_use]
    pub fn rdt_monitoring(mut self, is_on: bool) -> Self {
        self.rdt().enable_monitoring = Some(OptionalBool { value: is_on });
        self
    }

    /// Removes the container's settings of RDT.
    #[must_use]
    pub fn remove_rdt(mut self) -> Self {
        self.rdt().remove = true;
        self
    }

    /// Sets the path of the container's cgroup.
    #[must_use]
    pub fn cgroups_path(mut self, path: impl Into<String>) -> Self {
        self.linux().cgroups_path = path.into();
        self
    }

    /// Sets how readily the OOM killer takes the container, -1000 to 1000.
    #[must_use]
    pub fn oom_score_adj(mut self, score: i64) -> Self {
        self.linux().oom_score_adj = Some(OptionalInt { value: score });
        self
    }

    /// Sets the priority of I/O.
    #[must_use]
    pub fn io_priority(mut self, priority: LinuxIoPriority) -> Self {
        self.linux().io_priority = Some(priority);
        self
    }

    /// Sets the filter of system calls.
    #[must_use]
    pub fn seccomp_policy(mut self, policy: LinuxSeccomp) -> Self {
        self.linux().seccomp_policy = Some(policy);
        self
    }

    /// Sets a parameter of the kernel, such as `net.ipv4.ip_forward`.
    #[must_use]
    pub fn sysctl(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.linux().sysctl.insert(key.into(), value.into());
        self
    }

    /// Sets the scheduler.
    #[must_use]
    pub fn scheduler(mut self, scheduler: LinuxScheduler) -> Self {
        self.linux().scheduler = Some(scheduler);
        self
    }

    /// Returns the value of an environment variable that the adjustment sets, for tests.
    pub fn env_value(&self, key: &str) -> Option<&str> {
        self.env.iter().rev().find(|pair| pair.key == key).map(|pair| &*pair.value)
    }
}

impl ContainerUpdate {
    /// Starts an update of this container that changes nothing.
    pub fn of(container_id: impl Into<String>) -> Self {
        ContainerUpdate { container_id: container_id.into(), ..ContainerUpdate::default() }
    }

    fn resources(&mut self) -> &mut LinuxResources {
        self.linux.get_or_insert_default().resources.get_or_insert_default()
    }

    /// Has the request go on if this update fails.
    #[must_use]
    pub fn ignore_failure(mut self) -> Self {
        self.ignore_failure = true;
        self
    }
}

impl ContainerEviction {
    /// Asks the runtime to end a container, and says why.
    pub fn of(container_id: impl Into<String>, reason: impl Into<String>) -> Self {
        ContainerEviction { container_id: container_id.into(), reason: reason.into() }
    }
}

impl Hooks {
    /// Adds other hooks after these.
    pub fn append(&mut self, other: Hooks) {
        self.prestart.extend(other.prestart);
        self.create_runtime.extend(other.create_runtime);
        self.create_container.extend(other.create_container);
        self.start_container.extend(other.start_container);
        self.poststart.extend(other.poststart);
        self.poststop.extend(other.poststop);
    }

    /// Returns whether there is no hook.
    pub fn is_empty(&self) -> bool {
        *self == Hooks::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_are_marked() {
        let adjustment = ContainerAdjustment::new()
            .remove_annotation("a")
            .remove_mount("/b")
            .remove_env("C")
            .remove_device("/dev/d")
            .remove_namespace("network")
            .remove_net_device("eth0");
        assert!(adjustment.annotations.contains_key("-a"));
        assert_eq!(adjustment.mounts[0].destination, "-/b");
        assert_eq!(adjustment.env[0].key, "-C");
        let linux = adjustment.linux.expect("it is set");
        assert_eq!(linux.devices[0].path, "-/dev/d");
        assert_eq!(linux.namespaces[0].r#type, "-network");
        assert!(linux.net_devices.contains_key("-eth0"));
        assert_eq!(marked_for_removal("-a-b"), Some("a-b"));
        assert_eq!(marked_for_removal("a-b"), None);
    }

    #[test]
    fn arguments_that_replace_others_begin_with_an_empty_one() {
        assert_eq!(ContainerAdjustment::new().args(["a", "b"]).args, ["a", "b"]);
        assert_eq!(ContainerAdjustment::new().replace_args(["a"]).args, ["", "a"]);
    }

    #[test]
    fn resources_are_set_alike_in_adjustments_and_updates() {
        let adjustment = ContainerAdjustment::new().cpu_shares(3).memory_limit(4).pids_limit(5);
        let update = ContainerUpdate::of("c").cpu_shares(3).memory_limit(4).pids_limit(5);
        let resources = update.linux.expect("it is set").resources;
        assert_eq!(adjustment.linux.expect("it is set").resources, resources);
        let resources = resources.expect("they are set");
        assert_eq!(resources.cpu.and_then(|cpu| cpu.shares).map(|shares| shares.value), Some(3));
    }
}
