//! What decoded pods and containers take in memory.
//!
//! Two bytes on the wire are an empty element of a list, which is a hundred in memory: `service` bounds what it keeps by the latter.

use std::collections::HashMap;

use crate::proto::*;

/// A value that keeps memory besides its own size.
pub(crate) trait Kept {
    /// Returns the bytes that it keeps on the heap.
    fn kept(&self) -> usize;
}

impl Kept for String {
    fn kept(&self) -> usize {
        self.capacity()
    }
}

impl<T: Kept> Kept for Vec<T> {
    fn kept(&self) -> usize {
        self.capacity() * size_of::<T>() + self.iter().map(Kept::kept).sum::<usize>()
    }
}

impl<T: Kept> Kept for Option<T> {
    fn kept(&self) -> usize {
        self.as_ref().map_or(0, Kept::kept)
    }
}

impl<K: Kept, V: Kept> Kept for HashMap<K, V> {
    fn kept(&self) -> usize {
        let entries = self.iter().map(|(key, value)| key.kept() + value.kept());
        self.capacity() * (size_of::<(K, V)>() + 1) + entries.sum::<usize>()
    }
}

macro_rules! numbers {
    ($($number:ident)*) => {
        $(impl Kept for $number {
            fn kept(&self) -> usize {
                0
            }
        })*
    };
}

/// Takes each message with all its fields: one that the protocol adds does not compile until it is here.
macro_rules! messages {
    ($($message:ident { $($field:ident),* $(,)? })*) => {
        $(impl Kept for $message {
            fn kept(&self) -> usize {
                let Self { $($field),* } = self;
                0 $(+ $field.kept())*
            }
        })*
    };
}

numbers! { bool i32 i64 u32 u64 }

messages! {
    CdiDevice { name }
    Container {
        id, pod_sandbox_id, name, state, labels, annotations, args, env, mounts, hooks, linux, pid,
        rlimits, created_at, started_at, finished_at, exit_code, status_reason, status_message,
        cdi_devices, user, image,
    }
    Hook { path, args, env, timeout }
    Hooks { prestart, create_runtime, create_container, start_container, poststart, poststop }
    HugepageLimit { page_size, limit }
    Image { name, digest, config_digest }
    LinuxContainer {
        namespaces, devices, resources, oom_score_adj, cgroups_path, io_priority, seccomp_profile,
        seccomp_policy, sysctl, net_devices, scheduler, rdt,
    }
    LinuxCpu { shares, quota, period, realtime_runtime, realtime_period, cpus, mems }
    LinuxDevice { path, r#type, major, minor, file_mode, uid, gid }
    LinuxDeviceCgroup { allow, r#type, major, minor, access }
    LinuxIoPriority { class, priority }
    LinuxMemory {
        limit, reservation, swap, kernel, kernel_tcp, swappiness, disable_oom_killer, use_hierarchy,
    }
    LinuxNamespace { r#type, path }
    LinuxNetDevice { name }
    LinuxPids { limit }
    LinuxPodSandbox {
        pod_overhead, pod_resources, cgroup_parent, cgroups_path, namespaces, resources,
    }
    LinuxRdt { clos_id, schemata, enable_monitoring, remove }
    LinuxResources {
        memory, cpu, hugepage_limits, blockio_class, rdt_class, unified, devices, pids,
    }
    LinuxScheduler { policy, nice, priority, flags, runtime, deadline, period }
    LinuxSeccomp {
        default_action, default_errno, architectures, flags, listener_path, listener_metadata,
        syscalls,
    }
    LinuxSeccompArg { index, value, value_two, op }
    LinuxSyscall { names, action, errno_ret, args }
    Mount { destination, r#type, source, options }
    OptionalBool { value }
    OptionalFileMode { value }
    OptionalInt { value }
    OptionalInt64 { value }
    OptionalRepeatedString { value }
    OptionalString { value }
    OptionalUInt32 { value }
    OptionalUInt64 { value }
    PodSandbox { id, name, uid, namespace, labels, annotations, runtime_handler, linux, pid, ips }
    PosixRlimit { r#type, hard, soft }
    SecurityProfile { profile_type, localhost_ref }
    User { uid, gid, additional_gids }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_elements_are_counted_wherever_they_are() {
        let mount = Mount { options: vec![String::new(); 7], ..Mount::default() };
        let syscall = LinuxSyscall { args: vec![LinuxSeccompArg::default()], ..Default::default() };
        let seccomp = LinuxSeccomp { syscalls: vec![syscall; 3], ..Default::default() };
        let linux = LinuxContainer { seccomp_policy: Some(seccomp), ..Default::default() };
        let container = Container {
            mounts: vec![mount; 2],
            linux: Some(linux),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..Container::default()
        };
        let mounts = 2 * (size_of::<Mount>() + 7 * size_of::<String>());
        let syscalls = 3 * (size_of::<LinuxSyscall>() + size_of::<LinuxSeccompArg>());
        let label = 2 + 2 * size_of::<String>();
        let kept = container.kept();
        assert!(kept >= mounts + syscalls + label, "{kept}");
        assert_eq!(Container::default().kept(), 0);
    }
}
