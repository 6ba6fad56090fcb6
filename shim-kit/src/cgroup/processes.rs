//! What processes use that have no control group of their own: as far as the kernel counts it for each.

use std::fs;

use ttrpc::Any;

use super::{is_unified, v1::NANOS_PER_TICK};
use crate::proto::{
    cgroups::{v1, v2},
    pack,
};

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
    if is_unified() { pack(&usage.v2()) } else { pack(&usage.v1()) }
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

    fn v1(&self) -> v1::Metrics {
        let (user, kernel) = (self.user_ticks * NANOS_PER_TICK, self.kernel_ticks * NANOS_PER_TICK);
        let usage = v1::CpuUsage { total: user + kernel, user, kernel, ..Default::default() };
        let entry = v1::MemoryEntry { usage: self.resident, ..Default::default() };
        v1::Metrics {
            pids: Some(v1::PidsStat { current: self.count, limit: 0 }),
            cpu: Some(v1::CpuStat { usage: Some(usage), ..Default::default() }),
            memory: Some(v1::MemoryStat {
                rss: self.resident,
                total_rss: self.resident,
                usage: Some(entry),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn v2(&self) -> v2::Metrics {
        let micros = |ticks: u64| ticks * NANOS_PER_TICK / 1000;
        let (user_usec, system_usec) = (micros(self.user_ticks), micros(self.kernel_ticks));
        let usage_usec = user_usec + system_usec;
        v2::Metrics {
            pids: Some(v2::PidsStat { current: self.count, limit: 0 }),
            cpu: Some(v2::CpuStat { usage_usec, user_usec, system_usec, ..Default::default() }),
            memory: Some(v2::MemoryStat {
                usage: self.resident,
                anon: self.resident,
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(usage.v1().cpu.unwrap().usage.unwrap().total, 1_000_000_000);
        assert_eq!(usage.v2().cpu.unwrap().usage_usec, 1_000_000);
        assert_eq!(usage.v2().memory.unwrap().usage, 1_024_000);
    }
}
