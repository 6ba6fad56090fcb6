//! The resources that an adjustment and an update can set: the same methods for both.

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
