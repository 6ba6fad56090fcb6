//! Control groups: what a container uses, in both versions, and the group of the shim itself.

mod fields;
mod group;
mod oom;
pub(crate) mod processes;
mod v1;
mod v2;

use std::{
    collections::HashMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::process::Pid;
use ttrpc::Any;

use self::fields::Fields;
pub use self::group::{ControlGroup, Limits};
pub(crate) use self::oom::watch_oom;
use crate::proto::cgroups;

const ROOT: &str = "/sys/fs/cgroup";

/// Where a container's resources are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// A folder for each controller.
    V1(HashMap<String, PathBuf>),
    /// One folder.
    V2(PathBuf),
}

impl Cgroup {
    /// The group that a process is in, unless it is that of the shim, or the process is gone.
    pub fn own_of(pid: Pid) -> Option<Cgroup> {
        let of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
        let table = of(&pid.as_raw_nonzero().to_string())?;
        parse(&table, is_unified()).apart_from(&parse(&of("self")?, is_unified()))
    }

    /// The group with this path below the mount points.
    pub fn at(path: &str) -> Cgroup {
        let path = path.trim_start_matches('/');
        if is_unified() {
            return Cgroup::V2(Path::new(ROOT).join(path));
        }
        let controllers = fs::read_dir(ROOT).into_iter().flatten().flatten();
        let folders = controllers.filter_map(|entry| {
            Some((entry.file_name().into_string().ok()?, entry.path().join(path)))
        });
        Cgroup::V1(folders.filter(|(_, folder)| folder.exists()).collect())
    }

    /// What of it is not another's; nothing if all is.
    fn apart_from(self, other: &Cgroup) -> Option<Cgroup> {
        match (self, other) {
            (Cgroup::V1(mut folders), Cgroup::V1(others)) => {
                folders.retain(|controller, folder| others.get(controller) != Some(folder));
                (!folders.is_empty()).then_some(Cgroup::V1(folders))
            }
            (own, other) => (own != *other).then_some(own),
        }
    }

    /// What the group uses now. What cannot be read is left out.
    pub fn metrics(&self) -> Any {
        match self {
            Cgroup::V1(folders) => v1::metrics(folders).pack::<cgroups::v1::Metrics>(),
            Cgroup::V2(folder) => v2::metrics(folder).pack::<cgroups::v2::Metrics>(),
        }
    }
}

/// Whether there are version 2 groups alone, which have their controllers at the root.
fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
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
    let pid = std::process::id();
    let path = path.trim_start_matches('/');
    if is_unified() {
        return write(&Path::new(ROOT).join(path), "cgroup.procs", pid);
    }
    for controller in fs::read_dir(ROOT)? {
        let folder = controller?.path().join(path);
        if folder.join("cgroup.procs").exists() {
            write(&folder, "cgroup.procs", pid)?;
        }
    }
    Ok(())
}

/// Writes to a file of a group's, which only the kernel makes: where it has none, creating it is "permission denied".
///
/// # Errors
/// NOT_FOUND if it is not there, or whatever the kernel says; with its path.
fn write(folder: &Path, name: &str, value: impl ToString) -> io::Result<()> {
    let file = folder.join(name);
    let opened = OpenOptions::new().write(true).truncate(true).open(&file);
    opened
        .and_then(|mut opened| opened.write_all(value.to_string().as_bytes()))
        .map_err(|error| named(&file, error))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
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
        Table(self.text(name))
    }
}

/// The text of a file with a key and a number in each line.
struct Table(String);

impl Table {
    /// Returns the number of a key; 0 without one.
    fn get(&self, key: &str) -> u64 {
        let mut rows = self.0.lines().filter_map(|line| line.split_once(' '));
        let value = rows.find(|(name, _)| *name == key).map(|(_, value)| value.trim().parse());
        value.and_then(Result::ok).unwrap_or(0)
    }

    /// Returns a message whose fields from 1 on are the numbers of these keys, which blanks separate. `-` is the key of
    /// a field that this table knows nothing of.
    fn fields(&self, keys: &str) -> Fields {
        let mut fields = Fields::default();
        for (field, key) in (1..).zip(keys.split(' ')) {
            fields.number(field, self.get(key));
        }
        fields
    }
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

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
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

    /// A process that had not joined its group yet was said to use what the whole machine uses.
    #[test]
    fn the_shims_own_group_is_no_containers() {
        let of = |table: &str, is_unified| parse(table, is_unified);
        let shim = "3:cpu:/\n2:memory:/shims\n0::/shims\n";
        assert_eq!(of(shim, false).apart_from(&of(shim, false)), None);
        assert_eq!(of(shim, true).apart_from(&of(shim, true)), None);
        let joined = "3:cpu:/\n2:memory:/c1\n0::/c1\n";
        let Some(Cgroup::V1(folders)) = of(joined, false).apart_from(&of(shim, false)) else {
            panic!("it has joined one for memory")
        };
        assert_eq!(folders.keys().collect::<Vec<_>>(), ["memory"]);
        assert_eq!(of(joined, true).apart_from(&of(shim, true)), Some(of(joined, true)));
    }
}
