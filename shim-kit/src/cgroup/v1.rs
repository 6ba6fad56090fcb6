//! What the files of version 1 control groups say, as fields of `io.containerd.cgroups.v1.Metrics`.

use std::{collections::HashMap, path::PathBuf};

use super::{Fields, Files, device, page_sizes};

/// Clock ticks a second, in which user and kernel time are counted: the same on every Linux.
pub const NANOS_PER_TICK: u64 = 1_000_000_000 / 100;

/// The fields of `Metrics`.
const HUGETLB: u32 = 1;
pub const PIDS: u32 = 2;
pub const CPU: u32 = 3;
pub const MEMORY: u32 = 4;
const BLKIO: u32 = 5;
const OOM_CONTROL: u32 = 9;

/// The field of `CPUStat` that is a `CPUUsage`.
pub const CPU_USAGE: u32 = 1;

/// The fields of `MemoryStat` that others than this module name.
pub const RSS: u32 = 2;
pub const TOTAL_RSS: u32 = 19;
pub const MEMORY_USAGE: u32 = 33;

/// What `memory.stat` says, in the order of the fields of `MemoryStat` from 1 on.
const MEMORY_STAT: &str = "cache rss rss_huge mapped_file dirty writeback pgpgin pgpgout pgfault pgmajfault \
    inactive_anon active_anon inactive_file active_file unevictable hierarchical_memory_limit \
    hierarchical_memsw_limit total_cache total_rss total_rss_huge total_mapped_file total_dirty total_writeback \
    total_pgpgin total_pgpgout total_pgfault total_pgmajfault total_inactive_anon total_active_anon \
    total_inactive_file total_active_file total_unevictable";

/// Returns what a group uses, from the folder of each controller.
pub fn metrics(folders: &HashMap<String, PathBuf>) -> Fields {
    let folder = |controller: &str| folders.get(controller).map(|path| Files(path));
    let mut metrics = Fields::default();
    if let Some(files) = folder("hugetlb") {
        for size in page_sizes(files.0, ".usage_in_bytes") {
            metrics.message(HUGETLB, hugetlb(&files, &size));
        }
    }
    if let Some(files) = folder("pids") {
        let pids = [files.number("pids.current"), files.number("pids.max")];
        metrics.message(PIDS, Fields::of(&pids));
    }
    let mut cpu = Fields::default();
    if let Some(files) = folder("cpuacct") {
        cpu.message(CPU_USAGE, usage(&files));
    }
    if let Some(files) = folder("cpu") {
        let stat = files.table("cpu.stat");
        cpu.message(2, stat.fields("nr_periods nr_throttled throttled_time"));
    }
    metrics.message(CPU, cpu);
    if let Some(files) = folder("memory") {
        metrics.message(MEMORY, memory(&files));
    }
    if let Some(files) = folder("blkio") {
        let mut stat = Fields::default();
        blkio(&files, "blkio.throttle.io_service_bytes_recursive", 1, &mut stat);
        blkio(&files, "blkio.throttle.io_serviced_recursive", 2, &mut stat);
        metrics.message(BLKIO, stat);
    }
    if let Some(files) = folder("memory") {
        let control = files.table("memory.oom_control");
        metrics.message(OOM_CONTROL, control.fields("oom_kill_disable under_oom oom_kill"));
    }
    metrics
}

fn usage(files: &Files) -> Fields {
    let stat = files.table("cpuacct.stat");
    let mut usage = Fields::of(&[
        files.number("cpuacct.usage"),
        stat.get("system") * NANOS_PER_TICK,
        stat.get("user") * NANOS_PER_TICK,
    ]);
    let per_cpu = files.text("cpuacct.usage_percpu");
    let per_cpu: Vec<u64> =
        per_cpu.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    usage.numbers(4, &per_cpu);
    usage
}

fn memory(files: &Files) -> Fields {
    let mut memory = files.table("memory.stat").fields(MEMORY_STAT);
    let entries = ["memory", "memory.memsw", "memory.kmem", "memory.kmem.tcp"];
    for (field, prefix) in (MEMORY_USAGE..).zip(entries) {
        let numbers = ["limit_in_bytes", "usage_in_bytes", "max_usage_in_bytes", "failcnt"];
        let numbers = numbers.map(|name| files.number(&format!("{prefix}.{name}")));
        memory.message(field, Fields::of(&numbers));
    }
    memory
}

fn hugetlb(files: &Files, size: &str) -> Fields {
    let numbers = ["usage_in_bytes", "max_usage_in_bytes", "failcnt"];
    let numbers = numbers.map(|name| files.number(&format!("hugetlb.{size}.{name}")));
    let mut stat = Fields::of(&numbers);
    stat.text(4, size);
    stat
}

