//! What the files of version 2 control groups say.

use std::{path::Path, str::FromStr};

use super::{Files, device, page_sizes};
use crate::proto::cgroups::v2;

/// What a group uses.
pub fn metrics(folder: &Path) -> v2::Metrics {
    let files = Files(folder);
    let cpu = files.table("cpu.stat");
    let events = files.table("memory.events");
    v2::Metrics {
        pids: Some(v2::PidsStat {
            current: files.number("pids.current"),
            limit: files.number("pids.max"),
        }),
        cpu: Some(v2::CpuStat {
            usage_usec: cpu.get("usage_usec"),
            user_usec: cpu.get("user_usec"),
            system_usec: cpu.get("system_usec"),
            nr_periods: cpu.get("nr_periods"),
            nr_throttled: cpu.get("nr_throttled"),
            throttled_usec: cpu.get("throttled_usec"),
            nr_bursts: cpu.get("nr_bursts"),
            burst_usec: cpu.get("burst_usec"),
            ..v2::CpuStat::default()
        }),
        memory: Some(memory_v2(&files)),
        io: Some(v2::IoStat { usage: io_v2(&files.text("io.stat")), ..v2::IoStat::default() }),
        hugetlb: hugetlb_v2(&files),
        memory_events: Some(v2::MemoryEvents {
            low: events.get("low"),
            high: events.get("high"),
            max: events.get("max"),
            oom: events.get("oom"),
            oom_kill: events.get("oom_kill"),
            oom_group_kill: events.get("oom_group_kill"),
        }),
        ..v2::Metrics::default()
    }
}

#[allow(deprecated, reason = "older clients know the sums alone")]
fn memory_v2(files: &Files) -> v2::MemoryStat {
    let stat = files.table("memory.stat");
    v2::MemoryStat {
        anon: stat.get("anon"),
        file: stat.get("file"),
        kernel_stack: stat.get("kernel_stack"),
        slab: stat.get("slab"),
        sock: stat.get("sock"),
        shmem: stat.get("shmem"),
        file_mapped: stat.get("file_mapped"),
        file_dirty: stat.get("file_dirty"),
        file_writeback: stat.get("file_writeback"),
        anon_thp: stat.get("anon_thp"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        slab_reclaimable: stat.get("slab_reclaimable"),
        slab_unreclaimable: stat.get("slab_unreclaimable"),
        pgfault: stat.get("pgfault"),
        pgmajfault: stat.get("pgmajfault"),
        workingset_refault: stat.get("workingset_refault_anon")
            + stat.get("workingset_refault_file"),
        workingset_activate: stat.get("workingset_activate_anon")
            + stat.get("workingset_activate_file"),
        workingset_refault_anon: stat.get("workingset_refault_anon"),
        workingset_refault_file: stat.get("workingset_refault_file"),
        workingset_activate_anon: stat.get("workingset_activate_anon"),
        workingset_activate_file: stat.get("workingset_activate_file"),
        workingset_nodereclaim: stat.get("workingset_nodereclaim"),
        pgrefill: stat.get("pgrefill"),
        pgscan: stat.get("pgscan"),
        pgsteal: stat.get("pgsteal"),
        pgactivate: stat.get("pgactivate"),
        pgdeactivate: stat.get("pgdeactivate"),
        pglazyfree: stat.get("pglazyfree"),
        pglazyfreed: stat.get("pglazyfreed"),
        thp_fault_alloc: stat.get("thp_fault_alloc"),
        thp_collapse_alloc: stat.get("thp_collapse_alloc"),
        usage: files.number("memory.current"),
        usage_limit: files.limit("memory.max"),
        swap_usage: files.number("memory.swap.current"),
        swap_limit: files.limit("memory.swap.max"),
        max_usage: files.number("memory.peak"),
        swap_max_usage: files.number("memory.swap.peak"),
        ..v2::MemoryStat::default()
    }
}

/// Lines of `major:minor key=value …`.
fn io_v2(text: &str) -> Vec<v2::IoEntry> {
    let entry = |line: &str| {
        let (name, values) = line.split_once(' ')?;
        let (major, minor) = device(name)?;
        let mut entry = v2::IoEntry { major, minor, ..Default::default() };
        for (key, value) in values.split_whitespace().filter_map(|word| word.split_once('=')) {
            let value = u64::from_str(value).unwrap_or(0);
            match key {
                "rbytes" => entry.rbytes = value,
                "wbytes" => entry.wbytes = value,
                "rios" => entry.rios = value,
                "wios" => entry.wios = value,
                _ => {}
            }
        }
        Some(entry)
    };
    text.lines().filter_map(entry).collect()
}

fn hugetlb_v2(files: &Files) -> Vec<v2::HugeTlbStat> {
    let stat = |size: String| v2::HugeTlbStat {
        current: files.number(&format!("hugetlb.{size}.current")),
        max: files.limit(&format!("hugetlb.{size}.max")),
        failcnt: files.table(&format!("hugetlb.{size}.events")).get("max"),
        pagesize: size,
    };
    page_sizes(files.0, ".current").into_iter().map(stat).collect()
}
