//! What the files of version 2 control groups say, as fields of `io.containerd.cgroups.v2.Metrics`.

use std::path::Path;

use super::{Fields, Files, device, page_sizes};

/// The fields of `Metrics`.
pub const PIDS: u32 = 1;
pub const CPU: u32 = 2;
pub const MEMORY: u32 = 4;
const IO: u32 = 6;
const HUGETLB: u32 = 7;
const MEMORY_EVENTS: u32 = 8;

/// The fields of `MemoryStat` that others than this module name.
pub const ANON: u32 = 1;
pub const MEMORY_USAGE: u32 = 32;

/// What `memory.stat` says, in the order of the fields of `MemoryStat` from 1 on.
const MEMORY_STAT: &str = "anon file kernel_stack slab sock shmem file_mapped file_dirty file_writeback anon_thp \
    inactive_anon active_anon inactive_file active_file unevictable slab_reclaimable slab_unreclaimable pgfault \
    pgmajfault - - workingset_nodereclaim pgrefill pgscan pgsteal pgactivate pgdeactivate pglazyfree pglazyfreed \
    thp_fault_alloc thp_collapse_alloc - - - - - - - workingset_refault_anon workingset_refault_file \
    workingset_activate_anon workingset_activate_file";

/// Returns what a group uses.
pub fn metrics(folder: &Path) -> Fields {
    let files = Files(folder);
    let mut metrics = Fields::default();
    let pids = [files.number("pids.current"), files.limit("pids.max")];
    metrics.message(PIDS, Fields::of(&pids));
    // Field 7 is the pressure.
    let cpu = "usage_usec user_usec system_usec nr_periods nr_throttled throttled_usec - nr_bursts burst_usec";
    metrics.message(CPU, files.table("cpu.stat").fields(cpu));
    metrics.message(MEMORY, memory(&files));
    metrics.message(IO, io(&files.text("io.stat")));
    for size in page_sizes(folder, ".current") {
        metrics.message(HUGETLB, hugetlb(&files, &size));
    }
    let events = files.table("memory.events");
    metrics.message(MEMORY_EVENTS, events.fields("low high max oom oom_kill oom_group_kill"));
    metrics
}

fn memory(files: &Files) -> Fields {
    let stat = files.table("memory.stat");
    let mut memory = stat.fields(MEMORY_STAT);
    // Older clients know the sums alone.
    let sum = |what: &str| stat.get(&format!("{what}_anon")) + stat.get(&format!("{what}_file"));
    memory.number(20, sum("workingset_refault"));
    memory.number(21, sum("workingset_activate"));
    memory.number(MEMORY_USAGE, files.number("memory.current"));
    memory.number(33, files.limit("memory.max"));
    memory.number(34, files.number("memory.swap.current"));
    memory.number(35, files.limit("memory.swap.max"));
    memory.number(36, files.number("memory.peak"));
    memory.number(37, files.number("memory.swap.peak"));
    memory
}

/// Reads lines of `major:minor key=value …` into an `IOStat`.
fn io(text: &str) -> Fields {
    let entry = |line: &str| {
        let (name, values) = line.split_once(' ')?;
        let (major, minor) = device(name)?;
        let mut entry = Fields::of(&[major, minor]);
        for (key, value) in values.split_whitespace().filter_map(|word| word.split_once('=')) {
            let field = match key {
                "rbytes" => 3,
                "wbytes" => 4,
                "rios" => 5,
                "wios" => 6,
                _ => continue,
            };
            entry.number(field, value.parse().unwrap_or(0));
        }
        Some(entry)
    };
    let mut stat = Fields::default();
    for entry in text.lines().filter_map(entry) {
        stat.message(1, entry);
    }
    stat
}