/// Adds the lines of `major:minor operation value` to a field of `BlkIOStat`.
fn blkio(files: &Files, name: &str, field: u32, stat: &mut Fields) {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = device(words.next()?)?;
        let mut entry = Fields::default();
        entry.text(1, words.next()?);
        entry.number(3, major);
        entry.number(4, minor);
        entry.number(5, words.next()?.parse().ok()?);
        Some(entry)
    };
    for entry in files.text(name).lines().filter_map(entry) {
        stat.message(field, entry);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ttrpc::prost::Message;

    use super::*;
    use crate::proto::cgroups::v1::{self, Metrics};

    #[test]
    fn every_number_arrives_in_its_field() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let table = |keys: &str| {
            let rows = (1..).zip(keys.split_whitespace());
            rows.map(|(value, key)| format!("{key} {value}\n")).collect::<String>()
        };
        write("hugetlb.2MB.usage_in_bytes", "4096\n");
        write("hugetlb.2MB.failcnt", "3\n");
        write("pids.current", "7\n");
        write("pids.max", "max\n");
        write("cpuacct.usage", "300\n");
        write("cpuacct.stat", "user 1\nsystem 2\n");
        write("cpuacct.usage_percpu", "200 100 \n");
        write("cpu.stat", "nr_periods 4\nnr_throttled 5\nthrottled_time 6\n");
        write("memory.stat", &table(MEMORY_STAT));
        write("memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n");
        for (number, prefix) in [(100, "memory"), (200, "memory.memsw"), (300, "memory.kmem")] {
            write(&format!("{prefix}.limit_in_bytes"), &(number + 1).to_string());
            write(&format!("{prefix}.usage_in_bytes"), &(number + 2).to_string());
            write(&format!("{prefix}.max_usage_in_bytes"), &(number + 3).to_string());
            write(&format!("{prefix}.failcnt"), &(number + 4).to_string());
        }
        let bytes = "8:0 Read 10\n8:0 Write 20\nTotal 30\n";
        write("blkio.throttle.io_service_bytes_recursive", bytes);
        write("blkio.throttle.io_serviced_recursive", "8:16 Read 1\n");

        let controllers = ["hugetlb", "pids", "cpuacct", "cpu", "memory", "blkio"];
        let folders = controllers.map(|name| (name.to_owned(), folder.path().to_owned()));
        let metrics = metrics(&HashMap::from(folders)).pack::<Metrics>();
        assert_eq!(metrics.type_url, "io.containerd.cgroups.v1.Metrics");
        let metrics = Metrics::decode(metrics.value.as_slice()).unwrap();

        let pagesize = "2MB".to_owned();
        assert_eq!(
            metrics.hugetlb,
            [v1::HugetlbStat { usage: 4096, max: 0, failcnt: 3, pagesize }]
        );
        assert_eq!(metrics.pids, Some(v1::PidsStat { current: 7, limit: 0 }));
        let (kernel, user) = (20_000_000, 10_000_000);
        let usage = v1::CpuUsage { total: 300, kernel, user, per_cpu: vec![200, 100] };
        let throttling = v1::Throttle { periods: 4, throttled_periods: 5, throttled_time: 6 };
        let cpu = v1::CpuStat { usage: Some(usage), throttling: Some(throttling) };
        assert_eq!(metrics.cpu, Some(cpu));
        let entry = |number: u64| v1::MemoryEntry {
            limit: number + 1,
            usage: number + 2,
            max: number + 3,
            failcnt: number + 4,
        };
        let memory = v1::MemoryStat {
            cache: 1,
            rss: 2,
            rss_huge: 3,
            mapped_file: 4,
            dirty: 5,
            writeback: 6,
            pg_pg_in: 7,
            pg_pg_out: 8,
            pg_fault: 9,
            pg_maj_fault: 10,
            inactive_anon: 11,
            active_anon: 12,
            inactive_file: 13,
            active_file: 14,
            unevictable: 15,
            hierarchical_memory_limit: 16,
            hierarchical_swap_limit: 17,
            total_cache: 18,
            total_rss: 19,
            total_rss_huge: 20,
            total_mapped_file: 21,
            total_dirty: 22,
            total_writeback: 23,
            total_pg_pg_in: 24,
            total_pg_pg_out: 25,
            total_pg_fault: 26,
            total_pg_maj_fault: 27,
            total_inactive_anon: 28,
            total_active_anon: 29,
            total_inactive_file: 30,
            total_active_file: 31,
            total_unevictable: 32,
            usage: Some(entry(100)),
            swap: Some(entry(200)),
            kernel: Some(entry(300)),
            kernel_tcp: Some(v1::MemoryEntry::default()),
        };
        assert_eq!(metrics.memory, Some(memory));
        let control = v1::MemoryOomControl { oom_kill_disable: 0, under_oom: 1, oom_kill: 2 };
        assert_eq!(metrics.memory_oom_control, Some(control));
        let io = |op: &str, minor, value| v1::BlkIoEntry {
            op: op.to_owned(),
            major: 8,
            minor,
            value,
            ..Default::default()
        };
        let blkio = metrics.blkio.unwrap();
        assert_eq!(blkio.io_service_bytes_recursive, [io("Read", 0, 10), io("Write", 0, 20)]);
        assert_eq!(blkio.io_serviced_recursive, [io("Read", 16, 1)]);
    }
}
