//! Control groups: what a container uses, in both versions, and the group of the shim itself.

mod oom;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use rustix::process::Pid;
use ttrpc::Any;

pub(crate) use self::oom::watch_oom;
use crate::proto::{
    self,
    cgroups::{v1, v2},
};

const ROOT: &str = "/sys/fs/cgroup";
/// Clock ticks a second, in which version 1 counts user and kernel time: the same on every Linux.
const NANOS_PER_TICK: u64 = 1_000_000_000 / 100;

/// Where a container's resources are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// A folder for each controller.
    V1(HashMap<String, PathBuf>),
    /// One folder.
    V2(PathBuf),
}

impl Cgroup {
    /// The group that a process is in.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn of(pid: Pid) -> io::Result<Cgroup> {
        let table = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()))?;
        // Version 2 alone has its controllers at the root.
        let is_unified = Path::new(ROOT).join("cgroup.controllers").exists();
        Ok(parse(&table, is_unified))
    }

    /// What the group uses now. What cannot be read is left out.
    pub fn metrics(&self) -> Any {
        match self {
            Cgroup::V1(folders) => proto::pack(&metrics_v1(folders)),
            Cgroup::V2(folder) => proto::pack(&metrics_v2(folder)),
        }
    }
}

/// Reads `/proc/PID/cgroup`: lines of `number:controllers:path`.
fn parse(table: &str, is_unified: bool) -> Cgroup {
    let rows = table.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?.trim_start_matches('/')))
    });
    if is_unified {
        let path =
            rows.filter(|(controllers, _)| controllers.is_empty()).map(|(_, path)| path).next();
        return Cgroup::V2(Path::new(ROOT).join(path.unwrap_or_default()));
    }
    let mut folders = HashMap::new();
    for (controllers, path) in rows {
        for controller in controllers.split(',').filter(|name| !name.is_empty()) {
            folders.insert(controller.to_owned(), Path::new(ROOT).join(controller).join(path));
        }
    }
    Cgroup::V1(folders)
}

/// Puts this process into a group.
///
/// # Errors
/// If the group is not there.
pub fn join(path: &str) -> io::Result<()> {
    let pid = std::process::id().to_string();
    let path = path.trim_start_matches('/');
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return fs::write(Path::new(ROOT).join(path).join("cgroup.procs"), pid);
    }
    for controller in fs::read_dir(ROOT)? {
        let procs = controller?.path().join(path).join("cgroup.procs");
        if procs.exists() {
            fs::write(procs, &pid)?;
        }
    }
    Ok(())
}

/// A folder's files, whose absence is nothing to complain about: kernels differ in what they count.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// A file with one number; 0 for none and for "max".
    fn number(&self, name: &str) -> u64 {
        self.text(name).trim().parse().unwrap_or(0)
    }

    /// A file with one number, where "max" is the highest.
    fn limit(&self, name: &str) -> u64 {
        match self.text(name).trim() {
            "max" => u64::MAX,
            text => text.parse().unwrap_or(0),
        }
    }

    /// A file with a key and a number in each line.
    fn table(&self, name: &str) -> Table {
        Table(
            self.text(name)
                .lines()
                .filter_map(|line| {
                    let (key, value) = line.split_once(' ')?;
                    Some((key.to_owned(), value.trim().parse().ok()?))
                })
                .collect(),
        )
    }
}

struct Table(HashMap<String, u64>);

impl Table {
    fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }
}

fn metrics_v1(folders: &HashMap<String, PathBuf>) -> v1::Metrics {
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
        }),
        memory_oom_control: folder("memory").map(|files| {
            let control = files.table("memory.oom_control");
            v1::MemoryOomControl {
                oom_kill_disable: control.get("oom_kill_disable"),
                under_oom: control.get("under_oom"),
                oom_kill: control.get("oom_kill"),
            }
        }),
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

/// The sizes of huge pages, from the names of the files that count them.
fn page_sizes(folder: &Path, suffix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(suffix)?;
        (!size.contains('.')).then(|| size.to_owned())
    };
    entries.filter_map(size).collect()
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

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn metrics_v2(folder: &Path) -> v2::Metrics {
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
        }),
        memory: Some(memory_v2(&files)),
        io: Some(v2::IoStat { usage: io_v2(&files.text("io.stat")) }),
        hugetlb: hugetlb_v2(&files),
        memory_events: Some(v2::MemoryEvents {
            low: events.get("low"),
            high: events.get("high"),
            max: events.get("max"),
            oom: events.get("oom"),
            oom_kill: events.get("oom_kill"),
            oom_group_kill: events.get("oom_group_kill"),
        }),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_groups_are_read_in_both_versions() {
        let table = "3:cpu,cpuacct:/default/c1\n1:name=systemd:/default/c1\n0::/unified/c1\n";
        let Cgroup::V1(folders) = parse(table, false) else { panic!("version 1") };
        assert_eq!(folders["cpuacct"], Path::new("/sys/fs/cgroup/cpuacct/default/c1"));
        assert_eq!(parse(table, true), Cgroup::V2("/sys/fs/cgroup/unified/c1".into()));
    }

    #[test]
    fn files_are_read_as_the_kernel_writes_them() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("pids.current", "7\n");
        write("pids.max", "max\n");
        write("cpu.stat", "usage_usec 123\nuser_usec 100\n");
        write("memory.max", "max\n");
        write("memory.stat", "anon 42\nworkingset_refault_anon 1\nworkingset_refault_file 2\n");
        write("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5\n");
        write("hugetlb.2MB.current", "4096\n");

        let metrics = metrics_v2(folder.path());
        assert_eq!(metrics.pids.unwrap(), v2::PidsStat { current: 7, limit: 0 });
        assert_eq!(metrics.cpu.unwrap().usage_usec, 123);
        let memory = metrics.memory.unwrap();
        assert_eq!((memory.anon, memory.workingset_refault, memory.usage_limit), (42, 3, u64::MAX));
        let io = &metrics.io.unwrap().usage[0];
        assert_eq!((io.major, io.minor, io.rbytes, io.wios), (8, 0, 1, 4));
        assert_eq!(metrics.hugetlb[0].pagesize, "2MB");
    }
}
