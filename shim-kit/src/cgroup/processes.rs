//! What processes use that have no control group of their own: as far as the kernel counts it for each.

use std::fs;

use ttrpc::Any;

use super::{Fields, is_unified, v1, v1::NANOS_PER_TICK, v2};
use crate::proto::cgroups;

/// The sums over some processes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    count: u64,
    user_ticks: u64,
    kernel_ticks: u64,
    resident: u64,
}

/// What these processes use. Those that are gone count for nothing.
pub fn metrics(pids: &[u32]) -> Any {
    let mut usage = Usage::default();
    for pid in pids {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        if let (Ok(stat), Ok(status)) = (read("stat"), read("status")) {
            usage.add(&stat, &status);
        }
    }
    match is_unified() {
        true => usage.v2().pack::<cgroups::v2::Metrics>(),
        false => usage.v1().pack::<cgroups::v1::Metrics>(),
    }
}

impl Usage {
    /// Adds a process, by what `/proc/PID/stat` and `/proc/PID/status` say.
    fn add(&mut self, stat: &str, status: &str) {
        // The name, which may hold anything, ends with the last parenthesis; field 3 is behind it.
        let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
        let field = |number: usize| {
            let word = behind.split_whitespace().nth(number - 3);
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes: Option<u64> =
            resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
        self.count += 1;
        self.user_ticks += field(14);
        self.kernel_ticks += field(15);
        self.resident += kilobytes.unwrap_or(0) * 1024;
    }

    fn v1(&self) -> Fields {
        let (user, kernel) = (self.user_ticks * NANOS_PER_TICK, self.kernel_ticks * NANOS_PER_TICK);
        let mut cpu = Fields::default();
        cpu.message(v1::CPU_USAGE, Fields::of(&[user + kernel, kernel, user]));
        let mut memory = Fields::default();
        memory.number(v1::RSS, self.resident);
        memory.number(v1::TOTAL_RSS, self.resident);
        // The limit, which there is none of, and what is used.
        memory.message(v1::MEMORY_USAGE, Fields::of(&[0, self.resident]));
        let mut metrics = Fields::default();
        metrics.message(v1::PIDS, Fields::of(&[self.count]));
        metrics.message(v1::CPU, cpu);
        metrics.message(v1::MEMORY, memory);
        metrics
    }

    fn v2(&self) -> Fields {
        let micros = |ticks: u64| ticks * NANOS_PER_TICK / 1000;
        let (user, system) = (micros(self.user_ticks), micros(self.kernel_ticks));
        let mut memory = Fields::default();
        memory.number(v2::ANON, self.resident);
        memory.number(v2::MEMORY_USAGE, self.resident);
        let mut metrics = Fields::default();
        metrics.message(v2::PIDS, Fields::of(&[self.count]));
        metrics.message(v2::CPU, Fields::of(&[user + system, user, system]));
        metrics.message(v2::MEMORY, memory);
        metrics
    }
}

#[cfg(test)]
mod tests {
    use ttrpc::prost::Message;

    use super::*;

    /// It was said to use what the whole machine uses.
    #[test]
    fn processes_without_a_group_use_what_they_use_themselves() {
        let mut usage = Usage::default();
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 30 20 0 0 20 0 1 0 5 9000000 250";
        usage.add(stat, "Name:\ta\nVmRSS:\t    1000 kB\n");
        usage.add(stat, "Name:\tkernel thread\n");
        let (user_ticks, kernel_ticks) = (60, 40);
        assert_eq!(usage, Usage { count: 2, user_ticks, kernel_ticks, resident: 1_024_000 });

        let v1 = usage.v1().pack::<cgroups::v1::Metrics>();
        let v1 = cgroups::v1::Metrics::decode(v1.value.as_slice()).unwrap();
        let cpu = v1.cpu.unwrap().usage.unwrap();
        assert_eq!((cpu.total, cpu.kernel, cpu.user), (1_000_000_000, 400_000_000, 600_000_000));
        let memory = v1.memory.unwrap();
        assert_eq!((memory.rss, memory.total_rss), (1_024_000, 1_024_000));
        assert_eq!(memory.usage.unwrap().usage, 1_024_000);
        assert_eq!(v1.pids.unwrap().current, 2);

        let v2 = usage.v2().pack::<cgroups::v2::Metrics>();
        let v2 = cgroups::v2::Metrics::decode(v2.value.as_slice()).unwrap();
        let cpu = v2.cpu.unwrap();
        assert_eq!((cpu.usage_usec, cpu.user_usec, cpu.system_usec), (1_000_000, 600_000, 400_000));
        let memory = v2.memory.unwrap();
        assert_eq!((memory.anon, memory.usage), (1_024_000, 1_024_000));
        assert_eq!(v2.pids.unwrap().current, 2);
    }
}