fn hugetlb(files: &Files, size: &str) -> Fields {
    let mut stat = Fields::of(&[
        files.number(&format!("hugetlb.{size}.current")),
        files.limit(&format!("hugetlb.{size}.max")),
    ]);
    stat.text(3, size);
    stat.number(4, files.table(&format!("hugetlb.{size}.events")).get("max"));
    stat
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ttrpc::prost::Message;

    use super::*;
    use crate::proto::cgroups::v2::{self, Metrics};

    #[test]
    #[allow(deprecated, reason = "older clients know the sums alone")]
    fn every_number_arrives_in_its_field() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let table = |keys: &str| {
            let rows = (1..).zip(keys.split_whitespace()).filter(|(_, key)| *key != "-");
            rows.map(|(value, key)| format!("{key} {value}\n")).collect::<String>()
        };
        write("pids.current", "7\n");
        write("pids.max", "max\n");
        let cpu = "usage_usec user_usec system_usec nr_periods nr_throttled throttled_usec \
                   nr_bursts burst_usec unknown";
        write("cpu.stat", &table(cpu));
        write("memory.stat", &table(MEMORY_STAT));
        write("memory.current", "132\n");
        write("memory.max", "max\n");
        write("memory.swap.current", "134\n");
        write("memory.swap.max", "135\n");
        write("memory.peak", "136\n");
        write("memory.swap.peak", "137\n");
        write("memory.events", &table("low high max oom oom_kill oom_group_kill"));
        write("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5\n8:16 wios=9\n");
        write("hugetlb.2MB.current", "4096\n");
        write("hugetlb.2MB.max", "max\n");
        write("hugetlb.2MB.events", "max 3\n");

        let metrics = metrics(folder.path()).pack::<Metrics>();
        assert_eq!(metrics.type_url, "io.containerd.cgroups.v2.Metrics");
        let metrics = Metrics::decode(metrics.value.as_slice()).unwrap();
        assert_eq!(metrics.pids, Some(v2::PidsStat { current: 7, limit: u64::MAX }));
        let cpu = v2::CpuStat {
            usage_usec: 1,
            user_usec: 2,
            system_usec: 3,
            nr_periods: 4,
            nr_throttled: 5,
            throttled_usec: 6,
            psi: None,
            nr_bursts: 7,
            burst_usec: 8,
        };
        assert_eq!(metrics.cpu, Some(cpu));
        let memory = v2::MemoryStat {
            anon: 1,
            file: 2,
            kernel_stack: 3,
            slab: 4,
            sock: 5,
            shmem: 6,
            file_mapped: 7,
            file_dirty: 8,
            file_writeback: 9,
            anon_thp: 10,
            inactive_anon: 11,
            active_anon: 12,
            inactive_file: 13,
            active_file: 14,
            unevictable: 15,
            slab_reclaimable: 16,
            slab_unreclaimable: 17,
            pgfault: 18,
            pgmajfault: 19,
            workingset_refault: 39 + 40,
            workingset_activate: 41 + 42,
            workingset_nodereclaim: 22,
            pgrefill: 23,
            pgscan: 24,
            pgsteal: 25,
            pgactivate: 26,
            pgdeactivate: 27,
            pglazyfree: 28,
            pglazyfreed: 29,
            thp_fault_alloc: 30,
            thp_collapse_alloc: 31,
            usage: 132,
            usage_limit: u64::MAX,
            swap_usage: 134,
            swap_limit: 135,
            max_usage: 136,
            swap_max_usage: 137,
            psi: None,
            workingset_refault_anon: 39,
            workingset_refault_file: 40,
            workingset_activate_anon: 41,
            workingset_activate_file: 42,
        };
        assert_eq!(metrics.memory, Some(memory));
        let entry = |minor, rbytes, wbytes, rios, wios| v2::IoEntry {
            major: 8,
            minor,
            rbytes,
            wbytes,
            rios,
            wios,
        };
        let usage = vec![entry(0, 1, 2, 3, 4), entry(16, 0, 0, 0, 9)];
        assert_eq!(metrics.io, Some(v2::IoStat { usage, psi: None }));
        let (max, pagesize) = (u64::MAX, "2MB".to_owned());
        assert_eq!(metrics.hugetlb, [v2::HugeTlbStat { current: 4096, max, pagesize, failcnt: 3 }]);
        let events =
            v2::MemoryEvents { low: 1, high: 2, max: 3, oom: 4, oom_kill: 5, oom_group_kill: 6 };
        assert_eq!(metrics.memory_events, Some(events));
    }
}
