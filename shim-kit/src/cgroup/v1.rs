//! What the files of version 1 control groups say.

use std::{collections::HashMap, path::PathBuf};

use super::{Files, device, page_sizes};
use crate::proto::cgroups::v1;

/// Clock ticks a second, in which user and kernel time are counted: the same on every Linux.
pub const NANOS_PER_TICK: u64 = 1_000_000_000 / 100;

/// What a group uses, from the folder of each controller.
pub fn metrics(folders: &HashMap<String, PathBuf>) -> v1::Metrics {
    let folder = |controller: &str| folders.get(controller).map(|path| Files(path));
    v1::Metrics {
        hugetlb: folder("hugetlb").map(|files| hugetlb_v1(&files)).unwrap_or_default(),
        pids: folder("pids").map(|files| v1::PidsStat {
            current: files.number("pids.current"),
            limit: files.number("pids.max"),
        }),
        cpu: Some(v1::CpuStat {
            usage: folder("cpuacct").map(|files| usage_v1(&files)),
            throttling: folder("cpu").map(|files| {
                let stat = files.table("cpu.stat");
                v1::Throttle {
                    periods: stat.get("nr_periods"),
                    throttled_periods: stat.get("nr_throttled"),
                    throttled_time: stat.get("throttled_time"),
                }
            }),
        }),
        memory: folder("memory").map(|files| memory_v1(&files)),
        blkio: folder("blkio").map(|files| v1::BlkIoStat {
            io_service_bytes_recursive: blkio_v1(
                &files,
                "blkio.throttle.io_service_bytes_recursive",
            ),
            io_serviced_recursive: blkio_v1(&files, "blkio.throttle.io_serviced_recursive"),
            ..v1::BlkIoStat::default()
        }),
        memory_oom_control: folder("memory").map(|files| {
            let control = files.table("memory.oom_control");
            v1::MemoryOomControl {
                oom_kill_disable: control.get("oom_kill_disable"),
                under_oom: control.get("under_oom"),
                oom_kill: control.get("oom_kill"),
            }
        }),
        ..v1::Metrics::default()
    }
}

fn usage_v1(files: &Files) -> v1::CpuUsage {
    let stat = files.table("cpuacct.stat");
    let per_cpu = files.text("cpuacct.usage_percpu");
    v1::CpuUsage {
        total: files.number("cpuacct.usage"),
        kernel: stat.get("system") * NANOS_PER_TICK,
        user: stat.get("user") * NANOS_PER_TICK,
        per_cpu: per_cpu.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
    }
}

fn memory_v1(files: &Files) -> v1::MemoryStat {
    let stat = files.table("memory.stat");
    let entry = |prefix: &str| {
        let number = |name: &str| files.number(&format!("{prefix}.{name}"));
        Some(v1::MemoryEntry {
            limit: number("limit_in_bytes"),
            usage: number("usage_in_bytes"),
            max: number("max_usage_in_bytes"),
            failcnt: number("failcnt"),
        })
    };
    v1::MemoryStat {
        cache: stat.get("cache"),
        rss: stat.get("rss"),
        rss_huge: stat.get("rss_huge"),
        mapped_file: stat.get("mapped_file"),
        dirty: stat.get("dirty"),
        writeback: stat.get("writeback"),
        pg_pg_in: stat.get("pgpgin"),
        pg_pg_out: stat.get("pgpgout"),
        pg_fault: stat.get("pgfault"),
        pg_maj_fault: stat.get("pgmajfault"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        hierarchical_memory_limit: stat.get("hierarchical_memory_limit"),
        hierarchical_swap_limit: stat.get("hierarchical_memsw_limit"),
        total_cache: stat.get("total_cache"),
        total_rss: stat.get("total_rss"),
        total_rss_huge: stat.get("total_rss_huge"),
        total_mapped_file: stat.get("total_mapped_file"),
        total_dirty: stat.get("total_dirty"),
        total_writeback: stat.get("total_writeback"),
        total_pg_pg_in: stat.get("total_pgpgin"),
        total_pg_pg_out: stat.get("total_pgpgout"),
        total_pg_fault: stat.get("total_pgfault"),
        total_pg_maj_fault: stat.get("total_pgmajfault"),
        total_inactive_anon: stat.get("total_inactive_anon"),
        total_active_anon: stat.get("total_active_anon"),
        total_inactive_file: stat.get("total_inactive_file"),
        total_active_file: stat.get("total_active_file"),
        total_unevictable: stat.get("total_unevictable"),
        usage: entry("memory"),
        swap: entry("memory.memsw"),
        kernel: entry("memory.kmem"),
        kernel_tcp: entry("memory.kmem.tcp"),
    }
}

fn hugetlb_v1(files: &Files) -> Vec<v1::HugetlbStat> {
    let stat = |size: String| {
        let number = |name: &str| files.number(&format!("hugetlb.{size}.{name}"));
        let usage = number("usage_in_bytes");
        let (max, failcnt) = (number("max_usage_in_bytes"), number("failcnt"));
        v1::HugetlbStat { usage, max, failcnt, pagesize: size }
    };
    page_sizes(files.0, ".usage_in_bytes").into_iter().map(stat).collect()
}

/// Lines of `major:minor operation value`.
fn blkio_v1(files: &Files, name: &str) -> Vec<v1::BlkIoEntry> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = device(words.next()?)?;
        let (op, value) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        Some(v1::BlkIoEntry { op, major, minor, value, ..Default::default() })
    };
    files.text(name).lines().filter_map(entry).collect()
}
