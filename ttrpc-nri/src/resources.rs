//! The resources that an adjustment and an update can set: the same methods for both, and getters of what is set.

use std::sync::LazyLock;

use crate::proto::{Container, ContainerAdjustment, ContainerUpdate, LinuxResources};

/// What a message has that sets no resources.
static NOTHING: LazyLock<LinuxResources> = LazyLock::new(LinuxResources::default);

impl Container {
    /// Returns the container's resources, without any that are set if it has none.
    pub fn linux_resources(&self) -> &LinuxResources {
        let resources = self.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        resources.unwrap_or(&NOTHING)
    }
}

impl ContainerAdjustment {
    /// Returns the resources that the adjustment sets.
    pub fn linux_resources(&self) -> &LinuxResources {
        let resources = self.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        resources.unwrap_or(&NOTHING)
    }
}

impl ContainerUpdate {
    /// Returns the resources that the update sets.
    pub fn linux_resources(&self) -> &LinuxResources {
        let resources = self.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        resources.unwrap_or(&NOTHING)
    }
}

/// Writes getters of resources, which are values in messages in messages.
macro_rules! getters {
    ($($(#[$attribute:meta])* $name:ident: $type:ty = $part:ident.$field:ident;)*) => {
        /// Resources that are set. The builders of the same names say what they are.
        impl LinuxResources {
            $(
                $(#[$attribute])*
                pub fn $name(&self) -> Option<$type> {
                    Some(self.$part.as_ref()?.$field.as_ref()?.value)
                }
            )*

            /// Returns the processors that the container may use, such as `0-3,8`. `None` if they are not set.
            pub fn cpuset_cpus(&self) -> Option<&str> {
                Some(&*self.cpu.as_ref()?.cpus).filter(|cpus| !cpus.is_empty())
            }

            /// Returns the memory nodes that the container may use, such as `0`. `None` if they are not set.
            pub fn cpuset_mems(&self) -> Option<&str> {
                Some(&*self.cpu.as_ref()?.mems).filter(|mems| !mems.is_empty())
            }

            /// Returns the most processes that the container may have.
            pub fn pids_limit(&self) -> Option<i64> {
                Some(self.pids.as_ref()?.limit)
            }

            /// Returns the limit of the use of huge pages of a size such as `2MB`, in bytes.
            pub fn hugepage_limit(&self, page_size: &str) -> Option<u64> {
                let limit = self.hugepage_limits.iter().rev().find(|limit| limit.page_size == page_size);
                limit.map(|limit| limit.limit)
            }

            /// Returns the name of the class of block I/O.
            pub fn blockio_class_name(&self) -> Option<&str> {
                Some(&self.blockio_class.as_ref()?.value)
            }

            /// Returns the name of the class of RDT.
            pub fn rdt_class_name(&self) -> Option<&str> {
                Some(&self.rdt_class.as_ref()?.value)
            }
        }
    };
}

getters! {
    /// Returns the limit of memory, in bytes.
    memory_limit: i64 = memory.limit;
    /// Returns the soft limit of memory, in bytes.
    memory_reservation: i64 = memory.reservation;
    /// Returns the limit of memory and swap together, in bytes.
    memory_swap: i64 = memory.swap;
    /// Returns the limit of the kernel's memory, in bytes.
    memory_kernel: i64 = memory.kernel;
    /// Returns the limit of TCP buffers, in bytes.
    memory_kernel_tcp: i64 = memory.kernel_tcp;
    /// Returns how readily memory is swapped out, 0 to 100.
    memory_swappiness: u64 = memory.swappiness;
    /// Returns whether the OOM killer is kept from the container.
    memory_disable_oom_killer: bool = memory.disable_oom_killer;
    /// Returns whether memory is accounted by hierarchy.
    memory_use_hierarchy: bool = memory.use_hierarchy;
    /// Returns the weight of the container's share of processors.
    cpu_shares: u64 = cpu.shares;
    /// Returns the processor time in each period, in microseconds.
    cpu_quota: i64 = cpu.quota;
    /// Returns the period of the quota, in microseconds.
    cpu_period: u64 = cpu.period;
    /// Returns the real-time scheduler's time in each period, in microseconds.
    cpu_realtime_runtime: i64 = cpu.realtime_runtime;
    /// Returns the real-time scheduler's period, in microseconds.
    cpu_realtime_period: u64 = cpu.realtime_period;
}

/// Writes builders of Linux resources for a message that has `fn resources(&mut self) -> &mut LinuxResources`.
macro_rules! resource_builders {
    ($message:ty) => {
        /// Resources. What is not set is left to others.
        impl $message {
            fn memory(&mut self) -> &mut $crate::proto::LinuxMemory {
                self.resources().memory.get_or_insert_default()
            }

            fn cpu(&mut self) -> &mut $crate::proto::LinuxCpu {
                self.resources().cpu.get_or_insert_default()
            }

            /// Sets the limit of memory, in bytes.
            #[must_use]
            pub fn memory_limit(mut self, bytes: i64) -> Self {
                self.memory().limit = Some($crate::proto::OptionalInt64 { value: bytes });
                self
            }

            /// Sets the soft limit of memory, in bytes.
            #[must_use]
            pub fn memory_reservation(mut self, bytes: i64) -> Self {
                self.memory().reservation = Some($crate::proto::OptionalInt64 { value: bytes });
                self
            }

            /// Sets the limit of memory and swap together, in bytes.
            #[must_use]
            pub fn memory_swap(mut self, bytes: i64) -> Self {
                self.memory().swap = Some($crate::proto::OptionalInt64 { value: bytes });
                self
            }

            /// Sets the limit of the kernel's memory, in bytes. Cgroup v1 alone.
            #[must_use]
            pub fn memory_kernel(mut self, bytes: i64) -> Self {
                self.memory().kernel = Some($crate::proto::OptionalInt64 { value: bytes });
                self
            }

            /// Sets the limit of TCP buffers, in bytes. Cgroup v1 alone.
            #[must_use]
            pub fn memory_kernel_tcp(mut self, bytes: i64) -> Self {
                self.memory().kernel_tcp = Some($crate::proto::OptionalInt64 { value: bytes });
                self
            }

            /// Sets how readily memory is swapped out, 0 to 100. Cgroup v1 alone.
            #[must_use]
            pub fn memory_swappiness(mut self, percent: u64) -> Self {
                self.memory().swappiness = Some($crate::proto::OptionalUInt64 { value: percent });
                self
            }

            /// Keeps the OOM killer from the container. Cgroup v1 alone.
            #[must_use]
            pub fn memory_disable_oom_killer(mut self) -> Self {
                self.memory().disable_oom_killer =
                    Some($crate::proto::OptionalBool { value: true });
                self
            }

            /// Accounts memory by hierarchy. Cgroup v1 alone.
            #[must_use]
            pub fn memory_use_hierarchy(mut self) -> Self {
                self.memory().use_hierarchy = Some($crate::proto::OptionalBool { value: true });
                self
            }

            /// Sets the weight of the container's share of processors.
            #[must_use]
            pub fn cpu_shares(mut self, shares: u64) -> Self {
                self.cpu().shares = Some($crate::proto::OptionalUInt64 { value: shares });
                self
            }

            /// Sets the processor time in each period, in microseconds.
            #[must_use]
            pub fn cpu_quota(mut self, micros: i64) -> Self {
                self.cpu().quota = Some($crate::proto::OptionalInt64 { value: micros });
                self
            }

            /// Sets the period of the quota, in microseconds.
            #[must_use]
            pub fn cpu_period(mut self, micros: u64) -> Self {
                self.cpu().period = Some($crate::proto::OptionalUInt64 { value: micros });
                self
            }

            /// Sets the real-time scheduler's time in each period, in microseconds.
            #[must_use]
            pub fn cpu_realtime_runtime(mut self, micros: i64) -> Self {
                self.cpu().realtime_runtime = Some($crate::proto::OptionalInt64 { value: micros });
                self
            }

            /// Sets the real-time scheduler's period, in microseconds.
            #[must_use]
            pub fn cpu_realtime_period(mut self, micros: u64) -> Self {
                self.cpu().realtime_period = Some($crate::proto::OptionalUInt64 { value: micros });
                self
            }

            /// Sets the processors that the container may use, such as `0-3,8`.
            #[must_use]
            pub fn cpuset_cpus(mut self, cpus: impl Into<String>) -> Self {
                self.cpu().cpus = cpus.into();
                self
            }

            /// Sets the memory nodes that the container may use, such as `0`.
            #[must_use]
            pub fn cpuset_mems(mut self, mems: impl Into<String>) -> Self {
                self.cpu().mems = mems.into();
                self
            }

            /// Sets the most processes that the container may have.
            #[must_use]
            pub fn pids_limit(mut self, limit: i64) -> Self {
                self.resources().pids = Some($crate::proto::LinuxPids { limit });
                self
            }

            /// Limits the use of huge pages of a size such as `2MB`, in bytes.
            #[must_use]
            pub fn hugepage_limit(mut self, page_size: impl Into<String>, limit: u64) -> Self {
                let page_size = page_size.into();
                self.resources()
                    .hugepage_limits
                    .push($crate::proto::HugepageLimit { page_size, limit });
                self
            }

            /// Sets the class of block I/O.
            #[must_use]
            pub fn blockio_class(mut self, class: impl Into<String>) -> Self {
                self.resources().blockio_class =
                    Some($crate::proto::OptionalString { value: class.into() });
                self
            }

            /// Sets the class of RDT.
            #[must_use]
            pub fn rdt_class(mut self, class: impl Into<String>) -> Self {
                self.resources().rdt_class =
                    Some($crate::proto::OptionalString { value: class.into() });
                self
            }

            /// Sets a file of the container's cgroup v2, such as `memory.high`.
            #[must_use]
            pub fn unified(mut self, file: impl Into<String>, value: impl Into<String>) -> Self {
                self.resources().unified.insert(file.into(), value.into());
                self
            }
        }
    };
}

pub(crate) use resource_builders;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_that_are_set_are_read_by_the_names_of_their_builders() {
        let adjustment = ContainerAdjustment::new()
            .memory_limit(1)
            .memory_swap(2)
            .cpu_shares(3)
            .cpu_quota(-1)
            .cpu_period(5)
            .cpuset_cpus("0-1")
            .pids_limit(7)
            .hugepage_limit("2MB", 8)
            .rdt_class("gold");
        let set = adjustment.linux_resources();
        assert_eq!((set.memory_limit(), set.memory_swap()), (Some(1), Some(2)));
        assert_eq!((set.cpu_shares(), set.cpu_quota()), (Some(3), Some(-1)));
        assert_eq!((set.cpu_period(), set.pids_limit()), (Some(5), Some(7)));
        assert_eq!((set.cpuset_cpus(), set.cpuset_mems()), (Some("0-1"), None));
        assert_eq!((set.hugepage_limit("2MB"), set.hugepage_limit("1GB")), (Some(8), None));
        assert_eq!((set.rdt_class_name(), set.blockio_class_name()), (Some("gold"), None));
        assert_eq!(set.memory_reservation(), None);
        let update = ContainerUpdate::of("c").memory_swappiness(0);
        assert_eq!(update.linux_resources().memory_swappiness(), Some(0));
        assert_eq!(Container::named("c").linux_resources().cpu_shares(), None);
    }
}
